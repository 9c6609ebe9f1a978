"""Every policy once more, slowly: plain loops over plain tuples, straight from the formulas.

Nothing here comes from the engine or its tables; the numbers of a demand are given. Where the formulas round or cut
off, a value is a pair, the lowest and the highest it may be, since sums of floats may fall to either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

from shoal.model.request import Request, Share
from shoal.placement.worth.demand import Demand

#: Differences below this are rounding.
NOISE = 1e-9
#: Costs that depend on sums over the cluster may be off by this much.
SUM_NOISE = 1e-4


class Card(NamedTuple):
    """A card and what is taken of it. `links` are (number of the other card, lanes)."""

    number: int
    model: str
    memory: int
    clients: int
    numa: int | None = None
    links: tuple[tuple[int, int], ...] = ()
    usable: bool = True
    pods: int = 0
    used: Share = Share()


class Node(NamedTuple):
    """A node and what is taken of it. `kinds`: for every pod with cards, how many it has whole."""

    name: str
    cpu: int
    ram: int
    cards: tuple[Card, ...]
    cpu_used: int = 0
    ram_used: int = 0
    kinds: frozenset[int] = frozenset()

    @property
    def model(self) -> str:
        return "+".join(sorted({card.model for card in self.cards}))


class Need(NamedTuple):
    gpus: int
    share: Share


class Pod(NamedTuple):
    """A request: its containers, the models it accepts (none: all), and the cards it needs in all."""

    cpu: int
    ram: int
    containers: tuple[Need, ...]
    models: frozenset[str]
    whole: int
    #: Whole cards first, then shares.
    needs: tuple[Need, ...]

    @property
    def shares(self) -> list[Need]:
        return [need for need in self.needs if not need.share.exclusive]


def pod_of(request: Request) -> Pod:
    containers = tuple(Need(container.gpus, container.share) for container in request.containers)
    whole = sum(need.gpus for need in containers if need.share.exclusive)
    needs = [Need(whole, Share(exclusive=True))] if whole else []
    needs += stacked([need for need in containers if not need.share.exclusive])
    return Pod(request.cpu_milli, request.memory_mib, containers, request.selector.models, whole, tuple(needs))


def stacked(containers: Sequence[Need]) -> list[Need]:
    """Card i carries every container that wants more than i cards."""
    found: list[Need] = []
    for place in range(max((need.gpus for need in containers), default=0)):
        share = sum((need.share for need in containers if need.gpus > place), Share())
        if found and found[-1].share == share:
            found[-1] = Need(found[-1].gpus + 1, share)
        else:
            found.append(Need(1, share))
    return found


# One card


def share_of(card: Card) -> int:
    """The free share in hundredths."""
    if not card.usable or card.used.exclusive:
        return 0
    if not card.pods:
        return 100
    parts = [99, 100 - card.used.compute]
    if card.memory:
        parts.append((200 * (card.memory - card.used.memory_mib) + card.memory) // (2 * card.memory))
    if card.clients:
        parts.append((200 * (card.clients - card.used.clients) + card.clients) // (2 * card.clients))
    return min(parts)


def accepts(pod: Pod, card: Card) -> bool:
    return not pod.models or card.model in pod.models


def holds(card: Card, share: Share) -> bool:
    if not card.usable or card.used.exclusive:
        return False
    if share.exclusive:
        return not card.pods
    return (
        card.used.memory_mib + share.memory_mib <= card.memory
        and card.used.compute + share.compute <= 100
        and card.used.clients + share.clients <= card.clients
    )


def size_on(card: Card, share: Share) -> int:
    """The largest part of the card that a share takes, in hundredths, halves rounded down."""
    if share.exclusive:
        return 100
    size = max(1, share.compute)
    for wanted, total in ((share.memory_mib, card.memory), (share.clients, card.clients)):
        if wanted and total:
            size = max(size, (200 * wanted + total - 1) // (2 * total))
    return min(size, 100)


def left_on(card: Card, share: Share) -> int:
    return max(0, share_of(card) - size_on(card, share))


def amount_free(card: Card, share: Share) -> int:
    """What is free of what is asked for: memory, else clients, else compute."""
    if share.memory_mib:
        return card.memory - card.used.memory_mib
    return card.clients - card.used.clients if share.clients else 100 - card.used.compute


# One node


def fits_beside(node: Node, pod: Pod) -> bool:
    """CPU and memory; who asks for none of it needs none."""
    enough_cpu = not pod.cpu or pod.cpu <= node.cpu - node.cpu_used
    return enough_cpu and (not pod.ram or pod.ram <= node.ram - node.ram_used)


def candidates(node: Node, pod: Pod, share: Share, taken: Iterable[int] = ()) -> list[int]:
    return [
        place
        for place, card in enumerate(node.cards)
        if place not in taken and accepts(pod, card) and holds(card, share)
    ]


def reserved(node: Node, pod: Pod) -> list[int] | None:
    """Cards for the whole cards of the pod: those that its other needs could use the least."""
    if not pod.whole:
        return []
    free = candidates(node, pod, Share(exclusive=True))
    free.sort(key=lambda place: sum(holds(node.cards[place], need.share) for need in pod.shares))
    return free[: pod.whole] if len(free) >= pod.whole else None


def fits_apart(node: Node, pod: Pod) -> bool:
    """Whether the containers fit in any way at all, each on cards of its own choice."""
    shared = [need for need in pod.containers if not need.share.exclusive]
    choices = [list(combinations(candidates(node, pod, need.share), need.gpus)) for need in shared]
    for deal in product(*choices):
        total: dict[int, Share] = {}
        for need, places in zip(shared, deal, strict=True):
            for place in places:
                total[place] = total.get(place, Share()) + need.share
        whole = candidates(node, pod, Share(exclusive=True), taken=total)
        if len(whole) >= pod.whole and all(holds(node.cards[place], share) for place, share in total.items()):
            return True
    return False


def lanes(one: Card, other: Card) -> int:
    """Lanes between two cards, whichever of them tells."""
    return max([count for peer, count in one.links if peer == other.number] + [0]) or max(
        [count for peer, count in other.links if peer == one.number] + [0]
    )


def closest(cards: Sequence[Card], count: int) -> list[int]:
    """The set with the most lanes inside, then the fewest cut, then on the fewest NUMA nodes, then the first."""
    best: list[int] = []
    best_rank: tuple[int, int, int] | None = None
    for chosen in combinations(range(len(cards)), count):
        rest = [place for place in range(len(cards)) if place not in chosen]
        inside = sum(lanes(cards[i], cards[j]) for i, j in combinations(chosen, 2))
        cut = sum(lanes(cards[i], cards[j]) for i in chosen for j in rest)
        rank = (inside, -cut, -len({cards[i].numa for i in chosen}))
        if best_rank is None or rank > best_rank:
            best, best_rank = list(chosen), rank
    return best


def whole_cards(node: Node, pod: Pod, taken: Iterable[int]) -> list[int]:
    """The whole cards of a pod whose shares lie on the taken cards."""
    free = candidates(node, pod, Share(exclusive=True), taken)
    return [free[i] for i in closest([node.cards[place] for place in free], pod.whole)] if pod.whole else []


def closeness(node: Node, pod: Pod) -> float:
    """The part of the pairs of the closest set that are linked; half for pairs on one NUMA node."""
    free = [node.cards[place] for place in candidates(node, pod, Share(exclusive=True))]
    if pod.whole < 2 or len(free) < pod.whole:
        return 0.0
    pairs = list(combinations([free[i] for i in closest(free, pod.whole)], 2))
    good = 0.0
    for one, other in pairs:
        if lanes(one, other):
            good += 1.0
        elif one.numa is not None and one.numa == other.numa:
            good += 0.5
    return good / len(pairs)


def mean_free(node: Node) -> float:
    return sum(share_of(card) for card in node.cards) / 100 / max(1, len(node.cards))


def shares_on(node: Node, pod: Pod, stack: Sequence[int]) -> list[tuple[Card, Share]]:
    """The cards of a stack with what is taken of each."""
    shares = [need.share for need in pod.shares for _ in range(need.gpus)]
    return [(node.cards[place], share) for place, share in zip(stack, shares, strict=True)]


def cut_off(value: float) -> tuple[float, float]:
    return float(math.trunc(value - NOISE)), float(math.trunc(value + NOISE))


class Reference:
    """One policy. `stack` says on which cards the shares of a pod go on a node, `value` what the node is worth."""

    def __init__(self, cluster: Sequence[Node]) -> None:
        self.cluster = cluster
        #: Where containers fit apart only, the node is out if another holds them together.
        self.together_first = True

    def stack(self, node: Node, pod: Pod) -> list[int] | None:
        """The cards for the shares, need by need, the whole cards left aside; None when there is no room."""
        if not fits_beside(node, pod):
            return None
        kept = reserved(node, pod)
        if kept is None:
            return None
        stack: list[int] = []
        for need in pod.shares:
            free = candidates(node, pod, need.share, [*kept, *stack])
            if len(free) < need.gpus:
                return None
            stack += self.pick(node, pod, need, free)
        return stack

    def pick(self, node: Node, pod: Pod, need: Need, free: list[int]) -> list[int]:
        return sorted(free, key=lambda place: (self.key(node, pod, need.share, place), place))[: need.gpus]

    def key(self, node: Node, pod: Pod, share: Share, place: int) -> float:
        """The card with the lowest key is taken: gpushare's least free unless a policy says otherwise."""
        return amount_free(node.cards[place], share)

    def check_stack(self, node: Node, pod: Pod, taken: list[int], stack: list[int]) -> None:
        """Another choice of cards is as good when its keys are the same, need by need."""
        assert len(set(taken)) == len(taken) == len(stack)
        start = 0
        for need in pod.shares:
            end = start + need.gpus
            keys = [
                sorted(self.key(node, pod, need.share, place) for place in places[start:end])
                for places in (taken, stack)
            ]
            assert all(abs(own - best) <= NOISE for own, best in zip(*keys, strict=True)), "not the best cards"
            start = end

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        raise NotImplementedError


class Binpack(Reference):
    """As little as possible left on the cards taken; then the fuller node."""

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        left = sum(left_on(card, share) for card, share in shares_on(node, pod, stack)) / 100
        value = -left - 0.1 * mean_free(node)
        return value, value


class Topology(Binpack):
    """Linked cards before either."""

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        value = super().value(node, pod, stack)[0] + 10 * closeness(node, pod)
        return value, value


class Spread(Reference):
    def key(self, node: Node, pod: Pod, share: Share, place: int) -> float:
        return -amount_free(node.cards[place], share)

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        return mean_free(node), mean_free(node)


class Anywhere(Reference):
    """Any node that fits will do."""

    def __init__(self, cluster: Sequence[Node]) -> None:
        super().__init__(cluster)
        self.together_first = False

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        return 0.0, 0.0


def milli_free(node: Node) -> int:
    return sum(10 * share_of(card) for card in node.cards)


class BestFit(Reference):
    """trunc(100·(1 - (CPU left / 128 cores + GPU left / 8 cards) / 2)). `makes` is one card of each make ever seen."""

    def __init__(self, cluster: Sequence[Node], makes: Sequence[Card]) -> None:
        super().__init__(cluster)
        self.makes = makes

    def milli_wanted(self, pod: Pod) -> float:
        """A share of memory counts as the part of a card it fills, on the average over the makes of card."""
        total = 0.0
        for need in pod.needs:
            total += need.gpus * sum(size_on(card, need.share) for card in self.makes) / len(self.makes)
        return 10 * total

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        cpu = (node.cpu - node.cpu_used - pod.cpu) / 128_000
        gpu = (milli_free(node) - self.milli_wanted(pod)) / 8000
        return cut_off(100 * (1 - (cpu + gpu) / 2))


class DotProduct(BestFit):
    """trunc(100·(1 - (free CPU·pod CPU + free GPU·pod GPU) / 2)), against 128 cores and 8 cards."""

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        cpu = (node.cpu - node.cpu_used) / 128_000 * pod.cpu / 128_000
        gpu = milli_free(node) / 8000 * self.milli_wanted(pod) / 8000
        return cut_off(100 * (1 - (cpu + gpu) / 2))


class GpuPacking(Reference):
    """An empty node 33 - its cards; untouched cards needed 50 - their number (at least 33); else 100 - free/10."""

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        if not pod.containers:
            return 0.0, 0.0
        taken = [share_of(card) for card, _ in shares_on(node, pod, stack)]
        untouched = pod.whole + sum(share == 100 for share in taken)
        if all(share_of(card) == 100 for card in node.cards):
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


class Keti(Reference):
    """KETI's built-in settings: weights 0.4 and 0.6, NVLink pairs gain 10 percent."""

    def score(self, card: Card) -> float:
        return (share_of(card) + max(0, 100 - 10 * card.pods)) / 2

    def pick(self, node: Node, pod: Pod, need: Need, free: list[int]) -> list[int]:
        score = {place: self.score(node.cards[place]) for place in free}
        rest = sorted(free, key=lambda place: (-score[place], place))
        chosen: list[int] = []
        while need.gpus - len(chosen) >= 2:
            best: tuple[int, ...] = ()
            for pair in combinations(rest, 2):
                linked = lanes(node.cards[pair[0]], node.cards[pair[1]])
                if linked and (not best or sum(score[i] for i in pair) > sum(score[i] for i in best)):
                    best = pair
            next_two = tuple(rest[:2])
            wins = best and round(sum(score[i] for i in best) / 2 * 1.1) >= sum(score[i] for i in next_two) / 2
            chosen += best if wins else next_two
            rest = [place for place in rest if place not in chosen]
        return chosen + rest[: need.gpus - len(chosen)]

    def check_stack(self, node: Node, pod: Pod, taken: list[int], stack: list[int]) -> None:
        assert taken == stack

    def value(self, node: Node, pod: Pod, stack: Sequence[int]) -> tuple[float, float]:
        total = 0.4 * 50 * ((1 - node.cpu_used / node.cpu) + (1 - node.ram_used / node.ram))
        scores = [self.score(node.cards[place]) for place in stack] + [100.0] * pod.whole
        if scores:
            total += 0.6 * sum(scores) / len(scores)
        return float(round(total - NOISE)), float(round(total + NOISE))


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
    """Fragmentation gradient descent; scores are cut off to whole numbers."""

    def __init__(self, cluster: Sequence[Node], typical: Sequence[Typical]) -> None:
        super().__init__(cluster)
        self.typical = typical

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
        before = self.fragments([10 * share_of(card) for card in node.cards], cpu, node)
        gain = before - self.fragments(after, cpu - pod.cpu, node)
        return math.trunc(100 / (1 + math.exp(-gain / 1000)) + NOISE)

    def after(self, node: Node, taken: Iterable[tuple[int, Share]]) -> list[int]:
        free = [10 * share_of(card) for card in node.cards]
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
        states = [
            (node, self.worth(node), self.stranded(self.worth(node), node.cpu - node.cpu_used)) for node in cluster
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
        return sum(self.numbers.worth[share_of(card)] for card in node.cards)

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
        cards = (sum(share_of(card) == 100 for card in node.cards) - fewer) // block.gpus
        cpu = max(0, node.cpu - node.cpu_used - less_cpu)
        return min(cards, cpu // block.cpu) if block.cpu else cards

    def key(self, node: Node, pod: Pod, share: Share, place: int) -> float:
        card = node.cards[place]
        smaller_first = NOISE * share_of(card)
        return self.regret(card, share) + 0.2 * left_on(card, share) / 100 + smaller_first

    def regret(self, card: Card, share: Share) -> float:
        worth, price = self.numbers.worth, self.numbers.price
        lost = worth[share_of(card)] - worth[left_on(card, share)]
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
        lost = pod.whole + sum(weights[share_of(card)] - weights[left_on(card, share)] for card, share in taken)
        untouched = pod.whole + sum(share_of(card) == 100 for card, _ in taken)
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
