"""A real kubelet tells what real pods use, to who may ask."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.metrics.errors import PodLoadError
from shoal.metrics.node_load import PodLoads
from shoal.metrics.snapshot import PodLoad
from tests.kubelet.conftest import pods  # noqa: F401 - a fixture
from tests.kubelet.pods import FOREVER, Pods, container, pod
from tests.metrics.exporter.patience import until
from tests.testbed.apiserver import ApiServer
from tests.testbed.node import Node

pytestmark = pytest.mark.kube

BUSY = "head -c 30000000 /dev/zero > /tmp/file; while true; do :; done"
ROLE = "shoal-test-node-stats"


@pytest.fixture
def asked(apiserver: ApiServer, namespace: str, kubelet: Node, tmp_path: Path) -> Callable[..., PodLoads]:
    """Asks kubelet as a service account of the namespace."""

    def make(account: str, **options: object) -> PodLoads:
        where = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        apiserver.request("POST", where, {"metadata": {"name": account}})
        token = tmp_path / account
        made = apiserver.request("POST", f"{where}/{account}/token", {"spec": {"expirationSeconds": 3600}})
        token.write_text(made["status"]["token"])
        return PodLoads(kubelet.address, token, **{"ca": apiserver.ca, **options})  # type: ignore[arg-type]

    return make


def allow(apiserver: ApiServer, namespace: str, account: str) -> None:
    """Give the right that deploy/ gives the collector."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": ["nodes/stats"], "verbs": ["get"]}]
    name = f"{ROLE}-{namespace}"
    apiserver.request("POST", f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    apiserver.request("POST", f"{rbac}/clusterrolebindings", binding)


async def test_two_pods_and_what_each_uses(
    apiserver: ApiServer,
    namespace: str,
    kubelet: Node,
    pods: Pods,  # noqa: F811
    asked: Callable[..., PodLoads],
) -> None:
    for name, script in (("busy", BUSY), ("idle", FOREVER)):
        pods.create(pod(name, [container("main", script)]), kubelet)
    uids = {name: pods.wait_running(name)["metadata"]["uid"] for name in ("busy", "idle")}
    loads = asked("viewer")
    allow(apiserver, namespace, "viewer")

    found: dict[str, PodLoad] = {}

    async def known() -> bool:
        # kubelet asks the API server whether the token and the right are good, and keeps a refusal for a while.
        with contextlib.suppress(PodLoadError):
            found.update({load.pod: load for load in await loads.read() if load.namespace == namespace})
        return (
            set(found) == {"busy", "idle"}
            and (found["busy"].cpu_milli or 0) > 10 * (found["idle"].cpu_milli or 0) + 50
            and (found["busy"].storage_bytes or 0) >= 30_000_000
            and found["idle"].storage_bytes is not None
            and (found["idle"].memory_bytes or 0) > 0
        )

    await until(known)
    assert {name: load.uid for name, load in found.items()} == uids
    assert (found["idle"].storage_bytes or 0) < 30_000_000
    assert (found["idle"].memory_bytes or 0) < 1 << 30


async def test_who_may_not_ask(asked: Callable[..., PodLoads], tmp_path: Path) -> None:
    with pytest.raises(PodLoadError, match="403: get on nodes/stats is needed"):
        await asked("nobody").read()
    stranger = asked("stranger")
    (tmp_path / "stranger").write_text("no token")
    with pytest.raises(PodLoadError, match="401"):
        await stranger.read()
