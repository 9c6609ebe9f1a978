"""Removes copies of other clusters' pods whose home is silent: the member's side of the mode Replace.

A copy may name a fence, in seconds. Its home's manager renews a Lease in its namespace, and when that was not renewed
for so long the copy goes, whether it runs or waits behind its gate. Home calls the pod failed some time later, and its
owner makes another: nothing of the first may run by then, so what counts is that it is never removed too late.

- The leader tells the moment of its last look in `shoal-room`. Managers read it, and repeat it in their Leases: a
  renewal is worth as much as the moment in it, however long it was on its way, and whoever sent it.
- How long ago that was is known by this process' own clock, if it told the moment itself. A moment that another
  process told, and the creation of a copy, are of the API server's clock: a scheduler that starts anew, however often,
  counts from where the last one did. The clocks of other clusters do not matter.
- A moment is told only after a look that succeeded, so that home knows whether anybody here keeps fences at all.

Not covered: nobody who looks between the fence's time and home's (no scheduler, or no API server, while kubelets go
on); an API server whose clock is set back while this process is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.objects.others import Lease
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import CONFIG_MAPS, LEASES, PODS
from shoal.kube.store import Change
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import clusters
from shoal.model.contract.clusters import CopyOrigin
from shoal.model.errors import CodecError
from shoal.scheduler.reporter import Reporter

log = logging.getLogger(__name__)

REASON: Final = "HomeSilent"
#: Between two looks at the least.
_LEAST_SECONDS: Final = 1.0
_MOMENTS: Final = 10_000
#: Leases that are read at one time.
_AT_ONCE: Final = 16


class FenceClock:
    """How long ago moments were, by the own clock and, for those of others, by the API server's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: When each moment was, by the own clock, or earlier.
        self._known: BoundedCache[str, float] = BoundedCache(_MOMENTS)
        self._said = datetime.datetime.min.replace(tzinfo=datetime.UTC)
        self._asked = self._heard = 0.0

    def take(self, said: datetime.datetime, *, asked: float) -> None:
        """The server has told its time, in whole seconds, when asked at this moment of the own clock."""
        self._said, self._asked, self._heard = said, asked, self._clock()

    def tell(self) -> str:
        """This moment by the server's clock, no later than it is."""
        now = self._clock()
        moment = self._said + datetime.timedelta(seconds=now - self._heard)
        text = f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"
        # Known from here on. Servers tell whole seconds: another look, or process, may have told the same before.
        self.age(text)
        return text

    def age(self, moment: str) -> float:
        """Seconds since a moment, rather too many than too few; CodecError if it is none."""
        now = self._clock()
        since = self._known.get(moment)
        if since is None:
            try:
                then = datetime.datetime.fromisoformat(moment)
                latest = self._said + datetime.timedelta(seconds=1 + now - self._asked)
                since = now - max(0.0, (latest - then).total_seconds())
            except (ValueError, TypeError, OverflowError) as error:
                raise CodecError(f"{moment[:80]!r} is no time") from error
            # From here on the own clock counts, whatever becomes of the server's.
            self._known.put(moment, since)
        return now - since


@dataclass(frozen=True, slots=True)
class _Fenced:
    """A copy under a fence."""

    pod: Pod
    home: str
    fence: int


@dataclass(frozen=True, slots=True)
class _Renewal:
    """The moment in a Lease, and after how long without another its copies go."""

    moment: str
    seconds: float


def fenced(pod: Pod) -> _Fenced | None:
    """A pod, if it is a copy under a fence. One that a cluster left to itself has neither gate nor finalizer."""
    meta = pod.metadata
    home, written = meta.labels.get(clusters.LABEL_ORIGIN), meta.annotations.get(clusters.ANNOTATION_ORIGIN)
    if not home or not written:
        return None
    gated = any(gate.name == clusters.GATE_COPY for gate in pod.spec.scheduling_gates)
    if not gated and clusters.FINALIZER_COPY not in meta.finalizers:
        return None
    try:
        origin = clusters.decode(CopyOrigin, written, what=clusters.ANNOTATION_ORIGIN)
    except CodecError:
        return None  # made by nobody's manager
    return _Fenced(pod, home, origin.fence) if origin.fence and origin.cluster == home else None


class FenceWatch:
    """Looks at copies and Leases while this process leads."""

    def __init__(
        self,
        client: Client,
        reporter: Reporter,
        *,
        namespace: str,
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        seconds: float = clusters.FENCE_LOOK_SECONDS,
    ) -> None:
        """`namespace`: where `shoal-room` is; `clock` goes on while the machine sleeps."""
        self._client = client
        self._reporter = reporter
        self._namespace = namespace
        self._may_write = may_write
        self._clock = clock
        self._seconds = seconds
        self._times = FenceClock(clock)
        #: By namespace and home, by UID.
        self._copies: dict[tuple[str, str], dict[str, _Fenced]] = {}
        self._renewals: BoundedCache[tuple[str, str], _Renewal] = BoundedCache(_MOMENTS)
        #: Copies that were deleted: what is left of them waits for their manager.
        self._removed: BoundedCache[str, bool] = BoundedCache(_MOMENTS)
        #: A copy came: its fence may ask for more looks.
        self._came = asyncio.Event()

    def on_pod(self, change: Change[Pod]) -> None:
        """A pod appeared, changed or went away."""
        old = fenced(change.old) if change.old is not None else None
        new = fenced(change.new) if change.new is not None else None
        if old is not None:
            self._forget(old)
        if new is not None:
            group = (new.pod.metadata.namespace, new.home)
            self._copies.setdefault(group, {})[new.pod.metadata.uid] = new
            if old is None:
                self._came.set()

    def _forget(self, one: _Fenced) -> None:
        group = (one.pod.metadata.namespace, one.home)
        there = self._copies.get(group, {})
        there.pop(one.pod.metadata.uid, None)
        if not there:
            self._copies.pop(group, None)

    async def run(self) -> None:
        """Look until cancelled. Whatever the API server says, it goes on."""
        told = ""
        while True:
            pause = _LEAST_SECONDS
            try:
                pause = await self._look()
                told = ""
            except KubeError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("copies under a fence are not looked at, and managers are not told: %s", error)
            await asyncio.sleep(_LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause - _LEAST_SECONDS):
                    await self._came.wait()
            self._came.clear()

    async def _look(self) -> float:
        """Remove what must go, tell the moment, and give the seconds until the next look."""
        asked = self._clock()
        self._times.take(await self._client.server_time(), asked=asked)
        moment = self._times.tell()
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(group: tuple[str, str]) -> float:
            async with room:
                return await self._look_at(*group)

        # All are looked at, whatever becomes of one of them.
        answers = await asyncio.gather(*map(one, list(self._copies)), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if self._may_write():
            data = {"data": {clusters.KEY_FENCE: moment}}
            await self._client.patch(CONFIG_MAPS, clusters.NAME_ROOM, data, namespace=self._namespace)
        left = (answer for answer in answers if not isinstance(answer, BaseException))
        return max(_LEAST_SECONDS, min((self._seconds, *left)))

    async def _look_at(self, namespace: str, home: str) -> float:
        """See to the copies of one home in a namespace; the seconds until they must be looked at again."""
        try:
            lease = await self._client.get(LEASES, clusters.fence_name(home), namespace=namespace)
            self._renewals.put((namespace, home), _renewal(lease))
        except NotFoundError:
            pass  # not there yet, or somebody deleted it: what it said counts
        renewal = self._renewals.get((namespace, home))
        known = self._copies.get((namespace, home), {}).values()
        left = [self._left(one, renewal) for one in known if one.pod.metadata.uid not in self._removed]
        if any(seconds <= 0 for seconds in left) and self._may_write():
            # From the server itself: one that the watch does not show yet must go as well.
            there = await self._client.list(PODS, namespace=namespace, labels=f"{clusters.LABEL_ORIGIN}={home}")
            await self._remove(one for pod in there.items if (one := fenced(pod)) and self._left(one, renewal) <= 0)
        often = min((one.fence / clusters.FENCE_LOOKS for one in known), default=self._seconds)
        return min([often, *(seconds for seconds in left if seconds > 0)])

    def _left(self, one: _Fenced, renewal: _Renewal | None) -> float:
        """Seconds for which a copy may stay: from its renewal, or from its creation if that was later."""
        seconds = float(one.fence) if renewal is None else min(float(one.fence), renewal.seconds)
        ages = []
        for moment in (one.pod.metadata.creation_timestamp or "", "" if renewal is None else renewal.moment):
            try:
                ages.append(self._times.age(moment))
            except CodecError:
                continue
        return seconds - min(ages, default=seconds)

    async def _remove(self, copies: Iterable[_Fenced]) -> None:
        for one in copies:
            meta, grace = one.pod.metadata, clusters.fence_grace(one.fence)
            own = one.pod.spec.termination_grace_period_seconds
            grace = grace if own is None else min(own, grace)
            try:
                await self._client.delete(
                    PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_seconds=max(grace, 1)
                )
            except (NotFoundError, ConflictError):
                continue
            self._removed.put(meta.uid, True)
            if meta.deletion_timestamp is None:
                message = f"removed: its home, cluster {one.home}, was silent for {one.fence} s"
                self._reporter.warn(one.pod, REASON, message)


def _renewal(lease: Lease) -> _Renewal:
    return _Renewal(lease.spec.renew_time or "", float(lease.spec.lease_duration_seconds or 86400))
