"""Fixtures of real nodes, and of the image that runs there. `tests/conftest.py` loads them for all tests."""

import fcntl
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.image import build as image
from shoal import __version__
from tests.testbed.apiserver import ApiServer
from tests.testbed.node import Node
from tests.testbed.processes import Run

#: What the fixture `new_node` gives: a call makes and starts a node.
NewNode = Callable[[], Node]

_NODES = pytest.StashKey[list[Node]]()
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Remember the nodes of this run, so that a failed test can show their logs."""
    config.stash[_NODES] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Show the end of the nodes' logs with a failed test that has to do with nodes."""
    report = yield
    if report.failed and {"kubelet", "new_node"} & set(getattr(item, "fixturenames", ())):
        report.sections.extend((f"logs of {node.name}", node.logs()) for node in item.config.stash[_NODES])
    return report


@pytest.fixture(scope="session")
def kubelet(testbed_run: Run, apiserver: ApiServer, pytestconfig: pytest.Config) -> Iterator[Node]:
    """A Ready node on `apiserver`, shared by all tests of the run: do not restart or break it."""
    with _nodes(testbed_run, apiserver, pytestconfig) as make:
        yield make()


@pytest.fixture
def new_node(testbed_run: Run, apiserver: ApiServer, pytestconfig: pytest.Config) -> Iterator[NewNode]:
    """Nodes of the test's own on `apiserver`, to restart, reboot and break."""
    with _nodes(testbed_run, apiserver, pytestconfig) as make:
        yield make


@contextmanager
def _nodes(run: Run, apiserver: ApiServer, config: pytest.Config) -> Iterator[NewNode]:
    made: list[Node] = []

    def make() -> Node:
        node = Node(run, apiserver, f"node-{next(_numbers)}")
        made.append(node)
        config.stash[_NODES].append(node)
        node.start()
        return node

    try:
        yield make
    finally:
        for node in made:
            node.stop()
            config.stash[_NODES].remove(node)
            apiserver.try_request("DELETE", f"/api/v1/nodes/{node.name}")


@pytest.fixture(scope="session")
def shoal_image(testbed_run: Run, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> tuple[Path, str]:
    """The image of all services and its digest, built once for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = base if worker_id == "master" else base.parent
    archive, digest = folder / "shoal.oci.tar", folder / "shoal.digest"
    with (folder / "shoal.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not digest.exists():
            made = image.build(image.ARCHITECTURES["amd64"], __version__, archive)
            digest.write_text(made)
    return archive, digest.read_text()
