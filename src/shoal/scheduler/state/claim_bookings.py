"""What allocated claims hold of cards, whoever allocated them, as bookings of the one ledger.

A claim is booked under a key of its own: it may be used by several pods, and outlives them. What the watch shows of a
claim counts; a claim that is being allocated here is assumed until then. Devices of a claim that its node has not
taken back yet (`shoal.dev/held`) stay booked, even if the claim is gone or allocated elsewhere by now. Such an entry
has a key of node and claim: a node's annotation changes what is booked on that node only, whatever claims it names.

An allocation that exceeds its claim's spec is not booked: no scheduler wrote it, and the agent does not prepare it. An
allocation within its spec is booked whoever wrote it, and whether or not a pod uses it: the stock scheduler allocates,
reserves and binds in separate writes, and an allocated claim can wait for its next pod. So only the API server, or the
admission policy, keeps tenants from allocating GPUs to their own claims.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final

from shoal.kube.claim_excess import excess
from shoal.kube.objects.claims import AllocatedDevice, ResourceClaim
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import dra
from shoal.model.errors import CodecError
from shoal.model.request import Share
from shoal.placement.errors import BookingError
from shoal.placement.ledger import Booking, Ledger
from shoal.scheduler.cluster_events import ClusterEvent

log = logging.getLogger(__name__)

_device_name = lru_cache(65_536)(dra.device_name)
_KEY: Final = "claim:"
_FREED: Final = ClusterEvent.CARDS_FREED | ClusterEvent.CLAIMS


def claim_key(uid: str) -> str:
    """The key of a claim's booking."""
    return f"{_KEY}{uid}"


def _key_at(node: str, uid: str) -> str:
    """The key of what a node says a claim holds there. No UID of the API server's has a slash."""
    return f"{_KEY}{node}/{uid}"


def allocated_node(claim: ResourceClaim) -> str | None:
    """The node of an allocated claim's devices; None when they are not all of Shoal's driver on one node."""
    allocation = claim.status.allocation
    if allocation is None:
        return None
    results = allocation.devices.results
    if any(result.driver != dra.DRIVER for result in results):
        return None
    pools = {result.pool for result in results}
    return pools.pop() if len(pools) == 1 else None


class ClaimBookings:
    """Claims as the watch shows them, and their bookings."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        news: Callable[[ClusterEvent], None],
        look: Callable[[str], None],
        namespace: Callable[[str], str | None],
    ) -> None:
        """`namespace` gives the namespace of a pod by its UID; None for a pod that is not known."""
        self._ledger = ledger
        self._news = news
        self._namespace = namespace
        #: Looks for over-booked cards of a node.
        self._look = look
        self._claims: dict[tuple[str, str], ResourceClaim] = {}
        #: Claims with devices of Shoal's by node and UID.
        self._on_node: dict[str, dict[str, ResourceClaim]] = {}
        self._node: dict[str, str] = {}
        #: What nodes say is held of claims.
        self._held: dict[str, Mapping[str, tuple[CardShare, ...]]] = {}
        #: Keys of claims that are being allocated, by their pod.
        self._assumed: dict[str, tuple[str, ...]] = {}

    def find(self, namespace: str, name: str) -> ResourceClaim | None:
        """The claim as last seen."""
        return self._claims.get((namespace, name))

    def freed_by(self, node: str, gone: Collection[str]) -> frozenset[str]:
        """The keys of the claims of a node that are used by these pods (UIDs) and by nobody else.

        A pod uses claims of its own namespace only: a claim whose status lists the pods of others is not freed by them.
        """
        return frozenset(
            claim_key(uid)
            for uid, claim in self._on_node.get(node, {}).items()
            if claim.status.reserved_for
            and all(
                one.uid in gone and self._namespace(one.uid) in (None, claim.metadata.namespace)
                for one in claim.status.reserved_for
            )
        )

    def is_leaving(self, node: str, key: str, gone: Collection[str]) -> bool:
        """Whether a claim is still booked on a node and nobody uses it but, at most, these pods (UIDs)."""
        uid = key.removeprefix(_KEY)
        if self._ledger.booking(_key_at(node, uid)) is not None:
            return True
        known = self._ledger.booking(key)
        if known is None or known.node != node:
            return False
        claim = self._on_node.get(node, {}).get(uid)
        return claim is None or all(one.uid in gone for one in claim.status.reserved_for)

    # Decisions

    def assume(self, pod: str, bookings: tuple[Booking, ...]) -> None:
        """Book claims that are about to be allocated for a pod, all or none. Raises BookingError."""
        done: list[str] = []
        try:
            for booking in bookings:
                self._ledger.assume(booking)
                done.append(booking.pod)
        except BookingError:
            for key in done:
                self._ledger.release(key)
            raise
        if done:
            self._assumed[pod] = tuple(done)

    def cancel(self, pod: str) -> None:
        """What was assumed for a pod and was not allocated is free."""
        for key in self._assumed.pop(pod, ()):
            if self._ledger.is_assumed(key):
                self._ledger.release(key)
                self._news(_FREED)

    def settled(self, pod: str) -> None:
        """The pod is bound: its claims are what the watch shows."""
        for key in self._assumed.pop(pod, ()):
            if self._ledger.is_assumed(key):
                log.debug("%s is not shown as allocated yet", key)

    # The watch

    def on_claim(self, change: Change[ResourceClaim]) -> None:
        """A claim appeared, changed or went away."""
        claim = change.object
        meta = claim.metadata
        place = (meta.namespace, meta.name)
        known = self._claims.get(place)
        if change.kind is ChangeType.DELETED:
            if known is not None and known.metadata.uid == meta.uid:
                del self._claims[place]
            self._set(claim, None)
        elif known is not None and known.metadata.uid == meta.uid and _is_older(claim, known):
            return  # an answer to a write was ahead of the watch
        else:
            if known is not None and known.metadata.uid != meta.uid:
                self._set(known, None)
            self._claims[place] = claim
            exceeds = excess(claim)
            if exceeds and (known is None or known.status != claim.status):
                log.warning("namespace %s: not booked: %s", meta.namespace, exceeds)
            self._set(claim, None if exceeds else _node_of(claim))
        self._news(ClusterEvent.CLAIMS)

    def on_inventory(self, node: str) -> None:
        """The cards of a node are others than before: claims are booked on those that are there now."""
        for claim in list(self._on_node.get(node, {}).values()):
            self._book(claim, node)

    def on_held(self, node: str, held: Mapping[str, tuple[CardShare, ...]]) -> None:
        """What a node says is held of claims has changed."""
        before = self._held.get(node, {})
        if held:
            self._held[node] = held
        else:
            self._held.pop(node, None)
        for uid in {**before, **held}:
            if before.get(uid) != held.get(uid):
                self._keep(node, uid)

    def _set(self, claim: ResourceClaim, node: str | None) -> None:
        uid = claim.metadata.uid
        before = self._node.get(uid)
        if before is not None and before != node:
            del self._node[uid], self._on_node[before][uid]
            if not self._on_node[before]:
                del self._on_node[before]
            self._keep(before, uid)
            self._free(before, uid)
        if node is not None:
            self._on_node.setdefault(node, {})[uid] = claim
            self._node[uid] = node
            self._book(claim, node)

    def _free(self, node: str, uid: str) -> None:
        """A claim is not allocated on a node any more; it may be about to be allocated again."""
        key = claim_key(uid)
        known = self._ledger.booking(key)
        if known is not None and known.node == node and not self._ledger.is_assumed(key):
            self._ledger.release(key)
            self._news(_FREED)
            self._look(node)

    def _keep(self, node: str, uid: str) -> None:
        """What a node says a claim holds there is booked, unless the claim is booked there with just that."""
        key = _key_at(node, uid)
        cards = self._held.get(node, {}).get(uid, ())
        held = Allocation(node, tuple(ContainerAllocation("", (card,)) for card in cards))
        known = self._ledger.booking(claim_key(uid)) if uid in self._on_node.get(node, {}) else None
        if cards and (known is None or known.allocation.held() != held.held()):
            self._ledger.confirm(Booking(key, held))
        elif self._ledger.booking(key) is not None:
            self._ledger.release(key)
            self._news(_FREED)
        self._look(node)

    def _book(self, claim: ResourceClaim, node: str) -> None:
        assert claim.status.allocation is not None
        results = [
            result
            for result in claim.status.allocation.devices.results
            if result.driver == dra.DRIVER and result.pool == node and not result.admin_access
        ]
        parts = tuple(ContainerAllocation(result.request, (self._card(result, node),)) for result in results)
        self._ledger.confirm(Booking(claim_key(claim.metadata.uid), Allocation(node, parts)))
        self._keep(node, claim.metadata.uid)

    def _card(self, result: AllocatedDevice, node: str) -> CardShare:
        books = self._ledger.node(node)
        if dra.is_partition(result.device):
            inventory = None if books is None else books.inventory
            for gpu, part in () if inventory is None else inventory.partitions():
                if _device_name(part.uuid, mig=True) == result.device:
                    return CardShare(part.uuid, gpu.index, Share(exclusive=True))
            return CardShare(result.device, 0, Share(exclusive=True))
        for uuid, card in {} if books is None else books.cards.items():
            if card.gpu is not None and _device_name(uuid) == result.device:
                return CardShare(uuid, card.gpu.index, _share(result, card.gpu.memory_mib))
        # No such card, or none yet: it is found by its name when the node has it.
        return CardShare(result.device, 0, _share(result, 0))


def _share(result: AllocatedDevice, memory_mib: int) -> Share:
    try:
        return dra.allocated_share(result.consumed_capacity, share_id=result.share_id, memory_mib=memory_mib)
    except CodecError:
        # Nobody checks what is written there. What cannot be understood takes all.
        return Share(exclusive=True)


def _node_of(claim: ResourceClaim) -> str | None:
    """The node on which a claim has devices of Shoal's, beside devices of others or not."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    return next((result.pool for result in results if result.driver == dra.DRIVER), None)


def _is_older(one: ResourceClaim, other: ResourceClaim) -> bool:
    versions = one.metadata.resource_version, other.metadata.resource_version
    return all(version.isdigit() for version in versions) and int(versions[0]) < int(versions[1])
