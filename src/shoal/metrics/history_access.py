"""Who asks a collector, and what they may see. A token counts only if it was made for collectors (`kube.reviews`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from shoal.kube.client import Client
from shoal.kube.reviews import Caller, CallerRefusedError, Reviews, Right
from shoal.metrics import history_wire as wire

#: Namespaces that are asked about for one request: more than a node has pods.
_NAMESPACES: Final = 512


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller may see. `namespaces` is None for all."""

    cards: bool
    namespaces: frozenset[str] | None

    def pods_of(self, namespace: str) -> bool:
        """Whether pods of a namespace may be seen."""
        return self.namespaces is None or namespace in self.namespaces


class HistoryAccess:
    """Asks the API server about callers."""

    def __init__(self, client: Client, *, clock: Callable[[], float]) -> None:
        self._reviews = Reviews(client, clock=clock, audience=wire.AUDIENCE, how=_HOW)

    async def caller(self, token: str, peer: str) -> Caller:
        """Who shows this token. Raises CallerRefusedError."""
        return await self._reviews.caller(token, peer)

    async def sight(self, caller: Caller, namespaces: Callable[[], Awaitable[Iterable[str]]]) -> Sight:
        """What a caller may see: all namespaces, else which of those that are there. Raises CallerRefusedError."""
        cards, everywhere = await asyncio.gather(
            self._may(caller, wire.CARD_METRICS, ""), self._may(caller, wire.POD_METRICS, "")
        )
        if everywhere:
            return Sight(cards, None)
        asked = sorted(set(await namespaces()))[:_NAMESPACES]
        allowed = await asyncio.gather(*(self._may(caller, wire.POD_METRICS, one) for one in asked))
        seen = frozenset(one for one, may in zip(asked, allowed, strict=True) if may)
        if not cards and not seen:
            raise CallerRefusedError(403, f"you may see nothing here: {_RIGHTS_WANTED}")
        return Sight(cards, seen)

    async def _may(self, caller: Caller, resource: str, namespace: str) -> bool:
        return await self._reviews.may(caller, Right("get", wire.GROUP, resource, namespace))

    async def close(self) -> None:
        """End what is being asked."""
        await self._reviews.close()


_HOW: Final = f"kubectl create token {wire.VIEWER_ACCOUNT} -n {wire.NAMESPACE} --audience {wire.AUDIENCE}"
_RIGHTS_WANTED: Final = (
    f"get {wire.CARD_METRICS}.{wire.GROUP} shows cards, get {wire.POD_METRICS}.{wire.GROUP} in a namespace its pods "
    "(deploy/metrics/history.yaml)"
)
