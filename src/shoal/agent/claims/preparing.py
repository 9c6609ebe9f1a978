"""Prepares claims for containers of this node, and takes them back.

What was allocated is checked against all that the node has given, by claims and by number: the schedulers that allocate
do not see each other. Where waiting can help, kubelet's call waits, since kubelet asks again only after a minute.

A claim is prepared in this order: its share is counted, its record is written, its limits and its CDI file are made,
kubelet is told. Whenever the agent is killed, kubelet either has the claim or asks again with the same UID, and finds
the record. A claim is taken back by its UID alone; whether it still exists does not matter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from shoal.agent.claims.devices import NodeDevices
from shoal.agent.claims.records import ClaimRecord, ClaimRecords
from shoal.agent.claims.results import (
    ClaimResult,
    card_shares,
    names_of,
    read_results,
    requests_of,
    used_requests,
    views_of,
)
from shoal.agent.claims.specs import ClaimSpecs, answer_for
from shoal.agent.errors import AgentError, RefusedError
from shoal.agent.limits import ContainerStart
from shoal.agent.node.pods import NodePod, NodePods
from shoal.kube.claims_api import ClaimsApi
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.objects.claims import ResourceClaim
from shoal.kubelet.dra import ClaimRef, Prepared
from shoal.model.backoff import Backoff
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import shown
from shoal.model.request import fits

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first=0.2, longest=2.0)
#: How long a call waits for the pod of a claim: kubelet may know it a moment before the watch does.
_POD_SECONDS: Final = 5.0


class WaitingError(RefusedError):
    """A claim that cannot be prepared now, and may be soon."""


class PreparedClaims:
    """The claims of one node. `in_use` says whether a MIG partition is in use by number."""

    def __init__(
        self,
        api: ClaimsApi,
        pods: NodePods,
        records: ClaimRecords,
        specs: ClaimSpecs,
        *,
        unit: MemoryUnit = MemoryUnit.GIB,
        in_use: Callable[[str], bool] = lambda uuid: False,
    ) -> None:
        self._unit = unit
        self._api = api
        self._pods = pods
        self._records = records
        self._specs = specs
        self._in_use = in_use
        self._known: dict[str, ClaimRecord] = {}
        #: One call at a time about a claim: kubelet may give up on a call and make another one.
        self._locks: dict[str, asyncio.Lock] = {}

    def __len__(self) -> int:
        return len(self._known)

    def recall(self) -> None:
        """Read which claims are prepared: they count again. Their CDI files are made where they are missing."""
        for record in self._records.read():
            self._known[record.claim.uid] = record
            self._hold(record)
        self._specs.keep_only(list(self._known))
        for record in self._known.values():
            if self._specs.exists(record.claim.uid):
                continue
            try:
                self._specs.write(record)
                log.info("claim %s: its CDI file is made again", record.claim)
            except RefusedError as error:
                log.warning("claim %s has no CDI file: %s", record.claim, error)

    async def forget_gone(self) -> None:
        """Drop the claims that are gone, after a restart of the machine: nothing of them runs, and nobody asks."""
        for record in list(self._known.values()):
            claim = record.claim
            try:
                present = await self._api.claim(claim.namespace, claim.name)
                gone = present.metadata.uid != claim.uid or present.status.allocation is None
            except NotFoundError:
                gone = True
            except KubeError as error:
                log.warning("claim %s stays prepared: %s", claim, error)
                continue
            if gone:
                log.info("claim %s ended while the machine was down", claim)
                self._drop(claim.uid)

    def starts(self) -> Iterator[ContainerStart]:
        """What limits are kept for."""
        for record in self._known.values():
            yield from self._specs.starts(record)

    def names(self) -> set[str]:
        """The resource names of which claims were made."""
        return {one.resource for record in self._known.values() for one in record.names.values()}

    # What kubelet asks

    async def prepare(self, claims: Sequence[ClaimRef], seconds: float) -> dict[str, Prepared]:
        """Prepare the claims of a pod within some seconds."""
        until = time.monotonic() + seconds
        ours = {(one.namespace, one.name) for one in claims}
        ours |= {(one.claim.namespace, one.claim.name) for one in self._known.values()}
        answers = await asyncio.gather(*(self._prepared(claim, ours, until) for claim in claims))
        return {claim.uid: answer for claim, answer in zip(claims, answers, strict=True)}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> dict[str, str]:
        """Take claims back; by UID why that failed."""
        failed: dict[str, str] = {}
        for claim in claims:
            async with self._locks.setdefault(claim.uid, asyncio.Lock()):
                try:
                    self._drop(claim.uid)
                except OSError as error:
                    failed[claim.uid] = f"its files cannot be removed: {error.strerror or error}"
            self._locks.pop(claim.uid, None)
        return failed

    def _drop(self, uid: str) -> None:
        """Remove a claim's files, the record last, and count it no more."""
        record = self._known.get(uid)
        self._specs.remove(uid)
        self._records.remove(uid)
        if record is not None:
            del self._known[uid]
            self._pods.release_claim(uid)
            log.info("claim %s is taken back", record.claim)

    async def _prepared(self, claim: ClaimRef, ours: Collection[tuple[str, str]], until: float) -> Prepared:
        async with self._locks.setdefault(claim.uid, asyncio.Lock()):
            pause = _BACKOFF.first
            while True:
                try:
                    return Prepared(answer_for(await self._try(claim, ours, until)))
                except WaitingError as error:
                    if time.monotonic() >= until:
                        log.warning("claim %s is not prepared: %s", claim, error)
                        return Prepared(error=str(error))
                    if pause == _BACKOFF.first:
                        log.info("claim %s waits: %s", claim, error)
                except AgentError as error:
                    log.warning("claim %s is not prepared: %s", claim, error)
                    return Prepared(error=str(error))
                await asyncio.sleep(pause)
                pause = _BACKOFF.longer(pause)

    async def _try(self, claim: ClaimRef, ours: Collection[tuple[str, str]], until: float) -> ClaimRecord:
        """Prepare a claim, or find that it is. WaitingError if that may be possible soon."""
        before = self._known.get(claim.uid)
        try:
            present = await self._api.claim(claim.namespace, claim.name)
        except NotFoundError as error:
            raise RefusedError(f"claim {claim} is not there: {error}") from error
        except KubeError as error:
            if before is None:
                raise WaitingError(f"claim {claim} cannot be read: {error}") from error
            await self._make(before)
            return before
        record = await self._read(present, claim, ours, until)
        if before is not None and before.results == record.results:
            record = before
        else:
            self._check_room(record)
            # Counted before anything is awaited, so that nobody else gets the same room.
            self._records.write(record)
            self._known[claim.uid] = record
            self._hold(record)
        try:
            await self._make(record)
        except (AgentError, asyncio.CancelledError):
            if before is None:
                self._drop(claim.uid)
            raise
        if before is None:
            cards = ", ".join(f"{one.request}: {one.device}" for one in record.results)
            log.info("claim %s is prepared: %s", claim, cards)
        return record

    async def _read(
        self, present: ResourceClaim, claim: ClaimRef, ours: Collection[tuple[str, str]], until: float
    ) -> ClaimRecord:
        """What the claim has on the node, and how its pods use it."""
        node = self._pods.node
        shares = (await self._api.version()).shares
        devices = NodeDevices.of(node.gpus)
        results = read_results(present, claim.uid, node=node.name, devices=devices, shares=shares)
        pods = await self._pods_of(present, until)
        for known in pods:
            _check_by_number(known, claim.name)
        beside = {name for namespace, name in ours if namespace == claim.namespace}
        views = views_of(requests_of(results), claim.name, (known.pod for known in pods), ours=beside)
        names = names_of(present, (known.pod for known in pods), self._unit)
        return ClaimRecord(claim, node.name, results, views, names)

    async def _pods_of(self, present: ResourceClaim, until: float) -> list[NodePod]:
        """The pods that use a claim, as far as they are known on the node. One must be: kubelet starts it."""
        uids = [one.uid for one in present.status.reserved_for if one.resource == "pods"]
        if uids and not any(map(self._pods.get, uids)):
            seconds = max(0.0, min(until - time.monotonic(), _POD_SECONDS))
            found = [asyncio.ensure_future(self._pods.find(uid, seconds)) for uid in uids]
            await asyncio.wait(found, return_when=asyncio.FIRST_COMPLETED)
            for one in found:
                one.cancel()
            await asyncio.gather(*found, return_exceptions=True)
        pods = [known for uid in uids if (known := self._pods.get(uid)) is not None]
        if not pods:
            raise WaitingError("no pod of this node has reserved the claim, as far as the API server has told")
        return pods

    def _check_room(self, record: ClaimRecord) -> None:
        """WaitingError if a card has no room for the claim beside all that was given, whoever decided so."""
        uid = record.claim.uid
        gpus = {gpu.uuid: gpu for gpu in self._pods.node.gpus}
        devices = NodeDevices.of(gpus.values())
        for one in record.results:
            if fault := devices.fault(one.device):
                raise WaitingError(f"device {one.device} is not healthy: {fault}")
            if one.partition:
                self._check_partition(one, uid)
        for card in card_shares(record.results, {}):
            gpu, taken = gpus[card.uuid], self._pods.taken(card.uuid, but=uid)
            if not fits(gpu, taken, card.share):
                use = "is in use as a whole" if taken.exclusive else f"has {taken.memory_mib} MiB in use"
                raise WaitingError(
                    f"card {gpu.index} ({gpu.uuid}) {use} by other pods of the node, or by claims: the claim is "
                    "prepared when they are gone"
                )

    def _check_partition(self, one: ClaimResult, uid: str) -> None:
        if self._pods.claims.has_partition(one.uuid, but=uid) or self._in_use(one.uuid):
            raise WaitingError(f"MIG partition {one.uuid} is in use: the claim is prepared when it is free")

    def _hold(self, record: ClaimRecord) -> None:
        indices = {gpu.uuid: gpu.index for gpu in self._pods.node.gpus}
        partitions = [one.uuid for one in record.results if one.partition]
        self._pods.hold_claim(record.claim.uid, card_shares(record.results, indices), partitions)

    async def _make(self, record: ClaimRecord) -> None:
        """Make limits and file of a claim that is counted. WaitingError if a limit cannot be set now."""
        try:
            await self._specs.prepare(record)
        except RefusedError as error:
            raise WaitingError(str(error)) from error
        self._specs.write(record)


def _check_by_number(known: NodePod, name: str) -> None:
    """RefusedError if a container has cards by number and by the claim."""
    pod = known.pod
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        resource = known.holding.resources.get(container.name)
        if resource is not None and name in used_requests(pod, container):
            raise RefusedError(
                f"container {shown(container.name)} asks for {resource} and for a claim of cards: keep one of them"
            )
