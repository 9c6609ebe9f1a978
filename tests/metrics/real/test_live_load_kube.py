"""Live load on a real cluster: a process that no pod has, seen by a collector beside a real kubelet, keeps a pod off
its card. Collector, scheduler and agent are processes of their own.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.model.contract.load import ANNOTATION_LOAD, NAMESPACE
from tests.agent.lab import MEMORY, memory_pod
from tests.agent.real.conftest import NewLab, RealLab
from tests.agent.real.test_scheduled import create, decided
from tests.kubelet.pods import Pods
from tests.metrics.real.conftest import NewCollector, described
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import service_account
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

LIVE_LOAD = Path(__file__).parents[3] / "deploy" / "metrics" / "live-load.yaml"
CARDS = "2xT4"
BYTES = 2**30


@pytest.fixture
def scheduler(pods: Pods, testbed_run: Run) -> Iterator[SchedulerProcess]:
    """`shoal scheduler` with the rights it is deployed with, and those that `deploy/metrics` adds."""
    pods.apiserver.kubectl("apply", "-f", str(LIVE_LOAD))
    account = asyncio.run(service_account(pods.apiserver))
    process = SchedulerProcess(testbed_run, "live-load", account, ["--no-leader-elect"])
    process.start()
    yield process
    process.stop()


def unattributed(api: ApiServer, node: str) -> list[int]:
    """MiB of each card that are nobody's, as the node's Lease tells."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{node}"
    code, lease = api.try_request("GET", path)
    if code != 200:
        return []
    cards = json.loads(lease["metadata"]["annotations"][ANNOTATION_LOAD])["cards"]
    return [card.get("unattributed", 0) for card in cards]


def test_a_pod_goes_where_nobody_uses_what_was_not_booked(
    new_lab: NewLab, new_collector: NewCollector, scheduler: SchedulerProcess
) -> None:
    lab = new_lab(CARDS, resources=[MEMORY])
    assert isinstance(lab, RealLab)
    api = lab.pods.apiserver
    new_collector(lab, digest={"leastSeconds": 0.5})
    create(lab, memory_pod("first", 10))
    lab.pods.wait_running("first")
    (near,) = decided(lab, "first")["main"]
    beyond = f'shoal_scheduler_card_memory_beyond_requests_bytes{{node="{lab.node.name}",card="{near}"}}'
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as outsider:
        try:
            lab.shim.write(described(CARDS, {(near, outsider.pid): 3 * BYTES}))
            told = [3072 if index == near else 0 for index in range(2)]
            wait_for(lambda: unattributed(api, lab.node.name) == told, "told to the scheduler")
            wait_for(lambda: scheduler.metric(beyond) == 3 * BYTES, "heard by the scheduler")
            # By bookings the first card has 5 GiB left, and would be the better one for 4.
            create(lab, memory_pod("beside", 4))
            lab.pods.wait_running("beside")
            assert decided(lab, "beside")["main"] == lab.visible("beside") == [1 - near]
            create(lab, memory_pod("large", 11))
            lab.pods.wait_running("large")
            assert decided(lab, "large")["main"] == [1 - near]
            # Refused by live load alone: it waits, is told why, and is woken.
            create(lab, memory_pod("waits", 5))
            lab.pods.wait_event("waits", lambda event: "used by nobody's pod" in event["message"], "of its waiting")
        finally:
            outsider.kill()
    lab.shim.write(described(CARDS, {}))
    lab.pods.wait_running("waits")
    assert decided(lab, "waits")["main"] == lab.visible("waits") == [near]
