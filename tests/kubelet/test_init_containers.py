"""Init containers share devices with later containers of their pod: what tells them apart, and what does not."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.kubelet.conftest import NewPlugin
from tests.kubelet.device_plugin import DevicePlugin, PluginLoop, holders, pod_resources
from tests.kubelet.pods import FOREVER, Pods, container, container_status, pod
from tests.testbed.node import Node


@dataclass
class Witness:
    """Answers each PreStartContainer by the rule below, and keeps what every source said at that moment."""

    node: Node
    pods: Pods
    resource: str = ""
    #: By the name the rule gave, in order: the containers PodResources had, the candidates of the checkpoint.
    seen: list[tuple[str, dict[str, frozenset[str]], list[str]]] = field(default_factory=list)

    async def edits(self, ids: Sequence[str]) -> dict:
        """Give the container its name."""
        listed = {key[2]: held for key, held in holders(await pod_resources(self.node), self.resource).items()}
        entries = [entry for entry in records(self.node, self.resource) if entry[2] == set(ids)]
        assert len({uid for uid, _, _ in entries}) == 1, "devices belong to one pod"
        candidates = sorted(name for _, name, _ in entries)  # the checkpoint has them in no order
        name = await self._next(entries[0][0], candidates)
        self.seen.append((name, listed, candidates))
        return {"env": [f"NAME={name}"]}

    async def _next(self, uid: str, candidates: Sequence[str]) -> str:
        """The rule: the checkpoint names the pod and every container with just these devices; the pod's status says
        how far they have come. kubelet sends the status while it goes on, so it may be a step behind: a name that was
        given before is believed only when the status stays as it is, which it does when kubelet tries once more."""
        given = {name for name, _, _ in self.seen}
        for _ in range(100):
            found = next(one for one in await asyncio.to_thread(self.pods.all) if one["metadata"]["uid"] == uid)
            name = next_container(found, candidates)
            if name not in given:
                return name
            await asyncio.sleep(0.1)
        return name


def records(node: Node, resource: str) -> list[tuple[str, str, set[str]]]:
    """Pod UID, container and devices of each entry of kubelet's checkpoint for a resource."""
    return [
        (entry["PodUID"], entry["ContainerName"], {one for ids in entry["DeviceIDs"].values() for one in ids})
        for entry in node.checkpoint()["PodDeviceEntries"] or []
        if entry["ResourceName"] == resource
    ]


def next_container(found: dict, candidates: Sequence[str]) -> str:
    """Which of the candidates kubelet is about to create: the first, in the order they start, that is not done."""
    init = found["spec"].get("initContainers", [])
    for one in [*init, *found["spec"]["containers"]]:
        state = container_status(found, one["name"]).get("state", {})
        done = state.get("terminated", {}).get("exitCode") == 0 or "running" in state
        if one["name"] in candidates and not done:
            return str(one["name"])
    raise AssertionError(f"none of {candidates} is still to start in {found['status']}")


def start(node: Node, pods: Pods, new_plugin: NewPlugin) -> tuple[Witness, DevicePlugin]:
    witness = Witness(node, pods)
    plugin = new_plugin(node, 16, witness.edits)
    witness.resource = plugin.resource
    return witness, plugin


def test_init_containers_and_a_sidecar(kubelet: Node, pods: Pods, new_plugin: NewPlugin, plugin_loop: PluginLoop):
    witness, plugin = start(kubelet, pods, new_plugin)
    sidecar = container("sidecar", f"echo $NAME; {FOREVER}", {plugin.resource: 2}, restartPolicy="Always")
    init = [
        container("i1", "echo $NAME", {plugin.resource: 2}),
        sidecar,
        container("i2", "echo $NAME", {plugin.resource: 4}),
    ]
    pods.create(pod("mixed", [container("app", f"echo $NAME; {FOREVER}", {plugin.resource: 3})], init), kubelet)
    pods.wait_running("mixed")
    for name in ("i1", "sidecar", "i2", "app"):
        assert pods.log("mixed", name).strip() == name

    ids = {name: found for _, name, found in records(kubelet, plugin.resource)}
    assert {name: len(found) for name, found in ids.items()} == {"i1": 2, "sidecar": 2, "i2": 4, "app": 3}
    assert ids["i1"] == ids["sidecar"], "a sidecar takes over the devices of the init container before it"
    assert ids["app"] < ids["i2"], "the app takes over devices of the init container"
    assert not ids["sidecar"] & ids["app"]

    listed = {"sidecar": frozenset(ids["sidecar"]), "app": frozenset(ids["app"])}
    assert [name for name, _, _ in witness.seen] == ["i1", "sidecar", "i2", "app"]
    assert all(said == listed for _, said, _ in witness.seen), "PodResources never lists i1 and i2"
    assert [candidates for _, _, candidates in witness.seen] == [["i1", "sidecar"], ["i1", "sidecar"], ["i2"], ["app"]]
    after = holders(plugin_loop.run(pod_resources(kubelet)), plugin.resource)
    assert {key[2]: held for key, held in after.items()} == listed


def test_pod_whose_only_device_is_in_an_init_container(kubelet: Node, pods: Pods, new_plugin: NewPlugin):
    witness, plugin = start(kubelet, pods, new_plugin)
    init = [container("prepare", "echo $NAME", {plugin.resource: 2})]
    pods.create(pod("prepared", [container("app", "exit 0")], init), kubelet)
    pods.wait_phase("prepared", "Succeeded")
    assert pods.log("prepared", "prepare").strip() == "prepare"
    assert witness.seen == [("prepare", {}, ["prepare"])], "PodResources shows nothing, the checkpoint does"
