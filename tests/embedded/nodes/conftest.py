"""A simulated cluster under the names of the real one's fixtures: what `tests/kubelet` demands is demanded of both."""

import itertools
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import NodeDescription
from tests.embedded.nodes.simulated import TIMING, SimulatedNode, SimulatedServer
from tests.kubelet.conftest import new_plugin, plugin_loop, pods  # noqa: F401 - fixtures
from tests.kubelet.device_plugin import PluginLoop

NewSimulatedNode = Callable[..., SimulatedNode]


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need it."""
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def apiserver(plugin_loop: PluginLoop, short_folder: Path) -> Iterator[SimulatedServer]:  # noqa: F811
    """The embedded API server, shared by all tests of the run."""
    server = SimulatedServer(plugin_loop, short_folder)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def simulated(apiserver: SimulatedServer) -> Iterator[Nodes]:
    """The nodes on it; none at first."""

    async def start() -> Nodes:
        nodes = Nodes(apiserver.api, (), apiserver.directory / "n", timing=TIMING)
        await nodes.start()
        return nodes

    nodes = apiserver.loop.run(start())
    yield nodes
    apiserver.loop.run(nodes.stop())


@pytest.fixture
def namespace(apiserver: SimulatedServer) -> str:
    """A fresh namespace."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    apiserver.create_namespace(name)
    return name


@pytest.fixture(scope="session")
def kubelet(apiserver: SimulatedServer, simulated: Nodes) -> Iterator[SimulatedNode]:
    """A node that is shared by all tests of the run: do not restart it."""
    node = SimulatedNode(apiserver, simulated, NodeDescription("shared", pods=500))
    yield node
    node.stop()


@pytest.fixture
def new_node(apiserver: SimulatedServer, simulated: Nodes) -> Iterator[NewSimulatedNode]:
    """Nodes of the test's own, to restart, reboot and break."""
    made: list[SimulatedNode] = []
    numbers = itertools.count(1)

    def make(**options: object) -> SimulatedNode:
        spec = NodeDescription(f"own-{uuid.uuid4().hex[:6]}-{next(numbers)}", **options)  # type: ignore[arg-type]
        made.append(SimulatedNode(apiserver, simulated, spec))
        return made[-1]

    yield make
    for node in made:
        node.stop()
