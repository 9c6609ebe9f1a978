"""`shoal scheduler` as processes on a real API server: who leads, who takes over, what they may do there."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kube.relay import Relay
from tests.kube.waiting import until
from tests.scheduler.chaos.replicas import through
from tests.suites.connection import Connection
from tests.suites.scheduling import shorthand
from tests.suites.scheduling.expected import place
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import as_service_account, service_account
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
PODS = "/api/v1/namespaces/work/pods"
NODES = "/api/v1/nodes"
MERGE = "application/merge-patch+json"


@pytest.fixture
def api(new_apiserver: Callable[[], ApiServer]) -> ApiServer:
    """A server of the test's own, with a namespace and one node `a` of two cards."""
    server = new_apiserver()
    server.create_namespace("work")
    server.request("POST", NODES, shorthand.node("a", {"gpus": 2}, mib=False))
    server.request("PATCH", f"{NODES}/a", {"spec": {"taints": None}}, MERGE)
    return server


def create(api: ApiServer, name: str, **short: Any) -> None:
    short.setdefault("spec", {"schedulerName": "gpu-scheduler"})
    api.request("POST", PODS, shorthand.pod(name, short))


def places(api: ApiServer) -> dict[str, str]:
    """Where the pods are, as `node/card`; empty for one that waits."""
    return {pod["metadata"]["name"]: place(pod) for pod in api.request("GET", PODS)["items"]}


def test_the_second_replica_takes_over_where_the_first_ended(api: ApiServer, testbed_run: Run) -> None:
    account = as_service_account(api)
    first, second = (SchedulerProcess(testbed_run, f"elected-{number}", account) for number in (1, 2))
    first.start()
    second.launch()
    wait_for(second.serves, "serving")
    wait_for(lambda: second.readiness().startswith("not the leader: that is "), "synced and not leading")
    create(api, "p1", mem=10)
    wait_for(lambda: bool(places(api)["p1"]), "bound by the first")
    before = first.inspect()
    first.kill()
    create(api, "p2", mem=10)
    create(api, "p3", mem=10)
    wait_for(lambda: second.readiness() == "", "taken over")
    wait_for(lambda: bool(places(api)["p2"]), "bound by the second")
    assert before["a"]["usedGPU"] == 10
    assert second.inspect()["a"]["usedGPU"] == 20
    now = places(api)
    assert {now["p1"], now["p2"]} == {"a/0", "a/1"}
    assert now["p3"] == ""
    second.kill()


async def test_a_replica_whose_watch_stood_still_knows_all_before_it_decides(api: ApiServer, testbed_run: Run) -> None:
    """The leader is gone, and the last it did has not reached the other, which takes over."""
    account = await service_account(api)
    api.request("POST", LEASES, held_by_somebody())
    async with Relay(api.port) as relay:
        kubeconfig = testbed_run.folder("stalled") / "kubeconfig"
        through(account, kubeconfig, relay.port)
        replica = SchedulerProcess(testbed_run, "stalled", kubeconfig)
        replica.launch()

        async def waits_to_lead() -> bool:
            return replica.serves() and "somebody" in await asyncio.to_thread(replica.readiness)

        await until_true(waits_to_lead, "waiting for the lease")
        create(api, "p1", mem=10)
        create(api, "p2", mem=10)

        async def knows_the_pods() -> bool:
            return await asyncio.to_thread(replica.heard, "pods") >= 2

        await until_true(knows_the_pods, "told of the pods")
        relay.stall()
        for name, index in (("t1", "0"), ("t2", "1")):
            create(api, name, mem=10, spec={"schedulerName": "another"})
            annotations = {"ALIYUN_COM_GPU_MEM_IDX": index, "ALIYUN_COM_GPU_MEM_POD": "10"}
            api.request("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": annotations}}, MERGE)
            target = {"apiVersion": "v1", "kind": "Node", "name": "a"}
            api.request("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})

        async def leads() -> bool:
            return await asyncio.to_thread(replica.readiness) == ""

        await until_true(leads, "leading")

        def told() -> bool:
            pods = api.request("GET", PODS)["items"]
            waiting = [pod for pod in pods if pod["metadata"]["name"] in ("p1", "p2")]
            return all(pod["spec"].get("nodeName") or pod["status"].get("conditions") for pod in waiting)

        await until(told, "told")
        replica.kill()
    assert {name: where for name, where in places(api).items() if name.startswith("p")} == {"p1": "", "p2": ""}


def held_by_somebody() -> dict[str, Any]:
    """The lease, taken by a process that will not come back."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 8, "acquireTime": now, "renewTime": now}
    return {"metadata": {"name": "shoal-scheduler"}, "spec": spec}


async def until_true(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for an asynchronous condition."""
    try:
        async with asyncio.timeout(120):
            while not await condition():  # noqa: ASYNC110 - another process, which signals nothing
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not {what} in time") from None


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/namespaces/kube-system/secrets", None),
        ("GET", "/api/v1/namespaces/work/secrets/any", None),
        ("POST", "/api/v1/namespaces/kube-system/secrets", {"metadata": {"name": "x"}}),
        ("DELETE", "/api/v1/namespaces/kube-system/secrets/shoal-scheduler-tls", None),
        ("GET", "/api/v1/namespaces/work/configmaps", None),
        ("POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}),
        ("PATCH", f"{PODS}/p1", {"metadata": {"labels": {"x": "y"}}}),
        ("PATCH", f"{NODES}/a", {"metadata": {"labels": {"x": "y"}}}),
        ("PATCH", f"{NODES}/a/status", {"status": {"capacity": {"x.y/z": "1"}}}),
        ("DELETE", f"{NODES}/a", None),
        ("POST", "/api/v1/namespaces/work/serviceaccounts/default/token", {"spec": {}}),
        ("POST", "/api/v1/namespaces/work/pods/p1/exec", None),
        ("PATCH", f"{LEASES}/kube-scheduler", {"spec": {"holderIdentity": "x"}}),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {"metadata": {"name": "x"}}),
    ],
)
def test_the_account_may_do_nothing_else(
    apiserver: ApiServer, namespace: str, method: str, path: str, body: object
) -> None:
    kubeconfig: Path = as_service_account(apiserver)
    answer = ask(kubeconfig, method, path.replace("/namespaces/work/", f"/namespaces/{namespace}/"), body)
    assert answer == (403, "Forbidden")


def ask(kubeconfig: Path, method: str, path: str, body: object) -> tuple[int, str]:
    """The status and the reason of a plain request as the user of a kubeconfig."""
    data = None if body is None else json.dumps(body).encode()
    kind = MERGE if method == "PATCH" else "application/json"
    answer = Connection(kubeconfig).request(method, path, data, {"Content-Type": kind})
    return answer.status, answer.body["reason"]
