"""Fragmentation, and idle cards by cause."""

import pytest

from shoal.analysis.inspect.use import ClusterUse, NodeUse, PodUse
from shoal.analysis.inspect.used import UsedCard, used_node
from shoal.analysis.waste import IdleCause, UnusedCards, fragmentation, idle_cards
from shoal.metrics.history_wire import CardReading, ContainerReading, NodeReading
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import Share

GIB = 1024


def node(
    name: str, *cards: tuple[int, dict[str, Share]], cordoned: bool = False, broken: tuple[int, ...] = ()
) -> NodeUse:
    """A node from the memory of each card and what pods hold of it."""
    gpus = tuple(
        Gpu(f"{name}-{index}", index, memory, healthy=index not in broken) for index, (memory, _) in enumerate(cards)
    )
    held: dict[str, Share] = {}
    pods: dict[str, dict[str, Share]] = {}
    for gpu, (_, shares) in zip(gpus, cards, strict=True):
        for pod, share in shares.items():
            pods.setdefault(pod, {})[gpu.uuid] = share
            held[gpu.uuid] = held.get(gpu.uuid, Share()) + share
    uses = tuple(PodUse("ns", pod, name, "Running", held=shares) for pod, shares in pods.items())
    return NodeUse(NodeGpus(name, gpus), "", pods=uses, held=held, cordoned=cordoned)


def share(gib: int) -> Share:
    return Share(memory_mib=gib * GIB)


WHOLE = Share(exclusive=True)


@pytest.mark.parametrize(
    ("nodes", "waiting", "percent"),
    [
        # Nobody asks, or nothing is free.
        ([node("n", (10 * GIB, {}))], (), None),
        ([node("n", (10 * GIB, {"a": share(10)}))], (), None),
        # What is left takes another pod like the one there; or does not.
        ([node("n", (10 * GIB, {"a": share(4)}))], (), 0.0),
        ([node("n", (10 * GIB, {"a": share(6)}))], (), 100.0),
        # Half of those who ask can use it.
        ([node("n", (10 * GIB, {"a": share(6)}))], (4,), 50.0),
        # A whole card can be had by all; the rest of the other by nobody who wants a whole one.
        ([node("n", (10 * GIB, {"a": WHOLE}), (10 * GIB, {}))], (), 0.0),
        ([node("n", (10 * GIB, {"a": WHOLE}), (10 * GIB, {"b": share(5)}))], (), 50.0),
        # Cards that nobody can have do not count.
        ([node("n", (10 * GIB, {"a": share(4)})), node("m", (99 * GIB, {}), cordoned=True)], (), 0.0),
        ([node("n", (10 * GIB, {"a": share(4)}), (10 * GIB, {}), broken=(1,))], (), 0.0),
    ],
)
def test_fragmentation(nodes: list[NodeUse], waiting: tuple[int, ...], percent: float | None) -> None:
    pods = tuple(PodUse("ns", f"w{gib}", asked_mib=gib * GIB) for gib in waiting)
    assert fragmentation(ClusterUse(tuple(nodes), pods)).percent == percent


def cards(use: NodeUse, used: dict[int, int | None]) -> list[tuple[UsedCard, bool]]:
    """The cards with what the pod on each uses, in MiB; None: not measured."""
    readings = tuple(
        CardReading(
            uuid=gpu.uuid,
            index=gpu.index,
            used_bytes=(amount + 100) << 20,
            unattributed_bytes=100 << 20,
            containers=(
                ContainerReading(namespace="ns", pod="a", container="c", used_bytes=amount << 20, source="nvml"),
            ),
        )
        for gpu in use.node.gpus
        if (amount := used.get(gpu.index)) is not None
    )
    reading = NodeReading(node=use.node.name, time=0, age_seconds=0, interval_seconds=5, cards=readings)
    return [(card, card.reading is not None) for card in used_node(use, reading).cards]


def test_causes() -> None:
    use = node(
        "n",
        (10 * GIB, {}),
        (10 * GIB, {"a": share(8)}),
        (10 * GIB, {"a": share(4)}),
        (10 * GIB, {"a": share(4)}),
        (10 * GIB, {}),
        broken=(4,),
    )
    shown = cards(use, {1: 5000, 2: 0})
    unused = UnusedCards(600)
    unused.look(shown, 1000.0)
    assert unused.known(1599.0) == {}
    found = {(one.gpu.index, one.cause): one for one in idle_cards(shown, {4 * GIB: 3}, unused.known(1600.0))}
    assert set(found) == {
        (0, IdleCause.FREE),
        (1, IdleCause.REMAINDER),
        (2, IdleCause.UNUSED),
        (3, IdleCause.UNMEASURED),
        (4, IdleCause.BROKEN),
    }
    assert found[1, IdleCause.REMAINDER].memory_mib == 2 * GIB
    assert found[2, IdleCause.UNUSED].since == 1000.0
    closed = cards(node("m", (10 * GIB, {}), cordoned=True), {})
    assert [one.cause for one in idle_cards(closed, {}, {})] == [IdleCause.CLOSED]


def test_a_card_that_was_used_begins_anew() -> None:
    use = node("n", (10 * GIB, {"a": share(8)}))
    unused = UnusedCards(600)
    for now, used in ((0.0, 0), (500.0, 1), (600.0, 0), (1100.0, None), (1200.0, 0)):
        unused.look(cards(use, {0: used}), now)
    assert unused.known(1799.0) == {}
    assert unused.known(1800.0) == {"n-0": 1200.0}
