"""What is allocated, read from the API server: once, or kept up to date by watches.

It needs the right to list nodes and pods, and to watch them for the second, no more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, TypeVar

from shoal.analysis.errors import NodeMissingError
from shoal.analysis.inspect.objects import NODES, PODS, PartialNode, PartialPod
from shoal.analysis.inspect.reader import UseReader
from shoal.analysis.inspect.use import ClusterUse, NodeUse
from shoal.kube.client import Client
from shoal.kube.errors import GoneError, KubeError
from shoal.kube.reflector import Reflector
from shoal.model.contract.gpushare import MemoryUnit

T = TypeVar("T")

#: Finished pods hold nothing and are not sent.
NOT_FINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"


#: Seconds in which a request is on its way.
_SENDING: Final = 0.001


async def read_cluster(client: Client, *, names: Sequence[str] = (), unit: MemoryUnit | None = None) -> ClusterUse:
    """The use of the nodes of these names, of all nodes when none is named."""
    of_nodes, of_pods = selectors(names)
    reader = UseReader(unit)
    async with _begun(_nodes(client, of_nodes, names)) as nodes:
        try:
            pods = await _pods(client, of_pods, nodes, reader)
        except GoneError:  # the list expired on the way
            pods = (await client.list(PODS, fields=of_pods)).items
        return reader.of((await nodes).values(), pods, everywhere=not names)


@contextlib.asynccontextmanager
async def _begun(work: Coroutine[None, None, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task that runs beside the block, and is cancelled at its end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _nodes(client: Client, fields: str, names: Sequence[str]) -> dict[str, PartialNode]:
    there = {node.metadata.name: node for node in (await client.list(NODES, fields=fields)).items}
    check_names(names, there)
    return {name: there[name] for name in names or there}


async def _pods(
    client: Client, fields: str, nodes: asyncio.Task[dict[str, PartialNode]], reader: UseReader
) -> list[PartialPod]:
    """All pods. A page is asked for before the one before it is looked at, so that the server is never idle."""
    pods: list[PartialPod] = []
    known = False
    page = await client.page(PODS, fields=fields)
    while more := page.metadata.continue_:
        async with _begun(client.page(PODS, fields=fields, continue_=more)) as asked:
            await asyncio.sleep(_SENDING)
            pods += page.items or ()
            if nodes.done():
                reader.look_at(() if known else nodes.result().values(), page.items or ())
                known = True
            page = await asked
    return pods + list(page.items or ())


async def read_uses(client: Client, *, unit: MemoryUnit) -> list[NodeUse]:
    """Every node with cards, by name."""
    return list((await read_cluster(client, unit=unit)).nodes)


def selectors(names: Sequence[str]) -> tuple[str, str]:
    """What to ask for, of nodes and of pods: one node by its name, else all of them."""
    if len(names) == 1:
        return f"metadata.name={names[0]}", f"spec.nodeName={names[0]},{NOT_FINISHED}"
    return "", NOT_FINISHED


def check_names(names: Sequence[str], there: Collection[str]) -> None:
    """Raises NodeMissingError for a name that is not there."""
    for name in names:
        if name not in there:
            raise NodeMissingError(f'nodes "{name}" not found: see `kubectl get nodes` for their names')


#: Seconds between two looks at whether the server answers.
_LOOK = 0.1


class ClusterWatch:
    """A cluster that is watched. Use it in `async with`, which returns when all is read; raises KubeError if it is not.

    It needs the right to list and watch nodes and pods.
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

    async def __aenter__(self) -> ClusterWatch:
        async with AsyncExitStack() as stack:
            for reflector in (self._nodes, self._pods):
                await stack.enter_async_context(reflector)
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
        return self._reader.of(nodes, self._pods.store, everywhere=not self._names)

    def _error(self) -> KubeError | None:
        return self._nodes.last_error or self._pods.last_error

    def _on_change(self, _: object) -> None:
        self.changed.set()
