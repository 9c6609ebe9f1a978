"""Clusters whose controllers run: the embedded one, and a real control plane. Fake kubelets play the pods on both."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.suites.embedded import EmbeddedServer
from tests.suites.workloads.nodes import Nodes
from tests.testbed import fake_kubelet
from tests.testbed.cluster import Api
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.processes import Run

WORKERS = 3


@pytest.fixture(scope="session")
def _with_controllers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    directory: Path = tmp_path_factory.mktemp("workloads")
    server = EmbeddedServer(directory, controllers=True)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _plane(testbed_run: Run) -> Iterator[ControlPlane]:
    """A control plane of this suite's own: its nodes would be in the way of others."""
    with own_control_plane(testbed_run, "workloads") as plane:
        yield plane


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Api]:
    """An API server with controllers and some fake nodes, shared by all tests: keep to a namespace of your own."""
    if request.param == "embedded":
        api = cast(Api, request.getfixturevalue("_with_controllers"))
    else:
        api = cast(ControlPlane, request.getfixturevalue("_plane")).api
    nodes = Nodes(api.kubeconfig())
    names = [nodes.add(f"worker-{number}") for number in range(WORKERS)]
    with Run() as run:
        command = [sys.executable, "-m", fake_kubelet.__name__, str(api.kubeconfig())]
        run.process("fake-kubelet", command).start()
        yield api
    for name in names:
        nodes.remove(name)
