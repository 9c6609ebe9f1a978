"""The policies of the literature, slowly (see `reference`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shoal.model.request import Share
from tests.placement.reference import NOISE, Node, Pod, Reference, left_on, reserved, shares_on, size_on


def cut_off(value: float) -> tuple[float, float]:
    return float(math.trunc(value - NOISE)), float(math.trunc(value + NOISE))


def milli_free(node: Node) -> int:
    return sum(10 * card.free for card in node.cards)


class BestFit(Reference):
    """trunc(100·(1 - (CPU left / 128 cores + GPU left / 8 cards) / 2))."""

    @staticmethod
    def milli_wanted(node: Node, pod: Pod) -> float:
        """A share of memory counts as the part it fills of the node's cards, on the average."""
        total = 0.0
        for need in pod.needs:
            total += need.gpus * sum(size_on(card, need.share) for card in node.cards) / len(node.cards)
        return 10 * total

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        cpu = (node.cpu - node.cpu_used - pod.cpu) / 128_000
        gpu = (milli_free(node) - self.milli_wanted(node, pod)) / 8000
        return cut_off(100 * (1 - (cpu + gpu) / 2))


class DotProduct(BestFit):
    """trunc(100·(1 - (free CPU·pod CPU + free GPU·pod GPU) / 2)), against 128 cores and 8 cards."""

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        cpu = (node.cpu - node.cpu_used) / 128_000 * pod.cpu / 128_000
        gpu = milli_free(node) / 8000 * self.milli_wanted(node, pod) / 8000
        return cut_off(100 * (1 - (cpu + gpu) / 2))


class GpuPacking(Reference):
    """An empty node 33 - its cards; untouched cards needed 50 - their number (at least 33); else 100 - free/10."""

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        if not pod.containers:
            return 0.0, 0.0
        taken = [card.free for card, _ in shares_on(node, pod, stack)]
        untouched = pod.whole + sum(share == 100 for share in taken)
        if all(card.free == 100 for card in node.cards):
            value = 33 - len(node.cards)
        elif untouched:
            value = max(33, 50 - untouched)
        else:
            value = max(50, 100 - sum(taken) // 10)
        return value, value


class GpuClustering(Reference):
    """25 by how full the node is, plus 75, 50, 25 or 0: only this kind there, also this kind, nobody, only others."""

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        if not pod.containers:
            return 0.0, 0.0
        if pod.whole in node.kinds:
            company = 75 if len(node.kinds) == 1 else 50
        else:
            company = 0 if node.kinds else 25
        value = company + 25 * (8000 - milli_free(node)) // 8000
        return value, value


class Typical(NamedTuple):
    """A typical pod: `gpus` cards with `milli` thousandths each, and its part of all pods."""

    pod: Pod
    gpus: int
    milli: int
    part: float


def typical_pods(pods: Sequence[Pod]) -> list[Typical]:
    """The most frequent pods that make up 95 percent of all."""
    counts: dict[Pod, int] = {}
    for pod in pods:
        counts[pod] = counts.get(pod, 0) + 1
    covered = 0
    kept: list[Pod] = []
    for pod in sorted(counts, key=lambda pod: -counts[pod]):
        if covered < 0.95 * len(pods):
            covered += counts[pod]
            kept.append(pod)
    found = []
    for pod in kept:
        gpus, share = pod.containers[0] if pod.containers else (0, Share())
        milli = 1000 if share.exclusive else 10 * share.compute
        found.append(Typical(pod, gpus, milli, counts[pod] / covered))
    return found


class Fgd(Reference):
    """Fragmentation gradient descent; scores are cut off to whole numbers.

    `known` keeps the fragments of nodes as they stand, which every card and every pod is compared with.
    """

    def __init__(self, cluster: Sequence[Node], typical: Sequence[Typical], known: dict[Node, float]) -> None:
        super().__init__(cluster)
        self.typical = typical
        self.known = known

    def fragments(self, free: Sequence[int], cpu: int, node: Node) -> float:
        """The free thousandths that a typical pod cannot use, on the average."""
        total = 0.0
        everything = sum(free)
        models = {card.model for card in node.cards}
        for pod, gpus, milli, part in self.typical:
            wasted = everything
            if gpus and pod.cpu <= cpu and (not pod.models or not pod.models.isdisjoint(models)):
                large = [each for each in free if each >= milli]
                if len(large) >= gpus:
                    wasted -= sum(large)
            total += part * wasted
        return total

    def score(self, node: Node, pod: Pod, after: Sequence[int]) -> float:
        cpu = node.cpu - node.cpu_used
        if node not in self.known:
            self.known[node] = self.fragments([10 * card.free for card in node.cards], cpu, node)
        gain = self.known[node] - self.fragments(after, cpu - pod.cpu, node)
        return math.trunc(100 / (1 + math.exp(-gain / 1000)) + NOISE)

    def after(self, node: Node, taken: Iterable[tuple[int, Share]]) -> list[int]:
        free = [10 * card.free for card in node.cards]
        for place, share in taken:
            free[place] = 10 * left_on(node.cards[place], share)
        return free

    def key(self, node: Node, pod: Pod, share: Share, place: int) -> float:
        return -self.score(node, pod, self.after(node, [(place, share)]))

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        shares = [share for _, share in shares_on(node, pod, stack)]
        whole = [(place, Share(exclusive=True)) for place in reserved(node, pod) or ()]
        value = self.score(node, pod, self.after(node, [*zip(stack, shares, strict=True), *whole]))
        return value, value
