"""The admission policy that adds slots to containers, for nodes that count memory in node status."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shoal.model.contract import gpushare, shoal
from shoal.model.request import Share
from tests.agent.lab import MEMORY, SAY, TELL
from tests.agent.real.conftest import NewLab
from tests.kubelet.pods import container, pod
from tests.testbed.apiserver import ApiServer
from tests.testbed.waiting import wait_for

POLICY = Path(__file__).parents[3] / "deploy" / "admission-slot" / "policy.yaml"
pytestmark = pytest.mark.min_kube("1.36")


def limits(apiserver: ApiServer, namespace: str, containers: list[dict], init: list[dict]) -> dict[str, dict]:
    """What the containers of a pod have after admission."""
    manifest = pod(f"pod-{uuid.uuid4().hex[:8]}", containers, init)
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    spec = apiserver.request("POST", path, manifest)["spec"]
    both = [*spec["containers"], *spec.get("initContainers", [])]
    assert all(one["resources"].get("limits") == one["resources"].get("requests") for one in both)
    return {one["name"]: one["resources"].get("limits", {}) for one in both}


@pytest.fixture
def policy(apiserver: ApiServer, namespace: str) -> Iterator[None]:
    """The policy, once the API server heeds it."""
    text = POLICY.read_text()
    apiserver.kubectl("apply", "-f", "-", input=text)
    probe = [container("main", TELL, {MEMORY: 1})]
    try:
        wait_for(lambda: shoal.RESOURCE_SLOT in limits(apiserver, namespace, probe, [])["main"], "adding slots")
        yield
    finally:
        for document in yaml.safe_load_all(text):
            apiserver.kubectl("delete", "-f", "-", input=json.dumps(document))
        # Others use this server too.
        wait_for(lambda: shoal.RESOURCE_SLOT not in limits(apiserver, namespace, probe, [])["main"], "without slots")


@pytest.mark.usefixtures("policy")
def test_slots_are_added_where_memory_is_asked_for(apiserver: ApiServer, namespace: str):
    found = limits(
        apiserver,
        namespace,
        [
            container("asks", TELL, {MEMORY: 3}),
            container("plain", TELL),
            container("has", TELL, {MEMORY: 3, shoal.RESOURCE_SLOT: 1}),
        ],
        [container("first", SAY, {MEMORY: 2}), container("beside", TELL, {MEMORY: 2}, restartPolicy="Always")],
    )
    assert found == {
        "asks": {MEMORY: "3", shoal.RESOURCE_SLOT: "1"},
        "plain": {},
        "has": {MEMORY: "3", shoal.RESOURCE_SLOT: "1"},
        "first": {MEMORY: "2", shoal.RESOURCE_SLOT: "1"},
        "beside": {MEMORY: "2", shoal.RESOURCE_SLOT: "1"},
    }


@pytest.mark.usefixtures("policy")
def test_eight_large_cards_in_mebibytes(new_lab: NewLab):
    lab = new_lab("8xA100-80G", start=False)
    lab.start(memoryUnit="MiB", resources=[MEMORY])
    assert lab.allocatable(MEMORY) == 8 * 80 * 1024
    wait_for(lambda: lab.allocatable(shoal.RESOURCE_SLOT) > 0, "with slots")
    apps = [container("left", TELL, {MEMORY: 30_000}), container("right", TELL, {MEMORY: 70_001})]
    shares = {"first": Share(50_000), "left": Share(30_000), "right": Share(70_001)}
    chosen = lab.allocation({"first": [3], "left": [6], "right": [1]}, shares, first="init")
    lab.place(pod("large", apps, [container("first", SAY, {MEMORY: 50_000})]), chosen)
    lab.pods.wait_running("large")
    assert [lab.visible("large", name) for name in ("first", "left", "right")] == [[3], [6], [1]]
    assert lab.env("large", "right")[gpushare.ENV_CONTAINER] == "70001"
