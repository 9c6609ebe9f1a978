from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.transport import TransportLimits


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    """An embedded API server of the test's own, in this process."""
    async with EmbeddedApi(tmp_path / "embedded") as api:
        yield api


@pytest.fixture
async def client(api: EmbeddedApi) -> AsyncIterator[Client]:
    """Our own client of it."""
    access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
    # Client and server share a thread, and the machine may be busy.
    async with Client(access, limits=TransportLimits(connect_seconds=120.0, request_seconds=120.0)) as client:
        yield client
