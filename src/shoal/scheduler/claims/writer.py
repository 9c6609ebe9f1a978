"""What is written for a pod's claims before the pod is bound, and taken back when it is not bound.

Per claim two writes, as the stock scheduler makes them: the finalizer that keeps a claim in use from vanishing, then
the allocation together with the pod that uses it. Each names the version of the claim that was decided on: whoever was
faster wins, and the other decides anew. A killed scheduler leaves at most an allocated claim of a pod without a node;
the next one sends the pod there, or gives the claim back if the pod cannot go there any more.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import (
    AlreadyExistsError,
    AnswerError,
    ApiError,
    ConflictError,
    KubeError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)
from shoal.kube.objects.claims import ResourceClaim, ResourceClaimSpec, ResourceClaimStatus
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import PODS, RESOURCE_CLAIMS, RawObject
from shoal.kube.store import Change, ChangeType
from shoal.model.backoff import Backoff
from shoal.model.contract import dra
from shoal.scheduler.claims.acceptance import written
from shoal.scheduler.claims.allocator import ClaimDecision, ClaimsPlan
from shoal.scheduler.errors import ClaimError

log = logging.getLogger(__name__)

#: The write may or may not have been made.
_OPEN: Final = (UnreachableError, UnavailableError, AnswerError, TooManyRequestsError, UnauthorizedError)
_BACKOFF: Final = Backoff(first=0.2, longest=5.0)
#: Pods that begin to use one claim at the same moment.
_RIVALS: Final = 32

#: Settings of a class, by its name, as an allocation carries them.
ClassConfig = Callable[[str], tuple[dict[str, Any], ...]]


class ClaimWriter:
    """Writes allocations and reservations, and gives them back."""

    def __init__(
        self,
        client: Client,
        *,
        seen: Callable[[Change[ResourceClaim]], None],
        class_config: ClassConfig,
        may_write: Callable[[], bool],
        now: Callable[[], datetime.datetime],
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._seen = seen
        self._class_config = class_config
        self._may_write = may_write
        self._now = now
        self._rng = rng or random.Random()
        #: What was sent for pods that are not bound yet: the shares of each claim, none where it was only reserved.
        self._wrote: dict[str, dict[str, list[str]]] = {}

    async def write(self, pod: Pod, plan: ClaimsPlan) -> None:
        """Allocate the plan's claims for the pod and reserve those that are allocated. Raises ClaimError.

        Nothing of it stays when one of them fails.
        """
        try:
            for decision in plan.decisions:
                await self._allocate(pod, decision, plan.node)
            for claim in plan.allocated:
                await self._reserve(pod, claim)
        except KubeError as error:
            await self.give_back(pod, plan)
            raise ClaimError(error.message if isinstance(error, ApiError) and error.message else str(error)) from error
        except ClaimError:
            await self.give_back(pod, plan)
            raise

    async def give_back(self, pod: Pod, plan: ClaimsPlan) -> None:
        """The pod does not come: it uses its claims no more, and those that were allocated for it are free.

        Not given back: a claim that was allocated before and that others may still want where it is.
        """
        wrote = self._wrote.pop(pod.metadata.uid, {})
        for decision in plan.decisions:
            shares = wrote.get(decision.claim.metadata.uid)
            if shares is not None:
                await self.release(pod, decision.claim, deallocate=True, shares=shares)
        for claim in plan.allocated:
            if claim.metadata.uid in wrote:
                await self.release(pod, claim, deallocate=False)

    def forget(self, pod: str) -> None:
        """The pod is bound: nothing is given back."""
        self._wrote.pop(pod, None)

    async def release(
        self, pod: Pod, claim: ResourceClaim, *, deallocate: bool, shares: Sequence[str] | None = None
    ) -> None:
        """The pod, which has no node, does not use the claim; nobody else does: it is deallocated, if so asked.

        Only while it is allocated with these `shares`: another scheduler may have allocated it for the same pod. It may
        also have bound the pod meanwhile: then the pod uses the claim.
        """

        async def given_back() -> None:
            now = await self._read(claim)
            if now is None or await self._is_bound(pod):
                return
            if shares is not None and _marks(now.status) != list(shares):
                return
            others = [one for one in now.status.reserved_for if one.uid != pod.metadata.uid]
            if len(others) == len(now.status.reserved_for) and (others or not deallocate):
                return
            if now.status.allocation is None and not now.status.reserved_for:
                return
            status: dict[str, Any] = {"reservedFor": msgspec.to_builtins(others) or None}
            if deallocate and not others:
                status["allocation"] = None
            await self._patch_status(now, status)

        await self._until_done(given_back, f"giving back claim {claim.metadata.namespace}/{claim.metadata.name}")

    # Claims that are made of a pod's names

    async def make(self, pod: Pod, manifest: RawObject) -> ResourceClaim:
        """Create the claim that is made of the pod's names. Raises ClaimError and KubeError."""
        name = manifest["metadata"]["name"]
        failures = 0
        while True:
            self._check_leads()
            try:
                claim = await self._client.create(RESOURCE_CLAIMS, manifest, namespace=pod.metadata.namespace)
                self._seen(Change(ChangeType.ADDED, None, claim))
                return claim
            except _OPEN as error:
                failures += 1
                log.warning("claim %s/%s: %s", pod.metadata.namespace, name, error)
                await asyncio.sleep(_BACKOFF.jittered(failures, self._rng))
            except AlreadyExistsError:
                now = await self._client.get(RESOURCE_CLAIMS, name, namespace=pod.metadata.namespace)
                wanted = msgspec.convert(manifest["spec"], ResourceClaimSpec)
                made = now.is_made_for(pod.metadata.uid)
                if failures and made and now.status.allocation is None and now.spec == wanted:
                    return self._took(now)
                if not made:
                    raise ClaimError(f"claim {name} is there and was not made for this pod: delete the claim") from None
                await self.remove(pod, now)
                raise ClaimError(f"claim {name} was left by an earlier try") from None

    async def allocate(self, pod: Pod, decision: ClaimDecision, node: str) -> None:
        """Allocate a claim that was made of the pod's names. Raises ClaimError and KubeError."""
        await self._allocate(pod, decision, node)

    async def tell_pod(self, pod: Pod, made: dict[str, Any] | None) -> None:
        """Write which claim was made of the pod's names, and for which containers; None for no claim."""
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid}, "status": {"extendedResourceClaimStatus": made}}
        failures = 0
        while True:
            self._check_leads()
            try:
                now = await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace, subresource="status")
                if made is not None and now.status.extended_resource_claim_status is None:
                    raise ClaimError(
                        "the API server does not keep extendedResourceClaimStatus: it needs its feature gate "
                        "DRAExtendedResource, on since 1.36"
                    )
                return
            except _OPEN as error:
                failures += 1
                log.warning("status of %s/%s: %s", meta.namespace, meta.name, error)
                await asyncio.sleep(_BACKOFF.jittered(failures, self._rng))

    async def remove(self, pod: Pod, claim: ResourceClaim) -> None:
        """Give back and delete a claim that was made of the names of a pod, unless the pod has a node by now."""
        await self.release(pod, claim, deallocate=True)

        async def deleted() -> None:
            now = await self._read(claim)
            if now is None:
                self._seen(Change(ChangeType.DELETED, claim, None))
                return
            if now.status.allocation is not None or await self._is_bound(pod):
                return
            meta = now.metadata
            if dra.FINALIZER in meta.finalizers:
                others = [one for one in meta.finalizers if one != dra.FINALIZER]
                patch = {"metadata": {**_same(now), "finalizers": others or None}}
                await self._client.patch(RESOURCE_CLAIMS, meta.name, patch, namespace=meta.namespace)
            await self._client.delete(RESOURCE_CLAIMS, meta.name, namespace=meta.namespace, uid=meta.uid)
            self._seen(Change(ChangeType.DELETED, now, None))

        await self._until_done(deleted, f"deleting claim {claim.metadata.namespace}/{claim.metadata.name}")

    async def _until_done(self, step: Callable[[], Awaitable[None]], what: str) -> None:
        """Take a step that looks first, again while others are faster or nobody answers; a refusal ends it."""
        failures = 0
        while self._may_write():
            try:
                await step()
                return
            except (ConflictError, NotFoundError):
                failures += 1
                await asyncio.sleep(0)
            except _OPEN as error:
                failures += 1
                log.warning("%s: %s", what, error)
                await asyncio.sleep(_BACKOFF.jittered(failures, self._rng))
            except KubeError as error:
                log.warning("%s is given up: %s", what, error)
                return

    def _check_leads(self) -> None:
        if not self._may_write():
            raise asyncio.CancelledError("no longer the leader")

    # Parts

    async def _allocate(self, pod: Pod, decision: ClaimDecision, node: str) -> None:
        claim = decision.claim
        if dra.FINALIZER not in claim.metadata.finalizers:
            claim = await self._until_known(lambda: self._protect(claim), claim)
        status = self.status(pod, replace(decision, claim=claim), node)
        shares = _marks(msgspec.convert(status, ResourceClaimStatus))
        # Before it is sent: whatever becomes of it, this is what would have to be given back.
        self._wrote.setdefault(pod.metadata.uid, {})[claim.metadata.uid] = shares
        protected = claim
        try:
            await self._until_known(
                lambda: self._patch_status(protected, status), claim, lambda now: _marks(now.status) == shares
            )
        except ConflictError:
            del self._wrote[pod.metadata.uid][claim.metadata.uid]  # it was refused for certain
            raise

    def status(self, pod: Pod, decision: ClaimDecision, node: str) -> dict[str, Any]:
        """The status of a claim that is allocated as decided, for the pod."""
        return {
            "allocation": self._allocation(decision, node),
            "reservedFor": [*msgspec.to_builtins(decision.claim.status.reserved_for), _consumer(pod)],
        }

    async def _protect(self, claim: ResourceClaim) -> ResourceClaim:
        meta = claim.metadata
        patch = {"metadata": {**_same(claim), "finalizers": [*meta.finalizers, dra.FINALIZER]}}
        return self._took(await self._client.patch(RESOURCE_CLAIMS, meta.name, patch, namespace=meta.namespace))

    async def _until_known(
        self,
        write: Callable[[], Any],
        claim: ResourceClaim,
        is_mine: Callable[[ResourceClaim], bool] = lambda now: dra.FINALIZER in now.metadata.finalizers,
    ) -> ResourceClaim:
        """Send a write until there is an answer. After an open outcome a conflict may be one's own write."""
        failures = 0
        while True:
            self._check_leads()
            try:
                answer: ResourceClaim = await write()
                return answer
            except _OPEN as error:
                failures += 1
                log.warning("claim %s/%s: %s", claim.metadata.namespace, claim.metadata.name, error)
                await asyncio.sleep(_BACKOFF.jittered(failures, self._rng))
            except ConflictError:
                now = await self._read(claim) if failures else None
                if now is not None and is_mine(now):
                    return now
                raise

    async def _reserve(self, pod: Pod, claim: ResourceClaim) -> None:
        """Say that the pod uses a claim that is allocated; others may say so of themselves at the same time."""
        now: ResourceClaim | None = claim
        for failures in range(_RIVALS):
            if now is None or now.status.allocation is None:
                raise ClaimError(f"claim {claim.metadata.name} is not allocated any more")
            if any(one.uid == pod.metadata.uid for one in now.status.reserved_for):
                return
            if now.status.allocation != claim.status.allocation:
                raise ClaimError(f"claim {claim.metadata.name} was allocated anew")
            try:
                self._wrote.setdefault(pod.metadata.uid, {})[claim.metadata.uid] = []
                await self._patch_status(
                    now, {"reservedFor": [*msgspec.to_builtins(now.status.reserved_for), _consumer(pod)]}
                )
                return
            except (ConflictError, *_OPEN):
                await asyncio.sleep(_BACKOFF.jittered(1, self._rng) * (failures > 2))
                now = await self._read(claim)
        raise ClaimError(f"claim {claim.metadata.name} is written by too many at once")

    async def _is_bound(self, pod: Pod) -> bool:
        meta = pod.metadata
        try:
            now = await self._client.get(PODS, meta.name, namespace=meta.namespace)
        except NotFoundError:
            return False
        return now.metadata.uid == meta.uid and bool(now.spec.node_name)

    async def _read(self, claim: ResourceClaim) -> ResourceClaim | None:
        meta = claim.metadata
        try:
            now = await self._client.get(RESOURCE_CLAIMS, meta.name, namespace=meta.namespace)
        except NotFoundError:
            return None
        return now if now.metadata.uid == meta.uid else None

    async def _patch_status(self, claim: ResourceClaim, status: dict[str, Any]) -> ResourceClaim:
        meta = claim.metadata
        patch = {"metadata": _same(claim), "status": status}
        answer = await self._client.patch(
            RESOURCE_CLAIMS, meta.name, patch, namespace=meta.namespace, subresource="status"
        )
        return self._took(answer)

    def _took(self, claim: ResourceClaim) -> ResourceClaim:
        """The watch may be behind the answer; both lead to the same booking."""
        self._seen(Change(ChangeType.MODIFIED, claim, claim))
        return claim

    def _allocation(self, decision: ClaimDecision, node: str) -> dict[str, Any]:
        results: list[dict[str, Any]] = []
        for wish, fit in decision.results:
            result: dict[str, Any] = {
                "request": wish.name,
                "driver": dra.DRIVER,
                "pool": fit.device.pool,
                "device": fit.device.device.name,
            }
            if not fit.device.partition:
                result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": written(fit.consumed)}
            if wish.admin:
                result["adminAccess"] = True
            if wish.tolerations:
                result["tolerations"] = msgspec.to_builtins(wish.tolerations)
            results.append(result)
        devices: dict[str, Any] = {"results": results}
        config = self._config(decision)
        if config:
            devices["config"] = config
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        return {
            "devices": devices,
            "nodeSelector": {"nodeSelectorTerms": [term]},
            "allocationTimestamp": self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _config(self, decision: ClaimDecision) -> list[dict[str, Any]]:
        """Settings for the driver: those of the classes first, so that a claim's own come after them."""
        wishes = {wish.name: wish for wish, _ in decision.results}
        found: list[dict[str, Any]] = []
        for name in dict.fromkeys(wish.device_class for wish in wishes.values()):
            requests = [wish.name for wish in wishes.values() if wish.device_class == name]
            found += [{**one, "source": "FromClass", "requests": requests} for one in self._class_config(name)]
        names = {name for wish in wishes.values() for name in (wish.name, wish.request)}
        for one in decision.claim.spec.devices.config:
            if not one.requests or names & set(one.requests):
                found.append({**msgspec.to_builtins(one), "source": "FromClaim"})
        return found


def _marks(status: ResourceClaimStatus) -> list[str]:
    """By what an allocation is known again: the IDs of its shares. Partitions have none, but a second in which they
    were given.
    """
    allocation = status.allocation
    if allocation is None:
        return []
    return [
        result.share_id or f"{result.device} at {allocation.allocation_timestamp}"
        for result in allocation.devices.results
    ]


def _same(claim: ResourceClaim) -> dict[str, str]:
    """The claim as it was decided on, and no other or later one."""
    return {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}


def _consumer(pod: Pod) -> dict[str, str]:
    return {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
