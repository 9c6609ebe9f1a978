"""A cluster of the tests' own: the tables show all nodes and pods there are."""

import uuid
from collections.abc import Iterator
from typing import cast

import pytest

from tests.cli.inspect.cluster import Cluster
from tests.suites.conftest import CLUSTERS
from tests.suites.embedded import EmbeddedServer
from tests.testbed.apiserver import ApiServer
from tests.testbed.cluster import Api
from tests.testbed.processes import Run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `cluster` runs on each, unless `--cluster` names one."""
    if "cluster" in metafunc.fixturenames:
        only = metafunc.config.getoption("--cluster")
        params = [pytest.param(name, marks=marks) for name, marks in CLUSTERS.items() if only in (None, name)]
        metafunc.parametrize("_api", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def _own_apiserver(testbed_run: Run) -> Iterator[ApiServer]:
    server = ApiServer(testbed_run, f"inspect-{uuid.uuid4().hex[:6]}")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _own_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path_factory.mktemp("inspect"))
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


@pytest.fixture
def real_cluster(_own_apiserver: ApiServer) -> Iterator[Cluster]:
    """The same on the real API server, which knows users and rights."""
    cluster = Cluster(_own_apiserver)
    yield cluster
    cluster.clear()
