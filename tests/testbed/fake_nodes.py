"""Node objects with cards and no machine behind them, made by the thousand.

The objects look as Shoal's agent would publish them: inventory annotation, capacity of the three families, Ready. The
process `fake_kubelet` keeps them alive and plays their pods.
"""

import asyncio
import contextlib
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.resources import NODES
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.gpu import Gpu
from tests.testbed import fake_kubelet
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Process, Run

CARD_MIB = 16 * 1024
IN_FLIGHT = 32


class FakeNodes:
    """The fake nodes of one API server; `stop` ends the process behind them, `remove` deletes the objects."""

    def __init__(self, run: Run, api: ApiServer) -> None:
        self._api = api
        self._names: list[str] = []
        self._keeper = uuid.uuid4().hex[:12]
        command = [sys.executable, "-m", fake_kubelet.__name__, str(api.kubeconfig()), self._keeper]
        self._kubelet: Process = run.process(f"{api.name}-fake-kubelet", command)

    async def __call__(self, count: int, *, gpus: int | Sequence[Gpu] = 0, prefix: str = "node") -> list[str]:
        """The names of that many new nodes, each with so many made-up cards or with these."""
        if not self._kubelet.alive:
            self._kubelet.start()
        first = len(self._names)
        names = [f"{prefix}-{first + n}" for n in range(count)]
        async with self._client() as client:
            await each(names, lambda name: client.create(NODES, node(name, gpus, self._keeper)))
        self._names += names
        return names

    async def remove(self) -> None:
        """Delete the nodes and what runs on them; a test may have deleted some."""
        async with self._client() as client:

            async def remove(name: str) -> None:
                with contextlib.suppress(NotFoundError):
                    await client.delete(NODES, name)

            await each(self._names, remove)
        self._names.clear()

    @property
    def kubelet(self) -> Process:
        """The process behind the nodes, to kill and start again."""
        return self._kubelet

    def stop(self) -> None:
        """End the process behind the nodes."""
        self._kubelet.stop()

    def _client(self) -> Client:
        return Client(load_access(environ={}, home=Path("/"), kubeconfig=self._api.kubeconfig()))


async def each(names: Iterable[str], action: Callable[[str], Awaitable[object]]) -> None:
    """One action for every name, some at a time."""
    todo = iter(names)

    async def work() -> None:
        for name in todo:
            await action(name)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def node(name: str, gpus: int | Sequence[Gpu], keeper: str = fake_kubelet.KEEPER) -> dict:
    """A node object as the API server takes it, and whose fake kubelet it belongs to."""
    cards = made_up(name, gpus) if isinstance(gpus, int) else tuple(gpus)
    capacity = {"cpu": "128", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti"}
    annotations = {}
    if cards:
        annotations[shoal.ANNOTATION_GPUS] = shoal.encode_gpus(cards)
        capacity |= {
            gpushare.RESOURCE_MEMORY: str(sum(card.memory_mib for card in cards) // 1024),
            gpushare.RESOURCE_COUNT: str(len(cards)),
            keti.RESOURCE_MPS: str(sum(card.mps_clients for card in cards)),
            nvidia.RESOURCE_GPU: str(len(cards)),
        }
    return {
        "metadata": {
            "name": name,
            "labels": {fake_kubelet.LABEL: keeper, "kubernetes.io/hostname": name},
            "annotations": annotations,
        },
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [fake_kubelet.ready_condition()],
            "nodeInfo": fake_kubelet.NODE_INFO,
        },
    }


def made_up(node_name: str, count: int) -> tuple[Gpu, ...]:
    """Cards that exist nowhere."""
    return tuple(Gpu(f"GPU-{node_name}-{index}", index, CARD_MIB, "Testbed T16") for index in range(count))
