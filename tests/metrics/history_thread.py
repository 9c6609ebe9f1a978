"""Servers of collectors in a thread of their own, for tests that run whole commands."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.metrics.history import HistoryWriter
from shoal.metrics.history_points import points
from shoal.metrics.history_server import HistoryServer, HistorySettings
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from tests.kube.waiting import until


@contextlib.contextmanager
def collectors(
    kubeconfig: Path, folder: Path, snapshots: Sequence[Snapshot], *, host: str = "127.0.0.1", age: float = 0.0
) -> Iterator[list[int]]:
    """Serve these snapshots, each with ten minutes of the same behind it, until the block ends. Gives the ports."""
    started, over = threading.Event(), threading.Event()
    failed: list[BaseException] = []
    ports: list[int] = []

    async def run() -> None:
        async with Client(load_kubeconfig([kubeconfig], environ={}, explicit=True)) as client:
            tasks = []
            for snapshot in snapshots:
                ring = folder / snapshot.node
                _fill(ring, snapshot)
                server = HistoryServer(HistorySettings(folder=str(ring), host=host, port=0), client, snapshot.node)
                latest = LatestSnapshot()
                latest.put(replace(snapshot, time=time.time() - age, monotonic=time.monotonic() - age))
                tasks.append(task := asyncio.create_task(server.run(latest)))
                await until(lambda server=server, task=task: server.announced or task.done(), "announced")  # type: ignore[misc]
                ports.append(server.port)
            started.set()
            await asyncio.to_thread(over.wait)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - told in the thread of the test
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        started.wait()
        if not failed:
            yield ports
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def _fill(ring: Path, snapshot: Snapshot) -> None:
    now = time.time()
    with contextlib.closing(HistoryWriter(ring)) as writer:
        for ago in range(600, 0, -5):
            writer.write(now - ago, points(snapshot))
