"""What is allocated, read from the API server once, both lists at the same time.

It needs the right to list nodes and pods. Claims of devices are read where a node holds some; without the right to
list them they are known by their UIDs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from typing import Final, TypeVar

from shoal.analysis.errors import NodeMissingError
from shoal.analysis.inspect.claims import unread
from shoal.analysis.inspect.objects import CLAIMS, NODES, PODS, PartialClaim, PartialNode, PartialPod
from shoal.analysis.inspect.reader import UseReader
from shoal.analysis.inspect.use import ClusterUse, NodeUse
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, GoneError, NotFoundError
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
        there = (await nodes).values()
        claims, problem = await _claims(client) if reader.holds_claims(there) else ((), "")
        return reader.of(there, pods, claims, everywhere=not names, problem=problem)


async def _claims(client: Client) -> tuple[Sequence[PartialClaim], str]:
    """All claims, or why they cannot be read."""
    try:
        return (await client.list(CLAIMS)).items, ""
    except (ForbiddenError, NotFoundError) as error:
        return (), unread(error)


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
