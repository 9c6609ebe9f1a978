"""The fixtures of the test bed, by what they cost. `tests/conftest.py` loads them for all tests.

A test that asks for any of them is marked `kube` by itself: `make test` leaves it out, `make test-kube` runs it. One
that asks for a browser is marked `page` and is `make test-page`'s, whatever else it needs.
"""

import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes
from tests.testbed.processes import Run

#: A test that uses one of these needs the real programs.
_NEEDS_KUBE = "testbed_run"
#: A test that uses this one needs a browser.
_NEEDS_BROWSER = "chromium"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which cluster the suites run on."""
    parser.addoption("--cluster", choices=["embedded", "real"], help="the only cluster the suites run on; else both")


def pytest_configure(config: pytest.Config) -> None:
    """The marks of the test bed."""
    config.addinivalue_line("markers", "kube: needs the programs of `make kube`; set by itself, from the fixtures used")
    config.addinivalue_line("markers", "page: needs a browser, `make test-page`; set by itself, from the fixtures used")
    config.addinivalue_line("markers", "min_kube(version): needs at least this Kubernetes, such as 1.36")
    config.addinivalue_line("markers", "before_kube(version): for a Kubernetes older than this one, such as 1.34")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Kubernetes, and leave out what needs a newer or an older one."""
    minor = int(binaries.kube_version().split(".")[1])
    for item in items:
        if _NEEDS_KUBE in getattr(item, "fixturenames", ()):
            item.add_marker("kube")
        if _NEEDS_BROWSER in getattr(item, "fixturenames", ()):
            item.add_marker("page")
            # One browser and one cluster serve many tests, so they share the event loop.
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        mark = item.get_closest_marker("min_kube")
        if mark is not None and minor < int(mark.args[0].split(".")[1]):
            item.add_marker(pytest.mark.skip(reason=f"needs Kubernetes {mark.args[0]}"))
        mark = item.get_closest_marker("before_kube")
        if mark is not None and minor >= int(mark.args[0].split(".")[1]):
            item.add_marker(pytest.mark.skip(reason=f"for a Kubernetes older than {mark.args[0]}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the programs from tests that have to do without: also where they are there."""
    binaries.Permission.granted = any(item.get_closest_marker(name) for name in ("kube", "page"))


@pytest.fixture(scope="session")
def testbed_run() -> Iterator[Run]:
    """The folder and programs of this run; nothing of it is left afterwards."""
    if not binaries.Permission.granted:
        pytest.fail("a test must ask for testbed_run by name, not by getfixturevalue alone: then it is marked kube")
    with Run() as run:
        yield run


@pytest.fixture(scope="session")
def apiserver(testbed_run: Run) -> ApiServer:
    """etcd and kube-apiserver, shared by all tests of the run: keep to your `namespace`, and do not break it."""
    return ApiServer(testbed_run)


@pytest.fixture
def namespace(apiserver: ApiServer) -> str:
    """A fresh namespace on `apiserver`. No controller empties it: it goes with the run."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    apiserver.create_namespace(name)
    return name


@pytest.fixture
def new_apiserver(testbed_run: Run) -> Iterator[Callable[[], ApiServer]]:
    """Servers of the test's own, to kill and restart."""
    made: list[ApiServer] = []
    numbers = itertools.count()

    def make() -> ApiServer:
        server = ApiServer(testbed_run, f"own-{uuid.uuid4().hex[:6]}-{next(numbers)}")
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def _control_plane(testbed_run: Run) -> ControlPlane:
    return ControlPlane(testbed_run)


@pytest.fixture
def control_plane(_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver and kube-controller-manager, shared by all tests of the run.

    `start_scheduler(configuration)` adds a kube-scheduler, so that an extender can be wired in; it ends with the test.
    """
    yield _control_plane
    _control_plane.stop_schedulers()


@pytest.fixture
async def fake_nodes(testbed_run: Run, control_plane: ControlPlane) -> AsyncIterator[FakeNodes]:
    """`await fake_nodes(n, gpus=8)` makes nodes on `control_plane`; they go with the test."""
    nodes = FakeNodes(testbed_run, control_plane.api)
    yield nodes
    await nodes.remove()
    nodes.stop()
