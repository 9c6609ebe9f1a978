"""Three clusters, of which the first sends pods to the others: `shoal up --clusters 3`, and real control planes."""

import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import NAMESPACES
from shoal.model.contract.clusters import ENABLED, LABEL_ACCEPTS, LABEL_DISPATCH
from tests.cli.shoal_up import running
from tests.clusters import site as planes_site
from tests.clusters.site import Planes, planes_of
from tests.suites.clusters.site import ClusterSite
from tests.testbed.processes import Run

DEPLOY = Path(__file__).parents[3] / "deploy" / "cluster-manager"
#: Of each cluster, the first one home.
EMBEDDED = ("cluster1", "cluster2", "cluster3")
REAL = (planes_site.HOME, *planes_site.MEMBERS)


@pytest.fixture(scope="session")
def _embedded_clusters() -> Iterator[Path]:
    """A kubeconfig with a context for each cluster of `shoal up`, whose manager is at work."""
    with running("--clusters", "3", "--nodes", "1", "--gpus", "8xT4", "--no-metrics") as (_, said):
        yield Path(re.findall(r"KUBECONFIG=(\S+)", said)[-1])


@pytest.fixture(scope="session")
def _real_clusters(testbed_run: Run) -> Iterator[Planes]:
    """Control planes with the policies of deploy/ at home, and nodes with cards."""
    with planes_of(testbed_run, gpus=8) as planes:
        for name in ("namespace", "rbac", "gates"):
            planes.planes[planes_site.HOME].api.kubectl("apply", "-f", str(DEPLOY / f"{name}.yaml"))
        yield planes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs on both."""
    only = metafunc.config.getoption("--cluster")
    marks = {"embedded": (), "real": (pytest.mark.kube, pytest.mark.min_kube("1.36"))}
    params = [pytest.param(name, marks=marks[name]) for name in marks if only in (None, name)]
    metafunc.parametrize("site", params, indirect=True)


@pytest.fixture
async def site(request: pytest.FixtureRequest) -> AsyncIterator[ClusterSite]:
    """The clusters, and a namespace of the test's own that takes part in each of them."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "embedded":
            kubeconfig: Path = request.getfixturevalue("_embedded_clusters")
            clients = {}
            for name in EMBEDDED:
                access = load_kubeconfig([kubeconfig], environ={}, explicit=True, context=name)
                clients[name] = await stack.enter_async_context(Client(access))
            site = ClusterSite(clients, namespace)
        else:
            planes: Planes = request.getfixturevalue("_real_clusters")
            await planes.start()
            real = planes_site.Site(planes, stack)
            await real.connect()
            site = ClusterSite(real.clients, namespace)
        for name, client in site.clients.items():
            label = LABEL_DISPATCH if name == site.home_name else LABEL_ACCEPTS
            await client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": {label: ENABLED}}})
        await site.until_ready()
        await site.watch(stack)
        if request.param != "embedded":
            await stack.enter_async_context(real.managing())
        yield site
