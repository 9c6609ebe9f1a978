"""The configuration of a test node's kubelet and containerd."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.testbed.images import PAUSE
from tests.testbed.pki import Certificate

#: containerd's socket, as the node sees it.
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CONTAINERD_ROOT = "/var/lib/containerd"
KUBELET_ROOT = "/var/lib/kubelet"
CDI = "/var/run/cdi"
#: Where NVIDIA's toolkit installs itself.
NVIDIA = "/usr/local/nvidia"

# The score of out-of-memory kills cannot be lowered without CAP_SYS_RESOURCE; no AppArmor and no systemd is assumed.
_CONTAINERD = """\
version = 3
root = "{root}"
state = "/run/containerd"
disabled_plugins = [
    "io.containerd.nri.v1.nri",
    "io.containerd.image-verifier.v1.bindir",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
]

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
cdi_spec_dirs = ["{cdi}"]

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
conf_dir = "{cni}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
sandboxer = "podsandbox"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
NoNewKeyring = true
{program}
"""

# As NVIDIA's toolkit writes it. The program is not there before that toolkit has installed it.
_HANDLER = """
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
sandboxer = "podsandbox"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
SystemdCgroup = false
NoNewKeyring = true
BinaryName = "{nvidia}/toolkit/nvidia-container-runtime"
"""
_HANDLERS = ("nvidia", "nvidia-cdi", "nvidia-legacy")


def containerd(cni: Path, runtime: Path | None = None) -> str:
    """containerd's configuration; `cni` is the folder of the network configuration.

    `runtime` is the program of a machine with cards in place of runc; such a node has NVIDIA's handlers too.
    """
    program = f'BinaryName = "{runtime}"' if runtime else ""
    text = _CONTAINERD.format(
        root=CONTAINERD_ROOT, socket=CONTAINERD_SOCKET, pause=PAUSE, cdi=CDI, cni=cni, program=program
    )
    handlers = _HANDLERS if runtime else ()
    return text + "".join(_HANDLER.format(name=name, nvidia=NVIDIA) for name in handlers)


@dataclass(frozen=True)
class KubeletSettings:
    """What differs from node to node."""

    address: str
    cgroup: str
    ca: Path
    serving: Certificate
    gates: Mapping[str, bool] = field(default_factory=dict)


def kubelet(settings: KubeletSettings) -> str:
    """kubelet's configuration. Every field is known to 1.32 and to 1.36."""
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.address,
        "readOnlyPort": 0,
        "tlsCertFile": str(settings.serving.certificate),
        "tlsPrivateKeyFile": str(settings.serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(settings.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": settings.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "volumePluginDir": f"{KUBELET_ROOT}/volume-plugins",
        "resolvConf": "",
        "maxPods": 200,
        # The node shares its disk and memory with the machine: another's use must not evict pods or images.
        "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # Quick to tell and quick to see, as tests wait for it.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "10s",
        "syncFrequency": "10s",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
        "featureGates": dict(settings.gates),
    }
    return yaml.safe_dump(configuration, sort_keys=False)
