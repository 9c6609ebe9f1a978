"""Discovery on the embedded API server, with its policies in force."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.model.contract.gpushare import MemoryUnit
from tests.discovery.scenes import SCENES
from tests.discovery.site import Site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """An embedded API server with the accounts of discovery."""
    async with EmbeddedApi(tmp_path / "api", admission=MemoryUnit.GIB) as api:
        site = Site(api.kubeconfig(), tmp_path)
        async with site.client:
            await site.install()
            yield site


@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
async def test_scene(site: Site, scene: Callable[[Site], Awaitable[None]]) -> None:
    await scene(site)
