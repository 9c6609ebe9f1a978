"""`inspect --used` and the history of a collector beside a real kubelet, asked with the documented viewer's rights."""

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from shoal.analysis.collectors import Collectors
from shoal.cli.main import main
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.metrics.history_wire import HistoryReading
from tests.agent.real.conftest import NewLab, RealLab
from tests.metrics.real.conftest import NewCollector, described
from tests.metrics.real.test_attribution_kube import BYTES, CARDS, shared
from tests.testbed.waiting import wait_for

DEPLOY = Path(__file__).parents[3] / "deploy"
VIEWER = DEPLOY / "rbac" / "viewer.yaml"
HISTORY = DEPLOY / "metrics" / "history.yaml"


def used(kubeconfig: Path, node: str) -> dict[str, Any] | None:
    """By pod, the MiB it uses of the node's first card; None while the node says nothing."""
    result = CliRunner().invoke(main, ["inspect", "--used", "-o", "json", "--kubeconfig", str(kubeconfig), node])
    if result.exit_code:
        return None
    document = json.loads(result.stdout)
    if document["notMeasured"]:
        return None
    card = document["nodes"][0]["gpus"][0]
    found = {pod["name"]: pod["used"]["memoryMiB"] for pod in card["pods"]}
    return {**found, "nobody": card["used"]["unattributedMiB"]}


def past(kubeconfig: Path, node: str, pod: str) -> list[float]:
    """What a pod used, second by second, in the last ten minutes; the values that are known."""

    async def ask() -> dict[str, HistoryReading]:
        async with Client(load_kubeconfig([kubeconfig], environ={}, explicit=True)) as client:
            query = {"of": "pods", "pod": pod, "series": "used_bytes", "last": "600", "step": "1"}
            return await Collectors(client).history([node], query)

    series = [one for answer in asyncio.run(ask()).values() for one in answer.series]
    return [value for one in series for value in one.values if value is not None]


def test_a_viewer_sees_what_runs_and_what_ran_before_kill_9(new_lab: NewLab, new_collector: NewCollector) -> None:
    lab = new_lab(CARDS)
    assert isinstance(lab, RealLab)
    lab.pods.apiserver.kubectl("apply", "-f", str(VIEWER), "-f", str(HISTORY))
    viewer = lab.pods.apiserver.kubeconfig("eve", ("shoal-viewers",))
    node = lab.node.name
    collector = new_collector(lab)
    one, two = shared(lab, "one", 8), shared(lab, "two", 4)
    lab.shim.write(described(CARDS, {(0, one): 6 * BYTES, (0, two): 1 * BYTES}))
    wait_for(lambda: used(viewer, node) == {"one": 6144, "two": 1024, "nobody": 0}, "measured")
    wait_for(lambda: past(viewer, node, "one").count(6 * BYTES) >= 3, "in the history")
    collector.process.kill()
    wait_for(lambda: used(viewer, node) is None, "told that it does not answer")
    lab.shim.write(described(CARDS, {(0, one): 2 * BYTES}))
    collector.process.start()
    wait_for(lambda: (used(viewer, node) or {}).get("one") == 2048, "measured anew")
    wait_for(lambda: 2 * BYTES in past(viewer, node, "one"), "in the same history")
    assert past(viewer, node, "one").count(6 * BYTES) >= 3, "what was there before the kill is there"
