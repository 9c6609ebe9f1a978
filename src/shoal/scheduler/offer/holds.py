"""Cards held for pods of other clusters, from an offer until the pod's copy is placed here.

The one exception to "nothing is booked for a pod that the API server does not show". So it is bounded: in seconds by
the contract, in number for each caller, and all together in cards. A hold is known by its caller and the UID of the pod
at home; asked for again it is replaced. The copy, which names that UID (`shoal.dev/origin`), gets just these cards, in
the loop and by the extender alike; so does the pod itself, where its home is this cluster and its manager leaves it
here. All of it is memory of this process: nothing survives a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change
from shoal.model.allocation import Allocation
from shoal.model.contract import clusters
from shoal.model.errors import CodecError
from shoal.model.request import Request
from shoal.placement.columns import BoolArray
from shoal.scheduler.holds import Hold, HoldTable
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.state.cluster_state import ClusterState

#: Pods for which one caller may hold cards.
MOST_PODS: Final = 64
#: The part of all cards on which anything may be held for offers; for one pod something may always be.
MOST_CARDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Wanted:
    """By whom and for which pod something is held, and what that pod asks for."""

    caller: str
    origin: str
    request: Request


class OfferHolds:
    """All holds of offers, by the key of their booking."""

    def __init__(self, state: ClusterState, *, clock: Callable[[], float], metrics: Metrics) -> None:
        self._state = state
        self._metrics = metrics
        self._holds = HoldTable(clock)
        self._wanted: dict[str, _Wanted] = {}
        self._callers: Counter[str] = Counter()
        self._cards: Counter[str] = Counter()
        #: The keys of one origin: of several callers, if they name the same.
        self._origins: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def keys(self) -> frozenset[str]:
        """The keys of all bookings."""
        return frozenset(self._holds)

    def keep(self, caller: str, origin: str, request: Request, allocation: Allocation, *, seconds: float) -> bool:
        """Hold what is booked under the key of caller and origin; False when the caller may not hold more."""
        cards = allocation.held().keys()
        total = float(self._state.engine.ledger.columns.cards_by_kind().sum())
        more = len(self._cards.keys() | cards)
        if self._callers[caller] >= MOST_PODS or (self._cards and more > MOST_CARDS * total):
            self._count("refused")
            return False
        key = key_of(caller, origin)
        self._holds.put(key, allocation, seconds)
        self._wanted[key] = _Wanted(caller, origin, request)
        self._callers[caller] += 1
        self._cards.update(cards)
        self._origins.setdefault(origin, {})[key] = None
        self._count("made")
        return True

    def withdraw(self, caller: str, origin: str) -> Allocation | None:
        """End the hold that the caller has for this pod, since it asks again; tell others with `state.tell_freed`."""
        key = key_of(caller, origin)
        return self._end(key, "replaced", quietly=True).allocation if key in self._holds else None

    def expire(self) -> None:
        """End the holds whose time is over; called before every offer and from time to time."""
        for key in self._holds.over():
            self._end(key, "expired")

    # The copy

    def take(self, pod: Pod) -> Allocation | None:
        """What is held for this copy, for `give`. The hold ends here: no copy is refused by its own.

        A copy that asks for something else than the offer was asked for gets nothing of it. Raises RequestError.
        """
        keys = self._keys_for(pod)
        if not keys:
            return None
        request = self._state.request(pod)
        key = next((key for key in keys if self._wanted[key].request == request), None)
        if key is not None:
            return self._end(key, "placed", quietly=True).allocation
        for key in keys:
            self._end(key, "changed")
        return None

    def give(self, pod: Pod, held: Allocation, allowed: BoolArray) -> bool:
        """Book what was held as the copy's own, if its node may still take it; else it is free for everybody."""
        row = self._state.row(held.node)
        if row is not None and row < len(allowed) and allowed[row] and self._state.place_as(pod, held):
            return True
        self._state.tell_freed()
        return False

    def on_pod(self, change: Change[Pod]) -> None:
        """A copy that has a node, whoever gave it that, needs no hold. To be told before the cluster state is."""
        if change.new is not None and change.new.spec.node_name:
            for key in self._keys_for(change.new):
                self._end(key, "overtaken")

    def _keys_for(self, pod: Pod) -> list[str]:
        if not self._origins:
            return []
        written = pod.metadata.annotations.get(clusters.ANNOTATION_ORIGIN)
        if written is None:
            return list(self._origins.get(pod.metadata.uid, ()))  # its home is here, and it stays
        try:
            origin = clusters.decode(clusters.CopyOrigin, written, what=clusters.ANNOTATION_ORIGIN)
        except CodecError:
            return []  # no copy of ours
        return list(self._origins.get(origin.uid, ()))

    # Parts

    def _end(self, key: str, outcome: str, *, quietly: bool = False) -> Hold:
        hold, wanted = self._holds.pop(key), self._wanted.pop(key)
        assert hold is not None
        _take_off(self._callers, (wanted.caller,))
        _take_off(self._cards, hold.allocation.held())
        del self._origins[wanted.origin][key]
        if not self._origins[wanted.origin]:
            del self._origins[wanted.origin]
        self._state.unreserve(key, quietly=quietly)
        self._count(outcome)
        return hold

    def _count(self, outcome: str) -> None:
        self._metrics.offer_holds.inc(outcome)
        self._metrics.offers_held.set(len(self._holds))


def key_of(caller: str, origin: str) -> str:
    """The key of a booking that is no pod's: neither a UID nor the name of a node begins like it."""
    return f"offer:{origin}:{caller}"


def _take_off(counts: Counter[str], keys: Iterable[str]) -> None:
    for key in keys:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
