"""The stock kube-scheduler, configured as printed, schedules GPU pods through the extender."""

import functools
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest

from shoal.http.tls import FileTls, TlsFiles
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import CLAIMS, PODS, STORAGE_CLASSES, VOLUMES
from shoal.model.contract import gpushare
from shoal.scheduler.certificates import Bundle, BundleSecret
from shoal.scheduler.extender.filtering import OFFER_ALL
from shoal.scheduler.extender.holds import HOLD_SECONDS
from shoal.scheduler.kube_scheduler import ClientTls, InlineClientTls, SchedulerMode
from shoal.scheduler.tls import OwnTls
from tests.scheduler.extender.live import live
from tests.scheduler.extender.pods import CLASSES, all_bound, pod, until, used
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes, each


def are(count: int, pods: list[Pod]) -> bool:
    return len(pods) == count


@pytest.mark.parametrize("all_up_to", [OFFER_ALL, 0], ids=["all that fit", "the best alone"])
@pytest.mark.parametrize("node_cache", [True, False], ids=["names", "whole nodes"])
@pytest.mark.parametrize("mode", [SchedulerMode.DEFAULT, SchedulerMode.SECOND])
async def test_pods_of_all_families_are_placed(
    control_plane: ControlPlane,
    fake_nodes: FakeNodes,
    client: Client,
    room: str,
    mode: SchedulerMode,
    node_cache: bool,
    all_up_to: int,
) -> None:
    names = await fake_nodes(4, gpus=2)
    async with live(control_plane, all_up_to=all_up_to) as extender:
        control_plane.start_scheduler(extender.configuration(mode=mode, node_cache=node_cache))
        scheduler = "gpu-scheduler" if mode is SchedulerMode.SECOND else ""
        wanted = {
            **{f"mem-{n}": {"mem": "6"} for n in range(8)},
            **{f"mps-{n}": {"mps": "1"} for n in range(4)},
            **{f"gpu-{n}": {"gpu": "1"} for n in range(2)},
        }
        await each(
            wanted, lambda name: client.create(PODS, pod(name, scheduler=scheduler, **wanted[name]), namespace=room)
        )
        pods = await until(client, room, all_bound)
    assert {pod.spec.node_name for pod in pods} <= set(names)
    assert max(used(pods).values()) <= 16384
    by_name = {pod.metadata.name: pod.metadata.annotations for pod in pods}
    assert by_name["mem-0"]["ALIYUN_COM_GPU_MEM_POD"] == "6"
    assert by_name["mps-0"]["UUID"].startswith("GPU-")
    assert extender.metrics.binds.value("extender", "bound") == len(wanted)
    scored = extender.metrics.requests.value(gpushare.PATH_PRIORITIZE, "200")
    assert bool(scored) == bool(all_up_to), "kube-scheduler does not ask about one node"


@pytest.fixture
async def volumes(client: Client) -> AsyncIterator[Callable[[str, list[str]], Awaitable[None]]]:
    """Claims that are bound only when their pod has a node, each with a volume that waits for it."""
    made: list[str] = []
    name = f"late-{uuid.uuid4().hex[:8]}"
    await client.create(
        STORAGE_CLASSES.raw,
        {
            "metadata": {"name": name},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )

    async def make(namespace: str, claims: list[str]) -> None:
        common = {"storageClassName": name, "accessModes": ["ReadWriteOnce"]}

        async def one(claim: str) -> None:
            size = {"storage": "1Gi"}
            volume = {**common, "capacity": size, "hostPath": {"path": "/tmp"}}
            await client.create(VOLUMES.raw, {"metadata": {"name": f"{name}-{claim}"}, "spec": volume})
            made.append(f"{name}-{claim}")
            spec = {**common, "resources": {"requests": size}}
            manifest = {"metadata": {"name": claim}, "spec": spec}
            await client.create(CLAIMS.raw, manifest, namespace=namespace)

        await each(claims, one)

    yield make
    await each(made, lambda volume: client.delete(VOLUMES, volume))
    await client.delete(STORAGE_CLASSES, name)


@pytest.mark.parametrize(
    ("hold_seconds", "all_up_to"),
    [(HOLD_SECONDS, OFFER_ALL), (HOLD_SECONDS, 0), (0.0, OFFER_ALL)],
    ids=["held when scored", "held when filtered", "not held"],
)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "after volumes"])
async def test_no_two_pods_are_scored_onto_one_card(
    control_plane: ControlPlane,
    fake_nodes: FakeNodes,
    client: Client,
    room: str,
    volumes: Callable[[str, list[str]], Awaitable[None]],
    late: bool,
    hold_seconds: float,
    all_up_to: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pod for each card, of more than half a card: node totals tell kube-scheduler nothing of what fits.

    Volumes that are bound late keep kube-scheduler from binding while it scores the next pods.
    """
    nodes, cards = (8, 8) if late else (30, 8)
    names = [f"p{n}" for n in range(nodes * cards)]
    await fake_nodes(nodes, gpus=cards)
    if late:
        await volumes(room, names)
    async with live(control_plane, hold_seconds=hold_seconds, all_up_to=all_up_to) as extender:
        await each(
            names,
            lambda name: client.create(PODS, pod(name, claim=name if late else "", mem="9"), namespace=room),
        )
        started = time.monotonic()
        control_plane.start_scheduler(extender.configuration())
        pods = await until(client, room, all_bound)
        seconds = time.monotonic() - started
    refused = extender.metrics.binds.value("extender", "refused")
    waited = extender.metrics.decisions.value("extender", "error")
    ends = {end: extender.metrics.holds.value(end) for end in ("made", "bound", "elsewhere", "replaced", "expired")}
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{len(pods)} pods {'with volumes ' if late else ''}on {nodes * cards} cards in {seconds:.1f} s, "
            f"holds of {hold_seconds} s: {refused:.0f} binds refused, {waited:.0f} filters told to wait, holds {ends}"
        )
    assert len(used(pods)) == nodes * cards
    assert max(used(pods).values()) <= 16384
    if hold_seconds:
        assert refused == 0


async def test_a_pod_that_does_not_fit_is_told_why(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    (node,) = await fake_nodes(1, gpus=2)
    async with live(control_plane) as extender:
        control_plane.start_scheduler(extender.configuration())
        for name in ("a", "b"):
            await client.create(PODS, pod(name, mem="10"), namespace=room)
        await until(client, room, all_bound)
        await client.create(PODS, pod("wide", mem="8"), namespace=room)

        def told(pods: list[Pod]) -> bool:
            return any("Insufficient GPU Memory" in message for message in messages(pods, "wide"))

        pods = await until(client, room, told)
    (message,) = messages(pods, "wide")
    assert f"Insufficient GPU Memory in one device: {node} (0 of 2 cards fit 8192 MiB, 1 wanted" in message
    assert "GPU0 6144 MiB free of 16384, 8192 wanted" in message


def messages(pods: list[Pod], name: str) -> list[str]:
    """What the pod's PodScheduled condition says."""
    (pod,) = [pod for pod in pods if pod.metadata.name == name]
    return [c.message or "" for c in pod.status.conditions if c.type == "PodScheduled"]


async def test_pods_that_wait_are_woken_when_cards_are_free(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    """More pods than cards; those left over follow one by one as pods go."""
    await fake_nodes(2, gpus=2)
    names = [f"p{n}" for n in range(8)]
    async with live(control_plane) as extender:
        control_plane.start_scheduler(extender.configuration())
        await each(names, lambda name: client.create(PODS, pod(name, mem="9"), namespace=room))
        for left in range(7, 3, -1):
            pods = await until(client, room, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == 4)
            gone = next(pod.metadata.name for pod in pods if pod.spec.node_name)
            await client.delete(PODS, gone, namespace=room)
            await until(client, room, functools.partial(are, left))
        await until(client, room, all_bound)
    assert extender.state.engine.ledger.over_booked() == []


async def test_preemption_frees_the_right_card(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    await fake_nodes(1, gpus=2)
    important = f"important-{uuid.uuid4().hex[:8]}"
    await client.create(CLASSES, {"metadata": {"name": important}, "value": 1000})
    async with live(control_plane) as extender:
        control_plane.start_scheduler(extender.configuration())
        for name in ("a", "b", "c", "d"):
            await client.create(PODS, pod(name, mem="8"), namespace=room)
        pods = await until(client, room, all_bound)
        neighbours: dict[str, set[str]] = {}
        for bound in pods:
            neighbours.setdefault(bound.metadata.annotations["ALIYUN_COM_GPU_MEM_IDX"], set()).add(bound.metadata.name)
        await client.create(PODS, pod("wide", mem="12", priority=important), namespace=room)

        def placed(pods: list[Pod]) -> bool:
            return any(pod.metadata.name == "wide" and pod.spec.node_name for pod in pods)

        pods = await until(client, room, placed)
        index = next(p for p in pods if p.metadata.name == "wide").metadata.annotations["ALIYUN_COM_GPU_MEM_IDX"]
        left = {p.metadata.name for p in pods if not p.metadata.deletion_timestamp}
    await client.delete(CLASSES, important)
    assert left == {"a", "b", "c", "d", "wide"} - neighbours[index]


async def test_tls_with_client_certificates(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    await fake_nodes(1, gpus=1)
    authority = control_plane.api.authority
    server, caller = authority.server("extender", ["127.0.0.1"]), authority.client("kube-scheduler")
    files = TlsFiles(server.certificate, server.key, client_ca=authority.certificate)
    async with live(control_plane, tls=FileTls(files)) as extender:
        tls = ClientTls(str(authority.certificate), str(caller.certificate), str(caller.key))
        control_plane.start_scheduler(extender.configuration(tls=tls))
        await client.create(PODS, pod("p", mem="4"), namespace=room)
        await until(client, room, all_bound)


async def test_tls_of_the_extenders_own_making(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    """kube-scheduler takes certificates in its configuration; the old ones serve until the new ones are used."""
    await fake_nodes(1, gpus=1)
    secret = BundleSecret(client, namespace=room, name="own", now=lambda: datetime.now(UTC))
    async with live(control_plane, tls=await OwnTls.begun(secret)) as extender:
        old = half(await secret.ensure())
        control_plane.start_scheduler(extender.configuration(tls=old))
        await client.create(PODS, pod("first", mem="2"), namespace=room)
        await until(client, room, all_bound)
        new = half(await secret.rotate_client())
        await client.create(PODS, pod("second", mem="2"), namespace=room)
        await until(client, room, all_bound)
        control_plane.stop_schedulers()
        control_plane.start_scheduler(extender.configuration(tls=new))
        await client.create(PODS, pod("third", mem="2"), namespace=room)
        await until(client, room, all_bound)
        control_plane.stop_schedulers()
        control_plane.start_scheduler(extender.configuration(tls=old))
        await client.create(PODS, pod("fourth", mem="2"), namespace=room)
        refused = functools.partial(extender.metrics.requests.value, gpushare.PATH_FILTER, "401")
        pods = await until(client, room, lambda _: refused() > 0)
    assert {pod.metadata.name for pod in pods if not pod.spec.node_name} == {"fourth"}


def half(bundle: Bundle) -> InlineClientTls:
    """What kube-scheduler is given."""
    return InlineClientTls(bundle.authority.certificate, bundle.client.certificate, bundle.client.key)
