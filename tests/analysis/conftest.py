"""Clusters with a scheduler for commands to ask: the embedded one, and a real one for `make test-kube`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suites.scheduling import ways
from tests.suites.scheduling.ways import EMBEDDED, STANDALONE, Way
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.processes import Run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `way` runs on both."""
    if "way" in metafunc.fixturenames:
        params = [pytest.param(EMBEDDED), pytest.param(STANDALONE, marks=pytest.mark.kube)]
        metafunc.parametrize("way", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def plane(testbed_run: Run) -> Iterator[ControlPlane]:
    """A control plane of these tests' own: nothing but their scheduler runs there."""
    with own_control_plane(testbed_run, "ask") as made:
        kubelets = ways.kubelets(testbed_run, made.api)
        yield made
        kubelets.kill()


@pytest.fixture(scope="session")
def _embedded_way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    directory: Path = tmp_path_factory.mktemp("ask")
    with ways.embedded(directory) as way:
        yield way


@pytest.fixture(scope="session")
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """A cluster where `shoal scheduler` serves all pods."""
    if request.param == EMBEDDED:
        yield request.getfixturevalue("_embedded_way")
        return
    with ways.standalone(request.getfixturevalue("testbed_run"), request.getfixturevalue("plane")) as standalone:
        yield standalone
