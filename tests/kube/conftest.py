from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from tests.testbed.apiserver import ApiServer


def access_of(path: Path) -> Access:
    return load_kubeconfig([path], environ={}, explicit=True)


@pytest.fixture
async def client(apiserver: ApiServer) -> AsyncIterator[Client]:
    """A client of the shared server, as admin."""
    async with Client(access_of(apiserver.kubeconfig())) as client:
        yield client
