"""Clusters with a scheduler for commands to ask: the embedded one, and a real one for `make test-kube`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suites.scheduling import ways
from tests.suites.scheduling.ways import EMBEDDED, STANDALONE, Way
from tests.testbed.control_plane import ControlPlane
from tests.testbed.processes import Run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `way` runs on both."""
    if "way" in metafunc.fixturenames:
        params = [pytest.param(EMBEDDED), pytest.param(STANDALONE, marks=pytest.mark.kube)]
        metafunc.parametrize("way", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def plane(testbed_run: Run) -> ControlPlane:
    """A control plane of these tests' own: nothing but their scheduler runs there."""
    made = ControlPlane(testbed_run, "ask")
    ways.kubelets(testbed_run, made.api)
    return made


@pytest.fixture(scope="session")
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    """A cluster where `shoal scheduler` serves all pods."""
    if request.param == EMBEDDED:
        directory: Path = tmp_path_factory.mktemp("ask")
        with ways.embedded(directory) as embedded:
            yield embedded
        return
    with ways.standalone(request.getfixturevalue("testbed_run"), request.getfixturevalue("plane")) as standalone:
        yield standalone
