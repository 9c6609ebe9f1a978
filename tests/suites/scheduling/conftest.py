"""The way a scenario runs: each of the three, set up once for all scenarios."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suites.scheduling import ways
from tests.suites.scheduling.ways import EMBEDDED, EXTENDER, STANDALONE, Way
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.processes import Run


@pytest.fixture(scope="module")
def _plane(testbed_run: Run) -> Iterator[ControlPlane]:
    """A control plane of these tests' own: their schedulers would take the pods of all others."""
    with own_control_plane(testbed_run, "scheduling") as plane:
        kubelets = ways.kubelets(testbed_run, plane.api)
        yield plane
        kubelets.kill()


@pytest.fixture(scope="session")
def _embedded_way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    directory: Path = tmp_path_factory.mktemp("scheduling")
    with ways.embedded(directory) as way:
        yield way


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """A cluster with a scheduler. Real ones share a control plane, one after the other."""
    if request.param == EMBEDDED:
        yield request.getfixturevalue("_embedded_way")
        return
    run, plane = request.getfixturevalue("testbed_run"), request.getfixturevalue("_plane")
    start = {STANDALONE: ways.standalone, EXTENDER: ways.extender}[request.param]
    with start(run, plane) as way:
        yield way
