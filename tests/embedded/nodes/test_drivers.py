"""What a simulated kubelet does about drivers that go, by a clock of the test's own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from shoal.embedded.nodes.claims.drivers import WIPE_SECONDS, Drivers
from shoal.embedded.nodes.errors import ClaimNotReadyError
from shoal.kubelet.dra import ClaimRef, DraDriver, Prepared
from shoal.kubelet.host_paths import HostPaths
from tests.embedded.nodes.manual_clock import ManualClock

NAME = "gpu.example.com"


class Node:
    """The drivers of a node, and whose slices were deleted."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.wiped: list[str] = []
        self.paths = HostPaths(plugins_registry=folder / "r", plugins=folder / "p", host_plugins=folder / "p")
        self.drivers = Drivers(
            self.paths.plugins_registry, clock=self.clock, wipe=self.wiped.append, changed=lambda devices: None
        )
        self._task: asyncio.Task[None] | None = None

    def serve(self) -> None:
        async def prepare(claims: Sequence[ClaimRef], seconds: float) -> dict[str, Prepared]:
            return {one.uid: Prepared() for one in claims}

        async def unprepare(claims: Sequence[ClaimRef]) -> dict[str, str]:
            return {}

        driver = DraDriver(NAME, self.paths.driver(NAME), prepare=prepare, unprepare=unprepare, health=list)
        self._task = asyncio.create_task(driver.run())

    async def end(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def connected(self) -> None:
        """Look until the driver is known and can be reached."""
        while True:
            self.drivers.look()
            with contextlib.suppress(ClaimNotReadyError):
                if self.drivers.get(NAME).connected:
                    return
            await asyncio.sleep(0.01)

    async def pass_seconds(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        self.drivers.look()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    made.serve()
    await made.connected()
    yield made
    await made.end()
    await made.drivers.close()


async def test_slices_go_some_time_after_their_driver(node: Node) -> None:
    await node.end()
    node.drivers.look()
    await node.pass_seconds(WIPE_SECONDS - 1)
    assert node.wiped == []
    await node.pass_seconds(2)
    assert node.wiped == [NAME]
    node.serve()


async def test_a_driver_that_comes_back_in_time_keeps_its_slices(node: Node) -> None:
    await node.end()
    node.drivers.look()
    await node.pass_seconds(WIPE_SECONDS - 1)
    node.serve()
    await node.connected()
    await node.pass_seconds(WIPE_SECONDS)
    assert node.wiped == []
