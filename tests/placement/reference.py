"""Every policy once more, slowly: plain loops over plain tuples, straight from the formulas.

Nothing here comes from the engine or its tables. Where the formulas round or cut off, a value is a pair, the lowest and
the highest it may be, since sums of floats may fall to either side. Here are nodes, pods, what fits, and the policies
users choose; `reference_baselines` has those of the literature, `reference_fragmentation` the default one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

from shoal.model.request import NO_SHARE, ContainerKind, Request, Share

#: Differences below this are rounding.
NOISE = 1e-9


@dataclass(eq=False)
class Card:
    """A card and what is taken of it; never changed. `links` are (number of the other card, lanes)."""

    number: int
    model: str
    memory: int
    clients: int
    numa: int | None = None
    links: tuple[tuple[int, int], ...] = ()
    usable: bool = True
    pods: int = 0
    used: Share = NO_SHARE
    #: Pods on it that say no sizes.
    sizeless: int = 0
    #: Memory in use that nobody booked.
    stray: int = 0

    @property
    def memory_free(self) -> int:
        return max(0, self.memory - self.used.memory_mib - self.stray)

    @cached_property
    def free(self) -> int:
        """The free share in hundredths."""
        if not self.usable or self.used.exclusive or 0 < self.sizeless < self.pods:
            return 0
        if not self.pods and not self.stray:
            return 100
        parts = [99, 100 - self.used.compute]
        if self.memory:
            parts.append((200 * self.memory_free + self.memory) // (2 * self.memory))
        if self.clients:
            parts.append((200 * (self.clients - self.used.clients) + self.clients) // (2 * self.clients))
        return min(parts)


@dataclass(eq=False)
class Node:
    """A node and what is taken of it; never changed. `kinds`: for every pod with cards, how many it has whole."""

    name: str
    cpu: int
    ram: int
    cards: tuple[Card, ...]
    cpu_used: int = 0
    ram_used: int = 0
    kinds: frozenset[int] = frozenset()
    one_container: bool = False

    @cached_property
    def model(self) -> str:
        return "+".join(sorted({card.model for card in self.cards}))

    @cached_property
    def untouched(self) -> int:
        return sum(card.free == 100 for card in self.cards)


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
    #: More than one container has a share, or of more than one card, or one that is no ordinary container.
    several: bool

    @property
    def shares(self) -> list[Need]:
        return [need for need in self.needs if not need.share.exclusive]


def pod_of(request: Request) -> Pod:
    containers = tuple(Need(container.gpus, container.share) for container in request.containers)
    whole = sum(need.gpus for need in containers if need.share.exclusive)
    needs = [Need(whole, Share(exclusive=True))] if whole else []
    shared = [need for need in containers if not need.share.exclusive]
    needs += stacked([need for need in shared if not sizeless(need.share)])
    needs += stacked([need for need in shared if sizeless(need.share)])
    shares = [container for container in request.containers if not container.share.exclusive]
    several = sum(one.gpus for one in shares) > 1 or any(one.kind is not ContainerKind.APP for one in shares)
    return Pod(request.cpu_milli, request.memory_mib, containers, request.selector.models, whole, tuple(needs), several)


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


def sizeless(share: Share) -> bool:
    return share.clients > 0 and share.memory_mib == share.compute == 0 and not share.exclusive


def accepts(pod: Pod, card: Card) -> bool:
    return not pod.models or card.model in pod.models


def holds(card: Card, share: Share) -> bool:
    if not card.usable or card.used.exclusive:
        return False
    if share.exclusive:
        return not card.pods and not card.stray
    if sizeless(share) and not card.pods and card.stray:
        return False
    if card.pods and card.sizeless != (card.pods if sizeless(share) else 0):
        return False
    return (
        share.memory_mib <= card.memory_free
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
    return max(0, card.free - size_on(card, share))


def amount_free(card: Card, share: Share) -> int:
    """What is free of what is asked for: memory, else clients, else compute."""
    if share.memory_mib:
        return card.memory_free
    return card.clients - card.used.clients if share.clients else 100 - card.used.compute


# One node


def fits_beside(node: Node, pod: Pod) -> bool:
    """Who serves the node, CPU and memory; who asks for none of it needs none."""
    if node.one_container and pod.several:
        return False
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
        like: dict[int, set[bool]] = {}
        for need, places in zip(shared, deal, strict=True):
            for place in places:
                total[place] = total.get(place, Share()) + need.share
                like.setdefault(place, set()).add(sizeless(need.share))
        if any(len(kinds) > 1 for kinds in like.values()):
            continue
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
    return sum(card.free for card in node.cards) / 100 / max(1, len(node.cards))


def shares_on(node: Node, pod: Pod, stack: Sequence[int]) -> list[tuple[Card, Share]]:
    """The cards of a stack with what is taken of each."""
    shares = [need.share for need in pod.shares for _ in range(need.gpus)]
    return [(node.cards[place], share) for place, share in zip(stack, shares, strict=True)]


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


class Keti(Reference):
    """KETI's built-in settings: weights 0.4 and 0.6, NVLink pairs gain 10 percent."""

    def score(self, card: Card) -> float:
        return (card.free + max(0, 100 - 10 * card.pods)) / 2

    def pick(self, node: Node, pod: Pod, need: Need, free: list[int]) -> list[int]:
        score = {place: self.score(node.cards[place]) for place in free}
        rest = sorted(free, key=lambda place: (-score[place], place))
        chosen: list[int] = []
        while need.gpus - len(chosen) >= 2:
            # Of equal pairs the one whose better card has the lower number.
            pairs = [pair for pair in combinations(rest, 2) if lanes(node.cards[pair[0]], node.cards[pair[1]])]
            best = min(pairs, key=lambda pair: (-score[pair[0]] - score[pair[1]], pair), default=())
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
