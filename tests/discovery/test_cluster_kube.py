"""Discovery on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.discovery.scenes import SCENES
from tests.discovery.site import Site
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run


@pytest.fixture(scope="module")
def server(testbed_run: Run) -> Iterator[ApiServer]:
    """A server of this module's own: its leader looks at all nodes."""
    server = ApiServer(testbed_run, "discovery")
    yield server
    server.stop()


@pytest.fixture
async def site(server: ApiServer, tmp_path: Path) -> AsyncIterator[Site]:
    """The accounts of discovery on it."""
    site = Site(server.kubeconfig(), tmp_path)
    async with site.client:
        await site.install()
        yield site
        await site.remove()


@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
async def test_scene(site: Site, scene: Callable[[Site], Awaitable[None]]) -> None:
    await scene(site)
