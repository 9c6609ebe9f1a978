"""The pods of a cluster placed anew under a policy, one after another in the order of their creation.

Pods that ask for no card stay where they are. Nobody gives way, groups are placed pod by pod, and pods that have left
do not come back: the outcome tells policies apart, it is not what the cluster's past would have been.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.cli.ask.answers.nodes import Answer, indices
from shoal.cli.ask.picture.facts import Facts
from shoal.cli.ask.picture.picture import Picture, born, finished, full_name, unplaced, waits
from shoal.kube.objects.pod import Pod
from shoal.model.errors import RequestError
from shoal.placement.books.columns import WHOLE
from shoal.placement.errors import PolicyError
from shoal.scheduler.state.requests import Requests


class Spot(Answer, frozen=True):
    """Where a pod is: its node and cards."""

    node: str
    cards: tuple[int, ...] = ()


class Measure(Answer, frozen=True):
    """How well the cards are used."""

    placed: int
    waiting: int
    whole_cards_free: int
    #: All that is free, in cards.
    free_cards: float
    #: The part of it that lies on cards in use, in percent: what whole cards cannot be made of.
    fragmented: float


class Moved(Answer, frozen=True):
    """A pod that is elsewhere in the second; None where it has no place."""

    pod: str
    before: Spot | None = None
    after: Spot | None = None


@dataclass(frozen=True, slots=True)
class Placing:
    """One way to place the pods."""

    name: str
    spots: dict[str, Spot | None]
    measure: Measure


class Comparison(Answer, frozen=True, omit_defaults=False):
    """Two ways to place the same pods."""

    before: str
    after: str
    measure_before: Measure
    measure_after: Measure
    moved: tuple[Moved, ...] = ()
    same: int = 0
    #: The one whose pods are told; empty for all. The measures are those of all pods.
    namespace: str = ""


def as_it_is(facts: Facts) -> Placing:
    """Where the pods are now."""
    picture = Picture(facts)
    spots = {full_name(pod): _spot(picture, pod) for pod in _gpu_pods(facts)}
    return Placing("now", spots, _measure(picture, spots))


def replay(facts: Facts, policy: str | None) -> Placing:
    """All pods with cards placed anew; None is the policy in force. Raises PolicyError."""
    pods = _gpu_pods(facts)
    moving = {pod.metadata.uid for pod in pods}
    picture = Picture(facts, policy=policy, pods=[pod for pod in facts.pods if pod.metadata.uid not in moving])
    spots: dict[str, Spot | None] = {}
    for pod in pods:
        try:
            allocation = picture.place(unplaced(pod)).allocation
        except (RequestError, PolicyError):
            allocation = None  # as the pod is written, no policy can place it
        spots[full_name(pod)] = None if allocation is None else Spot(allocation.node, indices(allocation))
    return Placing(picture.in_force.policy.name, spots, _measure(picture, spots))


def compare(before: Placing, after: Placing, *, namespace: str = "") -> Comparison:
    """What differs, pod by pod for those of a namespace; empty for all."""
    told = {pod: spot for pod, spot in before.spots.items() if not namespace or pod.startswith(f"{namespace}/")}
    moved = tuple(Moved(pod, spot, after.spots.get(pod)) for pod, spot in told.items() if after.spots.get(pod) != spot)
    same = len(told) - len(moved)
    return Comparison(before.name, after.name, before.measure, after.measure, moved, same, namespace)


def _gpu_pods(facts: Facts) -> list[Pod]:
    """The pods that hold cards or wait for some, by creation."""
    requests = Requests(facts.settings.memory_unit)
    return [pod for pod in sorted(facts.pods, key=born) if _takes_part(pod) and _asks_for_cards(requests, pod)]


def _takes_part(pod: Pod) -> bool:
    return not finished(pod) and bool(pod.spec.node_name or (waits(pod) and not pod.spec.scheduling_gates))


def _asks_for_cards(requests: Requests, pod: Pod) -> bool:
    try:
        return bool(requests.of(pod).containers)
    except RequestError:
        return False


def _spot(picture: Picture, pod: Pod) -> Spot | None:
    booking = picture.engine.ledger.booking(pod.metadata.uid)
    return None if booking is None else Spot(booking.node, indices(booking.allocation))


def _measure(picture: Picture, spots: dict[str, Spot | None]) -> Measure:
    free = [card.figures().share for node in picture.engine.ledger.nodes() for card in node.slots]
    whole = sum(share == WHOLE for share in free)
    total = sum(free) / WHOLE
    placed = sum(spot is not None for spot in spots.values())
    return Measure(
        placed=placed,
        waiting=len(spots) - placed,
        whole_cards_free=whole,
        free_cards=round(total, 2),
        fragmented=round(100 * (total - whole) / total, 1) if total else 0.0,
    )
