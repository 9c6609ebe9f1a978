"""The clusters that the suites run on: the embedded one in `make test`, a real one in `make test-kube`."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.suites.embedded import EmbeddedServer
from tests.testbed.cluster import Api

CLUSTERS = {"embedded": (), "real": (pytest.mark.kube,)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `cluster` runs on each, unless `--cluster` names one."""
    if "cluster" not in metafunc.fixturenames:
        return
    only = metafunc.config.getoption("--cluster")
    params = [pytest.param(name, marks=marks) for name, marks in CLUSTERS.items() if only in (None, name)]
    metafunc.parametrize("cluster", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def _embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    directory: Path = tmp_path_factory.mktemp("embedded")
    server = EmbeddedServer(directory)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Api:
    """An API server, shared by all tests of the run: keep to a namespace of your own."""
    return cast(Api, request.getfixturevalue("_embedded" if request.param == "embedded" else "apiserver"))
