"""One browser and one cluster with something of everything for all tests; each test has a profile of its own."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from tests.dashboard.page import browser as browsers
from tests.dashboard.page.browser import Watched, watched
from tests.dashboard.page.stage import Stage, filled, staged


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with browsers.chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage(chromium: Browser) -> AsyncIterator[Stage]:
    """Keep to what you make: others look at the same cluster."""
    with tempfile.TemporaryDirectory(prefix="sp-") as folder:
        async with staged(Path(folder)) as made:
            await filled(made)
            yield made


@pytest_asyncio.fixture(loop_scope="session")
async def page(chromium: Browser, stage: Stage) -> AsyncIterator[Watched]:
    """A page of somebody who may read everything. At its end nothing may have gone wrong on it."""
    async with watched(chromium, stage.url, await stage.link()) as one:
        yield one
