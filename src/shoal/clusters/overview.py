"""What is told of the joined clusters: how each is, what room it has, and what is wrong with the others.

It asks as the caller and now. Since when a manager has not heard of a cluster is read where that one writes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from shoal.clusters.entries import readable
from shoal.clusters.join import ManagerAccount
from shoal.clusters.joining import unconfined
from shoal.clusters.member import Health, Member, MemberState
from shoal.clusters.members import Members
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.objects.others import ConfigMap
from shoal.kube.resources import CONFIG_MAPS
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterRoom, ClusterSilence, SilenceRecord
from shoal.model.errors import CodecError

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RoomReading:
    """What a cluster's `shoal-room` says, or why it says nothing."""

    room: ClusterRoom | None = None
    why: str = ""

    @property
    def cards(self) -> int:
        """All cards of it."""
        return sum(one.cards for one in self.room.models) if self.room else 0

    @property
    def free(self) -> int:
        """Those that are wholly free."""
        return sum(one.free for one in self.room.models) if self.room else 0


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster, as `shoal clusters list` tells it."""

    state: MemberState
    member: Member | None = None
    room: RoomReading = field(default_factory=RoomReading)
    #: What the manager knew last; None where it has written nothing.
    silence: ClusterSilence | None = None

    @property
    def silent_since(self) -> str:
        """Since when the manager has not heard of it; empty while it does, or if nobody knows."""
        return self.silence.since if self.silence is not None else ""

    def document(self) -> dict[str, object]:
        """The row for programs."""
        state, member, room = self.state, self.member, self.room
        document: dict[str, object] = {
            "name": state.name,
            "uid": state.uid,
            "version": state.version,
            "state": state.health.value,
            "own": state.own,
            "where": state.where,
        }
        if member is not None:
            document |= {"cost": member.cost, "preference": member.preference, "server": member.client.access.server}
        if room.room is not None:
            document |= {"nodes": room.room.nodes, "cards": room.cards, "free": room.free, "queue": room.room.queue}
        if self.silence is not None:
            document["fenced"] = self.silence.fenced
        told = (("problem", state.why), ("room", room.why), ("silentSince", self.silent_since))
        document |= {key: words for key, words in told if words}
        return document | ({"properties": dict(state.properties)} if state.properties else {})


@dataclass(frozen=True, slots=True)
class ClustersOverview:
    """All clusters by name, and what is wrong."""

    rows: tuple[ClusterRow, ...]
    problems: Mapping[str, str]

    def document(self) -> dict[str, object]:
        """All of it for programs."""
        return {"clusters": [row.document() for row in self.rows], "problems": dict(self.problems)}


async def overview(members: Members, record: SilenceRecord | None = None) -> ClustersOverview:
    """How the clusters are once each has been asked; `record`: what the manager knows of their silence."""
    await members.settled()
    states, known = members.states, members.members
    names = sorted(states)
    readings = await asyncio.gather(*(_reading(known.get(name)) for name in names))
    silences = {} if record is None else record.clusters
    rows = (
        ClusterRow(states[name], known.get(name), room, silences.get(states[name].uid))
        for name, room in zip(names, readings, strict=True)
    )
    problems = {**await unguarded(members.home_uid, known.values()), **members.problems}
    return ClustersOverview(tuple(rows), problems)


async def unguarded(home: str, members: Iterable[Member]) -> dict[str, str]:
    """Joined clusters whose policy does not confine dispatched pods, by name, with the fix.

    `home` is the identity of the manager's cluster. A cluster that does not answer is left out.
    """
    asked = [one for one in members if one.joined and not one.own]
    found = await asyncio.gather(*(_is_unguarded(home, one) for one in asked))
    return {
        one.name: "no policy there confines dispatched pods to what their namespace opens, or one of an earlier "
        f"version does: run shoal clusters join {one.name} again"
        for one, lacking in zip(asked, found, strict=True)
        if lacking
    }


async def _is_unguarded(home: str, member: Member) -> bool:
    try:
        return bool(await unconfined(member.client, ManagerAccount(home)))
    except KubeError:
        return False


async def _reading(member: Member | None) -> RoomReading:
    if member is None:
        return RoomReading(why=Health.SILENT.value)
    try:
        return RoomReading(await read_room(member.client, member.namespace))
    except NotFoundError:
        return RoomReading(
            why=f"no ConfigMap {member.namespace}/{clusters.NAME_ROOM}: no scheduler of Shoal tells its room"
        )
    except (KubeError, CodecError) as error:
        return RoomReading(why=readable(str(error)))


async def read_room(client: Client, namespace: str) -> ClusterRoom:
    """What a scheduler says of its cluster's room. Raises KubeError, and CodecError for what is no such thing."""
    data = (await read_config_map(client, namespace, clusters.NAME_ROOM)).data
    return clusters.decode(ClusterRoom, data.get(clusters.KEY_ROOM, ""), what=clusters.NAME_ROOM)


async def read_config_map(client: Client, namespace: str, name: str) -> ConfigMap:
    """A ConfigMap that others write, of a bounded size. Raises KubeError, and CodecError for what is none."""
    answer = await client.request("GET", CONFIG_MAPS.path(namespace=namespace, name=name), max_bytes=_MAX_BYTES)
    try:
        return msgspec.json.decode(answer, type=ConfigMap)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"ConfigMap {namespace}/{name} is none: look at it") from error
