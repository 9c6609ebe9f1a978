"""Allocate without CDI: matched by amount, verified at PreStartContainer, put right by swapping annotations.

The decisions are in `matching`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.agent.errors import RefusedError
from shoal.agent.node.holdings import used
from shoal.agent.node.pods import Known, NodePods
from shoal.agent.starts import matching
from shoal.agent.starts.decisions import Decisions
from shoal.agent.starts.evidence.checkpoint import Checkpoint, Record
from shoal.agent.starts.evidence.inherited import is_inherited
from shoal.agent.starts.gate import Gate
from shoal.agent.starts.matching import Given, Offer
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model.allocation import Allocation
from shoal.model.errors import shown
from shoal.model.request import NO_SHARE, fits

log = logging.getLogger(__name__)

#: How long kubelet may be ahead of the watch.
_WAIT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
#: An answer that kubelet has not recorded by then was for a pod it did not take.
_RECORDED_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Pending:
    """An answer on its way into kubelet's record."""

    resource: str
    ids: frozenset[str]
    given: Given
    until: float


class Answers:
    """Answers Allocate of every resource with the cards themselves."""

    def __init__(
        self,
        pods: NodePods,
        checkpoint: Checkpoint,
        gate: Gate,
        decisions: Decisions,
        *,
        by_mounts: bool,
        clock: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._checkpoint = checkpoint
        self._gate = gate
        self._decisions = decisions
        self._by_mounts = by_mounts
        self._clock = clock
        self._pending: list[_Pending] = []
        self._one_at_a_time = asyncio.Lock()

    async def allocate(self, resource: str, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        """The cards of the pod that waits longest for as many devices. RefusedError if none does."""
        async with self._one_at_a_time:
            end = self._clock() + _WAIT_SECONDS
            while (offer := await self._next(resource, len(ids))) is None:
                if self._clock() > end:
                    raise RefusedError(f"no pod on this node waits for {len(ids)} of {resource} with cards chosen")
                await asyncio.sleep(_LOOK_SECONDS)
            known = self._pods.get(offer.uid)
            entry = None if known is None else known.holding.entry(offer.container)
            if known is None or entry is None:
                raise RefusedError("the pod that waited is gone")
            response = matching.answer(entry, self._gate.edits(known, entry), by_mounts=self._by_mounts)
            until = self._clock() + _RECORDED_SECONDS
            self._pending.append(_Pending(resource, frozenset(ids), Given(offer.cards), until))
            return response

    async def _next(self, resource: str, count: int) -> Offer | None:
        """The offer that is next; for pods that came without an allocation one is made."""
        offers = matching.still_open(matching.offers(self._pods, resource, count), self._given(resource))
        if offers or not self._decisions.chooses:
            return offers[0] if offers else None
        for known in matching.unplaced(self._pods, resource, count):
            await self._decisions.decided(known)
            offers = matching.still_open(matching.offers(self._pods, resource, count), self._given(resource))
            if offers:
                return offers[0]
        return None

    def _given(self, resource: str) -> list[Given]:
        """What answers have given so far: those in kubelet's record for pods that live, and those on their way."""
        alive = {known.uid for known in self._pods}
        records = [one for one in self._checkpoint.records() if one.resource == resource and one.pod_uid in alive]
        given = [Given(self._cards(one), one.pod_uid, one.container) for one in records]
        recorded = [(one.ids, found.cards) for one, found in zip(records, given, strict=True)]
        now = self._clock()
        self._pending = [
            one
            for one in self._pending
            if one.until > now and (one.resource != resource or (one.ids, one.given.cards) not in recorded)
        ]
        return given + [one.given for one in self._pending if one.resource == resource]

    def _cards(self, record: Record) -> tuple[str, ...]:
        return matching.given_cards(record.response(), self._pods.node)

    async def verify(self, known: Known, record: Record) -> None:
        """Make the pod's allocation say what its container gets. RefusedError if that cannot be."""
        async with self._one_at_a_time:
            known = self._pods.get(known.uid) or known
            entry = known.holding.entry(record.container)
            response = record.response()
            cards = self._cards(record)
            if entry is not None and cards != tuple(card.uuid for card in entry.cards):
                await self._swap(known, record, cards)
                known = self._pods.get(known.uid) or known
            entry = self._gate.entry(known, record.container)
            if is_inherited(record):
                return  # it has the environment of another plugin, and its cards
            wanted = matching.answer(entry, self._gate.edits(known, entry), by_mounts=self._by_mounts)
            if not cards or any(response.envs.get(name) != value for name, value in wanted.envs.items()):
                raise RefusedError(
                    f"container {shown(record.container)} would get another environment than its allocation says: "
                    "delete the pod"
                )

    async def _swap(self, known: Known, record: Record, cards: tuple[str, ...]) -> None:
        """Exchange cards with the container whose cards this one got."""
        resource = record.resource
        count = len(record.ids)
        mine = [one for one in self._checkpoint.records() if one.resource == resource]
        true = {(one.pod_uid, one.container): self._cards(one) for one in mine if one is not record}
        for offer in matching.offers(self._pods, resource, count):
            if offer.uid == known.uid or offer.cards != cards or true.get((offer.uid, offer.container)) == offer.cards:
                continue  # itself, another card, or one that has what its allocation says
            other = self._pods.get(offer.uid)
            if other is None:
                continue
            own, others = matching.swapped(known, record.container, other, offer.container)
            await self._decisions.write_down(other, others)
            await self._decisions.write_down(known, own)
            log.info("pods %s and %s got each other's cards: swapped", "/".join(known.key), "/".join(other.key))
            return
        # A swap of which only the other half was written leaves them to nobody.
        moved = matching.moved(known, record.container, cards, self._pods.node)
        taken = used(one.holding for one in self._pods if one.uid != known.uid)
        held = Allocation("", () if moved is None else moved.containers).held()
        room = all(
            fits(gpu, taken.get(gpu.uuid, NO_SHARE), held[gpu.uuid]) for gpu in self._pods.node.gpus if gpu.uuid in held
        )
        if moved is None or not room:
            raise RefusedError(
                f"container {shown(record.container)} got cards {', '.join(cards) or 'of another plugin'}, which are "
                "not those of its allocation: delete the pod"
            )
        await self._decisions.write_down(known, moved)
