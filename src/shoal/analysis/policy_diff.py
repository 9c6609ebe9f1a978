"""The pods of a cluster placed anew under a policy, one after another in the order of their creation.

Pods that ask for no card stay where they are. Nobody gives way, groups are placed pod by pod, and pods that have left
do not come back: the outcome tells policies apart, it is not what the cluster's past would have been.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.analysis.dry_run import DryRun, born, finished, full_name, unbound, waits
from shoal.analysis.node_fit import Answer, indices
from shoal.analysis.snapshot import ClusterSnapshot
from shoal.kube.objects.pod import Pod
from shoal.model.errors import RequestError
from shoal.placement.columns import WHOLE
from shoal.placement.errors import PolicyError
from shoal.scheduler.state.requests import Requests


class PodPlace(Answer, frozen=True):
    """Where a pod is: its node and cards."""

    node: str
    cards: tuple[int, ...] = ()


class CardMeasure(Answer, frozen=True):
    """How well the cards are used."""

    placed: int
    waiting: int
    whole_cards_free: int
    #: All that is free, in cards.
    free_cards: float
    #: The part of it that lies on cards in use, in percent: no whole card can be given of it.
    fragmented: float


class MovedPod(Answer, frozen=True):
    """A pod whose place differs; None stands for a pod that waits."""

    pod: str
    before: PodPlace | None = None
    after: PodPlace | None = None


@dataclass(frozen=True, slots=True)
class Placements:
    """The places of all pods under one policy, or as they are now."""

    name: str
    places: dict[str, PodPlace | None]
    measure: CardMeasure


class PlacementComparison(Answer, frozen=True, omit_defaults=False):
    """Two ways to place the same pods."""

    before: str
    after: str
    measure_before: CardMeasure
    measure_after: CardMeasure
    moved: tuple[MovedPod, ...] = ()
    same: int = 0
    #: The one whose pods are told; empty for all. The measures are those of all pods.
    namespace: str = ""


def as_it_is(snapshot: ClusterSnapshot) -> Placements:
    """Where the pods are now."""
    dry_run = DryRun(snapshot)
    places = {full_name(pod): _place(dry_run, pod) for pod in _gpu_pods(snapshot)}
    return Placements("now", places, _measure(dry_run, places))


def replay(snapshot: ClusterSnapshot, policy: str | None) -> Placements:
    """All pods with cards placed anew; None is the policy in force. Raises PolicyError."""
    pods = _gpu_pods(snapshot)
    moving = {pod.metadata.uid for pod in pods}
    dry_run = DryRun(snapshot, policy=policy, pods=[pod for pod in snapshot.pods if pod.metadata.uid not in moving])
    places: dict[str, PodPlace | None] = {}
    for pod in pods:
        try:
            allocation = dry_run.place(unbound(pod))
        except (RequestError, PolicyError):
            allocation = None  # as the pod is written, no policy can place it
        places[full_name(pod)] = None if allocation is None else PodPlace(allocation.node, indices(allocation))
    return Placements(dry_run.in_force.policy.name, places, _measure(dry_run, places))


def compare(before: Placements, after: Placements, *, namespace: str = "") -> PlacementComparison:
    """What differs; the pods are listed for one namespace, for all if none is given."""
    told = {pod: place for pod, place in before.places.items() if not namespace or pod.startswith(f"{namespace}/")}
    moved = tuple(
        MovedPod(pod, place, after.places.get(pod)) for pod, place in told.items() if after.places.get(pod) != place
    )
    same = len(told) - len(moved)
    return PlacementComparison(before.name, after.name, before.measure, after.measure, moved, same, namespace)


def _gpu_pods(snapshot: ClusterSnapshot) -> list[Pod]:
    """The pods that hold cards or wait for some, by creation."""
    requests = Requests(snapshot.settings.memory_unit)
    return [pod for pod in sorted(snapshot.pods, key=born) if _takes_part(pod) and _asks_for_cards(requests, pod)]


def _takes_part(pod: Pod) -> bool:
    return not finished(pod) and bool(pod.spec.node_name or (waits(pod) and not pod.spec.scheduling_gates))


def _asks_for_cards(requests: Requests, pod: Pod) -> bool:
    try:
        return bool(requests.of(pod).containers)
    except RequestError:
        return False


def _place(dry_run: DryRun, pod: Pod) -> PodPlace | None:
    booking = dry_run.engine.ledger.booking(pod.metadata.uid)
    return None if booking is None else PodPlace(booking.node, indices(booking.allocation))


def _measure(dry_run: DryRun, places: dict[str, PodPlace | None]) -> CardMeasure:
    free = [card.figures().share for node in dry_run.engine.ledger.nodes() for card in node.slots]
    whole = sum(share == WHOLE for share in free)
    total = sum(free) / WHOLE
    placed = sum(place is not None for place in places.values())
    return CardMeasure(
        placed=placed,
        waiting=len(places) - placed,
        whole_cards_free=whole,
        free_cards=round(total, 2),
        fragmented=round(100 * (total - whole) / total, 1) if total else 0.0,
    )
