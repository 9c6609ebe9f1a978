"""KETI-ExaScale: `keti.com/mpsgpu`, its annotations, policy ConfigMap, gRPC services and metric tables.

One `keti.com/mpsgpu` is one MPS client on one physical card; N of them are N distinct cards of one node. Memory is a
pod-wide annotation, the same for each card. The `UUID` annotation does not tell containers apart:
`shoal.dev/allocation` does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from shoal.model import quantity
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import nvidia, text
from shoal.model.errors import CodecError, QuantityError, shown
from shoal.model.gpu import DEFAULT_MPS_CLIENTS, MAX_CARD_MIB, NodeGpus
from shoal.model.request import Request, Share

RESOURCE_MPS: Final = "keti.com/mpsgpu"
SCHEDULER_NAME: Final = "gpu-scheduler"
NAMESPACE: Final = "gpu"
LABEL_NODE: Final = "gpu"
LABEL_NODE_VALUE: Final = "on"

# Annotations of a pod: written by the scheduler, then by the user
ANNOTATION_UUID: Final = "UUID"
ANNOTATION_MEMORY_REQUEST: Final = "GPUrequest"
ANNOTATION_MEMORY_LIMIT: Final = "GPUlimits"
ANNOTATION_PRIORITY: Final = "priority"
ANNOTATION_CLUSTER: Final = "clusterName"
ANNOTATION_NODE: Final = "nodeName"

PRIORITY_LOW: Final = 10
PRIORITY_MIDDLE: Final = 50
PRIORITY_HIGH: Final = 100
PRIORITY_IMMEDIATE: Final = 1500
_PRIORITIES: Final = {
    "l": PRIORITY_LOW,
    "low": PRIORITY_LOW,
    "h": PRIORITY_HIGH,
    "high": PRIORITY_HIGH,
    "i": PRIORITY_IMMEDIATE,
}

# Environment
ENV_VISIBLE_DEVICES: Final = nvidia.ENV_VISIBLE_DEVICES
ENV_MEMORY_LIMIT: Final = nvidia.ENV_MPS_MEMORY_LIMIT
DEFAULT_KUBECONFIG_DIRECTORY: Final = "/root/.kube"
OWN_KUBECONFIG: Final = "config"
MPS_DIRECTORY: Final = "/tmp/nvidia-mps"

# Objects that peers look up by name or name prefix
SCHEDULER_DEPLOYMENT: Final = "keti-gpu-scheduler"
MANAGER_DEPLOYMENT: Final = "keti-cluster-manager"
MANAGER_SERVICE: Final = "cluster-manager"
ENGINE_DEPLOYMENT: Final = "keti-analysis-engine"
ENGINE_SERVICE: Final = "analysis-engine"
COLLECTOR_DAEMONSET: Final = "keti-multi-metric-collector"
COLLECTOR_DAEMONSET_V1: Final = "keti-gpu-metric-collector"
COLLECTOR_SERVICE: Final = "gpu-metric-collector"
PLUGIN_DAEMONSET: Final = "keti-gpu-device-plugin"
HOST_API_UNIT: Final = "host-gpu-api-service"
INFLUXDB_SERVICE: Final = "influxdb"
LABEL_NAME: Final = "name"
LABEL_JOB_NAME: Final = "job-name"

# Ports and services (plain gRPC unless said otherwise)
PORT_MANAGER: Final = 8686
PORT_MANAGER_NODE: Final = 31000
PORT_ENGINE: Final = 9322
PORT_ENGINE_NODE: Final = 32552
PORT_ENGINE_HTTP: Final = 9595
PORT_ENGINE_HTTP_NODE: Final = 32555
PORT_COLLECTOR: Final = 9323
PORT_COLLECTOR_NODE: Final = 32553
PORT_COLLECTOR_V1: Final = 9000
PORT_HOST_API: Final = 9321
PORT_INFLUXDB: Final = 8086
PORT_GATHERER: Final = 50052
PATH_ENGINE_METRIC: Final = "/analysis/metric"
PATH_ENGINE_WEB_METRIC: Final = "/analysis/web/metric"
#: The manager and the older scheduler say the first name, the newest scheduler the second: serve both.
SERVICES_CLUSTER: Final = ("v1.user.Cluster", "cluster.Cluster")
SERVICE_SCORE: Final = "score.MetricGRPC"
SERVICE_COLLECTOR: Final = "metric.MetricCollector"
SERVICE_HOST_API: Final = "api.Traveler"
SERVICE_COLLECTOR_V1: Final = "v1.user.User"
SERVICE_GATHERER: Final = "grpc.MetricGatherer"

# Metric tables of the first collector
DATABASE: Final = "multimetric"
DATABASE_OLD: Final = "metric"
MEASUREMENT_NODE: Final = "nodemetric"
MEASUREMENT_NODE_OLD: Final = "multimetric"
MEASUREMENT_GPU: Final = "gpumetric"
MEASUREMENT_POD: Final = "podmetric"
TAG_UUID: Final = "UUID"
COLLECTOR_CONFIGMAP: Final = "gpu-metric-collector-configmap"
KEY_COLLECTING_INTERVAL: Final = "metric-collecting-interval"

# The device plugin
PLUGIN_SOCKET: Final = "nvidia-keti-mpsgpu.sock"
CLIENTS_DEFAULT: Final = DEFAULT_MPS_CLIENTS
CLIENTS_MAX: Final = nvidia.MAX_MPS_CLIENTS

# The scheduler's policy
POLICY_CONFIGMAP: Final = "gpu-scheduler-policy"
POLICY_CONFIGMAP_OLD: Final = "gpu-scheduler-configmap"
POLICY_CONFIGMAPS: Final = (POLICY_CONFIGMAP, POLICY_CONFIGMAP_OLD)
KEY_WEIGHTS: Final = "node-gpu-score-weight"
KEY_NVLINK_PERCENT: Final = "nvlink-weight-percentage"
KEY_PREFER: Final = "gpu-allocate-prefer"
KEY_AVOID_NVLINK: Final = "avoid-nvlink-one-gpu"
KEY_LEAST_SCORE_NODE: Final = "least-score-node-prefer"
KEY_AVOID_BEST_NODE: Final = "avoid-high-score-node"
KEY_MULTI_GPU_NODE: Final = "multi-gpu-node-prefer"
KEY_NODE_RESERVATION: Final = "node-reservation-permit"
KEY_RESCHEDULE: Final = "pod-re-schedule-permit"
KEY_MULTI_NODE: Final = "multi-node-allocation-permit"
KEY_NON_GPU_NODE: Final = "non-gpu-node-prefer"

_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")
_MAX_NVLINK_PERCENT: Final = 1000
_MAX_CARD_BYTES: Final = MAX_CARD_MIB * quantity.MEBIBYTE


class GpuPreference(StrEnum):
    """Which cards of a node are taken first."""

    SPREAD = "spread"
    BINPACK = "binpack"


@dataclass(frozen=True, slots=True)
class KetiPolicy:
    """The policy ConfigMap, typed; the defaults are those KETI's scheduler has built in.

    The last four are read and change nothing in KETI's newest scheduler.
    """

    node_weight: float = 0.4
    gpu_weight: float = 0.6
    #: What a pair of cards joined by NVLink is worth beyond its mean score, in percent.
    nvlink_percent: int = 10
    prefer: GpuPreference = GpuPreference.SPREAD
    avoid_nvlink_for_one: bool = False
    least_score_node: bool = False
    avoid_best_node: bool = False
    multi_gpu_node: bool = True
    node_reservation: bool = False
    reschedule: bool = True
    multi_node: bool = False
    non_gpu_node: bool = True


DEFAULT_POLICY: Final = KetiPolicy()


def decode_policy(data: Mapping[str, object]) -> KetiPolicy:
    """The policy a ConfigMap's data asks for. A key that is missing keeps its default, an unknown key has no effect."""

    def flag(key: str, default: bool) -> bool:
        value = text.value_of(data, key)
        return default if value is None else text.boolean(value, what=f"policy key {key}")

    default = DEFAULT_POLICY
    weights = text.value_of(data, KEY_WEIGHTS)
    percent = text.value_of(data, KEY_NVLINK_PERCENT)
    prefer = text.value_of(data, KEY_PREFER)
    node_weight, gpu_weight = (default.node_weight, default.gpu_weight) if weights is None else _weights(weights)
    return KetiPolicy(
        node_weight=node_weight,
        gpu_weight=gpu_weight,
        nvlink_percent=default.nvlink_percent if percent is None else _percent(percent),
        prefer=default.prefer if prefer is None else _preference(prefer),
        avoid_nvlink_for_one=flag(KEY_AVOID_NVLINK, default.avoid_nvlink_for_one),
        least_score_node=flag(KEY_LEAST_SCORE_NODE, default.least_score_node),
        avoid_best_node=flag(KEY_AVOID_BEST_NODE, default.avoid_best_node),
        multi_gpu_node=flag(KEY_MULTI_GPU_NODE, default.multi_gpu_node),
        node_reservation=flag(KEY_NODE_RESERVATION, default.node_reservation),
        reschedule=flag(KEY_RESCHEDULE, default.reschedule),
        multi_node=flag(KEY_MULTI_NODE, default.multi_node),
        non_gpu_node=flag(KEY_NON_GPU_NODE, default.non_gpu_node),
    )


def _percent(value: str) -> int:
    return text.integer(value.strip(), what=f"policy key {KEY_NVLINK_PERCENT}", maximum=_MAX_NVLINK_PERCENT)


def _preference(value: str) -> GpuPreference:
    for preference in GpuPreference:
        if preference.value == value.strip().lower():
            return preference
    raise CodecError(f"policy key {KEY_PREFER} holds {shown(value)}: write spread or binpack")


def _weights(value: str) -> tuple[float, float]:
    """`node:gpu`, or with a space as the oldest manifests have it."""
    parts = value.replace(":", " ").split() if len(value) <= 64 else []
    if len(parts) == 2 and all(_NUMBER.fullmatch(part) for part in parts):
        node, gpu = float(parts[0]), float(parts[1])
        if node + gpu > 0:
            return node, gpu
    raise CodecError(
        f"policy key {KEY_WEIGHTS} holds {shown(value)}: write two weights, not both zero, such as 0.4:0.6"
    )


def encode_policy(policy: KetiPolicy) -> dict[str, str]:
    """The ConfigMap data of a policy, every key written."""
    flags = {
        KEY_AVOID_NVLINK: policy.avoid_nvlink_for_one,
        KEY_LEAST_SCORE_NODE: policy.least_score_node,
        KEY_AVOID_BEST_NODE: policy.avoid_best_node,
        KEY_MULTI_GPU_NODE: policy.multi_gpu_node,
        KEY_NODE_RESERVATION: policy.node_reservation,
        KEY_RESCHEDULE: policy.reschedule,
        KEY_MULTI_NODE: policy.multi_node,
        KEY_NON_GPU_NODE: policy.non_gpu_node,
    }
    return {
        KEY_WEIGHTS: f"{_plain(policy.node_weight)}:{_plain(policy.gpu_weight)}",
        KEY_NVLINK_PERCENT: str(policy.nvlink_percent),
        KEY_PREFER: policy.prefer.value,
        **{key: str(value).lower() for key, value in flags.items()},
    }


def _plain(weight: float) -> str:
    if not math.isfinite(weight) or not 0 <= weight < 10**9:
        raise CodecError(f"weight {weight!r} cannot be written: give a number from 0 to 999999999")
    return f"{weight:.9f}".rstrip("0").rstrip(".")


def priority(word: str | None) -> int:
    """The queue score of the `priority` annotation: an unknown word counts as no word."""
    return _PRIORITIES.get((word or "").strip().lower(), PRIORITY_MIDDLE)


@dataclass(frozen=True, slots=True)
class MemoryPerCard:
    """What a pod's annotations ask of each card: memory to book, and the most the pod may use if that is told."""

    booked_mib: int = 0
    limit_mib: int | None = None


def decode_memory(annotations: Mapping[str, object]) -> MemoryPerCard:
    """`GPUrequest` and `GPUlimits`. What a pod may use is booked for it; with neither, nothing is."""
    limit = _size(annotations, ANNOTATION_MEMORY_LIMIT)
    request = _size(annotations, ANNOTATION_MEMORY_REQUEST)
    if limit is not None and request is not None and limit.amount < request.amount:
        raise CodecError(
            f"annotation {ANNOTATION_MEMORY_LIMIT} holds {limit.written}, less than {ANNOTATION_MEMORY_REQUEST} with "
            f"{request.written}: raise {ANNOTATION_MEMORY_LIMIT} to that"
        )
    request_mib, limit_mib = (None if size is None else quantity.mebibytes(size.amount) for size in (request, limit))
    return MemoryPerCard(max(request_mib or 0, limit_mib or 0), limit_mib)


@dataclass(frozen=True, slots=True)
class _Size:
    written: str
    amount: Fraction


def _size(annotations: Mapping[str, object], key: str) -> _Size | None:
    """The memory under a key; nothing and zero are the same."""
    written = (text.value_of(annotations, key) or "").strip()
    if not written:
        return None
    fault = f"annotation {key} holds {shown(written)}: write the memory of one card, such as 4Gi"
    try:
        amount = quantity.parse(written)
    except QuantityError as error:
        raise CodecError(fault) from error
    if not 0 <= amount <= _MAX_CARD_BYTES:
        raise CodecError(fault)
    return _Size(shown(written), amount) if amount else None


def encode(allocation: Allocation) -> dict[str, str]:
    """The annotation of a decision; none when no container holds MPS clients.

    Cards are listed once, in the order containers see them.
    """
    uuids = dict.fromkeys(
        card.uuid for container in allocation.containers for card in container.cards if card.share.clients
    )
    return {ANNOTATION_UUID: ",".join(uuids)} if uuids else {}


def decode(annotations: Mapping[str, object], *, request: Request, node: NodeGpus) -> Allocation | None:
    """The decision the annotations hold; None when they hold none or the pod asks for no MPS client.

    A container of k cards is given the first k of the list, which is what KETI's device plugin gives it.
    """
    wanted = [container for container in request.containers if container.share.clients]
    value = text.value_of(annotations, ANNOTATION_UUID)
    if not wanted or value is None:
        return None
    uuids = text.items(value, what=f"annotation {ANNOTATION_UUID}")
    if len(set(uuids)) != len(uuids):
        raise CodecError(f"annotation {ANNOTATION_UUID} holds {shown(value)}: name each card once")
    indices = {gpu.uuid: gpu.index for gpu in node.gpus}
    for uuid in uuids:
        if uuid not in indices:
            raise CodecError(
                f"annotation {ANNOTATION_UUID} names card {shown(uuid)}, node {shown(node.name)} has no such card: "
                "delete the pod so that it is placed again"
            )
    memory = decode_memory(annotations)
    share = Share(memory_mib=memory.booked_mib, clients=1)
    containers = []
    for container in wanted:
        if container.gpus > len(uuids):
            raise CodecError(
                f"annotation {ANNOTATION_UUID} names {len(uuids)} cards, container {shown(container.name)} asks for "
                f"{container.gpus}: delete the pod so that it is placed again"
            )
        cards = tuple(CardShare(uuid, indices[uuid], share) for uuid in uuids[: container.gpus])
        containers.append(ContainerAllocation(container.name, cards, container.kind, memory.limit_mib))
    return Allocation(node.name, tuple(containers))


def container_env(container: ContainerAllocation) -> dict[str, str]:
    """The environment of a container: its GPUs, and the memory limit of a container with one GPU where the pod has one.

    CUDA takes the limit by the GPU's place among those the container sees; KETI wrote UUIDs, which it does not apply.
    With several GPUs a worker that narrows CUDA_VISIBLE_DEVICES would drop every limit, so none is set.
    """
    env = {ENV_VISIBLE_DEVICES: ",".join(card.uuid for card in container.cards)}
    if container.memory_limit_mib is not None and len(container.cards) == 1:
        env[ENV_MEMORY_LIMIT] = f"0={container.memory_limit_mib}M"
    return env
