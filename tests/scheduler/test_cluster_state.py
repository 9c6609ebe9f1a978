"""The cluster state under any history of the watch: the same as one made anew from the objects that are left."""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.kube.objects.node import Node
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.shoal import ANNOTATION_ALLOCATION, decode_allocation
from shoal.model.gpu import Gpu
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler.binder import annotations_of
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.state.cluster_state import REASON_NODE, REASON_OVER, REASON_POD, ClusterState
from tests.soak import times
from tests.testbed.fake_nodes import node as node_object

NODES = ("n0", "n1", "n2")
#: What a pod may ask for; the last is no request that can be met.
LIMITS: tuple[dict[str, str], ...] = (
    {"aliyun.com/gpu-mem": "4"},
    {"aliyun.com/gpu-mem": "12"},
    {"keti.com/mpsgpu": "1"},
    {"nvidia.com/gpu": "1"},
    {"cpu": "2"},
    {"aliyun.com/gpu-mem": "10G"},
)


class Told:
    """A cluster state, and what it had to report."""

    def __init__(self) -> None:
        self.news = ClusterEvent(0)
        self.now = 0.0
        self.reports: list[tuple[str, str, str]] = []
        self.state = ClusterState(
            Engine(Ledger(), POLICIES["binpack"]),
            ClusterTables(),
            unit=MemoryUnit.GIB,
            news=self._hear,
            report=lambda obj, reason, text: self.reports.append((obj.metadata.name, reason, text)),
            clock=lambda: self.now,
        )

    def _hear(self, news: ClusterEvent) -> None:
        self.news |= news

    def node(self, name: str, gpus: list[Gpu], **metadata: Any) -> None:
        manifest = node_object(name, gpus)
        manifest["metadata"].update(metadata)
        self.see_node(msgspec.convert(manifest, Node))

    def see_node(self, node: Node) -> None:
        self.state.on_node(Change(ChangeType.MODIFIED, None, node))

    def see(self, pod: Pod) -> None:
        self.state.on_pod(Change(ChangeType.MODIFIED, None, pod))

    def gone(self, pod: Pod) -> None:
        self.state.on_pod(Change(ChangeType.DELETED, pod, None))

    def held(self) -> dict[str, tuple[str, dict[str, object]]]:
        """Node and cards of every pod."""
        return {
            booking.pod: (booking.node, dict(booking.allocation.held()))
            for booking in self.state.engine.ledger.bookings()
        }


def cards(node: str, sizes: list[int]) -> list[Gpu]:
    return [
        Gpu(uuid=f"GPU-{node}-{index}", index=index, memory_mib=size * 1024, model="A30")
        for index, size in enumerate(sizes)
    ]


def a_pod(name: str, limits: dict[str, str], **more: Any) -> Pod:
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **more.pop("metadata", {})},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}], **more},
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(document, Pod)


def bound(pod: Pod, node: str, annotations: dict[str, str]) -> Pod:
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name=node),
    )


class History(RuleBasedStateMachine):
    """Nodes and pods come, change and go; pods are placed here or elsewhere; the watch tells all of it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Told()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        #: Decided here and not yet shown by the watch.
        self.open: dict[str, tuple[str, dict[str, str]]] = {}
        self.names = 0

    @rule(name=st.sampled_from(NODES), sizes=st.lists(st.sampled_from([16, 24]), max_size=4), counted=st.booleans())
    def set_node(self, name: str, sizes: list[int], counted: bool) -> None:
        """An agent tells the node's cards, or a plugin that only counts them."""
        manifest = node_object(name, cards(name, sizes))
        if counted:
            del manifest["metadata"]["annotations"]
        self.nodes[name] = msgspec.convert(manifest, Node)
        self.told.see_node(self.nodes[name])

    @rule(name=st.sampled_from(NODES))
    def remove_node(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is not None:
            self.told.state.on_node(Change(ChangeType.DELETED, node, None))

    @rule(limits=st.sampled_from(LIMITS))
    def create(self, limits: dict[str, str]) -> None:
        self.names += 1
        pod = a_pod(f"p{self.names}", limits)
        self.pods[pod.metadata.uid] = pod
        self.told.see(pod)

    @rule(data=st.data())
    def place_here(self, data: st.DataObject) -> None:
        waiting = [uid for uid, pod in self.pods.items() if not pod.spec.node_name and uid not in self.open]
        if not waiting:
            return
        pod = self.pods[data.draw(st.sampled_from(waiting))]
        if pod.spec.containers[0].resources.limits == LIMITS[-1]:
            return
        over = self._over()
        allocation = self.told.state.place(pod)
        assert self._over() == over, "a decision over-booked a card"
        if allocation is not None:
            inventory = self.told.state.engine.ledger.node(allocation.node).inventory  # type: ignore[union-attr]
            assert inventory is not None
            annotations = annotations_of(pod, allocation, inventory=inventory, unit=MemoryUnit.GIB, now_ns=1)
            self.open[pod.metadata.uid] = allocation.node, annotations
            if annotations:
                self.told.state.write(pod.metadata.uid, annotations)

    def _over(self) -> list[tuple[str, int]]:
        return [(card.uuid, card.used.memory_mib) for card in self.told.state.engine.ledger.over_booked()]

    @rule(data=st.data(), accepted=st.booleans())
    def binding_answered(self, data: st.DataObject, accepted: bool) -> None:
        if not self.open:
            return
        uid = data.draw(st.sampled_from(sorted(self.open)))
        node, annotations = self.open.pop(uid)
        if accepted:
            self.pods[uid] = bound(self.pods[uid], node, annotations)
            self.told.see(self.pods[uid])
        else:
            self.told.state.cancel(uid)

    @rule(data=st.data(), node=st.sampled_from(NODES), index=st.integers(0, 4))
    def bound_elsewhere(self, data: st.DataObject, node: str, index: int) -> None:
        """Another scheduler takes a pod, with Aliyun's annotations, right or wrong, or with none."""
        waiting = [uid for uid, pod in self.pods.items() if not pod.spec.node_name]
        if not waiting:
            return
        uid = data.draw(st.sampled_from(waiting))
        units = str(self.pods[uid].spec.containers[0].resources.limits.get("aliyun.com/gpu-mem", "0"))
        annotations = {"ALIYUN_COM_GPU_MEM_IDX": str(index), "ALIYUN_COM_GPU_MEM_POD": units} if index < 4 else {}
        self.pods[uid] = bound(self.pods[uid], node, annotations)
        self.told.see(self.pods[uid])
        if self.open.pop(uid, None) is not None:
            self.told.state.cancel(uid)  # our Binding came too late

    @rule(data=st.data(), finished=st.booleans())
    def leave(self, data: st.DataObject, finished: bool) -> None:
        if not self.pods:
            return
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        pod = self.pods.pop(uid)
        self.open.pop(uid, None)
        if finished:
            self.told.see(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Succeeded")))
        self.told.gone(pod)

    @invariant()
    def as_if_made_anew(self) -> None:
        """What the state holds is what the objects say. Guesses may fall on other cards, but on the same node."""
        fresh = Told()
        for node in self.nodes.values():
            fresh.see_node(node)
        for pod in self.pods.values():
            fresh.see(pod)
        ours, anew = self.told.held(), fresh.held()
        assert set(ours) - set(self.open) == set(anew)
        for uid, (name, held) in anew.items():
            assert ours[uid][0] == name
            if self._told_by_annotations(self.pods[uid]):
                assert ours[uid][1] == held
            assert len(ours[uid][1]) >= len(held), "a card that is in use looks free"
        for name, state in ((name, self.told.state.engine.ledger.node(name)) for name in self.nodes):
            again = fresh.state.engine.ledger.node(name)
            assert state is not None
            assert again is not None
            assert state.inventory == again.inventory
        assert self.told.state.tables.nodes.alive.sum() == len(self.nodes)

    def _told_by_annotations(self, pod: Pod) -> bool:
        """The pod's cards are certain: its annotations name cards that its node has, or that of a node without any."""
        annotations = pod.metadata.annotations
        node = self.nodes.get(pod.spec.node_name)
        if node is None:
            return False
        state = self.told.state.engine.ledger.node(node.metadata.name)
        assert state is not None
        if (own := annotations.get(ANNOTATION_ALLOCATION)) is not None:
            named = [card.index for container in decode_allocation(own).containers for card in container.cards]
            return not state.slots or all(index < len(state.slots) for index in named)
        if "ALIYUN_COM_GPU_MEM_IDX" not in annotations:
            return False
        asks = "aliyun.com/gpu-mem" in pod.spec.containers[0].resources.limits
        return asks and int(annotations["ALIYUN_COM_GPU_MEM_IDX"]) < len(state.slots)


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=times(40), stateful_step_count=30, deadline=None)


# Single cases


def test_card_taken_by_two_is_told_once_and_takes_nothing_new() -> None:
    told = Told()
    told.node("n0", cards("n0", [16]))
    for name in ("a", "b"):
        told.see(
            bound(
                a_pod(name, {"aliyun.com/gpu-mem": "12"}),
                "n0",
                {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "12"},
            )
        )
    over = [text for name, reason, text in told.reports if reason == REASON_OVER]
    assert over == [
        "card 0 (GPU-n0-0) holds 24576 of 16384 MiB for 2 pods: it takes nothing new; delete or move one of those that "
        "kubectl inspect gpushare -d lists"
    ]
    assert told.state.place(a_pod("c", {"aliyun.com/gpu-mem": "1"})) is None


def test_cards_get_their_names_while_a_decision_is_on_its_way() -> None:
    told = Told()
    listed = node_object("n0", cards("n0", [16, 16]))
    counted = {**listed, "metadata": {**listed["metadata"], "annotations": {}}}
    told.see_node(msgspec.convert(counted, Node))
    pod = a_pod("a", {"aliyun.com/gpu-mem": "12"})
    allocation = told.state.place(pod)
    inventory = told.state.engine.ledger.node("n0").inventory  # type: ignore[union-attr]
    assert allocation is not None
    assert inventory is not None
    written = annotations_of(pod, allocation, inventory=inventory, unit=MemoryUnit.GIB, now_ns=1)
    told.state.write("uid-a", written)
    told.see_node(msgspec.convert(listed, Node))
    told.see(bound(pod, "n0", written))
    assert list(told.held()["uid-a"][1]) == ["GPU-n0-0"]


@pytest.mark.parametrize("annotated", [True, False], ids=["decided", "guessed"])
def test_pods_stay_booked_when_somebody_else_tells_the_cards(annotated: bool) -> None:
    """An agent takes the place of a plugin that only counts, and goes again: the cards get other names."""
    told = Told()
    counted, listed = node_object("n0", cards("n0", [16, 16])), node_object("n0", cards("n0", [16, 16]))
    del counted["metadata"]["annotations"]
    told.see_node(msgspec.convert(counted, Node))
    pod = a_pod("a", {"aliyun.com/gpu-mem": "12"})
    allocation = told.state.place(pod)
    assert allocation is not None
    inventory = told.state.engine.ledger.node("n0").inventory  # type: ignore[union-attr]
    assert inventory is not None
    written = annotations_of(pod, allocation, inventory=inventory, unit=MemoryUnit.GIB, now_ns=1)
    told.see(bound(pod, "n0", written if annotated else {}))
    for manifest, name in ((listed, "GPU-n0-0"), (counted, "shoal-n0-0"), (listed, "GPU-n0-0")):
        told.see_node(msgspec.convert(manifest, Node))
        assert list(told.held()["uid-a"][1]) == [name]
        other = told.state.place(a_pod("b", {"aliyun.com/gpu-mem": "12"}))
        assert other is not None
        assert [card.index for card in other.containers[0].cards] == [1]
        told.state.cancel("uid-b")
    assert [reason for _, reason, _ in told.reports] == []


def test_pod_without_a_decision_holds_a_card_nobody_else_gets() -> None:
    told = Told()
    told.node("n0", cards("n0", [16, 16]))
    told.see(bound(a_pod("a", {"nvidia.com/gpu": "1"}), "n0", {}))
    (held,) = told.held()["uid-a"][1]
    allocation = told.state.place(a_pod("b", {"nvidia.com/gpu": "1"}))
    assert allocation is not None
    assert [card.uuid for card in allocation.containers[0].cards] == [
        uuid for uuid in ("GPU-n0-0", "GPU-n0-1") if uuid != held
    ]


def test_decision_that_arrives_later_replaces_the_guess() -> None:
    told = Told()
    told.node("n0", cards("n0", [16, 16]))
    pod = a_pod("a", {"aliyun.com/gpu-mem": "4"})
    told.see(bound(pod, "n0", {}))
    assert set(told.held()["uid-a"][1]) == {"GPU-n0-0"}
    told.see(bound(pod, "n0", {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"}))
    assert set(told.held()["uid-a"][1]) == {"GPU-n0-1"}


def test_pod_seen_before_its_node_is_understood_when_the_node_comes() -> None:
    told = Told()
    pod = a_pod("a", {"aliyun.com/gpu-mem": "4"})
    told.see(bound(pod, "n0", {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"}))
    told.node("n0", cards("n0", [16, 16]))
    assert set(told.held()["uid-a"][1]) == {"GPU-n0-1"}


@pytest.mark.parametrize("told_before", [False, True], ids=["no node", "a node without cards"])
@pytest.mark.parametrize("limits", [{"aliyun.com/gpu-mem": "4"}, {"nvidia.com/gpu": "2"}], ids=["share", "cards"])
def test_pod_without_a_decision_seen_before_its_cards_is_counted_when_they_come(
    limits: dict[str, str], told_before: bool
) -> None:
    told = Told()
    if told_before:
        told.node("n0", [])
    told.see(bound(a_pod("a", limits), "n0", {}))
    assert not told.held()["uid-a"][1]
    told.node("n0", cards("n0", [16, 16]))
    assert len(told.held()["uid-a"][1]) == int(limits.get("nvidia.com/gpu", 1))


def test_node_whose_inventory_is_broken_takes_no_pods_and_comes_back() -> None:
    told = Told()
    told.node("n0", cards("n0", [16]))
    told.node("n0", cards("n0", [16]), annotations={"shoal.dev/gpus": "{"})
    assert [(name, reason) for name, reason, _ in told.reports] == [("n0", REASON_NODE)]
    assert told.state.place(a_pod("a", {"aliyun.com/gpu-mem": "4"})) is None
    told.node("n0", cards("n0", [16]))
    assert told.state.place(a_pod("a", {"aliyun.com/gpu-mem": "4"})) is not None


def test_decision_that_cannot_be_read_is_told() -> None:
    told = Told()
    told.node("n0", cards("n0", [16]))
    told.see(bound(a_pod("a", {"aliyun.com/gpu-mem": "4"}), "n0", {"shoal.dev/allocation": "{"}))
    assert [(name, reason) for name, reason, _ in told.reports] == [("a", REASON_POD)]
    assert set(told.held()["uid-a"][1]) == {"GPU-n0-0"}


def test_cards_listed_as_unhealthy_are_left_out_until_the_list_goes() -> None:
    told = Told()
    told.node("n0", cards("n0", [16, 16]))
    listed = msgspec.convert(
        {"metadata": {"name": "unhealthy-gpu-n0", "namespace": "kube-system"}, "data": {"gpus": "0"}}, ConfigMap
    )
    told.state.on_config_map(Change(ChangeType.ADDED, None, listed))
    first = told.state.place(a_pod("a", {"aliyun.com/gpu-mem": "4"}))
    assert first is not None
    assert first.containers[0].cards[0].index == 1
    told.state.on_config_map(Change(ChangeType.DELETED, listed, None))
    assert told.news & ClusterEvent.CARDS_FREED
    second = told.state.place(a_pod("b", {"nvidia.com/gpu": "1"}))
    assert second is not None
    assert second.containers[0].cards[0].index == 0


def test_own_decision_is_confirmed_as_booked_and_another_wins_over_it() -> None:
    for node, confirmed in (("n0", True), ("n1", False)):
        told = Told()
        told.node("n0", cards("n0", [16]))
        pod = a_pod("p", {"aliyun.com/gpu-mem": "4"})
        told.see(pod)
        allocation = told.state.place(pod)
        ledger = told.state.engine.ledger
        state = ledger.node("n0")
        assert allocation is not None
        assert state is not None
        assert state.inventory is not None
        told.node("n1", cards("n1", [16]))
        annotations = annotations_of(pod, allocation, inventory=state.inventory, unit=MemoryUnit.GIB, now_ns=1)
        told.state.write("uid-p", annotations)
        before = ledger.booking("uid-p")
        told.see(bound(pod, node, annotations))
        assert not ledger.is_assumed("uid-p")
        assert (ledger.booking("uid-p") is before) is confirmed
        assert told.held()["uid-p"][0] == node


def test_terminating_pod_keeps_its_share_until_it_is_gone() -> None:
    told = Told()
    told.node("n0", cards("n0", [16]))
    pod = bound(
        a_pod("a", {"aliyun.com/gpu-mem": "16"}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        "n0",
        {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "16"},
    )
    told.see(pod)
    assert told.state.place(a_pod("b", {"aliyun.com/gpu-mem": "4"})) is None
    told.news = ClusterEvent(0)
    told.gone(pod)
    assert told.news & ClusterEvent.CARDS_FREED
    assert told.state.place(a_pod("b", {"aliyun.com/gpu-mem": "4"})) is not None


def test_heartbeat_is_no_news() -> None:
    told = Told()
    told.node("n0", cards("n0", [16]))
    told.news = ClusterEvent(0)
    told.node("n0", cards("n0", [16]), resourceVersion="2")
    assert not told.news
