"""The program with one check of its second line of defence taken out, to see whether the fuzz misses it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from shoal.agent.claims import results, specs
from shoal.agent.device_plugin import start_check
from shoal.agent.node import cgroups, given, holdings, pods
from shoal.kube.objects.claims import ResourceClaim
from shoal.model import allocation, bound
from shoal.model.allocation import Allocation, ContainerAllocation
from shoal.model.gpu import NodeGpus
from shoal.model.request import ContainerRequest
from shoal.placement.ledger import Booking
from shoal.scheduler.claims import evaluation
from shoal.scheduler.state import claim_bookings, cluster_state
from shoal.scheduler.state.claim_bookings import ClaimBookings, claim_key
from shoal.scheduler.state.cluster_state import ClusterState
from shoal.scheduler.state.holdings import HeldByNodes

_ENTRY_MISMATCH = bound.entry_mismatch
_HOLDING = pods.NodePods._holding
_LET_GO = pods.NodePods._let_go
_ENTRY = specs._entry
#: Units after which an evaluation without a budget counts as one that does not end.
_FOR_EVER = 1_000_000


@dataclass(frozen=True)
class Mutant:
    """What is not checked, and what stands in the place of the check: (where, name, other)."""

    name: str
    changes: tuple[tuple[Any, str, Any], ...]

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until the test ends."""
        for where, name, other in self.changes:
            monkeypatch.setattr(where, name, other)


def _silent(*_: object, **__: object) -> str:
    return ""


def _weaker(change: Callable[[ContainerRequest, ContainerAllocation], ContainerAllocation]) -> Any:
    """Believes of one field of an entry what was asked for."""

    def entry_mismatch(wanted: ContainerRequest, entry: ContainerAllocation, node: NodeGpus) -> str:
        return _ENTRY_MISMATCH(wanted, change(wanted, entry), node)

    return ((bound, "entry_mismatch", entry_mismatch), (holdings, "entry_mismatch", entry_mismatch))


def _as_many(wanted: ContainerRequest, entry: ContainerAllocation) -> ContainerAllocation:
    return replace(entry, cards=(entry.cards * wanted.gpus)[: wanted.gpus])


def _same_share(wanted: ContainerRequest, entry: ContainerAllocation) -> ContainerAllocation:
    return replace(entry, cards=tuple(replace(card, share=wanted.share) for card in entry.cards))


def _same_limit(wanted: ContainerRequest, entry: ContainerAllocation) -> ContainerAllocation:
    return replace(entry, memory_limit_mib=wanted.memory_limit_mib)


def _spend_without_limit(self: evaluation.Scope, cost: int) -> None:
    """A scheduler that hangs would hang the test too: its pod is never answered, which is as much as others see."""
    self.budget -= cost
    if self.budget < -_FOR_EVER:
        raise RuntimeError("goes on for ever")


def _forget_first(self: pods.NodePods, pod: Any, *, again: bool) -> holdings.PodHolding:
    self._first.clear()
    return _HOLDING(self, pod, again=True)


def _as_written(self: pods.NodePods, pod: Any) -> holdings.PodHolding:
    return holdings.holding_of(pod, node=self.node, unit=self._unit)


def _book_again(self: ClusterState, pod: Any, _: object) -> object:
    return self._book(pod)


def _keep_of_any_node(self: ClaimBookings, node: str, uid: str) -> None:
    """What a node says of a claim takes the place of the claim's booking, wherever that is."""
    cards = self._held.get(node, {}).get(uid)
    if cards and uid not in self._on_node.get(node, {}):
        parts = tuple(ContainerAllocation("", (card,)) for card in cards)
        self._ledger.confirm(Booking(claim_key(uid), Allocation(node, parts)))


def _let_go_by_status(self: pods.NodePods, uid: str) -> None:
    """Reports no pod whose status says that a claim serves it."""
    if self._known[uid].pod.status.extended_resource_claim_status is None:
        _LET_GO(self, uid)
        return
    end, known = self._ending[uid], self._known[uid]
    self._unset_given(uid)
    self._first.pop(uid, None)
    self._put(uid, None if end.gone else replace(known, given=False, over=True))


def _pods_limit(record: Any, request: str, cards: Any) -> ContainerAllocation:
    """The limit that the pod asks for, whatever was allocated."""
    named = record.names.get(request)
    return (
        _ENTRY(record, request, cards)
        if named is None
        else replace(_ENTRY(record, request, cards), memory_limit_mib=named.memory_limit_mib)
    )


def _not_listed(self: allocation.Held, pod: str, _: int) -> bool:
    return pod not in self.pods


def _mutant(name: str, where: Any, attribute: str, other: Any) -> Mutant:
    return Mutant(name, ((where, attribute, other),))


MUTANTS = (
    # The request bounds the record
    Mutant("record: what was asked for", ((bound, "entry_mismatch", _silent), (holdings, "entry_mismatch", _silent))),
    Mutant("record: as many cards", _weaker(_as_many)),
    Mutant("record: the share of each card", _weaker(_same_share)),
    Mutant("record: the limit", _weaker(_same_limit)),
    Mutant("record: no other containers", ((bound, "no_request", _silent), (holdings, "no_request", _silent))),
    # The scheduler
    _mutant("scheduler: the first record stays", ClusterState, "_book_changed", _book_again),
    _mutant("scheduler: the agent's word", HeldByNodes, "cards", lambda *_: None),
    _mutant(
        "scheduler: the agent's word on pods that are gone",
        ClusterState,
        "_keep_for_nobody",
        lambda *_: None,
    ),
    _mutant("scheduler: gone is when the node says so", cluster_state, "has_left", lambda *_: True),
    _mutant("scheduler: up to when the agent knows", allocation.Held, "releases", _not_listed),
    _mutant("scheduler: a node speaks of its own claims", ClaimBookings, "_keep", _keep_of_any_node),
    _mutant("scheduler: an evaluation has a budget", evaluation.Scope, "spend", _spend_without_limit),
    # The agent
    _mutant("agent: the end of every pod is reported", pods.NodePods, "_let_go", _let_go_by_status),
    Mutant(
        "agent: names through claims made for the pod, within what was allocated",
        (
            (ResourceClaim, "is_made_for", lambda *_: True),
            (results, "_requests", lambda *_: True),
            (specs, "_entry", _pods_limit),
        ),
    ),
    _mutant("agent: the first record stays", pods.NodePods, "_holding", _forget_first),
    _mutant("agent: what was given stays", pods.NodePods, "_holding_given", _as_written),
    _mutant("agent: room beside what was given", start_check.StartCheck, "_check_room", _silent),
    _mutant("agent: what was given before its start", given.GivenFiles, "read", lambda self: []),
    _mutant("agent: over is when nothing runs", cgroups.PodCgroups, "runs", lambda self, uid: False),
    # The spec of a claim limits its allocation
    _mutant("scheduler: allocations within the claim's spec", claim_bookings, "excess", _silent),
    _mutant("agent: allocations within the claim's spec", results, "excess", _silent),
)
