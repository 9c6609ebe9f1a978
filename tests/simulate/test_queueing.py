import pytest

from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import policy_named
from shoal.simulate.queueing import WaitingPods, room_on
from shoal.simulate.scenario import Arrival
from shoal.simulate.trace import TracePod
from tests.simulate.made_up import node, pod


class Cluster:
    """One node of four cards, and a waiting line before it."""

    def __init__(self) -> None:
        ledger = Ledger()
        ledger.set_inventory(node("n", 4, cpu=16000))
        self.engine = Engine(ledger, policy_named("binpack"))
        self.waiting = WaitingPods(["A"])
        self.tried: list[str] = []
        self.placed: list[str] = []

    def arrive(self, number: int, item: TracePod) -> None:
        arrival = Arrival(number, 0.0, item, 1.0)
        if not self.place(arrival):
            self.waiting.join(arrival)

    def place(self, arrival: Arrival) -> bool:
        self.tried.append(arrival.pod.name)
        if self.engine.place(arrival.key, arrival.pod.request) is None:
            return False
        self.placed.append(arrival.pod.name)
        return True

    def leave(self, number: int) -> None:
        self.engine.remove(str(number))
        books = self.engine.ledger.node("n")
        assert books is not None
        self.tried.clear()
        self.placed.clear()
        self.waiting.retry(books, self.place)

    def still(self) -> list[str]:
        return sorted(arrival.pod.name for arrival in self.waiting)


@pytest.fixture
def full():
    """Three cards taken whole by pods 0 to 2, the fourth to 70 % by pod 3; seven wait."""
    cluster = Cluster()
    for number in range(3):
        cluster.arrive(number, pod(f"running-{number}", 1))
    cluster.arrive(3, pod("running-3", 0.7))
    for number, (name, gpus) in enumerate(
        [("two-a", 2), ("one-a", 1), ("half", 0.5), ("one-b", 1), ("one-c", 1), ("two-b", 2), ("half-b", 0.5)], start=4
    ):
        cluster.arrive(number, pod(name, gpus))
    assert cluster.still() == ["half", "half-b", "one-a", "one-b", "one-c", "two-a", "two-b"]
    assert cluster.waiting.gpu_milli == 8000
    return cluster


def test_whoever_fits_is_placed_in_the_order_of_coming(full):
    full.leave(0)
    assert full.placed == ["one-a"]
    full.leave(3)
    assert full.placed == ["half", "half-b"]
    full.leave(1)
    assert full.placed == ["one-b"]
    assert full.still() == ["one-c", "two-a", "two-b"]
    assert full.waiting.gpu_milli == 5000


def test_only_those_are_tried_who_fit_where_there_is_more_room(full):
    full.leave(0)
    # The pair does not fit on one card, the pods of one GPU fit once, the halves no more.
    assert full.tried == ["one-a"]


def test_the_oldest_goes_first_when_several_fit(full):
    full.engine.remove("0")
    full.leave(1)
    assert full.placed == ["two-a"]
    full.engine.remove("2")
    full.leave(3)
    assert full.placed == ["one-a", "half", "half-b"]


def test_pods_of_a_model_that_is_not_there_and_pods_without_cpu_are_not_tried():
    cluster = Cluster()
    cluster.arrive(0, pod("running", 4, cpu=10000))
    cluster.arrive(1, pod("other model", 1, models="B"))
    cluster.arrive(2, pod("much cpu", 0, cpu=17000))
    cluster.arrive(3, pod("cpu", 0, cpu=8000))
    cluster.leave(0)
    assert cluster.tried == cluster.placed == ["cpu"]
    assert cluster.still() == ["much cpu", "other model"]


def test_the_room_is_what_the_ledger_says():
    cluster = Cluster()
    cluster.arrive(0, pod("whole", 1, cpu=3000))
    cluster.arrive(1, pod("share", 0.3, cpu=500))
    books = cluster.engine.ledger.node("n")
    assert books is not None
    room = room_on(books)
    assert (room.cpu_milli, room.memory_mib, room.model, room.cards) == (12500, 262144 - 200, "A", (100, 100, 70, 0))
    cluster.engine.ledger.remove_node("n")
    assert room_on(books).cards == ()
