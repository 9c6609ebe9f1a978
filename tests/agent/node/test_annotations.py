"""What a pod is told about its walls, and when."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.agent.device_plugin.specs import CdiSpecs
from shoal.agent.node.annotations import due
from shoal.agent.node.holdings import holding_of
from shoal.agent.node.pods import NodePod
from shoal.kube.objects.pod import Pod
from shoal.kubelet.cdi import ContainerEdits
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import gpushare, keti, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Isolation, LimitedBy, NodeGpus

ASSIGNED = {gpushare.ANNOTATION_ASSIGNED: "true"}
CGROUP = {shoal.ANNOTATION_ISOLATION: "cgroup"}


def known(resource: str, annotations: dict[str, str], *, started: bool = True) -> NodePod:
    container = {"name": "main", "resources": {"limits": {resource: "2"}}}
    status = {"containerStatuses": [{"name": "main", "containerID": "containerd://1" if started else ""}]}
    manifest: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations},
        "spec": {"containers": [container]},
        "status": status,
    }
    pod = msgspec.convert(manifest, Pod)
    return NodePod(pod, holding_of(pod, node=NodeGpus("node"), unit=MemoryUnit.GIB))


@pytest.mark.parametrize(
    ("annotations", "isolation", "marks"),
    [
        ({gpushare.ANNOTATION_ASSIGNED: "false"}, LimitedBy(Isolation.CGROUP), ASSIGNED | CGROUP),
        ({gpushare.ANNOTATION_ASSIGNED: "false"}, None, ASSIGNED),
        (ASSIGNED, LimitedBy(Isolation.CGROUP), CGROUP),
        (ASSIGNED | CGROUP, LimitedBy(Isolation.CGROUP), {}),
        (ASSIGNED | {shoal.ANNOTATION_ISOLATION: "none"}, LimitedBy(Isolation.CGROUP), CGROUP),
    ],
)
def test_both_marks_come_in_one_write(annotations: dict, isolation: LimitedBy | None, marks: dict) -> None:
    times = {gpushare.ANNOTATION_ASSUME_TIME: "1"}
    assert due(known(gpushare.RESOURCE_MEMORY, times | annotations), isolation) == marks
    assert due(known(gpushare.RESOURCE_MEMORY, times | annotations, started=False), isolation) == {}


def test_pods_of_other_families_are_told_too() -> None:
    assert due(known(keti.RESOURCE_MPS, {}), LimitedBy(Isolation.CGROUP)) == CGROUP


def test_what_a_container_has_is_known_after_a_restart(tmp_path: Path) -> None:
    paths = HostPaths(cdi=(tmp_path,))
    CdiSpecs(paths).write("a-1", ContainerEdits(env=(f"{shoal.ENV_ISOLATION}=mps",)))
    specs = CdiSpecs(paths)
    assert specs.isolation("a-1") == "mps"
    specs.write("a-1", ContainerEdits(env=(f"{shoal.ENV_ISOLATION}=cgroup",)))
    assert specs.isolation("a-1") == "cgroup"
    specs.remove("a-1")
    assert specs.isolation("a-1") == ""
