"""`shoal-room`: what room this cluster has, by model of card, told in one ConfigMap for whoever chooses a cluster.

For a first sieve and for wake-ups; it decides nothing. The leader writes it, at most once a second and only when it
says something new: while nothing happens nothing is written. The ConfigMap comes empty with the manifests, so that the
scheduler needs no right to make any; where it is missing and that right is there, it is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from shoal.kube.resources import CONFIG_MAPS
from shoal.model.backoff import Backoff
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterRoom, RoomOfModel
from shoal.model.errors import CodecError
from shoal.placement.columns import SHARES, WHOLE, Columns
from shoal.scheduler.offer.holds import OfferHolds
from shoal.scheduler.state.cluster_state import ClusterState

log = logging.getLogger(__name__)

#: Between two looks, and so between two writes.
SECONDS: Final = 1.0
#: Models that are told of, those with the most cards: as many as fit into the document whatever they are called.
MOST_MODELS: Final = 100
_MOST_NAME: Final = 300
_MOST: Final = 2**31
_BACKOFF: Final = Backoff(first=1.0, longest=60.0)


def room_of(columns: Columns, *, nodes: int, queue: int, holds: int, before: ClusterRoom | None = None) -> ClusterRoom:
    """The room there is. The serial is that of the document before, and one more if something else is free."""
    room = ClusterRoom(
        version=clusters.VERSION,
        serial=0 if before is None else before.serial,
        nodes=min(nodes, _MOST),
        queue=min(queue, _MOST),
        models=_models(columns),
        holds=min(holds, _MOST),
    )
    if before is None or (before.nodes, before.models) != (room.nodes, room.models):
        room = msgspec.structs.replace(room, serial=(room.serial + 1) % _MOST)
    return room


def _models(columns: Columns) -> list[RoomOfModel]:
    rows = columns.rows
    code, memory = columns.code[:rows], np.maximum(columns.memory_free[:rows], 0)
    kind, whole = code // SHARES, code % SHARES == WHOLE
    found: dict[str, RoomOfModel] = {}
    for number, make in enumerate(columns.kinds):
        cards = kind == number
        count = int(np.count_nonzero(cards))
        if not number or not count or len(make.model) > _MOST_NAME:
            continue
        known = found.get(make.model, RoomOfModel(make.model, 0, 0, 0, 0))
        found[make.model] = RoomOfModel(
            make.model,
            cards=min(_MOST, known.cards + count),
            free=min(_MOST, known.free + int(np.count_nonzero(cards & whole))),
            largest_mib=min(_MOST, max(known.largest_mib, int(memory[cards].max()))),
            free_mib=min(_MOST, known.free_mib + int(memory[cards].sum())),
        )
    return sorted(found.values(), key=lambda model: (-model.cards, model.model))[:MOST_MODELS]


class RoomPublisher:
    """Writes the room of one cluster while this process leads."""

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        holds: OfferHolds,
        *,
        namespace: str,
        may_write: Callable[[], bool],
        seconds: float = SECONDS,
    ) -> None:
        self._client = client
        self._state = state
        self._holds = holds
        self._namespace = namespace
        self._may_write = may_write
        self._seconds = seconds
        #: What the ConfigMap says, and of which state of the cluster.
        self._written: ClusterRoom | None = None
        self._seen: object = None
        #: How often it has looked and written so far.
        self.looks = self.writes = 0

    async def run(self) -> None:
        """Publish until cancelled. Whatever the API server says, it goes on."""
        failures, told = 0, ""
        read = False
        while True:
            try:
                if not read:
                    self._written, read = await self._read(), True
                await self._publish()
                failures, told = 0, ""
            except KubeError as error:
                failures += 1
                if str(error) != told:
                    told = str(error)
                    log.warning("%s is not written: %s", self._where, error)
            await asyncio.sleep(_BACKOFF.after(failures) if failures else self._seconds)

    async def _publish(self) -> None:
        state = self._state
        self.looks += 1
        queue, holds = state.engine.demand.waiting, len(self._holds)
        seen = (state.engine.ledger.columns.version, state.nodes(), queue, holds)
        if seen == self._seen:
            return
        room = room_of(state.engine.ledger.columns, nodes=state.nodes(), queue=queue, holds=holds, before=self._written)
        if room != self._written:
            if not self._may_write():
                return
            await self._write(clusters.encode(room, what=clusters.NAME_ROOM))
            self._written = room
            self.writes += 1
        self._seen = seen

    async def _read(self) -> ClusterRoom | None:
        """What was written before, by this process or another; None when it cannot be read."""
        try:
            found = await self._client.get(CONFIG_MAPS, clusters.NAME_ROOM, namespace=self._namespace)
            return clusters.decode(ClusterRoom, found.data.get(clusters.KEY_ROOM, ""), what=clusters.NAME_ROOM)
        except (NotFoundError, CodecError):
            return None

    async def _write(self, written: str) -> None:
        data: dict[str, Any] = {"data": {clusters.KEY_ROOM: written}}
        try:
            await self._client.patch(CONFIG_MAPS, clusters.NAME_ROOM, data, namespace=self._namespace)
        except NotFoundError:
            meta = {"name": clusters.NAME_ROOM, "namespace": self._namespace}
            try:
                await self._client.create(CONFIG_MAPS, {"metadata": meta, **data}, namespace=self._namespace)
            except AlreadyExistsError:
                await self._client.patch(CONFIG_MAPS, clusters.NAME_ROOM, data, namespace=self._namespace)

    @property
    def _where(self) -> str:
        return f"ConfigMap {self._namespace}/{clusters.NAME_ROOM}"
