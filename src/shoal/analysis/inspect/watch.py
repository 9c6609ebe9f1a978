"""What is allocated, kept up to date by watches of nodes and pods, and of claims where a node holds some."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType

from shoal.analysis.inspect.claims import ClaimsWatch
from shoal.analysis.inspect.objects import NODES, PODS, PartialNode, PartialPod
from shoal.analysis.inspect.read import check_names, selectors
from shoal.analysis.inspect.reader import UseReader
from shoal.analysis.inspect.use import ClusterUse
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.reflector import Reflector
from shoal.model.contract.gpushare import MemoryUnit

#: Seconds between two looks at whether the server answers.
_LOOK = 0.1


class ClusterWatch:
    """A cluster that is watched. Use it in `async with`, which returns when all is read; raises KubeError if it is not.

    It needs the right to list and watch nodes and pods, and to tell claims by their names, claims.
    """

    def __init__(self, client: Client, *, names: Sequence[str] = (), unit: MemoryUnit | None = None) -> None:
        #: Set by every change; whoever waits clears it.
        self.changed = asyncio.Event()
        self._names = tuple(names)
        self._reader = UseReader(unit)
        self._stack = AsyncExitStack()
        of_nodes, of_pods = selectors(names)
        self._nodes: Reflector[PartialNode] = Reflector(client, NODES, fields=of_nodes, consumers=[self._on_change])
        self._pods: Reflector[PartialPod] = Reflector(client, PODS, fields=of_pods, consumers=[self._on_change])
        self._claims = ClaimsWatch(client, self._on_change)

    async def __aenter__(self) -> ClusterWatch:
        async with AsyncExitStack() as stack:
            for reflector in (self._nodes, self._pods):
                await stack.enter_async_context(reflector)
            await stack.enter_async_context(self._claims)
            await self._all_read()
            check_names(self._names, [node.metadata.name for node in self._nodes.store])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _all_read(self) -> None:
        while not (self._nodes.synced.is_set() and self._pods.synced.is_set()):
            if (error := self._error()) is not None:
                raise error
            await asyncio.sleep(_LOOK)

    @property
    def trouble(self) -> str:
        """Why what is shown may be old; empty while all is well."""
        error = self._error()
        return "" if error is None else str(error)

    def cluster(self) -> ClusterUse:
        """What is allocated now."""
        nodes = [node for node in self._nodes.store if not self._names or node.metadata.name in self._names]
        if self._reader.holds_claims(nodes):
            self._claims.need()
        return self._reader.of(
            nodes, self._pods.store, self._claims.store, everywhere=not self._names, problem=self._claims.trouble
        )

    def _error(self) -> KubeError | None:
        return self._nodes.last_error or self._pods.last_error

    def _on_change(self, _: object) -> None:
        self.changed.set()
