"""An API server of the test's own, and a collector that reads simulated cards."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    """An embedded API server, in this process."""
    async with EmbeddedApi(tmp_path / "embedded") as api:
        yield api


@pytest.fixture
def access(api: EmbeddedApi) -> Access:
    """How to reach it."""
    return load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)


@pytest.fixture
async def client(access: Access) -> AsyncIterator[Client]:
    """Our own client of it."""
    async with Client(access) as client:
        yield client


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="sm-") as folder:
        yield Path(folder)
