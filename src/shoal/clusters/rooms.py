"""Follows the ConfigMap `shoal-room` of every member: wakes what waits when room changes, and is a first sieve.

A room only saves questions. A cluster is not asked if its room, as of some seconds ago, has no piece that is large
enough for the pod. A room that is missing, malformed, of another version or older than that says nothing: the cluster
is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shoal.clusters.choice import clipped
from shoal.clusters.member import Member, MemberTable
from shoal.kube.objects.others import ConfigMap
from shoal.kube.reflector import Reflector
from shoal.kube.resources import CONFIG_MAPS, RawObject
from shoal.kube.store import Change
from shoal.model.contract import clusters as contract
from shoal.model.contract.clusters import ClusterRoom
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, ModelError
from shoal.model.manifest import read_pod
from shoal.model.pod import gpus_of

log = logging.getLogger(__name__)

#: A room that came longer ago is not believed: its scheduler may be gone.
BELIEVED_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Need:
    """What one card must have free for a pod, at the least."""

    memory_mib: int = 0
    whole: bool = False


def need_of(pod: RawObject, *, unit: MemoryUnit) -> Need:
    """The largest share that the pod asks of one card; nothing when that cannot be read: whoever is asked will say."""
    try:
        asked = gpus_of(read_pod(pod), unit=unit)
    except ModelError:
        return Need()
    shares = [container.share for container in asked.containers]
    return Need(max((share.memory_mib for share in shares), default=0), any(share.exclusive for share in shares))


def too_small(room: ClusterRoom, need: Need) -> str:
    """Why a room cannot take the pod, in words; empty when it might."""
    largest = max((model.largest_mib for model in room.models), default=0)
    if need.whole and not any(model.free for model in room.models):
        return "no card is wholly free"
    if need.memory_mib > largest:
        return f"the pod asks for {need.memory_mib} MiB of a card, and the largest free piece has {largest} MiB"
    return ""


class Rooms:
    """The rooms of the members. `run` until it is cancelled."""

    def __init__(
        self,
        table: MemberTable,
        *,
        believed_seconds: float = BELIEVED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._believed_seconds = believed_seconds
        self._clock = clock
        self._calls: list[Callable[[str], None]] = []
        #: By the member's name, with the moment in which it came.
        self._rooms: dict[str, tuple[ClusterRoom, float]] = {}
        self._changed = asyncio.Event()
        table.on_change(self._changed.set)

    def on_change(self, call: Callable[[str], None]) -> None:
        """Call this with the member's name whenever there is other room in it, or it comes or goes."""
        self._calls.append(call)

    def room_of(self, cluster: str) -> ClusterRoom | None:
        """The room of a member, if it is fresh."""
        found = self._rooms.get(cluster)
        if found is None or self._clock() - found[1] > self._believed_seconds:
            return None
        return found[0]

    def known(self) -> Mapping[str, ClusterRoom]:
        """The rooms as they came last, however old; what they say decides nothing."""
        return {name: room for name, (room, _) in self._rooms.items()}

    async def run(self) -> None:
        """Follow the members of the moment."""
        following: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        try:
            while True:
                self._changed.clear()
                await self._align(following)
                await self._changed.wait()
        finally:
            await _end([task for _, task in following.values()])

    async def _align(self, following: dict[str, tuple[Member, asyncio.Task[None]]]) -> None:
        """Follow those that came, and no longer those that went or have other credentials now."""
        members = dict(self._table.members)
        gone = [name for name, (member, _) in following.items() if members.get(name) is not member]
        await _end([following.pop(name)[1] for name in gone])
        for name in gone:
            self._rooms.pop(name, None)
        new = members.keys() - following.keys()
        for name in sorted(new):
            task = asyncio.create_task(self._follow(members[name]), name=f"room of {name}")
            following[name] = members[name], task
        for name in (*gone, *sorted(new)):
            self._tell(name)

    async def _follow(self, member: Member) -> None:
        def taken(change: Change[ConfigMap]) -> None:
            self._take(member.name, change.new)

        reflector = Reflector(
            member.client,
            CONFIG_MAPS,
            namespace=member.namespace,
            fields=f"metadata.name={contract.NAME_ROOM}",
            consumers=[taken],
        )
        await reflector.run()

    def _take(self, cluster: str, found: ConfigMap | None) -> None:
        before = self._rooms.pop(cluster, None)
        room = _read(cluster, found)
        if room is not None:
            self._rooms[cluster] = room, self._clock()
        if room is None or before is None or room.serial != before[0].serial:
            self._tell(cluster)

    def _tell(self, cluster: str) -> None:
        for call in self._calls:
            call(cluster)


def _read(cluster: str, found: ConfigMap | None) -> ClusterRoom | None:
    if found is None or contract.KEY_ROOM not in found.data:
        return None
    try:
        return contract.decode(ClusterRoom, found.data[contract.KEY_ROOM], what=f"{contract.NAME_ROOM} of {cluster}")
    except CodecError as error:
        log.warning("%s; the cluster is asked without it", clipped(str(error)))
        return None


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
