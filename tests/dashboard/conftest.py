"""A dashboard over an embedded API server, for each test its own; and API servers with rights, embedded and real."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.cli.inspect.cluster import Cluster
from tests.dashboard.site import Site
from tests.dashboard.site import site as made
from tests.suites.conftest import CLUSTERS
from tests.suites.embedded import EmbeddedServer
from tests.testbed.apiserver import ApiServer
from tests.testbed.cluster import Api
from tests.testbed.processes import Run


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with made(tmp_path) as site:
        yield site


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `cluster` runs on the embedded API server and on the real one."""
    if "cluster" in metafunc.fixturenames:
        only = metafunc.config.getoption("--cluster")
        params = [pytest.param(name, marks=marks) for name, marks in CLUSTERS.items() if only in (None, name)]
        metafunc.parametrize("_api", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def _own_apiserver(testbed_run: Run) -> Iterator[ApiServer]:
    server = ApiServer(testbed_run, f"dashboard-{uuid.uuid4().hex[:6]}")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _own_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path_factory.mktemp("dashboard"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _api(request: pytest.FixtureRequest) -> Api:
    return cast(Api, request.getfixturevalue("_own_apiserver" if request.param == "real" else "_own_embedded"))


@pytest.fixture
def cluster(_api: Api) -> Iterator[Cluster]:
    """An API server with no node and no pod, and without anybody who changes them."""
    cluster = Cluster(_api)
    yield cluster
    cluster.clear()
