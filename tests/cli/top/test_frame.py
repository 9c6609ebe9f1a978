"""The picture, without a terminal."""

import re

import pytest

from shoal.analysis.inspect.use import ClusterUse, NodeUse, PodUse
from shoal.cli.top.frame import ScreenSize, bar, frame
from shoal.cli.top.view import Order, Subject, View
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import Share


def node(name: str, *held: int, size: int = 10) -> NodeUse:
    """A node with cards of `size` GiB, of each of which a pod holds so much; -1 is all."""
    shares = [Share(exclusive=True) if amount < 0 else Share(amount * 1024) for amount in held]
    gpus = tuple(Gpu(f"GPU-{name}-{index}", index, size * 1024, "T4") for index in range(len(held)))
    pods = tuple(
        PodUse("default", f"pod-{name}-{index}", name, "Running", held={gpu.uuid: share})
        for index, (gpu, share) in enumerate(zip(gpus, shares, strict=True))
        if share != Share()
    )
    return NodeUse(
        NodeGpus(name, gpus), "10.0.0.1", pods, held={key: one for pod in pods for key, one in pod.held.items()}
    )


CLUSTER = ClusterUse(
    (node("n2", 1, 0), node("n10", 9, -1, size=20)),
    (PodUse("team", "later", asked_mib=1024, why="no card has room"),),
    unit=MemoryUnit.GIB,
)
WIDE = ScreenSize(200)


def firsts(view: View, size: ScreenSize = WIDE) -> list[str]:
    """The first two words of every line of the body."""
    return [" ".join(line.split()[:2]) for line in frame(CLUSTER, view, size, colour=False)[3:]]


def test_the_head_tells_the_whole() -> None:
    title = frame(CLUSTER, View(), WIDE, colour=False)[0]
    assert title == "shoal top: nodes 2, cards 4, pods 3, without a card 1; allocated 30/60 GiB (50%)"


@pytest.mark.parametrize(
    ("view", "lines"),
    [
        (View(), ["n2 0", "n2 1", "n10 0", "n10 1", "waits: team/later:"]),
        (View(order=Order.USED), ["n10 1", "n10 0", "n2 0", "n2 1", "waits: team/later:"]),
        (View(order=Order.FREE), ["n10 0", "n2 1", "n2 0", "n10 1", "waits: team/later:"]),
        (View(order=Order.PODS), ["n2 0", "n10 0", "n10 1", "n2 1", "waits: team/later:"]),
        (View(Subject.NODES), ["n2 Ready", "n10 Ready", "waits: team/later:"]),
        (View(Subject.NODES, Order.USED), ["n10 Ready", "n2 Ready", "waits: team/later:"]),
        (
            View(Subject.PODS, Order.USED),
            ["default pod-n10-1", "default pod-n10-0", "default pod-n2-0", "waits: team/later:"],
        ),
        (View(filter="N10"), ["n10 0", "n10 1"]),
        (View(filter="LATER"), ["waits: team/later:"]),
        (View(filter="nobody"), []),
    ],
)
def test_lines(view: View, lines: list[str]) -> None:
    assert firsts(view) == lines


def test_a_line_of_a_card() -> None:
    line = frame(CLUSTER, View(), WIDE, colour=False)[5]
    assert re.split(r" {2,}", line) == [
        "n10", "0", "T4", f"[{'|' * 9}", "]", "9/20", "0%", "Healthy", "pod-n10-0=9",
    ]  # fmt: skip


def test_only_what_has_room_is_shown() -> None:
    small = ScreenSize(40, 6)
    for first, expected in ((0, ["n2 0", "n2 1"]), (1, ["n2 1", "n10 0"]), (99, ["n10 1", "waits: team/later:"])):
        lines = frame(CLUSTER, View(first=first), small, colour=False)
        assert len(lines) == 6
        assert max(map(len, lines)) <= 40
        assert [" ".join(line.split()[:2]) for line in lines[3:5]] == expected


def test_colour_changes_no_letter() -> None:
    plain = frame(CLUSTER, View(), WIDE, colour=False)
    coloured = frame(CLUSTER, View(), WIDE, colour=True)
    assert [re.sub(r"\x1b\[[0-9]*m", "", line).rstrip() for line in coloured] == plain
    assert "\x1b[31m" in coloured[6]
    assert "\x1b[32m" in coloured[3]
    assert "\x1b" not in "".join(plain)


def test_trouble_is_told() -> None:
    assert frame(CLUSTER, View(), WIDE, colour=False, trouble="no answer")[1] == "What you see may be old: no answer"


def test_an_empty_cluster() -> None:
    lines = frame(ClusterUse(()), View(), ScreenSize(100, 10), colour=False)
    assert lines[0].startswith("shoal top: nodes 0, cards 0")
    assert lines[-1].endswith("nothing to show")


@pytest.mark.parametrize(("full", "marks"), [(0, 0), (1, 1), (50, 10), (100, 20), (150, 20)])
def test_bars(full: int, marks: int) -> None:
    assert bar(full) == f"[{'|' * marks}{' ' * (20 - marks)}]"
