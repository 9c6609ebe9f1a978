"""What discovery does on a cluster. Each scene is played on the embedded API server and on a real one."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from shoal.discovery.app import run_leader
from shoal.discovery.cleanup import clean_up
from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.labels import gpu_labels, pci_labels
from shoal.discovery.leader import BURST, REFILL_SECONDS, Leader
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.resources import CONFIG_MAPS, LEASES, NODES
from shoal.model.contract import nvidia
from shoal.model.contract.discovery import ANNOTATION_FACTS, NodeFacts, decode_facts, encode_facts
from tests.discovery.facts import A100, SLICE, T4, node
from tests.discovery.site import SYSTEM, Site, eventually, running

VENDOR, COMPUTE, _ = nvidia.LABELS_PCI_PRESENT
FACTS = node(T4)
NO_CARD = NodeFacts(version=1, pci=())


def labels_of(facts: NodeFacts) -> dict[str, str]:
    assert facts.gpus is not None
    return {**pci_labels(facts), **gpu_labels(facts.gpus), nvidia.LABEL_PRESENT: "true"}


FULL = labels_of(FACTS)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def settled(site: Site, name: str, wanted: dict[str, str]) -> None:
    async def are() -> bool:
        return await site.labels(name) == wanted

    try:
        await eventually(are, "labelled")
    except TimeoutError:
        assert await site.labels(name) == wanted


async def quiet(site: Site, name: str, seconds: float = 2.5) -> None:
    """Nothing is written for a while."""
    before = await site.node(name)
    await asyncio.sleep(seconds)
    after = await site.node(name)
    assert after.metadata.resource_version == before.metadata.resource_version, (before, after)


async def comes_to_rest(site: Site, name: str, seconds: float) -> None:
    """Writers that may still be at it, the cluster's own among them, come to an end; those that fight never do."""
    for _ in range(5):
        before = await site.node(name)
        await asyncio.sleep(seconds)
        if (await site.node(name)).metadata.resource_version == before.metadata.resource_version:
            return
    await quiet(site, name, seconds)


async def a_machine_is_labelled_and_stays_so(site: Site) -> None:
    """From the bus to the labels, under the rights of both accounts; then restarts, a driver that goes, other cards."""
    name = await site.new_node()
    hardware = site.hardware("2xT4")
    async with site.leader() as leader:
        async with site.worker(name, hardware):
            await eventually(lambda: leader.writes >= 1, "a write")

            async def product() -> str | None:
                return (await site.labels(name)).get(nvidia.LABEL_PRODUCT)

            async def is_t4() -> bool:
                return await product() == "Tesla-T4"

            await eventually(is_t4, "labels of the cards")
            told = await site.labels(name)
            assert (told[VENDOR], told[COMPUTE], told[nvidia.LABEL_PRESENT]) == ("true", "true", "true")
            assert (told[nvidia.LABEL_COUNT], told[nvidia.LABEL_MACHINE]) == ("2", "PowerEdge-R750xa")
            await quiet(site, name)
            # Somebody takes the annotation away: the worker writes it again, and no label goes.
            await site.tell(name, None)

            async def annotated() -> bool:
                return ANNOTATION_FACTS in (await site.node(name)).metadata.annotations

            await eventually(annotated, "the annotation")
            assert await site.labels(name) == told
            hardware.unload()
            await quiet(site, name)
        # No worker: nothing changes. A worker without a driver after that: neither.
        await quiet(site, name, 1.0)
        async with site.worker(name, hardware):
            await quiet(site, name)
        assert await site.labels(name) == told
        async with site.worker(name, hardware, driver=False):
            await quiet(site, name, 1.0)
        hardware.have([{"model": "A100-80G", "count": 1}])
        async with site.worker(name, hardware):

            async def is_a100() -> bool:
                return await product() == "NVIDIA-A100-SXM4-80GB"

            await eventually(is_a100, "labels of the new card")
            swapped = await site.labels(name)
            assert (swapped[nvidia.LABEL_COUNT], swapped[nvidia.LABEL_MIG_CAPABLE]) == ("1", "true")
            assert {key for key in swapped if key not in told} == set()
    async with site.leader() as leader:
        await eventually(lambda: leader.idle, "looked at all")
        await quiet(site, name, 1.0)
        assert leader.writes == 0, "a restart writes nothing"


async def a_worker_on_a_machine_without_a_card_writes_nothing(site: Site) -> None:
    name = await site.new_node()
    hardware = site.hardware()
    hardware.remove_cards()
    async with site.worker(name, hardware), site.leader():
        await quiet(site, name)
    assert ANNOTATION_FACTS not in (await site.node(name)).metadata.annotations
    assert hardware.opened == 0


async def the_configuration_of_nvidias_plugin_is_told(site: Site) -> None:
    name = await site.new_node({nvidia.LABEL_DEVICE_PLUGIN_CONFIG: "shared"})
    config = {
        "metadata": {"name": "device-plugin-config", "namespace": SYSTEM},
        "data": {
            "shared": "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}",
            "plain": "version: v1",
        },
    }
    with contextlib.suppress(NotFoundError):
        await site.client.delete(CONFIG_MAPS, "device-plugin-config", namespace=SYSTEM)
    await site.client.create(CONFIG_MAPS.raw, config)
    where = f"{SYSTEM}/device-plugin-config"

    async def replicas(wanted: str) -> None:
        async def are() -> bool:
            return (await site.labels(name)).get(nvidia.LABEL_REPLICAS) == wanted

        await eventually(are, f"{wanted} replicas")

    async with site.leader(), site.worker(name, site.hardware(), nvidia_config_map=where):
        await replicas("4")
        told = await site.labels(name)
        assert (told[nvidia.LABEL_PRODUCT], told[nvidia.LABEL_SHARING_STRATEGY]) == ("Tesla-T4-SHARED", "time-slicing")
        await site.client.patch(NODES, name, {"metadata": {"labels": {nvidia.LABEL_DEVICE_PLUGIN_CONFIG: "plain"}}})
        await replicas("1")
        # What cannot be read leaves the last good one in force.
        broken = {"data": {"plain": "version: v9"}}
        await site.client.patch(CONFIG_MAPS, "device-plugin-config", broken, namespace=SYSTEM)
        await quiet(site, name)
    async with site.leader(), site.worker(name, site.hardware(), nvidia_config_map=where):
        await quiet(site, name)


async def no_card_counts_after_the_grace_time(site: Site) -> None:
    clock = Clock()
    name = await site.new_node()
    await site.tell(name, FACTS)
    async with site.leader(clock, grace_seconds=300) as leader:
        await settled(site, name, FULL)
        await site.tell(name, NO_CARD)
        await quiet(site, name)
        clock.now += 299
        leader.remind()
        await quiet(site, name, 1.0)
        # The card is back in time: the clock begins anew when it goes again.
        await site.tell(name, FACTS)
        await eventually(lambda: leader.idle and decoded(leader, name) == FACTS, "seen")
        await site.tell(name, NO_CARD)
        await eventually(lambda: leader.idle and decoded(leader, name) == NO_CARD, "seen")
        clock.now += 299
        leader.remind()
        await quiet(site, name, 1.0)
        clock.now += 2
        await settled(site, name, {nvidia.LABEL_PRESENT: "false"})
        await quiet(site, name)
        await site.tell(name, FACTS)
        await settled(site, name, FULL)


def written(leader: Leader, name: str) -> str | None:
    """The facts that the leader has seen last."""
    found = leader.reflector.store.get(name)
    return None if found is None else found.metadata.annotations.get(ANNOTATION_FACTS)


def decoded(leader: Leader, name: str) -> NodeFacts | None:
    text = written(leader, name)
    return None if text is None else decode_facts(text)


async def a_leader_that_begins_anew_begins_the_grace_time_anew(site: Site) -> None:
    clock = Clock()
    name = await site.new_node()
    await site.tell(name, FACTS)
    async with site.leader(clock):
        await settled(site, name, FULL)
    await site.tell(name, NO_CARD)
    for _ in range(3):
        async with site.leader(clock) as leader:
            await eventually(lambda leader=leader: leader.idle, "looked at")  # type: ignore[misc]
            clock.now += 200
            leader.remind()
            await quiet(site, name, 1.0)


async def facts_that_cannot_be_read_change_nothing(site: Site) -> None:
    name = await site.new_node()
    await site.tell(name, FACTS)
    async with site.leader() as leader:
        await settled(site, name, FULL)
        await eventually(lambda: leader.idle, "the last write counted")
        before = leader.writes
        for text in ("", "{}", "junk\nERROR forged", encode_facts(FACTS).replace('"version":1', '"version":2')):
            await site.tell(name, text)
            await eventually(lambda text=text: leader.idle and written(leader, name) == text, "seen")  # type: ignore[misc]
        await quiet(site, name, 1.0)
        assert await site.labels(name) == FULL
        assert leader.writes == before


async def a_node_that_changes_its_word_all_the_time_is_written_seldom(site: Site) -> None:
    clock = Clock()
    name = await site.new_node()
    async with site.leader(clock) as leader:
        for turn in range(3 * BURST):
            facts = node(T4, since=turn)
            await site.tell(name, facts)
            await eventually(lambda facts=facts: leader.idle and decoded(leader, name) == facts, "seen")  # type: ignore[misc]
        await quiet(site, name, 1.5)
        assert leader.writes <= BURST
        clock.now += REFILL_SECONDS + 1
        await settled(site, name, labels_of(facts))
        assert leader.writes <= BURST + 1


async def labels_of_partitions_come_and_go(site: Site) -> None:
    name = await site.new_node()
    cut = node(
        CARD_IN_MIG_MODE,
        mig_strategy="mixed",
    )
    async with site.leader():
        await site.tell(name, cut)
        await settled(site, name, labels_of(cut))
        assert (await site.labels(name))["nvidia.com/mig-1g.5gb.count"] == "1"
        await site.tell(name, FACTS)
        await settled(site, name, FULL)


async def what_another_manager_holds_is_left_to_it(site: Site) -> None:
    name = await site.new_node()
    await site.patch_as("kubectl-label", name, {"labels": {nvidia.LABEL_PRESENT: "false", nvidia.LABEL_CLIQUE: "x"}})
    await site.tell(name, FACTS)
    held = {nvidia.LABEL_PRESENT: "false", nvidia.LABEL_CLIQUE: "x"}
    async with site.leader() as leader:
        await settled(site, name, {**FULL, **held})
        await quiet(site, name)
        # Somebody changes a label of ours by hand: it is theirs until they take it away.
        await site.patch_as("kubectl-label", name, {"labels": {nvidia.LABEL_PRODUCT: "Mine"}})
        await quiet(site, name)
        await site.tell(name, node(A100))
        swapped = {**labels_of(node(A100)), **held, nvidia.LABEL_PRODUCT: "Mine"}
        await settled(site, name, swapped)
        await site.patch_as("kubectl-label", name, {"labels": {nvidia.LABEL_PRODUCT: None}})
        await settled(site, name, {**labels_of(node(A100)), **held})
        # Somebody takes one of ours away: it comes back.
        await site.patch_as("kubectl-label", name, {"labels": {nvidia.LABEL_COUNT: None}})
        await settled(site, name, {**labels_of(node(A100)), **held})
        await eventually(lambda: leader.idle, "the last write counted")
        writes = leader.writes
        await quiet(site, name)
        assert leader.writes == writes
    async with site.leader() as leader:
        await eventually(lambda: leader.idle, "looked at")
        await quiet(site, name, 1.0)
        assert leader.writes == 0


async def beside_nfd(site: Site) -> None:
    """NFD before us, and after us; then it goes, and then we go."""
    name = await site.new_node()
    listed = {"annotations": {nvidia.ANNOTATION_NFD_LABELS: "pci-10de.present,nvidia.com/gpu.machine"}}
    theirs = {VENDOR: "true", nvidia.LABEL_MACHINE: "Theirs"}
    await site.patch_as("nfd-master", name, {**listed, "labels": theirs})
    async with site.leader():
        # No worker yet: NFD's label alone says that there is a card.
        await settled(site, name, {**theirs, nvidia.LABEL_PRESENT: "true"})
        await site.tell(name, FACTS)
        await settled(site, name, {**FULL, nvidia.LABEL_MACHINE: "Theirs"})
        await site.patch_as("nfd-master", name, {"labels": {nvidia.LABEL_MACHINE: "Changed"}})
        await quiet(site, name)
        # NFD lists one that we wrote first: it does not own it, and still it must stay.
        more = f"{listed['annotations'][nvidia.ANNOTATION_NFD_LABELS]},{nvidia.LABEL_COUNT}"
        await site.patch_as("nfd-master", name, {"annotations": {nvidia.ANNOTATION_NFD_LABELS: more}})
        await site.tell(name, node(A100))
        changed = {nvidia.LABEL_MACHINE: "Changed", nvidia.LABEL_COUNT: FULL[nvidia.LABEL_COUNT]}
        await settled(site, name, {**labels_of(node(A100)), **changed})
    async with Client(await site.as_leader()) as client:
        await clean_up(client, DiscoveryConfig())
    assert await site.labels(name) == {VENDOR: "true", **changed}
    found = await site.node(name)
    assert ANNOTATION_FACTS not in found.metadata.annotations
    assert nvidia.ANNOTATION_NFD_LABELS in found.metadata.annotations


async def beside_gfd(site: Site) -> None:
    """GFD's labels come through NFD, or by hand: none of them is written."""
    name = await site.new_node()
    theirs = {nvidia.LABEL_TIMESTAMP: "12", nvidia.LABEL_PRODUCT: "Theirs"}
    await site.patch_as("somebody", name, {"labels": theirs})
    await site.tell(name, FACTS)
    async with site.leader():
        await settled(site, name, {**pci_labels(FACTS), nvidia.LABEL_PRESENT: "true", **theirs})
        await site.patch_as("somebody", name, {"labels": {nvidia.LABEL_TIMESTAMP: "13"}})
        await quiet(site, name)
        # GFD is gone, and what it wrote.
        await site.patch_as("somebody", name, {"labels": dict.fromkeys(theirs)})
        await settled(site, name, FULL)


async def cleanup_takes_our_own_and_nothing_else(site: Site) -> None:
    ours, mixed, other = await site.new_node(), await site.new_node(), await site.new_node()
    await site.patch_as("kubectl-label", mixed, {"labels": {nvidia.LABEL_FAMILY: "mine", "nvidia.com/mig.config": "x"}})
    await site.patch_as("kubectl-label", other, {"labels": {nvidia.LABEL_PRESENT: "true"}})
    for name in (ours, mixed):
        await site.tell(name, FACTS)
    config = DiscoveryConfig()
    access = await site.as_leader()
    async with running(run_leader(config, access, identity="one")):
        await settled(site, ours, FULL)
        await settled(site, mixed, {**FULL, nvidia.LABEL_FAMILY: "mine", "nvidia.com/mig.config": "x"})
    untouched = await site.node(other)
    async with Client(access) as client:
        assert await clean_up(client, config) == 2
        assert await clean_up(client, config) == 0
    assert await site.labels(ours) == {}
    assert await site.labels(mixed) == {nvidia.LABEL_FAMILY: "mine", "nvidia.com/mig.config": "x"}
    assert (await site.node(other)).metadata == untouched.metadata
    for name in (ours, mixed):
        assert ANNOTATION_FACTS not in (await site.node(name)).metadata.annotations
    leases = (await site.client.list(LEASES, namespace=SYSTEM)).items
    assert [lease.metadata.name for lease in leases if lease.metadata.name == config.lease_name] == []


async def two_replicas_and_one_that_dies(site: Site) -> None:
    name = await site.new_node()
    config = DiscoveryConfig()
    access = await site.as_leader()
    first = asyncio.create_task(run_leader(config, access, identity="one"))
    await site.tell(name, FACTS)
    await settled(site, name, FULL)
    async with running(run_leader(config, access, identity="two")):
        first.cancel()
        await asyncio.wait({first})
        await site.tell(name, node(A100))
        await settled(site, name, labels_of(node(A100)))
        await quiet(site, name)


async def a_node_that_is_deleted_does_not_come_back(site: Site) -> None:
    name = await site.new_node()
    await site.tell(name, FACTS)
    async with site.leader() as leader:
        await settled(site, name, FULL)
        await site.client.delete(NODES, name)
        await eventually(lambda: leader.reflector.store.get(name) is None, "seen")
        await site.client.create(NODES.raw, {"metadata": {"name": name}})
        await asyncio.sleep(1.0)
        assert await site.labels(name) == {}, "the new machine has told nothing yet"
        await site.tell(name, FACTS)
        await settled(site, name, FULL)


async def accounts_may_write_their_own_and_nothing_else(site: Site) -> None:
    """Whoever has taken a node, or the leader itself."""
    mine, far = await site.new_node(), await site.new_node()
    worker, leader = await site.as_worker(mine), await site.as_leader()
    fact = {"annotations": {ANNOTATION_FACTS: encode_facts(FACTS)}}
    assert await site.refusal(worker, mine, fact) == ""
    for account, name, metadata, more, word in (
        (worker, far, fact, {}, "the worker writes to its own node only"),
        (worker, mine, {"annotations": {"shoal.dev/gpus": "x"}}, {}, "annotation shoal.dev/gpus of a node is not for"),
        (worker, mine, {"annotations": {ANNOTATION_FACTS: "x" * 32769}}, {}, "more than 32768"),
        (worker, mine, {"labels": {nvidia.LABEL_PRESENT: "true"}}, {}, "changes annotations of a node only"),
        (worker, mine, {"labels": {"own": None}}, {}, "changes annotations of a node only"),
        (worker, mine, {}, {"spec": {"unschedulable": True}}, "changes annotations of a node only"),
        (leader, mine, {"labels": {"node-role.kubernetes.io/control-plane": ""}}, {}, "is not for the leader"),
        (leader, mine, {"labels": {"nvidia.com/gpu.deploy.driver": "false"}}, {}, "is not for the leader"),
        (leader, mine, {"labels": {"own": None}}, {}, "label own of a node is not for the leader"),
        (leader, mine, {"annotations": {"x": "y"}}, {}, "the leader writes no annotations"),
        (leader, mine, {"annotations": {ANNOTATION_FACTS: "x"}}, {}, "the leader writes no annotations"),
        (
            leader,
            mine,
            {},
            {"spec": {"unschedulable": True}},
            "changes labels of a node only",
        ),
    ):
        assert word in await site.refusal(account, name, metadata, **more), (metadata, more)
    many = node(CARD_IN_MIG_MODE, mig_strategy="mixed", vgpus=())
    assert await site.refusal(leader, mine, {"labels": {**labels_of(many), nvidia.LABEL_CLIQUE: "x"}}) == ""
    unbound = await site._as("shoal-discovery-worker")
    assert "does not say on which node" in await site.refusal(unbound, mine, fact)
    assert await site.refusal(leader, mine, {"annotations": {ANNOTATION_FACTS: None}}) == ""


CARD_IN_MIG_MODE = msgspec.structs.replace(A100, mig=True, partitions=(SLICE,))

SCENES = (
    a_machine_is_labelled_and_stays_so,
    a_worker_on_a_machine_without_a_card_writes_nothing,
    the_configuration_of_nvidias_plugin_is_told,
    no_card_counts_after_the_grace_time,
    a_leader_that_begins_anew_begins_the_grace_time_anew,
    facts_that_cannot_be_read_change_nothing,
    a_node_that_changes_its_word_all_the_time_is_written_seldom,
    labels_of_partitions_come_and_go,
    what_another_manager_holds_is_left_to_it,
    beside_nfd,
    beside_gfd,
    cleanup_takes_our_own_and_nothing_else,
    two_replicas_and_one_that_dies,
    a_node_that_is_deleted_does_not_come_back,
    accounts_may_write_their_own_and_nothing_else,
)
