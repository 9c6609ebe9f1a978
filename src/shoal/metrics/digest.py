"""A digest of each card in a Lease of the node, by which the scheduler knows what is really used.

It is written seldom: when the memory that nobody booked has changed, when what only weighs has changed by a step, and
otherwise three times in its time to live. Pauses are jittered, so that thousands of nodes do not write together. The
time in the Lease is that of the sample; nobody compares it with a clock of his own but to show it.

Memory beyond bookings counts when two samples in a row show it: a container that starts or ends may be in nobody's name
for a moment.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, ForbiddenError, KubeError, NotFoundError
from shoal.kube.resources import LEASES, NODES
from shoal.metrics.snapshot import CardSnapshot, LatestSnapshot, NodeLoad, Snapshot
from shoal.model.backoff import Backoff
from shoal.model.contract import load
from shoal.model.contract.load import CardDigest, LoadDigest, encode_load
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

_MEBIBYTE: Final = 2**20
#: Utilisation is a mean over about so long: a card that is busy every other second is half busy.
_SMOOTH_SECONDS: Final = 60.0
_BACKOFF: Final = Backoff(first=5.0, longest=300.0)

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
_Step = Annotated[int, msgspec.Meta(ge=1, le=100)]


class DigestSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When a digest is written."""

    #: For how long the scheduler believes a digest (its `liveLoad.ttlSeconds`); it is written three times in it.
    ttl_seconds: _Seconds = load.TTL_SECONDS
    #: Between two writes at least, when memory has changed. What only weighs waits for a sixth of the time to live.
    least_seconds: _Seconds = 10.0
    #: Changes worth a write: of memory in percent of the card, of utilisation in points, of the temperature in °C.
    memory_percent: _Step = 2
    utilisation_step: _Step = 20
    celsius_step: _Step = 5


def digest_of(snapshot: Snapshot, before: Snapshot | None = None) -> LoadDigest:
    """What the scheduler is told of a snapshot. `before` is the one before it, if there was one."""
    earlier = {} if before is None else {card.card.uuid: _card(card) for card in before.cards}
    cards = {
        card.card.uuid: _lasting(_card(card), earlier.get(card.card.uuid))
        for card in snapshot.cards[: load.MAX_CARDS]
        if card.sample is not None
    }
    return LoadDigest(cards, *_node(snapshot.load or NodeLoad()))


def _card(card: CardSnapshot) -> CardDigest:
    sample = card.sample
    if sample is None:
        return CardDigest()
    # What the driver does not list may well be a pod's.
    nobodys = card.unattributed_bytes if sample.processes_known else None
    return CardDigest(
        used_mib=_mebibytes(card.used_bytes),
        unattributed_mib=_mebibytes(nobodys),
        overuse_mib=_mebibytes(overuse_bytes(card)),
        utilisation=None if sample.utilisation is None else min(max(sample.utilisation, 0), 100),
        celsius=None if sample.temperature_c is None else min(max(sample.temperature_c, -100), 500),
        watts=None if sample.power_mw is None else min(max(sample.power_mw, 0) // 1000, 100_000),
    )


def overuse_bytes(card: CardSnapshot) -> int:
    """What pods use of a card beyond what was booked for each. Who booked no memory has none."""
    used: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for one in card.containers:
        whose = one.name.pod_uid, one.name.namespace, one.name.pod
        used[whose] += (one.used_bytes or 0) - (one.requested_bytes or 0)
    return sum(beyond for beyond in used.values() if beyond > 0)


def _lasting(now: CardDigest, before: CardDigest | None) -> CardDigest:
    """Of memory beyond bookings only what was there before as well."""
    if before is None:
        return now
    return replace(
        now,
        unattributed_mib=_least(now.unattributed_mib, before.unattributed_mib),
        overuse_mib=_least(now.overuse_mib, before.overuse_mib),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return one if one is None or other is None else min(one, other)


def _mebibytes(amount: int | None) -> int | None:
    return None if amount is None else min(math.ceil(max(amount, 0) / _MEBIBYTE), 2**31)


def _node(node: NodeLoad) -> Iterator[int | None]:
    for used, total in (
        (node.cpu_used_milli, node.cpu_total_milli),
        (node.memory_used_bytes, node.memory_total_bytes),
        (node.storage_used_bytes, node.storage_total_bytes),
    ):
        yield None if used is None or not total else min(max(round(100 * used / total), 0), 100)


@dataclass(frozen=True, slots=True)
class DigestChange:
    """How far a digest is from the one that was written."""

    #: Memory that nobody booked: pods may wait for it, or must not be placed on it.
    memory: bool
    #: What only weighs.
    weight: bool


def change_between(
    old: LoadDigest, new: LoadDigest, memory_mib: Mapping[str, int], settings: DigestSettings
) -> DigestChange:
    """Whether what changed is worth a write. `memory_mib` is what each card has."""
    memory = weight = old.cards.keys() != new.cards.keys()
    for uuid, card in new.cards.items():
        last = old.cards.get(uuid, CardDigest())
        step = max(1, memory_mib.get(uuid, 0) * settings.memory_percent // 100)
        for before, now in (
            (last.unattributed_mib, card.unattributed_mib),
            (last.overuse_mib, card.overuse_mib),
        ):
            # What is gone entirely is told however small it was: the card is nobody's but the pods' again.
            memory |= _differs(before, now, step) or (bool(before) and not now)
        weight |= (
            _differs(last.used_mib, card.used_mib, 5 * step)
            or _differs(last.utilisation, card.utilisation, settings.utilisation_step)
            or _differs(last.celsius, card.celsius, settings.celsius_step)
        )
    for before, now in ((old.cpu, new.cpu), (old.memory, new.memory), (old.storage, new.storage)):
        weight |= _differs(before, now, settings.utilisation_step)
    return DigestChange(memory, weight)


def _differs(before: int | None, now: int | None, step: int) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= step


class DigestPace:
    """When a digest is due. No clock: `now` is monotonic time in seconds."""

    def __init__(self, settings: DigestSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._written: LoadDigest | None = None
        self._at = -math.inf
        #: All pauses are a little longer or shorter, anew after each write.
        self._factor = 1.0
        #: The first one comes some time after the start: a DaemonSet starts many at once.
        self._first = math.inf

    def is_due(self, digest: LoadDigest, memory_mib: Mapping[str, int], now: float) -> bool:
        """Whether to write it now."""
        if self._written is None:
            if self._first == math.inf:
                self._first = now + self._rng.uniform(0.0, self._settings.least_seconds)
            return now >= self._first
        since = now - self._at
        if since >= self._factor * self._settings.ttl_seconds / 3:
            return True
        change = change_between(self._written, digest, memory_mib, self._settings)
        if change.memory:
            return since >= self._factor * self._settings.least_seconds
        return change.weight and since >= self._factor * self._settings.ttl_seconds / 6

    def wrote(self, digest: LoadDigest, now: float) -> None:
        """It was written."""
        self._written, self._at = digest, now
        self._factor = self._rng.uniform(0.8, 1.0)


class DigestWriter:
    """Writes the Lease of one node."""

    def __init__(
        self, settings: DigestSettings, client: Client, node: str, *, rng: random.Random | None = None
    ) -> None:
        self._settings = settings
        self._client = client
        self._node = node
        self._rng = rng or random.Random()
        self._pace = DigestPace(settings, self._rng)
        self._busy: dict[str, tuple[float, float]] = {}
        self._failures = 0
        self._not_before = -math.inf

    async def run(self, latest: LatestSnapshot) -> None:
        """Write what is due, until cancelled. An API server that is away, or refuses, costs the digest alone."""
        before: Snapshot | None = None
        while True:
            snapshot = await latest.after(0 if before is None else before.number)
            await self.tell(snapshot, before)
            before = snapshot

    async def tell(self, snapshot: Snapshot, before: Snapshot | None) -> bool:
        """Write the digest of a snapshot if it is due; whether it was written. One sample alone tells too little."""
        if before is None:
            return False
        digest = self._smooth(digest_of(snapshot, before), snapshot.monotonic)
        sizes = {card.card.uuid: card.card.memory_bytes // _MEBIBYTE for card in snapshot.cards}
        now = snapshot.monotonic
        if now < self._not_before or not self._pace.is_due(digest, sizes, now):
            return False
        try:
            await self._write(encode_load(digest), snapshot.time)
        except (KubeError, CodecError) as error:
            self._failures += 1
            self._not_before = now + _BACKOFF.jittered(self._failures, self._rng)
            log.warning("live load of this node is not told: %s", error)
            return False
        self._failures = 0
        self._pace.wrote(digest, now)
        return True

    def _smooth(self, digest: LoadDigest, now: float) -> LoadDigest:
        """The digest with each card's utilisation as a mean over the last while."""
        cards: dict[str, CardDigest] = {}
        kept: dict[str, tuple[float, float]] = {}
        for uuid, card in digest.cards.items():
            if card.utilisation is not None:
                mean, at = self._busy.get(uuid, (float(card.utilisation), now))
                mean += (card.utilisation - mean) * -math.expm1((at - now) / _SMOOTH_SECONDS) if now > at else 0.0
                kept[uuid] = mean, now
                card = replace(card, utilisation=round(mean))
            cards[uuid] = card
        self._busy = kept
        return replace(digest, cards=cards)

    async def _write(self, digest: str, sampled: float) -> None:
        """Raises KubeError."""
        change: dict[str, Any] = {
            "metadata": {"annotations": {load.ANNOTATION_LOAD: digest}},
            "spec": {
                "holderIdentity": self._node,
                "leaseDurationSeconds": math.ceil(self._settings.ttl_seconds),
                "renewTime": datetime.fromtimestamp(sampled, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        try:
            await self._client.patch(LEASES, self._node, change, namespace=load.NAMESPACE)
        except NotFoundError:
            await self._create(change)

    async def _create(self, lease: dict[str, Any]) -> None:
        metadata = {**lease["metadata"], "name": self._node, "namespace": load.NAMESPACE}
        owner = await self._owner()
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        # One that was made meanwhile is changed by the next digest.
        with contextlib.suppress(AlreadyExistsError):
            await self._client.create(LEASES, {**lease, "metadata": metadata}, namespace=load.NAMESPACE)

    async def _owner(self) -> dict[str, str] | None:
        """The node as an owner, so that its Lease goes with it; None if it may not be read."""
        try:
            node = await self._client.get(NODES, self._node)
        except (ForbiddenError, NotFoundError):
            return None
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
