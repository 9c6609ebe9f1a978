"""The cluster state and what nodes say is held: a record is not a proof, and gone is when the node says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation, Held
from shoal.model.contract import shoal
from shoal.model.request import Share
from shoal.scheduler.state.cluster_state import REASON_CHANGED, REASON_NODE, REASON_POD
from shoal.scheduler.state.holdings import GRACE_SECONDS
from tests.scheduler.test_cluster_state import Told, a_pod, bound, cards
from tests.testbed.fake_nodes import node as node_object

WHOLE = Share(exclusive=True)
RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "c", "state": {"running": {}}}]}
ENDED = {
    "phase": "Running",
    "containerStatuses": [{"name": "main", "containerID": "c", "state": {"terminated": {"exitCode": 0}}}],
}


class OnNode:
    """A state that knows one node with two cards of 16 GiB, and what its agent says."""

    def __init__(self) -> None:
        self.told = Told()
        self.says(None)

    def says(self, held: Held | str | None, node: str = "n0", **capacity: str) -> None:
        """The node shows its cards, and what its agent has given out; with `capacity` kubelet counts other devices."""
        manifest = node_object(node, cards(node, [16, 16]))
        if capacity:
            manifest["status"]["capacity"] = capacity
        if held is not None:
            written = held if isinstance(held, str) else shoal.encode_held(held)
            manifest["metadata"]["annotations"][shoal.ANNOTATION_HELD] = written
        self.told.see_node(msgspec.convert(manifest, Node))

    def card(self, uid: str) -> dict[str, object]:
        return self.told.held()[uid][1]

    def gone(self, pod: Pod, version: int) -> None:
        self.told.state.on_pod(Change(ChangeType.DELETED, pod, None, str(version)))

    def fits(self, gib: int) -> bool:
        """Whether one more pod would be placed."""
        found = self.told.state.place(a_pod("probe", {"aliyun.com/gpu-mem": str(gib)}))
        if found is not None:
            self.told.state.cancel("uid-probe")
        return found is not None


@pytest.fixture
def on_node() -> OnNode:
    return OnNode()


def record(index: int, share: Share, *, limit: int | None = None, name: str = "main") -> dict[str, str]:
    card = CardShare(f"GPU-n0-{index}", index, share)
    made = Allocation("n0", (ContainerAllocation(name, (card,), memory_limit_mib=limit),))
    return {shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(made)}


def given(index: int, share: Share) -> tuple[CardShare, ...]:
    return (CardShare(f"GPU-n0-{index}", index, share),)


def with_status(pod: Pod, status: dict[str, Any]) -> Pod:
    return msgspec.convert({**msgspec.to_builtins(pod), "status": status}, Pod)


def test_what_was_given_counts_more_than_what_is_written(on_node: OnNode) -> None:
    pod = a_pod("a", {"aliyun.com/gpu-mem": "16"})
    on_node.told.see(bound(pod, "n0", record(0, Share(16384))))
    on_node.says(Held({"uid-a": given(0, Share(16384))}))
    for forged in ({shoal.ANNOTATION_ALLOCATION: '{"version":1,"node":"n0","containers":[]}'}, {}, record(1, WHOLE)):
        on_node.told.see(bound(pod, "n0", forged))
        assert on_node.card("uid-a") == {"GPU-n0-0": Share(16384)}
    on_node.says(Held({"uid-a": given(1, Share(16384))}))
    assert on_node.card("uid-a") == {"GPU-n0-1": Share(16384)}, "the agent has moved it"


def test_a_changed_record_has_no_effect_before_anything_was_given(on_node: OnNode) -> None:
    pod = a_pod("a", {"aliyun.com/gpu-mem": "4"})
    on_node.told.see(bound(pod, "n0", record(0, Share(4096))))
    for forged in (record(1, Share(4096)), {}, {shoal.ANNOTATION_ALLOCATION: "broken"}):
        on_node.told.see(bound(pod, "n0", forged))
        assert on_node.card("uid-a") == {"GPU-n0-0": Share(4096)}
    assert {reason for _, reason, _ in on_node.told.reports} == {REASON_CHANGED}


def test_claims_beyond_the_request_take_no_room(on_node: OnNode) -> None:
    for number, limits in enumerate(({"cpu": "1"}, {"aliyun.com/gpu-mem": "1"})):
        pod = bound(a_pod(f"p{number}", limits), "n0", record(0, WHOLE))
        on_node.told.see(pod)
    assert on_node.told.held()["uid-p0"][1] == {}
    assert list(on_node.card("uid-p1").values()) == [Share(1024)]
    assert [(name, reason) for name, reason, _ in on_node.told.reports] == [("p0", REASON_POD), ("p1", REASON_POD)]
    assert on_node.fits(15)


def test_a_record_on_a_card_that_is_given_away_counts_as_none(on_node: OnNode) -> None:
    on_node.told.see(bound(a_pod("a", {"nvidia.com/gpu": "1"}), "n0", record(0, WHOLE)))
    on_node.says(Held({"uid-a": given(0, WHOLE)}))
    on_node.told.see(bound(a_pod("b", {"nvidia.com/gpu": "1"}), "n0", record(0, WHOLE)))
    assert on_node.card("uid-b") == {"GPU-n0-1": WHOLE}
    (told,) = [text for name, reason, text in on_node.told.reports if (name, reason) == ("b", REASON_POD)]
    assert "card 0 (GPU-n0-0) has no room for it beside what the node's containers have been given" in told


@pytest.mark.parametrize("status", [RUNS, ENDED, {"phase": "Succeeded"}], ids=["runs", "ended", "succeeded"])
def test_a_pod_that_is_over_holds_its_card_until_its_node_says_so(on_node: OnNode, status: dict[str, Any]) -> None:
    """Whatever its status says: whoever may write that could say anything."""
    pod = with_status(bound(a_pod("a", {"nvidia.com/gpu": "2"}), "n0", two_whole()), RUNS)
    on_node.told.see(pod)
    holds = Held({"uid-a": (*given(0, WHOLE), *given(1, WHOLE))}, as_of=5)
    on_node.says(holds)
    on_node.gone(with_status(pod, status), 9)
    assert on_node.told.state.pod("uid-a") is None
    assert not on_node.fits(1)
    on_node.says(Held(holds.pods, as_of=9))
    assert not on_node.fits(1), "its containers are there still"
    on_node.says(Held({}, as_of=8))
    assert not on_node.fits(1), "that was said before its end"
    on_node.told.now += 10 * GRACE_SECONDS
    on_node.told.state.sweep()
    assert not on_node.fits(1), "time alone frees nothing where an agent tells"
    on_node.says(Held({}, as_of=9))
    assert on_node.fits(16)


def two_whole() -> dict[str, str]:
    made = Allocation("n0", (ContainerAllocation("main", (*given(0, WHOLE), *given(1, WHOLE))),))
    return {shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(made)}


def test_a_pod_that_never_got_a_card_is_let_go_when_the_agent_knows_of_its_end(on_node: OnNode) -> None:
    on_node.says(Held({}, as_of=3))
    pod = bound(a_pod("a", {"nvidia.com/gpu": "2"}), "n0", two_whole())
    on_node.told.see(pod)
    on_node.gone(pod, 7)
    assert not on_node.fits(1), "it may be about to be given to it"
    on_node.says(Held({}, as_of=7))
    assert on_node.fits(16)


def test_a_pod_whose_end_nobody_saw_is_let_go_though_its_node_has_nothing_more_to_say(on_node: OnNode) -> None:
    """A list has not got it any more: the agent told of its end in an older version, and nothing has happened since."""
    pod = with_status(bound(a_pod("a", {"nvidia.com/gpu": "2"}), "n0", two_whole()), RUNS)
    on_node.told.see(pod)
    holds = Held({"uid-a": (*given(0, WHOLE), *given(1, WHOLE))}, as_of=5)
    on_node.says(holds)
    on_node.told.state.on_pod(Change(ChangeType.DELETED, pod, None, "20", unseen=True))
    on_node.told.now += 10 * GRACE_SECONDS
    on_node.told.state.sweep()
    assert not on_node.fits(1), "its node lists it"
    on_node.says(Held({}, as_of=9))
    on_node.told.state.sweep()
    assert on_node.fits(16)


def test_a_pod_whose_end_nobody_saw_may_be_about_to_get_its_card(on_node: OnNode) -> None:
    on_node.says(Held({}, as_of=5))
    pod = bound(a_pod("a", {"nvidia.com/gpu": "2"}), "n0", two_whole())
    on_node.told.see(pod)
    on_node.told.state.on_pod(Change(ChangeType.DELETED, pod, None, "20", unseen=True))
    on_node.told.now += GRACE_SECONDS - 1
    on_node.told.state.sweep()
    assert not on_node.fits(1)
    on_node.told.now += 1
    on_node.told.state.sweep()
    assert on_node.fits(16)


def test_a_pod_whose_end_was_not_true_has_its_cards(on_node: OnNode) -> None:
    pod = with_status(bound(a_pod("a", {"aliyun.com/gpu-mem": "16"}), "n0", record(0, Share(16384))), RUNS)
    on_node.told.see(pod)
    on_node.says(Held({"uid-a": given(0, Share(16384))}))
    on_node.told.see(with_status(pod, {"phase": "Succeeded"}))
    on_node.told.see(bound(pod, "n0", record(1, Share(16384))))
    assert on_node.card("uid-a") == {"GPU-n0-0": Share(16384)}
    assert on_node.told.state.pod("uid-a") is not None


def test_without_an_agent_a_pod_that_vanished_while_it_ran_has_time_to_end(on_node: OnNode) -> None:
    pod = bound(a_pod("a", {"nvidia.com/gpu": "2"}), "n0", two_whole())
    on_node.told.see(with_status(pod, RUNS))
    on_node.gone(with_status(pod, RUNS), 9)
    on_node.told.now += GRACE_SECONDS - 1
    on_node.told.state.sweep()
    assert not on_node.fits(1)
    on_node.told.now += 1
    on_node.told.state.sweep()
    assert on_node.fits(16)


@pytest.mark.parametrize("status", [ENDED, {"phase": "Failed"}, {"phase": "Pending"}], ids=["ended", "failed", "new"])
def test_without_an_agent_a_pod_that_ended_is_free_at_once(on_node: OnNode, status: dict[str, Any]) -> None:
    pod = bound(a_pod("a", {"nvidia.com/gpu": "2"}), "n0", two_whole())
    on_node.told.see(pod)
    on_node.gone(with_status(pod, status), 9)
    assert on_node.fits(16)


def test_a_pod_that_was_given_cards_just_before_its_end_holds_those(on_node: OnNode) -> None:
    """The node's word may come after the end, and until then the cards were guessed."""
    on_node.told.see(bound(a_pod("a", {"nvidia.com/gpu": "1"}), "n0", record(0, WHOLE)))
    on_node.says(Held({"uid-a": given(0, WHOLE)}))
    late = with_status(bound(a_pod("b", {"nvidia.com/gpu": "1"}), "n0", record(0, WHOLE)), RUNS)
    on_node.told.see(late)
    assert on_node.card("uid-b") == {"GPU-n0-1": WHOLE}, "guessed: the card of its record is not free"
    on_node.gone(late, 9)
    on_node.gone(bound(a_pod("a", {"nvidia.com/gpu": "1"}), "n0", record(0, WHOLE)), 8)
    on_node.says(Held({"uid-b": given(0, WHOLE)}, as_of=8))
    assert on_node.card("uid-b") == {"GPU-n0-0": WHOLE}
    assert "uid-a" not in on_node.told.held()


def test_what_is_held_by_a_pod_that_nobody_shows_is_in_use(on_node: OnNode) -> None:
    """A scheduler that starts anew after a pod was deleted by force."""
    on_node.says(Held({"uid-x": (*given(0, WHOLE), *given(1, WHOLE))}))
    assert not on_node.fits(1)
    on_node.says(Held({}))
    assert on_node.fits(16)


def test_the_pod_may_come_after_the_word_of_its_node(on_node: OnNode) -> None:
    on_node.says(Held({"uid-a": given(0, Share(8192))}))
    on_node.told.see(bound(a_pod("a", {"aliyun.com/gpu-mem": "8"}), "n0", record(0, Share(8192))))
    assert on_node.told.held() == {"uid-a": ("n0", {"GPU-n0-0": Share(8192)})}


def test_a_node_says_nothing_about_pods_of_another(on_node: OnNode) -> None:
    on_node.told.see(bound(a_pod("a", {"aliyun.com/gpu-mem": "16"}), "n0", record(0, Share(16384))))
    liar = (CardShare("GPU-n1-0", 0, WHOLE),)
    on_node.says(Held({"uid-a": liar}), node="n1")
    assert on_node.told.held()["uid-a"] == ("n0", {"GPU-n0-0": Share(16384)})


def test_what_is_held_goes_with_its_node(on_node: OnNode) -> None:
    pod = with_status(bound(a_pod("a", {"nvidia.com/gpu": "1"}), "n0", record(0, WHOLE)), RUNS)
    on_node.told.see(pod)
    on_node.says(Held({"uid-a": given(0, WHOLE), "uid-x": given(1, WHOLE)}))
    on_node.gone(pod, 9)
    node = on_node.told.state.node("n0")
    assert node is not None
    on_node.told.state.on_node(Change(ChangeType.DELETED, node, None))
    assert on_node.told.held() == {}


AWAY = {"cpu": "8", "aliyun.com/gpu-mem": "0", "keti.com/mpsgpu": "0", "nvidia.com/gpu": "0"}


@pytest.mark.parametrize(
    "capacity",
    [AWAY, {"cpu": "8"}, {**AWAY, "aliyun.com/gpu-mem": "32768", "aliyun.com/gpu-count": "2", "shoal.dev/gpu": "0"}],
    ids=["no devices", "no resources", "no slots"],
)
def test_the_word_of_an_agent_that_is_gone_for_good_counts_no_more(on_node: OnNode, capacity: dict[str, str]) -> None:
    """Its pods are those of a node without an agent, whatever it said last; and when it comes back it is believed."""
    pods = [
        with_status(bound(a_pod(name, {"nvidia.com/gpu": "1"}), "n0", record(i, WHOLE)), RUNS)
        for i, name in [(0, "a"), (1, "b")]
    ]
    for pod in pods:
        on_node.told.see(pod)
    said = Held({"uid-a": given(0, WHOLE), "uid-b": given(1, WHOLE), "uid-gone": given(1, WHOLE)}, as_of=5)
    on_node.says(said)
    on_node.gone(pods[0], 9)
    on_node.told.now += 10 * GRACE_SECONDS
    on_node.told.state.sweep()
    assert on_node.card("uid-a") == {"GPU-n0-0": WHOLE}
    on_node.says(said, **capacity)
    assert on_node.card("uid-b") == {"GPU-n0-1": WHOLE}, "by its record"
    assert "n0/uid-gone" not in on_node.told.held()
    on_node.told.state.sweep()
    assert "uid-a" not in on_node.told.held()
    on_node.says(said)
    assert on_node.told.held()["n0/uid-a"][1] == {"GPU-n0-0": WHOLE}


def test_an_agent_that_starts_again_is_believed_meanwhile(on_node: OnNode) -> None:
    """kubelet counts its devices for some minutes, and gives out none."""
    pod = with_status(bound(a_pod("a", {"nvidia.com/gpu": "1"}), "n0", record(0, WHOLE)), RUNS)
    on_node.told.see(pod)
    said = Held({"uid-a": given(0, WHOLE)}, as_of=5)
    on_node.says(said)
    on_node.says(said, **{**AWAY, "nvidia.com/gpu": "2"})
    on_node.gone(pod, 9)
    on_node.told.now += 10 * GRACE_SECONDS
    on_node.told.state.sweep()
    assert on_node.card("uid-a") == {"GPU-n0-0": WHOLE}


@pytest.mark.parametrize("seen_before", [True, False], ids=["in its life", "after a restart"])
def test_a_request_that_is_broken_later_hides_nothing(on_node: OnNode, seen_before: bool) -> None:
    """Labels of a pod say how many cards it wants, and whoever may write them can make that unreadable."""
    pod = bound(a_pod("a", {"aliyun.com/gpu-mem": "16"}), "n0", record(0, Share(16384)))
    if seen_before:
        on_node.told.see(pod)
    on_node.says(Held({"uid-a": given(0, Share(16384))}))
    labels = {"aliyun.com/gpu-count": "many"}
    broken = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels, annotations={}))
    on_node.told.see(broken)
    on_node.says(Held({"uid-a": given(0, Share(16384))}, as_of=7))
    assert on_node.card("uid-a") == {"GPU-n0-0": Share(16384)}


def test_a_request_that_is_broken_before_anything_was_given_frees_nothing(on_node: OnNode) -> None:
    pod = bound(a_pod("a", {"aliyun.com/gpu-mem": "16"}), "n0", {})
    on_node.told.see(pod)
    (card,) = on_node.card("uid-a")
    labels = {"aliyun.com/gpu-count": "many"}
    metadata = msgspec.structs.replace(pod.metadata, labels=labels, annotations=record(1, WHOLE))
    on_node.told.see(msgspec.structs.replace(pod, metadata=metadata))
    assert on_node.card("uid-a") == {card: Share(16384)}
    told = [text for name, reason, text in on_node.told.reports if (name, reason) == ("a", REASON_POD)]
    assert told[-1].startswith("its cards are counted as before: ")


def test_word_that_cannot_be_read_changes_nothing(on_node: OnNode) -> None:
    on_node.says(Held({"uid-x": (*given(0, WHOLE), *given(1, WHOLE))}))
    on_node.says("{")
    assert not on_node.fits(1)
    assert [reason for _, reason, _ in on_node.told.reports] == [REASON_NODE]
