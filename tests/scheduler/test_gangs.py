"""Groups: who is there, who goes together, who is late. Invariants against a model of two sets."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.model.contract.groups import PodGroup
from shoal.scheduler.queue.gangs import Gang, Gangs
from tests.soak import times

TRAIN = ("team", "train")


def group(minimum: int = 3, timeout: int = 60, name: str = "train") -> PodGroup:
    return PodGroup(name, minimum, timeout)


def gangs_of(*uids: str, minimum: int = 3) -> Gangs:
    gangs = Gangs()
    for uid in uids:
        assert gangs.wait(uid, "team", group(minimum), 0.0) == TRAIN
    return gangs


def train(gangs: Gangs) -> Gang:
    gang = gangs.gang(TRAIN)
    assert gang is not None
    return gang


def test_nobody_goes_before_enough_are_there() -> None:
    gangs = gangs_of("a", "b")
    assert (train(gangs).together, train(gangs).missing) == ((), 1)
    gangs.wait("c", "team", group(), 1.0)
    assert (train(gangs).together, train(gangs).missing) == (("a", "b", "c"), 0)


def test_those_with_a_node_count() -> None:
    gangs = gangs_of("a", "b")
    gangs.bound("x", "team", group(), 0.0)
    gang = train(gangs)
    assert gang.together == ("a", "b")
    assert gang.bound == ("x",)
    assert not gang.stands


def test_the_minimum_goes_together_and_the_others_for_themselves() -> None:
    gangs = gangs_of("a", "b", "c", "d", "e")
    assert train(gangs).together == ("a", "b", "c")
    for uid in "abc":
        gangs.bound(uid, "team", group(), 1.0)
    gang = train(gangs)
    assert gang.stands
    assert gang.together == ()
    assert gang.waiting == ("d", "e")


def test_who_came_first_goes_first() -> None:
    gangs = Gangs()
    for uid in "badc":
        gangs.wait(uid, "team", group(2), 0.0)
    assert train(gangs).waiting == ("b", "a", "d", "c")
    assert train(gangs).together == ("b", "a")


def test_a_binding_that_failed_makes_its_pod_wait_again() -> None:
    gangs = gangs_of("a", "b", "c")
    for uid in "abc":
        gangs.bound(uid, "team", group(), 1.0)
    gangs.wait("b", "team", group(), 2.0)
    gang = train(gangs)
    assert gang.together == ("b",)
    assert gang.bound == ("a", "c")


def test_groups_of_other_namespaces_and_names_are_others() -> None:
    gangs = gangs_of("a", "b")
    gangs.wait("c", "other", group(), 0.0)
    gangs.wait("d", "team", group(name="serve"), 0.0)
    assert train(gangs).waiting == ("a", "b")
    assert len(gangs) == 3


def test_a_pod_that_changes_its_group_leaves_the_old_one() -> None:
    gangs = gangs_of("a", "b")
    gangs.wait("a", "team", group(name="serve"), 1.0)
    assert train(gangs).waiting == ("b",)
    moved = gangs.of("a")
    assert moved is not None
    assert moved.key == ("team", "serve")


def test_what_is_gone_is_forgotten() -> None:
    gangs = gangs_of("a", "b")
    for uid in ("a", "b", "unknown"):
        gangs.remove(uid, 1.0)
    assert len(gangs) == 0
    assert gangs.gang(TRAIN) is None
    assert gangs.of("a") is None
    assert gangs.next_time() is None
    assert gangs.late(1000.0) == []


def test_members_that_disagree_wait_for_the_largest_size() -> None:
    gangs = gangs_of("a", "b")
    gangs.wait("c", "team", group(4), 0.0)
    gang = train(gangs)
    assert gang.missing == 1
    gangs.wait("c", "team", group(3), 0.0)
    assert train(gangs).together == ("a", "b", "c")


def test_a_group_that_lacks_members_is_told_once() -> None:
    gangs = gangs_of("a", "b")
    assert gangs.next_time() == 60
    assert gangs.late(59.9) == []
    (late,) = gangs.late(60.0)
    assert late.key == TRAIN
    assert late.pods == ("a", "b")
    for part in ("team/train", "60 s", "2 of 3", "2 waiting, 0 with a node", "1 more"):
        assert part in late.message
    assert gangs.late(1000.0) == []
    assert gangs.next_time() is None


def test_a_group_that_was_complete_and_lacks_members_again_is_told_again() -> None:
    gangs = gangs_of("a", "b")
    assert len(gangs.late(60.0)) == 1
    gangs.wait("c", "team", group(), 70.0)
    assert gangs.late(500.0) == []
    gangs.remove("c", 500.0)
    assert gangs.next_time() == 560
    assert len(gangs.late(560.0)) == 1


def test_a_group_without_waiting_members_is_never_late() -> None:
    gangs = Gangs()
    gangs.bound("a", "team", group(), 0.0)
    assert gangs.next_time() is None
    gangs.wait("b", "team", group(timeout=5), 10.0)
    assert gangs.next_time() == 70


uids = st.sampled_from("abcdef")
groups = st.builds(PodGroup, st.sampled_from(["x", "y"]), st.integers(1, 4), st.sampled_from([5, 60]))


class GangMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.gangs = Gangs()
        self.now = 0.0
        #: Per pod its group and whether it has a node.
        self.pods: dict[str, tuple[PodGroup, bool]] = {}

    @rule(uid=uids, group=groups, bound=st.booleans(), step=st.sampled_from([0.0, 1.0, 70.0]))
    def tell(self, uid: str, group: PodGroup, bound: bool, step: float) -> None:
        self.now += step
        tell = self.gangs.bound if bound else self.gangs.wait
        tell(uid, "ns", group, self.now)
        self.pods[uid] = group, bound

    @rule(uid=uids)
    def remove(self, uid: str) -> None:
        self.gangs.remove(uid, self.now)
        self.pods.pop(uid, None)

    @rule()
    def late(self) -> None:
        """Only who lacks members is told, and every one of them in the end."""
        told = {late.key[1] for late in self.gangs.late(self.now)}
        lacking = {name for name in ("x", "y") if self.lacks(name)}
        assert told <= lacking
        assert self.gangs.late(self.now) == []

    def members(self, name: str, *, bound: bool) -> set[str]:
        return {uid for uid, (group, has_node) in self.pods.items() if group.name == name and has_node is bound}

    def minimum(self, name: str) -> int:
        return max((group.minimum for group, _ in self.pods.values() if group.name == name), default=0)

    def lacks(self, name: str) -> bool:
        waiting, bound = self.members(name, bound=False), self.members(name, bound=True)
        return bool(waiting) and len(waiting) + len(bound) < self.minimum(name)

    @invariant()
    def groups_are_as_told(self) -> None:
        for name in ("x", "y"):
            waiting, bound = self.members(name, bound=False), self.members(name, bound=True)
            gang = self.gangs.gang(("ns", name))
            if not waiting | bound:
                assert gang is None
                continue
            assert gang is not None
            assert (set(gang.waiting), set(gang.bound)) == (waiting, bound)
            assert gang.minimum == self.minimum(name)
            needed = self.minimum(name) - len(bound)
            assert len(gang.together) == (needed if 0 < needed <= len(waiting) else 0)
            assert gang.stands == (needed <= 0)
            assert gang.missing == max(0, needed - len(waiting))

    @invariant()
    def nobody_lacks_members_unwatched(self) -> None:
        if not any(self.lacks(name) for name in ("x", "y")):
            assert self.gangs.next_time() is None


GangMachine.TestCase.settings = settings(max_examples=times(100), stateful_step_count=30)
TestGangs = GangMachine.TestCase
