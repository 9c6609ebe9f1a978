"""Both halves of claims: allocated by Shoal's scheduler, prepared by its driver, on a real kubelet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.agent.claiming import asking, claim_pod
from tests.agent.real.claims import ClaimsLab, claims_lab
from tests.gpu.conftest import nvml_library
from tests.scheduler.claims.test_allocation_kube import RIGHTS
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import as_service_account
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

__all__ = ["nvml_library"]

pytestmark = pytest.mark.min_kube("1.36")


@pytest.fixture
def lab(testbed_run: Run, nvml_library: Path, tmp_path: Path) -> Iterator[ClaimsLab]:
    with claims_lab(testbed_run, nvml_library, tmp_path) as made:
        yield made


def test_a_pod_has_the_cards_that_were_allocated(lab: ClaimsLab, testbed_run: Run, tmp_path: Path) -> None:
    api = lab.pods.apiserver
    account = as_service_account(api)
    api.kubectl("apply", "-f", str(RIGHTS))
    settings = tmp_path / "scheduler.yaml"
    settings.write_text(yaml.safe_dump({"claims": True}))
    scheduler = SchedulerProcess(
        testbed_run, "claims-driver", account, ["--config", str(settings), "--no-leader-elect"]
    )
    scheduler.start()
    lab.make_template("three", asking(memory="3Gi"))
    lab.make_template("two-cards", asking(memory="1Gi", count=2))
    for name, template in (("one", "three"), ("two", "two-cards")):
        manifest = claim_pod(name, {"gpu": {"resourceClaimTemplateName": template}})
        manifest["spec"]["schedulerName"] = "gpu-scheduler"
        lab.create(manifest)
    for name in ("one", "two"):
        lab.pods.wait_running(name)
        assert sorted(lab.visible(name)) == sorted(lab.cards_of(lab.claim_of(name)))
    # What the node says it holds is what is booked: nothing is counted twice.
    uids = {lab.claim_of(name)["metadata"]["uid"] for name in ("one", "two")}
    wait_for(lambda: set(lab.held()) == uids, "told by the node")
    wait_for(lambda: scheduler.inspect()[lab.node.name]["usedGPU"] == 5, "booked once")
    for name in ("one", "two"):
        lab.pods.delete(name)
    wait_for(lambda: scheduler.inspect()[lab.node.name]["usedGPU"] == 0, "free again")
    scheduler.kill()
