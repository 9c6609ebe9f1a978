"""NVIDIA's names: resources, device ids, node labels, environment, kubelet's sockets and the operator's files.

Shoal serves these names where NVIDIA's own components would, and reads them where those run. Placement knows whole
cards only: `nvidia.com/mig-*` and `nvidia.com/gpu.shared` are counted by kubelet and handed out by the agent.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from shoal.model.contract import text
from shoal.model.errors import CodecError, shown

DOMAIN: Final = "nvidia.com"

# Resources
RESOURCE_GPU: Final = "nvidia.com/gpu"
SHARED_SUFFIX: Final = ".shared"
RESOURCE_GPU_SHARED: Final = RESOURCE_GPU + SHARED_SUFFIX
RESOURCE_MIG_PREFIX: Final = "nvidia.com/mig-"
#: With this the UUID of a MIG partition begins.
MIG_UUID_PREFIX: Final = "MIG-"
#: Taint (and toleration key) users put on GPU nodes: `nvidia.com/gpu=present:NoSchedule`.
TAINT_GPU: Final = RESOURCE_GPU
TAINT_GPU_VALUE: Final = "present"
MAX_RESOURCE_NAME: Final = 63

# Labels a node carries when a card is present (node feature discovery)
LABEL_PCI_PREFIX: Final = "feature.node.kubernetes.io/pci-"
PCI_VENDOR: Final = "10de"
LABELS_PCI_PRESENT: Final = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
LABEL_NFD_NODE_NAME: Final = "nfd.node.kubernetes.io/node-name"
ANNOTATION_NFD_LABELS: Final = "nfd.node.kubernetes.io/feature-labels"
ANNOTATION_NFD_EXTENDED_RESOURCES: Final = "nfd.node.kubernetes.io/extended-resources"
ANNOTATION_NFD_TAINTS: Final = "nfd.node.kubernetes.io/taints"
NFD_GROUP_VERSION: Final = "nfd.k8s-sigs.io/v1alpha1"
NODE_FEATURE_PREFIX: Final = "nvidia-features-for-"
FEATURE_FILES_DIRECTORY: Final = "/etc/kubernetes/node-feature-discovery/features.d"
FEATURE_FILE: Final = "gfd"

# Labels of the operator
LABEL_PRESENT: Final = "nvidia.com/gpu.present"
LABEL_DEPLOY_PREFIX: Final = "nvidia.com/gpu.deploy."
LABEL_DEPLOY_OPERANDS: Final = "nvidia.com/gpu.deploy.operands"
DEPLOY_COMPONENTS: Final = (
    "driver",
    "gpu-feature-discovery",
    "container-toolkit",
    "device-plugin",
    "dcgm",
    "dcgm-exporter",
    "node-status-exporter",
    "operator-validator",
    "client",
)
#: Deployed only on nodes that can do MIG.
DEPLOY_MIG_MANAGER: Final = "mig-manager"
LABEL_WORKLOAD_CONFIG: Final = "nvidia.com/gpu.workload.config"
LABEL_DEVICE_PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"
LABEL_MIG_CONFIG: Final = "nvidia.com/mig.config"
MIG_CONFIG_DEFAULT: Final = "all-disabled"
LABEL_UPGRADE_STATE: Final = "nvidia.com/gpu-driver-upgrade-state"
LABEL_UPGRADE_SKIP: Final = "nvidia.com/gpu-driver-upgrade.skip"
LABEL_UPGRADE_DRAIN_SKIP: Final = "nvidia.com/gpu-driver-upgrade-drain.skip"
#: Variables of NVIDIA's driver manager: whether it evicts pods with GPUs, and whether it drains its node.
ENV_GPU_POD_EVICTION: Final = "ENABLE_GPU_POD_EVICTION"
ENV_AUTO_DRAIN: Final = "ENABLE_AUTO_DRAIN"
#: On nodes whose upgrades an operator does: with "true" NVIDIA's driver manager leaves eviction and cordon to it.
ANNOTATION_UPGRADE_ENABLED: Final = "nvidia.com/gpu-driver-upgrade-enabled"
#: On nodes that were cordoned before their upgrade and stay so after it.
ANNOTATION_UPGRADE_INITIAL: Final = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
ANNOTATION_LAST_APPLIED_HASH: Final = "nvidia.com/last-applied-hash"
OPERATOR_LEASE: Final = "53822513.nvidia.com"
CLUSTER_POLICY: Final = "cluster-policy"
OPERATOR_NAMESPACE: Final = "gpu-operator"
PORT_OPERATOR_METRICS: Final = 8080
PORT_OPERATOR_PROBES: Final = 8081
VALIDATIONS_DIRECTORY: Final = "/run/nvidia/validations"
VALIDATION_DRIVER: Final = "driver-ready"
VALIDATION_TOOLKIT: Final = "toolkit-ready"
VALIDATION_CUDA: Final = "cuda-ready"
VALIDATION_PLUGIN: Final = "plugin-ready"
VALIDATION_DRIVER_CONTAINER: Final = ".driver-ctr-ready"

# Labels of GPU feature discovery
LABEL_TIMESTAMP: Final = "nvidia.com/gfd.timestamp"
LABEL_DRIVER_MAJOR: Final = "nvidia.com/cuda.driver.major"
LABEL_DRIVER_MINOR: Final = "nvidia.com/cuda.driver.minor"
LABEL_DRIVER_REVISION: Final = "nvidia.com/cuda.driver.rev"
LABEL_DRIVER_VERSION_MAJOR: Final = "nvidia.com/cuda.driver-version.major"
LABEL_DRIVER_VERSION_MINOR: Final = "nvidia.com/cuda.driver-version.minor"
LABEL_DRIVER_VERSION_REVISION: Final = "nvidia.com/cuda.driver-version.revision"
LABEL_DRIVER_VERSION_FULL: Final = "nvidia.com/cuda.driver-version.full"
LABEL_RUNTIME_MAJOR: Final = "nvidia.com/cuda.runtime.major"
LABEL_RUNTIME_MINOR: Final = "nvidia.com/cuda.runtime.minor"
LABEL_RUNTIME_VERSION_MAJOR: Final = "nvidia.com/cuda.runtime-version.major"
LABEL_RUNTIME_VERSION_MINOR: Final = "nvidia.com/cuda.runtime-version.minor"
LABEL_RUNTIME_VERSION_FULL: Final = "nvidia.com/cuda.runtime-version.full"
LABEL_MACHINE: Final = "nvidia.com/gpu.machine"
LABEL_COUNT: Final = "nvidia.com/gpu.count"
LABEL_PRODUCT: Final = "nvidia.com/gpu.product"
LABEL_MEMORY: Final = "nvidia.com/gpu.memory"
LABEL_REPLICAS: Final = "nvidia.com/gpu.replicas"
LABEL_SHARING_STRATEGY: Final = "nvidia.com/gpu.sharing-strategy"
LABEL_FAMILY: Final = "nvidia.com/gpu.family"
LABEL_COMPUTE_MAJOR: Final = "nvidia.com/gpu.compute.major"
LABEL_COMPUTE_MINOR: Final = "nvidia.com/gpu.compute.minor"
LABEL_MODE: Final = "nvidia.com/gpu.mode"
LABEL_CLIQUE: Final = "nvidia.com/gpu.clique"
LABEL_MIG_CAPABLE: Final = "nvidia.com/mig.capable"
LABEL_MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
LABEL_MPS_CAPABLE: Final = "nvidia.com/mps.capable"
LABEL_VGPU_PRESENT: Final = "nvidia.com/vgpu.present"
LABEL_VGPU_HOST_DRIVER_VERSION: Final = "nvidia.com/vgpu.host-driver-version"
LABEL_VGPU_HOST_DRIVER_BRANCH: Final = "nvidia.com/vgpu.host-driver-branch"
FAMILIES: Final = (
    *("tesla", "fermi", "kepler", "maxwell", "pascal", "volta", "turing", "ampere"),
    *("ada-lovelace", "hopper", "blackwell", "rubin", "undefined"),
)
FAMILY_UNKNOWN: Final = FAMILIES[-1]
GPU_MODES: Final = ("compute", "graphics", "unknown")
PRODUCT_SHARED_SUFFIX: Final = "-SHARED"
PRODUCT_MIG_SUFFIX: Final = "-MIG-"
PRODUCT_MIG_INVALID: Final = "INVALID"

# Strategies
MigStrategy = Literal["none", "single", "mixed"]
MIG_STRATEGIES: Final = ("none", "single", "mixed")
SHARING_STRATEGIES: Final = ("none", "time-slicing", "mps")
DEVICE_LIST_STRATEGIES: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
ALLOCATION_POLICIES: Final = ("distributed", "packed")

# Environment of containers
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
#: A setting of NVIDIA's toolkit: whether the environment of an unprivileged container chooses its cards.
TOOLKIT_ENVVAR: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
ENV_DRIVER_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
ENV_MEMORY_REQUEST: Final = "NVIDIA_GPU_MEMORY_REQUEST"
ENV_MEMORY_LIMIT: Final = "NVIDIA_GPU_MEMORY_LIMIT"
ENV_MPS_PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
ENV_MPS_LOG_DIRECTORY: Final = "CUDA_MPS_LOG_DIRECTORY"
#: Where deploy/agent-mps and the agent have the MPS daemon write its logs.
MPS_LOG_DIRECTORY: Final = "/var/log/nvidia-mps"
#: Overrules the flag `-p` of the MPS control program.
ENV_MPS_PROTOCOL: Final = "CUDA_MPS_PROTOCOL_VERSION"
ENV_MPS_MEMORY_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ENV_MPS_THREAD_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#: 0 is normal, 1 below that.
ENV_MPS_PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"
VISIBLE_DEVICES_DIRECTORY: Final = "/var/run/nvidia-container-devices"
MAX_MPS_CLIENTS: Final = 48
#: The hook of NVIDIA's toolkit (1.20.1 and newer) that limits a container's cgroup by both memory variables.
HOOK_MEMORY_LIMITS: Final = "apply-cuda-memory-limits"

# Environment of the components
ENV_DEVICE_LIST_STRATEGY: Final = "DEVICE_LIST_STRATEGY"
ENV_MIG_STRATEGY: Final = "MIG_STRATEGY"
ENV_DISABLE_HEALTH_CHECKS: Final = "DP_DISABLE_HEALTHCHECKS"
ENV_ENABLE_HEALTH_CHECKS: Final = "DP_ENABLE_HEALTHCHECKS"
ENV_EXPORTER_RESOURCE_NAMES: Final = "NVIDIA_RESOURCE_NAMES"
ENV_EXPORTER_VIRTUAL_GPUS: Final = "KUBERNETES_VIRTUAL_GPUS"
PORT_EXPORTER: Final = 9400
PATH_EXPORTER_METRICS: Final = "/metrics"
PATH_EXPORTER_HEALTH: Final = "/health"
EXPORTER_CONFIG_KEY: Final = "metrics"
EXPORTER_OPERATOR_CONFIG_KEY: Final = "dcgm-metrics.csv"

#: Xid errors an application causes itself; every other one makes the card unhealthy.
IGNORED_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})

# Kubelet and the container runtime
#: As the operator and NVIDIA's own manifest name it, and as its chart does by default.
PLUGIN_DAEMONSETS: Final = ("nvidia-device-plugin-daemonset", "nvidia-device-plugin", "nvdp-nvidia-device-plugin")
DEVICE_PLUGIN_SOCKET: Final = "nvidia-gpu.sock"
DEVICE_PLUGIN_VERSION: Final = "v1beta1"
POD_RESOURCES_SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
CDI_KIND: Final = "k8s.device-plugin.nvidia.com/gpu"
ANNOTATION_CDI_PREFIX: Final = "cdi.k8s.io/"
RUNTIME_CLASS: Final = "nvidia"
RUNTIME_CLASS_CDI: Final = "nvidia-cdi"
RUNTIME_CLASS_LEGACY: Final = "nvidia-legacy"

_REPLICA_SEPARATOR: Final = "::"
_FAMILIES_BY_MAJOR: Final = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
_MAX_LABEL_VALUE: Final = 63
_PROFILE = re.compile(r"[0-9]+g\.[0-9]+gb(?:[+.-][a-z0-9.]+)*|[0-9]+c\.[0-9]+g\.[0-9]+gb(?:[+.-][a-z0-9.]+)*")


def replica_id(uuid: str, number: int) -> str:
    """The device id of one time slice or MPS share of a card: `<uuid>::<n>`."""
    return f"{uuid}{_REPLICA_SEPARATOR}{number}"


def parse_replica_id(device_id: str) -> tuple[str, int | None]:
    """The card's UUID and the replica's number; an id without a number is the card itself."""
    uuid, separator, number = device_id.partition(_REPLICA_SEPARATOR)
    if not uuid:
        raise CodecError(f"device id {shown(device_id)} names no card: it should look like GPU-…{_REPLICA_SEPARATOR}0")
    if not separator:
        return uuid, None
    return uuid, text.integer(number, what=f"the replica number of device id {shown(device_id)}")


def mig_resource(profile: str) -> str:
    """The resource of a MIG profile: `1g.10gb+me` is counted as `nvidia.com/mig-1g.10gb.me`."""
    if len(profile) > MAX_RESOURCE_NAME or not _PROFILE.fullmatch(profile):
        raise CodecError(f"MIG profile {shown(profile)} cannot be read: write it as 1g.10gb")
    return RESOURCE_MIG_PREFIX + profile.replace("+", ".")


def mig_profile(resource: str) -> str | None:
    """The MIG profile a resource counts, in the resource's spelling; None for another resource."""
    return resource.removeprefix(RESOURCE_MIG_PREFIX) if resource.startswith(RESOURCE_MIG_PREFIX) else None


def deploy_label(component: str) -> str:
    """The label that decides whether a component of the operator runs on a node."""
    return LABEL_DEPLOY_PREFIX + component


def family(capability: tuple[int, int] | None) -> str:
    """The name of an architecture by its compute capability, as feature discovery writes it. 11 has none there."""
    major, minor = capability or (0, 0)
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return _FAMILIES_BY_MAJOR.get(major, FAMILY_UNKNOWN)


def sanitised(name: str) -> str:
    """A product or machine name as a label value: blanks become `-`, other symbols go."""
    kept = re.sub(r"[^A-Za-z0-9_. -]", "", name)
    return re.sub(r"^[^A-Za-z0-9]+", "", "-".join(kept.split()))[:_MAX_LABEL_VALUE].rstrip("-_.")


def product_label(model: str, *, mig_profile: str | None = None, shared: bool = False) -> str:
    """The value of `nvidia.com/gpu.product`. `shared` is for cards with replicas under an unchanged resource name."""
    suffix = "" if mig_profile is None else PRODUCT_MIG_SUFFIX + mig_profile.replace("+", ".")
    if shared:
        suffix += PRODUCT_SHARED_SUFFIX
    return (sanitised(model)[: _MAX_LABEL_VALUE - len(suffix)].rstrip("-_.") + suffix).lstrip("-")


def resource_label(resource: str, attribute: str) -> str:
    """The label that tells an attribute of a counted resource: `nvidia.com/mig-1g.10gb.memory`."""
    return f"{resource}.{attribute}"
