"""Keeps up the fences of members, and knows how long each has been silent: home's side of the mode Replace.

The scheduler of a member tells, in `shoal-room`, the moment of its last look at copies made under a fence
(`shoal.scheduler.fence`). It is read here and repeated in a Lease in each namespace with such copies. Copies whose
Lease holds a moment older than their fence are removed there. From the last answer of a member on, no renewal can hold
a later moment than one that was known then: after the fence, and what removing takes, nothing under it runs any more,
whatever was still on its way. Only then a pod is given up, and only if the scheduler there was at work when the member
was last heard.

Only the own clock counts here, and it begins anew with each process that leads: longer is safe. That a scheduler kept
fences, and since when a member is silent, is written on the Lease by which the manager leads, for the next one and for
`shoal clusters list`.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shoal.clusters.config import ClusterManagerConfig, least_replace_seconds
from shoal.clusters.member import Member, MemberTable
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, ApiError, ConflictError, KubeError, NotFoundError
from shoal.kube.objects.others import Lease
from shoal.kube.resources import CONFIG_MAPS, LEASES
from shoal.model.contract import clusters
from shoal.model.contract.clusters import MAX_CLUSTERS, ClusterSilence, SilenceRecord
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

#: A scheduler whose last look is longer ago than this part of the fence, and than three looks, is taken to be gone.
_GONE: Final = 4
_LOOKS: Final = 3
#: Renewals in a row without an answer, after which a member is called silent.
_MISSED: Final = 3
_SERVER_ERROR: Final = 500
_SECONDS_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(slots=True)
class _Hearing:
    """What is known of a member."""

    name: str
    #: From when its silence counts, by the own clock and by the calendar; and, for people, when it was last heard.
    heard: float
    counted_on: datetime.datetime
    heard_on: datetime.datetime
    #: It was asked for the moment, by this process.
    asked: bool = False
    #: The last moment that its scheduler told, since when it is known, and whether it was seen to change.
    moment: str = ""
    known_at: float = 0.0
    changes: bool = False
    #: Its scheduler was at work when it was last heard.
    fenced: bool = False
    #: The moment in the Lease of each namespace.
    written: dict[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Silence:
    """For people: since when a member is silent, and when a pod there is replaced; None: it is not."""

    since: datetime.datetime
    replaced: datetime.datetime | None
    #: Nobody there keeps fences.
    unfenced: bool = False

    def words(self, cluster: str) -> str:
        """What is known, and what follows."""
        told = f"cluster {cluster} has not answered since {self.since:%H:%M:%S} UTC"
        if self.replaced is not None:
            return (
                f"{told}: unless it does, this pod fails at {self.replaced:%H:%M:%S} UTC, to be replaced by its owner"
            )
        if self.unfenced:
            told = f"{told}, and no scheduler of Shoal there removes this pod's copy"
        return f"{told}: it is waited for; if nothing runs there any more, shoal clusters forget {cluster} --dead"


class Fences:
    """The fences of all members. `under` gives identity and namespace of all copies that are made under one."""

    def __init__(
        self,
        config: ClusterManagerConfig,
        client: Client,
        members: MemberTable,
        under: Callable[[], Iterable[tuple[str, str]]],
        *,
        home_cluster: str,
        missed: Callable[[str], None],
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        now: Callable[[], datetime.datetime],
    ) -> None:
        """`missed` is told the identity of a member that does not answer; `clock` goes on while the machine sleeps."""
        self._config = config
        self._client = client
        self._members = members
        self._under = under
        self._home_cluster = home_cluster
        self._missed = missed
        self._may_write = may_write
        self._clock = clock
        self._now = now
        self._interval = config.fence_seconds / clusters.FENCE_RENEWALS
        #: How long a member has to answer.
        self._seconds = min(config.member_seconds, self._interval)
        self._hearings: dict[str, _Hearing] = {}
        #: Nothing is given up before it has begun to count.
        self._runs = False

    # What is known

    def heard(self, member: Member) -> None:
        """A member has answered."""
        hearing = self._hearing(member)
        hearing.heard, hearing.counted_on, hearing.heard_on = self._clock(), self._now(), self._now()

    async def fence_in(self, member: Member) -> int:
        """The fence of a copy that is made in a member now; 0 if no scheduler there would keep it."""
        hearing = self._hearings.get(member.uid)
        if hearing is None or not hearing.asked:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._read_moment(member)
            except ApiError:
                self._hearing(member).asked = True  # it answers, and does not tell
                return 0
            except (KubeError, TimeoutError):
                self._missed(member.uid)  # others need not wait for it as well
                return 0
        hearing = self._hearing(member)
        return self._config.fence_seconds if hearing.moment and self._is_fresh(hearing) else 0

    def is_silent(self, cluster: str) -> bool:
        """Whether a cluster that was heard before does not answer."""
        hearing = self._hearings.get(cluster)
        return self._runs and hearing is not None and self._clock() - hearing.heard > _MISSED * self._interval

    def seconds_left(self, cluster: str, fence: int) -> float | None:
        """Until nothing of what was made under this fence runs there any more; None if that is not to be known."""
        hearing = self._hearings.get(cluster)
        if not fence or not self._runs or hearing is None or not hearing.fenced:
            return None
        return hearing.heard + self._after(fence) - self._clock()

    def silence(self, cluster: str, fence: int) -> Silence | None:
        """What to tell of a pod in a cluster that does not answer; None if it was never heard."""
        hearing = self._hearings.get(cluster)
        if hearing is None:
            return None
        left = self.seconds_left(cluster, fence)
        # To the second, and the same each time it is asked.
        replaced = None if left is None else hearing.counted_on + datetime.timedelta(seconds=self._after(fence))
        return Silence(hearing.heard_on, replaced, unfenced=bool(fence) and not hearing.fenced)

    def _after(self, fence: int) -> float:
        return max(self._config.replace_seconds, least_replace_seconds(fence))

    def _hearing(self, member: Member) -> _Hearing:
        found = self._hearings.get(member.uid)
        if found is None:
            found = self._hearings[member.uid] = _Hearing(member.name, self._clock(), self._now(), self._now())
        found.name = member.name
        return found

    # Renewing

    async def begin(self) -> None:
        """Count from now on, and take in what the last manager knew; before any pod is seen to."""
        await self._recall()
        # Whoever led before may have renewed until now.
        for hearing in self._hearings.values():
            hearing.heard, hearing.counted_on = self._clock(), self._now()
            hearing.written.clear()
        self._runs = True

    async def run(self) -> None:
        """Renew until cancelled."""
        try:
            while True:
                await self.renew()
                await asyncio.sleep(self._interval)
        finally:
            self._runs = False

    async def renew(self) -> None:
        """Ask all members once, renew what was made there, and write down what is known."""
        namespaces: dict[str, set[str]] = {}
        for cluster, namespace in self._under():
            namespaces.setdefault(cluster, set()).add(namespace)
        members = [one for one in self._members.members.values() if not one.own]
        await asyncio.gather(*(self._renew(one, namespaces.get(one.uid, set())) for one in members))
        await self._record()

    async def _renew(self, member: Member, namespaces: Collection[str]) -> None:
        why = ""
        try:
            async with asyncio.timeout(self._seconds):
                await self._read_moment(member)
                await self._write_leases(member, namespaces)
        except TimeoutError:
            why = "no answer in time"
            self._missed(member.uid)
        except KubeError as error:
            why = str(error)
            if isinstance(error, ApiError) and error.status < _SERVER_ERROR:
                self.heard(member)
            else:
                self._missed(member.uid)
        hearing = self._hearings.get(member.uid)
        if hearing is not None:
            if why and not hearing.why:
                log.warning("cluster %s: its fences are not renewed: %s", member.name, why)
            hearing.why = why

    async def _read_moment(self, member: Member) -> None:
        """Take in when the scheduler of a member last looked, and whether it still does."""
        try:
            found = await member.client.get(CONFIG_MAPS, clusters.NAME_ROOM, namespace=member.namespace)
            moment = found.data.get(clusters.KEY_FENCE, "")
        except NotFoundError:
            moment = ""
        self.heard(member)
        hearing, now = self._hearing(member), self._clock()
        hearing.asked = True
        if moment != hearing.moment:
            # The first one may have been told long ago: one that is seen to change is told by somebody at work.
            hearing.changes |= bool(moment and hearing.moment)
            hearing.moment, hearing.known_at = moment, now
        # A manager that was just started believes for a while what the last one knew.
        fenced = bool(moment) and self._is_fresh(hearing) and (hearing.changes or hearing.fenced)
        if fenced is not hearing.fenced:
            log.info("cluster %s: its scheduler %s", member.name, "keeps fences" if fenced else "keeps no fences")
        hearing.fenced = fenced

    def _is_fresh(self, hearing: _Hearing) -> bool:
        patience = max(self._config.fence_seconds / _GONE, _LOOKS * clusters.FENCE_LOOK_SECONDS)
        return self._clock() - hearing.known_at <= patience

    async def _write_leases(self, member: Member, namespaces: Collection[str]) -> None:
        hearing = self._hearing(member)
        for namespace in sorted(namespaces):
            if not hearing.moment or hearing.written.get(namespace) == hearing.moment or not self._may_write():
                continue
            moment = hearing.moment
            await self._write_lease(member, namespace, moment)
            hearing.written[namespace] = moment
            self.heard(member)

    async def _write_lease(self, member: Member, namespace: str, moment: str) -> None:
        name = clusters.fence_name(self._home_cluster)
        spec: dict[str, Any] = {
            "holderIdentity": self._home_cluster,
            "leaseDurationSeconds": self._config.fence_seconds,
            "renewTime": moment,
        }
        try:
            await member.client.patch(LEASES, name, {"spec": spec}, namespace=namespace)
        except NotFoundError:
            try:
                manifest = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
                await member.client.create(LEASES.raw, manifest, namespace=namespace)
            except AlreadyExistsError:
                await member.client.patch(LEASES, name, {"spec": spec}, namespace=namespace)

    # What stands at home

    def record(self) -> SilenceRecord:
        """What the next manager, and people, shall know."""
        latest = sorted(self._hearings.items(), key=lambda item: -item[1].heard)[: 2 * MAX_CLUSTERS]
        return SilenceRecord(
            clusters={
                uid: ClusterSilence(
                    name=one.name,
                    since=f"{one.heard_on:{_SECONDS_FORMAT}}" if self.is_silent(uid) else "",
                    fenced=one.fenced,
                )
                for uid, one in sorted(latest)
            }
        )

    async def _record(self) -> None:
        written = clusters.encode(self.record(), what=clusters.ANNOTATION_SILENT)
        lease = await self._own_lease()
        if lease is None or lease.metadata.annotations.get(clusters.ANNOTATION_SILENT) == written:
            return
        annotations = {**lease.metadata.annotations, clusters.ANNOTATION_SILENT: written}
        meta = msgspec.structs.replace(lease.metadata, annotations=annotations)
        try:
            if self._may_write():
                await self._client.replace(LEASES, msgspec.structs.replace(lease, metadata=meta), retried=False)
        except (ConflictError, NotFoundError):
            pass  # it was renewed in between: the next time will do
        except KubeError as error:
            log.warning("which clusters are silent is not written: %s", error)

    async def _recall(self) -> None:
        """Take in what the last manager knew of clusters that were not heard since."""
        lease = await self._own_lease()
        record = None if lease is None else read_record(lease)
        for uid, one in (record.clusters if record is not None else {}).items():
            hearing = self._hearings.get(uid)
            if hearing is None:
                heard_on = _moment(one.since) or self._now()
                hearing = self._hearings[uid] = _Hearing(one.name, self._clock(), self._now(), heard_on)
            hearing.fenced |= one.fenced and not hearing.changes

    async def _own_lease(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._config.lease_name, namespace=self._config.namespace)
        except KubeError as error:
            if not isinstance(error, NotFoundError):
                log.warning("lease %s/%s cannot be read: %s", self._config.namespace, self._config.lease_name, error)
            return None


def read_record(lease: Lease) -> SilenceRecord | None:
    """What a manager has written on the Lease by which it leads; None if it is nothing that can be read."""
    try:
        written = lease.metadata.annotations.get(clusters.ANNOTATION_SILENT, "")
        return clusters.decode(SilenceRecord, written, what=clusters.ANNOTATION_SILENT)
    except CodecError:
        return None


def _moment(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
