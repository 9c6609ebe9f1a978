"""Discovery beside a real nfd-master: no fight over labels. `make test-nfd` builds it; else this is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.discovery.cleanup import clean_up
from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.worker import NODE_METADATA
from shoal.kube.client import Client
from shoal.kube.objects.meta import Object
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, RawObject, Resource
from shoal.kube.store import Change
from shoal.model.contract import nvidia
from tests.discovery.scenes import FACTS, FULL, VENDOR, comes_to_rest, quiet
from tests.discovery.site import Site, eventually
from tests.testbed import nfd
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Process, Run

pytestmark = pytest.mark.skipif(
    not (os.environ.get("SHOAL_NFD") and nfd.is_there()), reason="make test-nfd builds nfd-master, and runs this"
)

NAMESPACE = "node-feature-discovery"
#: Where nfd-master itself runs.
HOME = "control-plane"
FEATURES: Resource[RawObject] = Resource("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures", "NodeFeature", dict)
#: What NFD's worker finds on a machine with a card: with the operator's configuration, and something of its own.
OWN = "feature.node.kubernetes.io/kernel-version.major"
FOUND = {VENDOR: "true", OWN: "6"}
#: What GFD finds when it speaks through NFD.
OF_GFD = {nvidia.LABEL_TIMESTAMP: "12", nvidia.LABEL_PRODUCT: "Theirs", nvidia.LABEL_COUNT: "7"}


@pytest.fixture(scope="module")
def server(testbed_run: Run) -> Iterator[ApiServer]:
    """A server of this module's own: both look at all nodes."""
    server = ApiServer(testbed_run, "nfd")
    server.kubectl("apply", "--server-side", "-f", str(nfd.definitions()))
    server.create_namespace(NAMESPACE)
    server.request("POST", "/api/v1/nodes", {"metadata": {"name": HOME}})
    yield server
    server.stop()


@pytest.fixture
async def site(server: ApiServer, tmp_path: Path) -> AsyncIterator[Site]:
    """The accounts of discovery on it."""
    site = Site(server.kubeconfig(), tmp_path)
    async with site.client:
        await site.install()
        yield site
        await site.remove()


class Master:
    """nfd-master as a process, and the features of nodes that it reads."""

    def __init__(self, run: Run, server: ApiServer, site: Site) -> None:
        self._run = run
        self._server = server
        self._site = site
        self._process: Process | None = None

    def command(self, *more: str) -> Process:
        """The program with these options."""
        environment = {
            **os.environ,
            "KUBERNETES_NAMESPACE": NAMESPACE,
            "NODE_NAME": HOME,
            "POD_NAME": "nfd-master",
            "POD_UID": "none",
        }
        options = (f"-kubeconfig={self._server.kubeconfig()}", f"-port={self._run.reservations.port()}", "-v=1", *more)
        return self._run.process(f"nfd-master-{uuid.uuid4().hex[:6]}", [nfd.master(), *options], environment)

    @contextlib.contextmanager
    def running(self) -> Iterator[Process]:
        """Have it run meanwhile."""
        process = self.command()
        process.start()
        try:
            yield process
        finally:
            process.kill()

    async def find(self, node: str, labels: dict[str, str]) -> None:
        """What a worker finds on a node."""
        features = {
            "metadata": {"name": f"features-of-{node}", "labels": {nvidia.LABEL_NFD_NODE_NAME: node}},
            "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": labels},
        }
        await self._site.client.apply(
            FEATURES,
            {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", **features},
            namespace=NAMESPACE,
            field_manager="worker",
            force=True,
        )

    async def forget(self, node: str) -> None:
        """The worker is gone for good."""
        await self._site.client.delete(FEATURES, f"features-of-{node}", namespace=NAMESPACE)


@pytest.fixture
def master(testbed_run: Run, server: ApiServer, site: Site) -> Master:
    return Master(testbed_run, server, site)


class History:
    """What has become of the labels of a node, as its watch tells it."""

    def __init__(self, site: Site, name: str) -> None:
        self._name = name
        self.lost: list[str] = []
        self.changed: list[tuple[str, str, str]] = []
        self.reflector: Reflector[Object] = Reflector(
            site.client, NODE_METADATA, fields=f"metadata.name={name}", consumers=[self._on_change]
        )

    def _on_change(self, change: Change[Object]) -> None:
        if change.old is None or change.new is None:
            return
        before, after = change.old.metadata.labels, change.new.metadata.labels
        self.lost += [key for key in before if key not in after]
        self.changed += [(key, before[key], after[key]) for key in before if key in after and before[key] != after[key]]

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[History]:
        async with self.reflector:
            await self.reflector.wait_synced()
            yield self


async def new_node(site: Site) -> str:
    """A node with an annotation, as kubelets make them: NFD's patches want one."""
    name = await site.new_node()
    await site.client.patch(NODES, name, {"metadata": {"annotations": {"own": "x"}}})
    return name


async def labelled(site: Site, name: str, wanted: dict[str, str]) -> None:
    async def are() -> bool:
        return await site.labels(name) == wanted

    try:
        await eventually(are, "labelled")
    except TimeoutError:
        assert await site.labels(name) == wanted


async def lists(site: Site, name: str) -> bool:
    return nvidia.ANNOTATION_NFD_LABELS in (await site.node(name)).metadata.annotations


async def test_nfd_is_there_first(site: Site, master: Master) -> None:
    name = await new_node(site)
    with master.running():
        await master.find(name, FOUND)
        await labelled(site, name, FOUND)
        async with History(site, name).kept() as history, site.leader():
            await site.tell(name, FACTS)
            await labelled(site, name, {**FULL, **FOUND})
            await quiet(site, name, 10)
            assert (history.lost, history.changed) == ([], [])


async def test_discovery_is_there_first(site: Site, master: Master) -> None:
    name = await new_node(site)
    await site.tell(name, FACTS)
    async with site.leader():
        await labelled(site, name, FULL)
        async with History(site, name).kept() as history:
            with master.running():
                await master.find(name, FOUND)
                await labelled(site, name, {**FULL, **FOUND})
                await quiet(site, name, 10)
            with master.running():  # it restarts
                await asyncio.sleep(5)
                await quiet(site, name, 5)
            assert (history.lost, history.changed) == ([], [])


async def test_gfd_through_nfd_is_left_alone(site: Site, master: Master) -> None:
    name = await new_node(site)
    with master.running():
        await master.find(name, {**FOUND, **OF_GFD})
        await labelled(site, name, {**FOUND, **OF_GFD})
        async with History(site, name).kept() as history, site.leader():
            await site.tell(name, FACTS)

            async def present() -> bool:
                return (await site.labels(name)).get(nvidia.LABEL_PRESENT) == "true"

            await eventually(present, "present")
            await comes_to_rest(site, name, 10)
            assert (history.lost, history.changed) == ([], [])
            found = await site.labels(name)
            assert {key: found[key] for key in OF_GFD} == OF_GFD


async def test_nfd_goes_and_the_card_stays(site: Site, master: Master) -> None:
    """It takes its labels away; discovery's come back or stay, and a node with a card is one all the time."""
    name = await new_node(site)
    await site.tell(name, FACTS)
    async with site.leader():
        with master.running():
            await master.find(name, FOUND)
            await labelled(site, name, {**FULL, **FOUND})
        async with History(site, name).kept() as history:
            await master.forget(name)
            pruning = master.command("-prune")
            pruning.start()

            async def gone() -> bool:
                return not await lists(site, name)

            await eventually(gone, "without NFD")
            pruning.kill()
            await labelled(site, name, FULL)
            await quiet(site, name, 5)
            assert set(history.lost) <= set(FOUND)
            assert history.changed == []


async def test_discovery_goes_and_nfd_stays(site: Site, master: Master) -> None:
    name = await new_node(site)
    with master.running():
        await site.tell(name, FACTS)
        async with site.leader():
            await master.find(name, FOUND)
            await labelled(site, name, {**FULL, **FOUND})
        async with History(site, name).kept() as history:
            async with Client(await site.as_leader()) as client:
                await clean_up(client, DiscoveryConfig())
            await labelled(site, name, FOUND)
            await quiet(site, name, 10)
            assert not set(FOUND) & set(history.lost)
