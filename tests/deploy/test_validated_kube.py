"""Validators and discovery from the image on a real node with cards, without an operator: its labels are the test's.

Only NVIDIA's images and hardware are played (`tests/testbed/hardware.py`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import documents, render
from shoal.model.contract import nvidia
from shoal.model.contract.operator import ANNOTATION_VALIDATION, ValidationReport, decode_validation
from tests.deploy.chart_bed import ChartBed, chart_bed, is_ready
from tests.testbed import hardware
from tests.testbed.binaries import find
from tests.testbed.processes import Run
from tests.testbed.test_hardware_kube import RUNTIME_CLASS, run_pod

OPERANDS = ("validator", "validator-runtime", "discovery-bus", "discovery-cards")
#: Folders of the chart, and whose objects of them are applied: accounts, rights, fences, the leader of discovery.
PARTS = ("shoal-validator", "shoal-discovery")
FILES = {"driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready"}
SYS_CHROOT = 1 << 18


@pytest.fixture(scope="module")
def bed(testbed_run: Run, shoal_image: tuple[Path, str]) -> Iterator[ChartBed]:
    with chart_bed(testbed_run, "validated", shoal_image[0]) as bed:
        bed.kubectl("create", "namespace", bed.namespace)
        bed.kubectl("apply", "-f", "-", input=json.dumps(RUNTIME_CLASS))
        values = {"gfd.settings.intervalSeconds": "2"}
        for _, text in documents(render(find("helm"), values, namespace=bed.namespace, arguments=("--no-hooks",))):
            document = yaml.safe_load(text) or {}
            metadata = document.get("metadata", {})
            if (document.get("kind"), metadata.get("name")) == ("ConfigMap", "shoal-operands"):
                for name in OPERANDS:
                    bed.kubectl("apply", "-f", "-", input=document["data"][f"{name}.yaml"])
            elif metadata.get("labels", {}).get("app.kubernetes.io/name") in PARTS:
                bed.kubectl("apply", "-f", "-", input=text)
        yield bed


def report(bed: ChartBed) -> ValidationReport | None:
    text = bed.node_object()["metadata"]["annotations"].get(ANNOTATION_VALIDATION)
    return None if text is None else decode_validation(text)


def stands(bed: ChartBed) -> dict[str, bool]:
    found = report(bed)
    return {} if found is None else {name: step.ready for name, step in found.steps.items()}


def words(bed: ChartBed, step: Any) -> str:
    found = report(bed)
    assert found is not None
    return f"{found.steps[step].why}: {found.steps[step].fix}"


def labels(bed: ChartBed) -> dict[str, str]:
    found: dict[str, str] = bed.node_object()["metadata"]["labels"]
    return found


def there(bed: ChartBed) -> set[str]:
    found = bed.node.run(["ls", "-A", "/run/nvidia/validations"], check=False).split()
    return {name for name in found if name.endswith("-ready")}


def test_a_card_is_found_before_there_is_a_driver(bed: ChartBed) -> None:
    bed.wait(lambda: labels(bed).get(nvidia.LABEL_PRESENT) == "true", "labelled by the bus")
    assert labels(bed)[nvidia.LABELS_PCI_PRESENT[0]] == "true"
    assert nvidia.LABEL_PRODUCT not in labels(bed)


def test_step_by_step_to_ready(bed: ChartBed) -> None:
    for part in ("operator-validator", "client", "gpu-feature-discovery"):
        bed.kubectl("label", "node", bed.node.name, f"{nvidia.LABEL_DEPLOY_PREFIX}{part}=true")
    bed.wait(lambda: stands(bed) == {"driver": False}, "without a driver")
    assert "libnvidia-ml.so.1 was not found under /" in words(bed, "driver")
    bed.cards.install_driver()
    bed.wait(lambda: stands(bed) == {"driver": True, "toolkit": False}, "with a driver")
    assert "set toolkit.enabled=true" in words(bed, "toolkit")
    toolkit = f"{hardware.TOOLKIT_IMAGE}:{hardware.TOOLKIT_VERSION}"
    installs = {"/run/nvidia": "/run/nvidia", "/usr/local/nvidia": "/usr/local/nvidia"}
    run_pod(bed.plane.api, bed.namespace, bed.node, "toolkit", toolkit, paths=installs)
    bed.wait(lambda: stands(bed) == {"driver": True, "toolkit": True, "cuda": True, "plugin": False}, "with a runtime")
    bed.wait(lambda: labels(bed).get(nvidia.LABEL_PRODUCT) == "Tesla-T4", f"labelled by the driver: {labels(bed)}")
    assert labels(bed)[nvidia.LABEL_COUNT] == "2"
    offered = {"status": {"capacity": {"aliyun.com/gpu-mem": "30"}, "allocatable": {"aliyun.com/gpu-mem": "30"}}}
    bed.kubectl("patch", "node", bed.node.name, "--subresource=status", "-p", json.dumps(offered))
    bed.wait(lambda: stands(bed) == dict.fromkeys(("driver", "toolkit", "cuda", "plugin"), True), "ready")
    assert there(bed) == FILES
    found = report(bed)
    assert found is not None
    assert found.boot == bed.node_object()["status"]["nodeInfo"]["bootID"]


def test_all_pods_are_ready_and_have_no_more_rights_than_they_need(bed: ChartBed) -> None:
    names = {"shoal-validator", "shoal-validator-runtime", "shoal-discovery-cards", "shoal-discovery"}

    def ready() -> bool:
        pods = [pod for pod in bed.pods() if is_ready(pod)]
        return names <= {pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") for pod in pods}

    bed.wait(ready, "ready")
    wanted = {"validator node": ("0", SYS_CHROOT), "validator runtime": ("0", 0), "discovery --config": ("65532", 0)}
    for command, (owner, capabilities) in wanted.items():
        pid = bed.node.run(["sh", "-c", f"pgrep -f '/opt/shoal/run.py {command}' | head -1"]).strip()
        status = bed.node.run(["cat", f"/proc/{pid}/status"])
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split()[1] == owner, command
        assert int(fields["CapEff"], 16) == capabilities, command


def test_nothing_is_written_at_rest(bed: ChartBed) -> None:
    def written() -> tuple[Any, Any]:
        meta = bed.node_object()["metadata"]
        managers = bed.get("node", bed.node.name, "--show-managed-fields")["metadata"]["managedFields"]
        times = [one["time"] for one in managers if one.get("subresource") != "status"]
        return {key: meta["annotations"][key] for key in sorted(meta["annotations"])}, sorted(times)

    before = written()
    ticks = bed.node.run(["sh", "-c", "sleep 15; echo over"]).strip()
    assert (ticks, written()) == ("over", before)


def test_after_a_reboot_all_steps_are_taken_again(bed: ChartBed) -> None:
    bed.node.reboot()
    bed.wait(lambda: there(bed) >= {"driver-ready"}, "a driver again")
    # The toolkit's pod starts again with the node, as one of a DaemonSet does.
    bed.wait(lambda: {"toolkit-ready", "cuda-ready"} <= there(bed), "validated again", 600)


def test_a_driver_that_goes_closes_the_gates(bed: ChartBed) -> None:
    bed.cards.remove_driver()
    bed.wait(lambda: stands(bed) == {"driver": False}, "without a driver", 600)
    assert not there(bed)
    assert labels(bed)[nvidia.LABEL_PRODUCT] == "Tesla-T4", "labels stay"
