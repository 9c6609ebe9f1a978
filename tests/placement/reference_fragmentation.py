"""The default policy, slowly (see `reference`): the numbers of a demand are given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.model.request import Share
from shoal.placement.worth.demand import Demand
from tests.placement.reference import NOISE, Card, Node, Pod, Reference, left_on, shares_on, size_on

#: Costs that depend on sums over the cluster may be off by this much.
SUM_NOISE = 1e-4


class Block(NamedTuple):
    gpus: int
    cpu: int
    models: frozenset[str]
    part: float


class Numbers(NamedTuple):
    """A demand as plain numbers, its sets of models by name."""

    worth: list[float]
    price: list[float]
    mu: float
    sigma: float
    qbar: float
    cpu_bound: float
    confined: list[tuple[frozenset[str], float]]
    blocks: list[Block]


def numbers_of(demand: Demand, models: Sequence[str]) -> Numbers:
    """`models` are those the bits of the demand's sets stand for."""

    def named(mask: int) -> frozenset[str]:
        return frozenset(model for place, model in enumerate(models) if mask >> place & 1)

    blocks = demand.blocks
    return Numbers(
        demand.worth.worth.tolist(),
        demand.worth.price.tolist(),
        demand.cores_per_gpu,
        demand.cores_spread,
        demand.pod_size,
        demand.cpu_bound,
        [(named(mask), part) for mask, part in zip(demand.model_sets, demand.confined.tolist(), strict=True)],
        [
            Block(gpus, cpu, named(mask), part)
            for gpus, cpu, mask, part in zip(
                blocks.gpus.tolist(), blocks.cpu.tolist(), blocks.models, blocks.part.tolist(), strict=True
            )
        ],
    )


def below(t: float) -> float:
    """Phi."""
    return 0.5 * math.erfc(-t / math.sqrt(2))


class Fragmentation(Reference):
    def __init__(self, cluster: Sequence[Node], numbers: Numbers) -> None:
        super().__init__(cluster)
        self.numbers = numbers
        self.models = frozenset(node.model for node in cluster if node.cards)
        worths = [self.worth(node) for node in cluster]
        states = [
            (node, worth, self.stranded(worth, node.cpu - node.cpu_used))
            for node, worth in zip(cluster, worths, strict=True)
        ]
        self.usable = max(1.0, sum(worth - stranded for _, worth, stranded in states))
        self.model_short = []
        for models, part in numbers.confined:
            free = sum(worth - stranded for node, worth, stranded in states if node.model in models)
            expected = part * self.usable
            self.model_short.append(below((expected - free) / (2 * math.sqrt(expected * numbers.qbar) + 0.5)))
        self.block_short = []
        for block in numbers.blocks:
            free = block.gpus * sum(self.blocks_on(node, block) for node in cluster)
            expected = block.part * self.usable
            self.block_short.append(below((expected - free) / (2 * math.sqrt(expected * block.gpus) + 0.5)))

    def worth(self, node: Node) -> float:
        """K."""
        return sum(self.numbers.worth[card.free] for card in node.cards)

    def stranded(self, worth: float, cpu: int) -> float:
        """S."""
        per_gpu = 0.7 * self.numbers.mu
        if worth <= 0 or not per_gpu:
            return 0.0
        spread = 0.5 * self.numbers.sigma * math.sqrt(worth)
        short = per_gpu * worth - cpu / 1000
        if spread > 1e-9:
            t = -short / spread
            short = spread * (math.exp(-t * t / 2) / math.sqrt(2 * math.pi) - t * (1 - below(t)))
        return min(worth, max(0.0, short) / per_gpu)

    def blocks_on(self, node: Node, block: Block, fewer: int = 0, less_cpu: int = 0) -> int:
        """cap_j, with so many untouched cards and so much CPU less."""
        if node.model not in block.models:
            return 0
        cards = (node.untouched - fewer) // block.gpus
        cpu = max(0, node.cpu - node.cpu_used - less_cpu)
        return min(cards, cpu // block.cpu) if block.cpu else cards

    def key(self, node: Node, pod: Pod, share: Share, place: int) -> float:
        card = node.cards[place]
        smaller_first = NOISE * card.free
        return self.regret(card, share) + 0.2 * left_on(card, share) / 100 + smaller_first

    def regret(self, card: Card, share: Share) -> float:
        worth, price = self.numbers.worth, self.numbers.price
        lost = worth[card.free] - worth[left_on(card, share)]
        return max(0.0, lost - price[size_on(card, share)])

    def allowed(self, pod: Pod) -> frozenset[str]:
        """B: the models of nodes the pod may go to."""
        return frozenset(
            model for model in self.models if not pod.models or not pod.models.isdisjoint(model.split("+"))
        )

    def scarce(self, node: Node, pod: Pod) -> float:
        """pM."""
        pairs = zip(self.numbers.confined, self.model_short, strict=True)
        short = [each for (models, _), each in pairs if node.model in models and not self.allowed(pod) <= models]
        return max(short, default=0.0)

    def broken(self, node: Node, pod: Pod, untouched: int) -> Iterator[tuple[float, float]]:
        """What each block that the pod breaks costs, at least and at most; weak pressures do not count."""
        for block, short in zip(self.numbers.blocks, self.block_short, strict=True):
            if pod.whole >= block.gpus and pod.cpu >= block.cpu and self.allowed(pod) <= block.models:
                continue
            lost = self.blocks_on(node, block) - self.blocks_on(node, block, untouched, pod.cpu)
            cost = short * block.gpus * lost
            yield (cost if short > 0.005 + SUM_NOISE else 0.0), (cost if short > 0.005 - SUM_NOISE else 0.0)

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        taken = shares_on(node, pod, stack)
        worth, cpu = self.worth(node), node.cpu - node.cpu_used
        weights = self.numbers.worth
        lost = pod.whole + sum(weights[card.free] - weights[left_on(card, share)] for card, share in taken)
        untouched = pod.whole + sum(card.free == 100 for card, _ in taken)
        cost = sum(self.regret(card, share) for card, share in taken)
        cost += 2 * (self.stranded(worth - lost, cpu - pod.cpu) - self.stranded(worth, cpu))
        cost += self.scarce(node, pod) * lost
        blocks = list(self.broken(node, pod, untouched))
        ties = 0.003 * (worth - lost) + 0.2 * sum(left_on(card, share) for card, share in taken) / 100
        ties += 0.0001 * (cpu - pod.cpu) / 1000 * (bool(pod.containers) + 10 * self.numbers.cpu_bound)
        least = cost + 2 * max((low for low, _ in blocks), default=0.0)
        most = cost + 2 * max((high for _, high in blocks), default=0.0)
        return -in_grains(most + SUM_NOISE) - ties, -in_grains(least - SUM_NOISE) - ties


def in_grains(cost: float) -> float:
    return round(cost / 0.02) * 0.02
