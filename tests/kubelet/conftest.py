"""Fixtures for the tests of kubelet: pods, and device plugins by a resource name of their own."""

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.kubelet.device_plugin import DevicePlugin, Edits, PluginLoop, holders, pod_resources
from tests.kubelet.pods import Pods
from tests.testbed.apiserver import ApiServer
from tests.testbed.node import Node

NewPlugin = Callable[..., DevicePlugin]


@pytest.fixture(scope="session")
def plugin_loop() -> Iterator[PluginLoop]:
    """Where all device plugins run."""
    loop = PluginLoop()
    yield loop
    loop.close()


@pytest.fixture
def pods(apiserver: ApiServer, namespace: str) -> Iterator[Pods]:
    """The pods of a fresh namespace, forgotten afterwards."""
    found = Pods(apiserver, namespace)
    yield found
    found.delete_all()


@pytest.fixture
def new_plugin(plugin_loop: PluginLoop) -> Iterator[NewPlugin]:
    """Device plugins, started, each for a resource of its own; by default they tell the container who it is."""
    made: list[DevicePlugin] = []

    def make(
        node: Node, devices: int | Sequence[str] = 8, edits: Edits | None = None, resource: str = ""
    ) -> DevicePlugin:
        tag = uuid.uuid4().hex[:8]
        ids = [f"{tag}-{number}" for number in range(devices)] if isinstance(devices, int) else devices
        resource = resource or f"shoal.test/{tag}"
        plugin = DevicePlugin(plugin_loop, node, resource, ids, edits or identity(node, resource))
        made.append(plugin)
        plugin.start()
        return plugin

    yield make
    for plugin in made:
        plugin.stop()


def identity(node: Node, resource: str) -> Edits:
    """Look the devices up in PodResources and give the container its namespace, pod and name."""
    order = itertools.count(1)

    async def edits(ids: Sequence[str]) -> dict:
        found = [key for key, held in holders(await pod_resources(node), resource).items() if held == set(ids)]
        names = ",".join("/".join(key) for key in found)
        return {"env": [f"IDENTITY={names}", f"DEVICES={' '.join(ids)}", f"PRE_START={next(order)}"]}

    return edits
