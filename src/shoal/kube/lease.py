"""Leader election on a Lease: of several processes one does the work, and another takes over when it is gone.

Nobody's clock but the own, monotonic one is trusted. A candidate takes over when it has seen the same record unchanged
for as long as the holder promised to renew it. The leader counts its own time from before it sent its last renewal, and
stops at `renew_deadline`, which is shorter: it has stopped before anyone else may begin, by `duration - renew_deadline`
for its work to end in. Work that does not end in that time is logged as an error; only exiting the process helps then.

Not a lock against a machine that stands still: after a long pause work may run for a moment before it is cancelled. Ask
`leading` before a write that must not be doubled; it looks at the clock. Nor against someone who deletes the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    KubeError,
    LeadershipLostError,
    NotFoundError,
)
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import Lease, LeaseSpec
from shoal.kube.resources import LEASES

log = logging.getLogger(__name__)

#: Nobody waits longer for a holder, whatever its record says.
_MAX_DURATION: Final = 3600


@dataclass(frozen=True, slots=True)
class Terms:
    """The times of an election, in seconds."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration or self.duration != int(self.duration):
            raise KubeError(
                "a lease needs 0 < retry < renew_deadline < duration, the duration in whole seconds: correct the terms"
            )

    @classmethod
    def lasting(cls, seconds: int) -> Terms:
        """The default times, scaled to a lease of so many seconds."""
        default = cls()
        scale = seconds / default.duration
        return cls(float(seconds), scale * default.renew_deadline, scale * default.retry)


def boot_clock() -> float:
    """Seconds that go on while the machine sleeps, where the system can tell: a sleeping leader must not lead."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Election:
    """One candidate. `run` takes part until its work is done or it is cancelled."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms | None = None,
        clock: Callable[[], float] = boot_clock,
        now: Callable[[], datetime.datetime] = _utc_now,
        rng: random.Random | None = None,
    ) -> None:
        #: Unique to this process, so that a restarted one cannot take itself for the holder.
        self.identity = f"{identity}_{uuid.uuid4().hex[:8]}"
        #: Who leads, as last seen; empty when nobody does.
        self.leader = ""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._terms = terms or Terms()
        self._clock = clock
        self._now = now
        self._rng = rng or random.Random()
        self._lease: Lease | None = None
        #: When the present record was first seen, by our clock.
        self._seen_at = 0.0
        self._leads_until = float("-inf")

    @property
    def leading(self) -> bool:
        """Whether this process leads at this very moment."""
        return self._clock() < self._leads_until

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait to be elected, then do the work and keep the lease.

        Returns when the work does. When the lease is lost, the work is cancelled, and LeadershipLostError raised once
        it has ended: a service does best to exit then and start anew. However it ends, a lease still held is released.
        """
        try:
            await self._acquire()
            log.info("lease %s/%s: %s leads", self._namespace, self._name, self.identity)
            await self._lead(work)
        finally:
            await self._release()

    async def _acquire(self) -> None:
        while True:
            sent = self._clock()
            try:
                async with asyncio.timeout(self._terms.renew_deadline):
                    if await self._try_take():
                        self._leads_until = sent + self._terms.renew_deadline
                        # The answer may have come when the time was nearly over.
                        if self.leading:
                            return
            except (ConflictError, AlreadyExistsError, NotFoundError):
                pass  # another was faster, or the lease was deleted under our hands: look again
            except TimeoutError:
                log.warning("lease %s/%s: no answer in time", self._namespace, self._name)
            except KubeError as error:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            await asyncio.sleep(self._terms.retry * self._rng.uniform(0.75, 1.25))

    async def _try_take(self) -> bool:
        """Take the lease if it is free, ours or run out."""
        try:
            found = await self._client.get(LEASES, self._name, namespace=self._namespace)
        except NotFoundError:
            spec = self._spec(transitions=0, acquired=None)
            meta = ObjectMeta(name=self._name, namespace=self._namespace)
            self._observe(await self._client.create(LEASES, Lease(metadata=meta, spec=spec)))
            return True
        self._observe(found)
        holder = found.spec.holder_identity or ""
        if holder and holder != self.identity and self._clock() < self._seen_at + _promised(found, self._terms):
            return False
        if holder == self.identity:
            # A write of ours that arrived although its answer did not.
            spec = self._spec(transitions=found.spec.lease_transitions or 0, acquired=found.spec.acquire_time)
        else:
            spec = self._spec(transitions=(found.spec.lease_transitions or 0) + 1, acquired=None)
        await self._write(msgspec.structs.replace(found, spec=spec))
        return True

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> None:
        async def do() -> None:
            await work()

        task = asyncio.create_task(do(), name=f"work under lease {self._name}")
        keeping = asyncio.create_task(self._keep(), name=f"renewal of lease {self._name}")
        try:
            await asyncio.wait({task, keeping}, return_when=asyncio.FIRST_COMPLETED)
            lost = not task.done()
        finally:
            # The lease is kept while the work comes to its end.
            try:
                await self._end(task)
            finally:
                keeping.cancel()
                await asyncio.wait({keeping})
        if not lost:
            return task.result()
        raise LeadershipLostError(
            f"lease {self._namespace}/{self._name} is lost, {self.leader or 'nobody'} holds it: stop and start anew"
        ) from (None if task.cancelled() else task.exception())

    async def _end(self, task: asyncio.Task[None]) -> None:
        """Cancel the work and wait for it; say so when it outlasts the lease."""
        task.cancel()
        while not task.done():
            left = self._leads_until + self._terms.duration - self._terms.renew_deadline - self._clock()
            if left <= 0:
                log.error("lease %s/%s: the work goes on though another may lead: exit", self._namespace, self._name)
            await asyncio.wait({task}, timeout=left if left > 0 else None)

    async def _keep(self) -> None:
        """Renew until that fails for good or for too long. Returns when leadership is over."""
        while self.leading:
            await asyncio.sleep(min(self._terms.retry, max(0.0, self._leads_until - self._clock())))
            sent = self._clock()
            # Several attempts must fit: a stalled connection may take one with it.
            allowed = min(self._leads_until - sent, max(self._terms.retry, self._terms.renew_deadline / 3))
            if allowed <= 0:
                break
            try:
                async with asyncio.timeout(allowed):
                    await self._renew()
                self._leads_until = sent + self._terms.renew_deadline
            except LeadershipLostError as error:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error)
                self._leads_until = min(self._leads_until, self._clock())
            except TimeoutError:
                log.warning("lease %s/%s: not renewed: no answer in time", self._namespace, self._name)
            except KubeError as error:
                log.warning("lease %s/%s: not renewed: %s", self._namespace, self._name, error)

    async def _renew(self) -> None:
        lease = self._lease
        assert lease is not None
        spec = self._spec(transitions=lease.spec.lease_transitions or 0, acquired=lease.spec.acquire_time)
        try:
            await self._write(msgspec.structs.replace(lease, spec=spec))
        except NotFoundError as error:
            self.leader = ""
            raise LeadershipLostError("the lease was deleted") from error
        except ConflictError as error:
            found = await self._client.get(LEASES, self._name, namespace=self._namespace)
            self._observe(found)
            if found.spec.holder_identity != self.identity:
                raise LeadershipLostError(f"{self.leader or 'nobody'} holds it now") from error
            # Our own lost write, or somebody edited the lease: it is still ours.
            await self._write(msgspec.structs.replace(found, spec=spec))

    async def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is None or lease.spec.holder_identity != self.identity:
            return
        self._leads_until = float("-inf")
        spec = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1)
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(self._terms.retry):
                    await self._client.replace(LEASES, msgspec.structs.replace(lease, spec=spec), retried=False)
                self.leader = ""
            except (ConflictError, NotFoundError):
                pass  # another has it already
            except KubeError as error:
                log.warning("lease %s/%s: not released, it will run out: %s", self._namespace, self._name, error)

    async def _write(self, lease: Lease) -> None:
        self._observe(await self._client.replace(LEASES, lease, retried=False))

    def _observe(self, lease: Lease) -> None:
        if self._lease is None or lease.metadata.resource_version != self._lease.metadata.resource_version:
            self._seen_at = self._clock()
        self._lease = lease
        self.leader = lease.spec.holder_identity or ""

    def _spec(self, *, transitions: int, acquired: str | None) -> LeaseSpec:
        now = self._now().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=int(self._terms.duration),
            acquire_time=acquired or now,
            renew_time=now,
            lease_transitions=transitions,
        )


def _promised(lease: Lease, terms: Terms) -> float:
    """How long the holder may stay silent, by its own word."""
    return min(lease.spec.lease_duration_seconds or terms.duration, _MAX_DURATION)
