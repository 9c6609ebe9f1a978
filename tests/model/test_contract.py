"""The names other programs know. They are written here a second time on purpose: a change breaks somebody's cluster."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import shoal
from shoal.model.contract import gpushare, groups, keti, kubernetes, mechanisms, nvidia
from shoal.model.contract import shoal as own

PINNED: dict[ModuleType, dict[str, object]] = {
    gpushare: {
        "RESOURCE_MEMORY": "aliyun.com/gpu-mem",
        "RESOURCE_COUNT": "aliyun.com/gpu-count",
        "RESOURCE_COMPUTE": "aliyun.com/gpu-core.percentage",
        "NAME_INDEX": "ALIYUN_COM_GPU_MEM_IDX",
        "NAME_CARD": "ALIYUN_COM_GPU_MEM_DEV",
        "NAME_POD": "ALIYUN_COM_GPU_MEM_POD",
        "ANNOTATION_ASSIGNED": "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ANNOTATION_ASSUME_TIME": "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        "ENV_CONTAINER": "ALIYUN_COM_GPU_MEM_CONTAINER",
        "ANNOTATION_ALLOCATION": "scheduler.framework.gpushare.allocation",
        "ANNOTATION_ALLOCATION_ASSIGNED": "scheduler.framework.gpushare.assigned",
        "ANNOTATION_ALLOCATION_ASSUME_TIME": "scheduler.framework.gpushare.assume-time",
        "LABEL_NODE": "gpushare",
        "LABEL_NO_ISOLATION": "cgpu.disable.isolation",
        "LABEL_PLACEMENT": "ack.node.gpu.placement",
        "LABEL_POD_COUNT": "aliyun.com/gpu-count",
        "LABEL_POD_PLACEMENT": "ack.gpushare.placement",
        "PATH_FILTER": "/gpushare-scheduler/filter",
        "PATH_BIND": "/gpushare-scheduler/bind",
        "PATH_INSPECT": "/gpushare-scheduler/inspect",
        "PATH_VERSION": "/version",
        "PORT_DEFAULT": 39999,
        "PORT_MANIFEST": 12345,
        "PORT_NODE": 32766,
        "PLUGIN_SOCKET": "aliyungpushare.sock",
        "REASON_INSUFFICIENT": "Insufficient GPU Memory in one device",
    },
    keti: {
        "RESOURCE_MPS": "keti.com/mpsgpu",
        "SCHEDULER_NAME": "gpu-scheduler",
        "LABEL_NODE": "gpu",
        "LABEL_NODE_VALUE": "on",
        "ANNOTATION_UUID": "UUID",
        "ANNOTATION_MEMORY_REQUEST": "GPUrequest",
        "ANNOTATION_MEMORY_LIMIT": "GPUlimits",
        "ANNOTATION_CLUSTER": "clusterName",
        "ANNOTATION_NODE": "nodeName",
        "ENV_MEMORY_LIMIT": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "SERVICES_CLUSTER": ("v1.user.Cluster", "cluster.Cluster"),
        "SERVICE_SCORE": "score.MetricGRPC",
        "SERVICE_COLLECTOR": "metric.MetricCollector",
        "SERVICE_HOST_API": "api.Traveler",
        "PORT_MANAGER": 8686,
        "PORT_MANAGER_NODE": 31000,
        "PORT_ENGINE": 9322,
        "PORT_COLLECTOR": 9323,
        "PORT_HOST_API": 9321,
        "POLICY_CONFIGMAPS": ("gpu-scheduler-policy", "gpu-scheduler-configmap"),
        "PLUGIN_SOCKET": "nvidia-keti-mpsgpu.sock",
        "CLIENTS_DEFAULT": 10,
        "CLIENTS_MAX": 48,
    },
    nvidia: {
        "RESOURCE_GPU": "nvidia.com/gpu",
        "RESOURCE_GPU_SHARED": "nvidia.com/gpu.shared",
        "RESOURCE_MIG_PREFIX": "nvidia.com/mig-",
        "LABEL_PRESENT": "nvidia.com/gpu.present",
        "LABEL_PRODUCT": "nvidia.com/gpu.product",
        "LABEL_MEMORY": "nvidia.com/gpu.memory",
        "LABEL_DEVICE_PLUGIN_CONFIG": "nvidia.com/device-plugin.config",
        "LABEL_MIG_CONFIG": "nvidia.com/mig.config",
        "ENV_VISIBLE_DEVICES": "NVIDIA_VISIBLE_DEVICES",
        "ENV_MEMORY_LIMIT": "NVIDIA_GPU_MEMORY_LIMIT",
        "PORT_EXPORTER": 9400,
        "POD_RESOURCES_SOCKET": "/var/lib/kubelet/pod-resources/kubelet.sock",
        "DEVICE_LIST_STRATEGIES": ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri"),
        "MIG_STRATEGIES": ("none", "single", "mixed"),
    },
    own: {
        "ANNOTATION_ALLOCATION": "shoal.dev/allocation",
        "ANNOTATION_GPUS": "shoal.dev/gpus",
        "ANNOTATION_FAULTS": "shoal.dev/gpu-faults",
        "ANNOTATION_SIMULATE": "shoal.dev/simulate",
        "ANNOTATION_SIMULATE_PREFIX": "shoal.dev/simulate.",
        "ANNOTATION_POLICY": "shoal.dev/policy",
        "LABEL_ADMISSION": "shoal.dev/admission",
        "ADMISSION_IGNORE": "ignore",
        "POLICY_PODS": "shoal-gpu-requests",
        "POLICY_TEMPLATES": "shoal-gpu-requests-templates",
        "POLICY_CRON_JOBS": "shoal-gpu-requests-cronjobs",
        "ANNOTATION_USE_MODEL": "shoal.dev/use-gpu-model",
        "ANNOTATION_AVOID_MODEL": "shoal.dev/avoid-gpu-model",
        "ANNOTATION_USE_UUID": "shoal.dev/use-gpu-uuid",
        "ANNOTATION_AVOID_UUID": "shoal.dev/avoid-gpu-uuid",
        "RESOURCE_SLOT": "shoal.dev/gpu",
        "CDI_KIND": "shoal.dev/share",
        "ENV_ISOLATION": "SHOAL_ISOLATION",
    },
    mechanisms: {
        "LABEL_PREFIX": "claims.shoal.dev/",
        "ANNOTATION_MECHANISMS": "shoal.dev/mechanisms",
        "NAMES": ("aliyun.com/gpu-mem", "keti.com/mpsgpu", "nvidia.com/gpu"),
    },
    groups: {
        "LABEL_GROUP": "shoal.dev/pod-group",
        "NAME_MINIMUM": "shoal.dev/pod-group-min",
        "NAME_TIMEOUT": "shoal.dev/pod-group-timeout",
        "LABEL_LIGHT_GROUP": "pod-group.scheduling.sigs.k8s.io/name",
        "NAME_LIGHT_MINIMUM": "pod-group.scheduling.sigs.k8s.io/min-available",
        "LABEL_OLD_GROUP": "pod-group.scheduling.sigs.k8s.io",
        "LABEL_NEW_GROUP": "scheduling.x-k8s.io/pod-group",
    },
    kubernetes: {
        "LABEL_HOSTNAME": "kubernetes.io/hostname",
        "LABEL_ZONE": "topology.kubernetes.io/zone",
        "LABEL_REGION": "topology.kubernetes.io/region",
        "LABEL_OLD_ZONE": "failure-domain.beta.kubernetes.io/zone",
        "LABEL_OLD_REGION": "failure-domain.beta.kubernetes.io/region",
        "TAINT_UNSCHEDULABLE": "node.kubernetes.io/unschedulable",
        "ANNOTATION_SELECTED_NODE": "volume.kubernetes.io/selected-node",
        "ANNOTATION_BIND_COMPLETED": "pv.kubernetes.io/bind-completed",
        "ANNOTATION_BOUND_BY_CONTROLLER": "pv.kubernetes.io/bound-by-controller",
        "ANNOTATION_STORAGE_CLASS": "volume.beta.kubernetes.io/storage-class",
        "NO_PROVISIONER": "kubernetes.io/no-provisioner",
    },
}


@pytest.mark.parametrize(
    ("family", "constant", "value"),
    [
        pytest.param(family, constant, value, id=f"{family.__name__.rpartition('.')[2]}.{constant}")
        for family, names in PINNED.items()
        for constant, value in names.items()
    ],
)
def test_pinned(family: object, constant: str, value: object) -> None:
    assert getattr(family, constant) == value


def test_reasons_and_names_that_hold_a_node() -> None:
    assert gpushare.not_shared_reason("n1") == "The node n1 is not for GPU share, need skip"


def test_names_are_written_in_the_contract_only() -> None:
    """A name written twice is a name that can differ. Docstrings may mention names, code imports them."""
    package = Path(shoal.__file__).parent
    contract = package / "model" / "contract"
    prefixes = (
        *("aliyun.com/", "ALIYUN_COM_", "keti.com/", "nvidia.com/", "shoal.dev/", "scheduler.framework.gpushare."),
        *("pod-group.scheduling.sigs.k8s.io", "scheduling.x-k8s.io/"),
    )
    names = {
        value
        for family in (gpushare, groups, keti, nvidia, own)
        for value in vars(family).values()
        if isinstance(value, str) and value.startswith(prefixes)
    }
    assert len(names) > 50
    found = [
        f"{path.relative_to(package)}:{node.lineno} {node.value}"
        for path in package.rglob("*.py")
        if contract not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    ]
    assert found == []
