"""Tells how the joined clusters are, in the ConfigMap `shoal-clusters` beside their kubeconfigs.

Whoever shows clusters, as the dashboard does, reads that and needs no right to any Secret. It is what the leader knows,
without asking anybody; nothing is decided by it.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from shoal.clusters.entries import readable
from shoal.clusters.member import Health, MemberState
from shoal.clusters.members import Members
from shoal.clusters.rooms import Rooms
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from shoal.kube.resources import CONFIG_MAPS
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterRoom, SilenceRecord, ToldCluster, ToldClusters, ToldModel
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

#: Between two looks.
_SECONDS: Final = 5.0
#: What is read as a count.
_MOST: Final = 2**31
_NO_ROOM: Final = "no scheduler of Shoal there tells its room"


class ClustersTeller:
    """Writes while this process leads. `run` until it is cancelled."""

    def __init__(
        self,
        client: Client,
        members: Members,
        rooms: Rooms,
        silences: Callable[[], SilenceRecord],
        *,
        namespace: str,
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        now: Callable[[], datetime.datetime],
        seconds: float = _SECONDS,
    ) -> None:
        self._client = client
        self._members = members
        self._rooms = rooms
        self._silences = silences
        self._namespace = namespace
        self._may_write = may_write
        self._clock = clock
        self._now = now
        self._seconds = seconds
        self._written: ToldClusters | None = None
        self._written_at = 0.0

    async def run(self) -> None:
        """Tell until cancelled. Whatever the API server says, it goes on."""
        told = ""
        while True:
            try:
                await self._tell()
                told = ""
            except (KubeError, CodecError) as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("ConfigMap %s/%s is not written: %s", self._namespace, clusters.NAME_CLUSTERS, error)
            await asyncio.sleep(self._seconds)

    async def _tell(self) -> None:
        if not self._may_write():
            self._written = None  # another one may write meanwhile
            return
        members = self._members
        made = told_clusters(members.states, self._rooms.known(), self._silences(), members.problems, self._now())
        before, now = self._written, self._clock()
        same = before is not None and made == msgspec.structs.replace(before, time=made.time)
        if same and now - self._written_at < clusters.TOLD_SECONDS:
            return
        await self._write(clusters.encode(made, what=clusters.NAME_CLUSTERS, limit=clusters.MAX_TOLD))
        self._written, self._written_at = made, now

    async def _write(self, written: str) -> None:
        name, namespace = clusters.NAME_CLUSTERS, self._namespace
        data: dict[str, Any] = {"data": {clusters.KEY_CLUSTERS: written}}
        try:
            await self._client.patch(CONFIG_MAPS, name, data, namespace=namespace)
        except NotFoundError:
            try:
                meta = {"name": name, "namespace": namespace}
                await self._client.create(CONFIG_MAPS, {"metadata": meta, **data}, namespace=namespace)
            except AlreadyExistsError:
                await self._client.patch(CONFIG_MAPS, name, data, namespace=namespace)


def told_clusters(
    states: Mapping[str, MemberState],
    rooms: Mapping[str, ClusterRoom],
    silences: SilenceRecord,
    problems: Mapping[str, str],
    now: datetime.datetime,
) -> ToldClusters:
    """What is told: bounded, whatever the clusters and those who joined them have written."""
    told = []
    for name in sorted(states)[: clusters.MAX_CLUSTERS]:
        silence = silences.clusters.get(states[name].uid)
        told.append(_told(states[name], rooms.get(name), silence.since if silence is not None else ""))
    said = {(name, state.why) for name, state in states.items()}
    others = {readable(key)[:300]: _words(why) for key, why in problems.items() if (key, why) not in said}
    return ToldClusters(
        version=clusters.VERSION,
        time=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        clusters=told,
        problems=dict(sorted(others.items())[: clusters.MAX_CLUSTERS]),
    )


def _told(state: MemberState, room: ClusterRoom | None, since: str) -> ToldCluster:
    answers = state.health is Health.ANSWERS
    told = ToldCluster(
        name=state.name,
        state=state.health.value,
        uid=state.uid,
        version=state.version[:64],
        own=state.own,
        problem=_words(state.why or ("" if room is not None or not answers else _NO_ROOM)),
        since=since,
    )
    if room is None or not answers:
        return told
    most = sorted(room.models, key=lambda model: (-model.cards, model.model))[: clusters.MAX_TOLD_MODELS]
    return msgspec.structs.replace(
        told,
        nodes=room.nodes,
        cards=min(_MOST, sum(one.cards for one in room.models)),
        free=min(_MOST, sum(one.free for one in room.models)),
        queue=room.queue,
        models=[ToldModel(readable(one.model)[:64], one.cards, one.free, one.largest_mib) for one in most],
    )


def _words(words: str) -> str:
    return readable(words)[: clusters.MAX_TOLD_WORDS]
