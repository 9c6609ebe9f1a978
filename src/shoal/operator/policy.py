"""The ClusterPolicy: NVIDIA's sections with NVIDIA's names, and what Shoal has beside them. Pure.

The structs are the one place where fields, defaults, bounds and words are written. `shoal.operator.crd` makes the
schema of the API server from them, `read_policy` reads what the server has stored, or what somebody wrote.

A field that is marked inert is taken so that NVIDIA's policies are, and does nothing; a policy that sets it has a
problem which says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from shoal.model import quantity
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.operator import SharedResource
from shoal.model.errors import QuantityError, shown
from shoal.operator.fields import PolicyProblem, Problems, Rule, matching, read_struct, said

_LONGEST_PATH: Final = 1024
_LONGEST_NAME: Final = 253
_DAY: Final = 86400
_WEEK: Final = 7 * _DAY

_NAME: Final = matching(
    "([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?",
    "is no name of an object: write small letters, digits, - and ., beginning and ending with a letter or digit",
)
#: A folder of a path: neither . nor .. .
_FOLDER: Final = r"\.{0,2}[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*"
_NO_PATH: Final = "begins with / and has letters, digits and ._+@- only, and no folder . or .."
#: Not the whole file system: what a component owns below it would be the host's.
_PATH: Final = matching(f"(/+{_FOLDER})+/*", f"is no path of a folder on a host: write one that {_NO_PATH}")
_ROOT: Final = matching(f"/|(/+{_FOLDER})+/*", f"is no path of a host: write / or one that {_NO_PATH}")
_REPOSITORY: Final = matching(
    "([A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?)?",
    "is no repository of images: write a registry and a path, such as registry.example.org/gpu, without a tag",
)
_IMAGE: Final = matching(
    "([A-Za-z0-9]([A-Za-z0-9._:/@-]*[A-Za-z0-9])?)?",
    "is no name of an image: write a name such as driver, or a whole reference where repository and version are empty",
)
_VERSION: Final = matching(
    "([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|sha256:[0-9a-f]{64})?",
    "is no version of an image: write a tag, or sha256: and 64 hexadecimal digits",
)
_QUANTITY: Final = matching(
    r"(([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?)?",
    "is no quantity: write a number with a unit, such as 500m or 256Mi",
    plain=True,
)
_UNAVAILABLE: Final = matching(
    "[1-9][0-9]{0,5}|100%|[1-9][0-9]?%",
    "lets no node change, or cannot be read: write a number from 1, such as 1, or a percentage from 1% to 100%",
    numbers=(1, 999_999),
)
_LABEL_VALUE: Final = matching(
    "([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?",
    "is no value of a label: write up to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit",
)
_LABEL_KEY: Final = matching(
    "([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
    "is no key of a label or annotation: write a name of up to 63 characters, with a domain and / before it if need be",
)
_SELECTOR_KEY: Final = "[A-Za-z0-9][A-Za-z0-9._/-]*"
_SELECTOR_TERM: Final = (
    rf" *({_SELECTOR_KEY} +(in|notin) *\([A-Za-z0-9._, -]*\)"
    rf"|{_SELECTOR_KEY} *(==|=|!=) *[A-Za-z0-9._-]*|!? *{_SELECTOR_KEY}) *"
)
#: One that cannot be read is kept: an upgrade then waits for every pod, and drains none by it.
_SELECTOR: Final = matching(
    f" *|{_SELECTOR_TERM}(,{_SELECTOR_TERM})*",
    "is no label selector: write one such as app=batch,tier notin (web, db),!debug, or nothing",
    keep=True,
)
_ENV_NAME: Final = matching(
    "[A-Za-z_][A-Za-z0-9_.-]*",
    "is no name of a variable: write letters, digits, _, - and ., beginning with a letter or _",
)
_URL: Final = matching(
    "(https?://[A-Za-z0-9._:/%\\[\\]-]+)?",
    "is no address of a server: write scheme, host and port, such as http://influxdb:8086, and no password",
)
_DURATION: Final = matching("(([1-9][0-9]{0,8}[smhdw])+|INF)?", "is no duration: write one such as 30d, or nothing")

_NOT_RUN: Final = "Shoal does not run it"
_NO_SANDBOX: Final = (
    "it is for virtual machines, which Shoal does not serve: set enabled to false, or leave it as it is"
)

Key = Annotated[str, said("Key.", longest=317, rule=_LABEL_KEY)]
LabelValue = Annotated[str, said("Value of the label.", longest=63, rule=_LABEL_VALUE)]
AnnotationValue = Annotated[str, said("Value of the annotation.", longest=4096)]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all structs of a policy have in common."""

    #: What must hold of the struct as a whole.
    rules: ClassVar[tuple[Rule, ...]] = ()


_WHOLE_IMAGE: Final = Rule(
    cel=(
        # Defaults of sections are checked before those of their fields are filled in.
        "!has(self.repository) || (self.repository == '' && self.version == '')"
        " || (self.repository != '' && self.image != '' && self.version != '')"
    ),
    holds=lambda image: _half_image(image) == "",
    words="half an image is given: set repository, image and version, or image alone, or none of them",
    expression=(
        '"half an image is given (repository \'" + self.repository + "\', image \'" + self.image + "\', version \'"'
        ' + self.version + "\'): set repository, image and version, or image alone, or none of them"'
    ),
    keep=True,
)


def _half_image(image: ImageFields) -> str:
    """What is missing of an image; empty for a whole one, and for none."""
    if not image.repository and not image.version:
        return ""
    parts = {"repository": image.repository, "image": image.image, "version": image.version}
    return " and ".join(name for name, value in parts.items() if not value)


class ImageFields(_Fields, frozen=True, kw_only=True):
    """An image, in NVIDIA's three parts."""

    rules: ClassVar[tuple[Rule, ...]] = (_WHOLE_IMAGE,)

    repository: Annotated[
        str,
        said(
            "Registry and path of the image, such as registry.example.org/gpu. Set repository, image and version "
            "together; all three empty means the image that the chart names.",
            longest=255,
            rule=_REPOSITORY,
        ),
    ] = ""
    image: Annotated[
        str,
        said(
            "Name of the image. Alone, without repository and version, it is taken as a whole reference.",
            longest=512,
            rule=_IMAGE,
        ),
    ] = ""
    version: Annotated[str, said("Tag of the image, or its digest as sha256:… .", longest=128, rule=_VERSION)] = ""
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], said("When the node pulls the image.")] = (
        "IfNotPresent"
    )
    image_pull_secrets: Annotated[
        tuple[Annotated[str, said("Name of a Secret.", longest=_LONGEST_NAME, rule=_NAME)], ...],
        said("Secrets of the operator's namespace that the registry is asked with.", longest=16),
    ] = ()


class EnvironmentVariable(_Fields, frozen=True, kw_only=True):
    """A variable of a container."""

    name: Annotated[str, said("Name of the variable.", longest=256, rule=_ENV_NAME)]
    value: Annotated[str, said("Value of the variable.", longest=4096, secret=True)] = ""


Environment = Annotated[
    tuple[EnvironmentVariable, ...], said("Variables of the container, beside those it has.", longest=64)
]


class ResourceAmounts(_Fields, frozen=True, kw_only=True):
    """Amounts of what a container takes of its node."""

    cpu: Annotated[
        int | str, said("Cores, such as 500m; empty: as the manifest has it.", longest=32, rule=_QUANTITY)
    ] = ""
    memory: Annotated[
        int | str, said("Memory, such as 256Mi; empty: as the manifest has it.", longest=32, rule=_QUANTITY)
    ] = ""
    ephemeral_storage: Annotated[
        int | str, said("Disk, such as 1Gi; empty: as the manifest has it.", longest=32, rule=_QUANTITY)
    ] = msgspec.field(default="", name="ephemeral-storage")

    def written(self) -> dict[str, str]:
        """As a container has them: only those that are given."""
        amounts = {"cpu": self.cpu, "memory": self.memory, "ephemeral-storage": self.ephemeral_storage}
        return {name: str(amount) for name, amount in amounts.items() if amount != ""}


def _within_limits(needs: ContainerNeeds) -> bool:
    limits = needs.limits.written()
    try:
        return all(
            name not in limits or quantity.parse(request) <= quantity.parse(limits[name])
            for name, request in needs.requests.written().items()
        )
    except QuantityError:
        return False


class ContainerNeeds(_Fields, frozen=True, kw_only=True):
    """Requests and limits of a container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="",  # quantities of text that may be a number cost more than servers before 1.36 let rules cost
            holds=_within_limits,
            words="more is requested than the limit lets, and no pod can be made: request at most the limit",
        ),
    )

    limits: Annotated[ResourceAmounts, said("The most that the container may take.")] = ResourceAmounts()
    requests: Annotated[ResourceAmounts, said("What is set aside for the container.")] = ResourceAmounts()

    def written(self) -> dict[str, dict[str, str]]:
        """As a container has them: empty where nothing is given, and the manifest's own stay."""
        both = {"limits": self.limits.written(), "requests": self.requests.written()}
        return {name: amounts for name, amounts in both.items() if amounts}


class ContainerFields(ImageFields, frozen=True, kw_only=True):
    """What can be said of every component's container."""

    resources: Annotated[ContainerNeeds, said("Requests and limits of the component's container.")] = ContainerNeeds()
    args: Annotated[
        tuple[Annotated[str, said("One argument.", longest=1024)], ...],
        said("Arguments of the container, behind those it has.", longest=64),
    ] = ()
    env: Environment = ()
    host_network: Annotated[bool, said("Run the component's pods in the network of their node.")] = False


class ComponentFields(ContainerFields, frozen=True, kw_only=True):
    """A component that is on unless it is switched off."""

    enabled: Annotated[bool, said("Run this component on GPU nodes.")] = True


class ProbeFields(_Fields, frozen=True, kw_only=True):
    """Times of a probe; 0 leaves what the manifest has."""

    initial_delay_seconds: Annotated[
        int, said("Seconds before the first look; 0: as the manifest has it.", least=0, most=_DAY)
    ] = 0
    timeout_seconds: Annotated[
        int, said("Seconds after which a look counts as failed; 0: as the manifest has it.", least=0, most=_DAY)
    ] = 0
    period_seconds: Annotated[int, said("Seconds between looks; 0: as the manifest has it.", least=0, most=_DAY)] = 0
    success_threshold: Annotated[
        int, said("Looks in a row that must succeed; 0: as the manifest has it.", least=0, most=1000)
    ] = 0
    failure_threshold: Annotated[
        int, said("Looks in a row that must fail; 0: as the manifest has it.", least=0, most=100_000)
    ] = 0

    def written(self) -> dict[str, int]:
        """As a container has them: only those that are given."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if value}


class NameReference(_Fields, frozen=True, kw_only=True):
    """A ConfigMap of the operator's namespace."""

    name: Annotated[
        str, said("Name of the ConfigMap, in the operator's namespace; empty: none.", longest=_LONGEST_NAME, rule=_NAME)
    ] = ""


# --- operator -----------------------------------------------------------------------------------------------------


class ServiceMonitorFields(_Fields, frozen=True, kw_only=True):
    """How Prometheus's operator is told of metrics."""

    enabled: Annotated[bool, said("Make a ServiceMonitor.")] = False
    interval: Annotated[str, said("How often metrics are read, such as 15s.", longest=32)] = ""
    scrape_timeout: Annotated[str, said("How long reading may take, such as 10s.", longest=32)] = ""
    honor_labels: Annotated[bool, said("Whether labels of metrics win over those of the target.")] = False
    additional_labels: Annotated[dict[Key, LabelValue], said("Labels of the ServiceMonitor.", longest=32)] = {}


class OperatorMetricsFields(_Fields, frozen=True, kw_only=True):
    """The operator's own metrics."""

    service_monitor: Annotated[
        ServiceMonitorFields,
        said(
            "NVIDIA's field, without effect: the chart makes ServiceMonitors.",
            inert="the operator makes no ServiceMonitors: set the chart's values for them",
        ),
    ] = ServiceMonitorFields()


_CHART_IMAGE: Final = "every component has its own image: set that component's image"


class OperatorSection(_Fields, frozen=True, kw_only=True):
    """What holds for the operator and for all components."""

    runtime_class: Annotated[
        str,
        said(
            "RuntimeClass that the operator makes, and that components which read cards run under. Empty: the node's "
            "default runtime, and no RuntimeClass is made.",
            longest=_LONGEST_NAME,
            rule=_NAME,
        ),
    ] = "nvidia"
    startup_taint: Annotated[
        bool,
        said(
            "Lift the taint shoal.dev/starting from nodes once they are validated. Whoever makes nodes puts it there, "
            "such as a node group's template, so that no pod starts on a card that does not work yet."
        ),
    ] = False
    labels: Annotated[dict[Key, LabelValue], said("Labels of everything that the operator makes.", longest=32)] = {}
    annotations: Annotated[
        dict[Key, AnnotationValue], said("Annotations of everything that the operator makes.", longest=32)
    ] = {}
    metrics: Annotated[OperatorMetricsFields, said("The operator's own metrics.")] = OperatorMetricsFields()
    default_runtime: Annotated[
        Literal["", "docker", "crio", "containerd"],
        said(
            "NVIDIA's field, without effect there and here: the node tells its runtime.",
            inert="the node's runtime is found out: leave it out",
        ),
    ] = ""
    init_container: Annotated[
        ImageFields,
        said(
            "NVIDIA's old image of init containers, without effect: pods wait in their own image.", inert=_CHART_IMAGE
        ),
    ] = ImageFields()
    use_ocp_driver_toolkit: Annotated[
        bool,
        said(
            "NVIDIA's field for OpenShift, without effect.",
            inert="Shoal builds no drivers on OpenShift: install the driver by other means, and set driver.enabled to "
            "false",
        ),
    ] = msgspec.field(default=False, name="use_ocp_driver_toolkit")


# --- daemonsets ---------------------------------------------------------------------------------------------------


class NodeToleration(_Fields, frozen=True, kw_only=True):
    """A taint that pods of components put up with."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.operator == 'Exists' ? self.value == '' : self.key != ''",
            holds=lambda one: one.value == "" if one.operator == "Exists" else one.key != "",
            words="a toleration with Exists has a value, or one with Equal no key: leave out the value, or write the "
            "key",
        ),
    )

    key: Annotated[str, said("Key of the taint; empty with operator Exists: every taint.", longest=317)] = ""
    operator: Annotated[
        Literal["Exists", "Equal"], said("Whether the taint only has to be there, or must have the value.")
    ] = "Equal"
    value: Annotated[str, said("Value of the taint, with operator Equal.", longest=63, rule=_LABEL_VALUE)] = ""
    effect: Annotated[
        Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"], said("Effect of the taint; empty: every effect.")
    ] = ""

    def written(self) -> dict[str, str]:
        """As a pod has it."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if value}


class RollingUpdateFields(_Fields, frozen=True, kw_only=True):
    """How fast a changed DaemonSet replaces its pods."""

    max_unavailable: Annotated[
        int | str,
        said(
            "Pods of a DaemonSet that may be down at once: a number from 1, or 1% to 100%.",
            longest=8,
            rule=_UNAVAILABLE,
        ),
    ] = "1"


class DaemonsetsSection(_Fields, frozen=True, kw_only=True):
    """What holds for the DaemonSets of all components."""

    labels: Annotated[dict[Key, LabelValue], said("Labels of the pods, beside those they have.", longest=32)] = {}
    annotations: Annotated[
        dict[Key, AnnotationValue], said("Annotations of the pods, beside those they have.", longest=32)
    ] = {}
    tolerations: Annotated[
        tuple[NodeToleration, ...], said("Taints that the pods of all components put up with.", longest=32)
    ] = (NodeToleration(key=nvidia.TAINT_GPU, operator="Exists", effect="NoSchedule"),)
    priority_class_name: Annotated[str, said("PriorityClass of the pods.", longest=_LONGEST_NAME, rule=_NAME)] = (
        "system-node-critical"
    )
    update_strategy: Annotated[
        Literal["RollingUpdate", "OnDelete"],
        said("How changed pods are replaced. Driver and MPS are always OnDelete: their end ends what uses them."),
    ] = "RollingUpdate"
    rolling_update: Annotated[RollingUpdateFields, said("How fast pods are replaced, with RollingUpdate.")] = (
        RollingUpdateFields()
    )


# --- driver -------------------------------------------------------------------------------------------------------


class WaitForCompletionFields(_Fields, frozen=True, kw_only=True):
    """Which pods an upgrade waits for before it evicts."""

    pod_selector: Annotated[
        str,
        said(
            "Pods that may finish first: a label selector, such as app=batch; empty: none.", longest=512, rule=_SELECTOR
        ),
    ] = ""
    timeout_seconds: Annotated[int, said("Seconds they are waited for; 0: for ever.", least=0, most=_WEEK)] = 0


class PodDeletionFields(_Fields, frozen=True, kw_only=True):
    """How pods with cards are evicted."""

    force: Annotated[bool, said("Evict also pods that nothing makes anew.")] = False
    timeout_seconds: Annotated[
        int, said("Seconds after which the node's upgrade counts as failed; 0: never.", least=0, most=_WEEK)
    ] = 300
    delete_empty_dir: Annotated[bool, said("Evict also pods with an emptyDir, whose content is lost.")] = False


class DrainFields(_Fields, frozen=True, kw_only=True):
    """Whether the whole node is drained."""

    enable: Annotated[bool, said("If evicting pods with cards was not enough: evict all pods of the node.")] = False
    force: Annotated[bool, said("Evict also pods that nothing makes anew.")] = False
    pod_selector: Annotated[
        str,
        said(
            "Pods that are evicted: a label selector, such as app=batch,tier!=web; empty: all.",
            longest=512,
            rule=_SELECTOR,
        ),
    ] = ""
    timeout_seconds: Annotated[
        int, said("Seconds after which the node's upgrade counts as failed; 0: never.", least=0, most=_WEEK)
    ] = 300
    delete_empty_dir: Annotated[bool, said("Evict also pods with an emptyDir, whose content is lost.")] = False


class UpgradePolicyFields(_Fields, frozen=True, kw_only=True):
    """How a new driver comes onto nodes."""

    auto_upgrade: Annotated[
        bool,
        said("Bring a changed driver onto nodes, node by node. Off: a pod of the driver changes when it is deleted."),
    ] = True
    max_parallel_upgrades: Annotated[
        int, said("Nodes that are upgraded at once; 0: as many as maxUnavailable lets.", least=0, most=10_000)
    ] = 1
    max_unavailable: Annotated[
        int | str,
        said(
            "GPU nodes that may be down at once, for whatever reason: a number from 1, or 1% to 100% of all, rounded "
            "up.",
            longest=8,
            rule=_UNAVAILABLE,
        ),
    ] = "25%"
    wait_for_completion: Annotated[
        WaitForCompletionFields, said("Pods that may finish before the node is emptied.")
    ] = WaitForCompletionFields()
    pod_deletion: Annotated[PodDeletionFields, said("How pods with cards, of every family, are evicted.")] = (
        PodDeletionFields()
    )
    drain: Annotated[DrainFields, said("Whether the node is drained of all pods.")] = DrainFields()


class DriverManagerFields(ImageFields, frozen=True, kw_only=True):
    """NVIDIA's k8s-driver-manager, which frees the driver before it is changed."""

    env: Environment = ()


class RdmaFields(_Fields, frozen=True, kw_only=True):
    """GPUDirect RDMA."""

    enabled: Annotated[bool, said("Load nvidia-peermem with the driver.")] = False
    use_host_mofed: Annotated[bool, said("Use the network driver that is installed on the host.")] = False


class DriverRepoFields(_Fields, frozen=True, kw_only=True):
    """Package sources of the driver's container."""

    config_map_name: Annotated[
        str, said("ConfigMap with package sources; empty: none.", longest=_LONGEST_NAME, rule=_NAME)
    ] = ""


class LicensingFields(_Fields, frozen=True, kw_only=True):
    """Licences of virtual GPUs."""

    config_map_name: Annotated[
        str, said("ConfigMap with the licence's settings; empty: none.", longest=_LONGEST_NAME, rule=_NAME)
    ] = ""
    secret_name: Annotated[
        str, said("Secret with the licence's settings; empty: none.", longest=_LONGEST_NAME, rule=_NAME)
    ] = ""
    nls_enabled: Annotated[bool, said("Ask NVIDIA's licence system.")] = True


class TopologyFields(_Fields, frozen=True, kw_only=True):
    """Topology of virtual GPUs."""

    config: Annotated[
        str, said("ConfigMap of the topology daemon; empty: none.", longest=_LONGEST_NAME, rule=_NAME)
    ] = ""


_DRIVER_MOUNT: Final = (
    "Shoal gives it to no driver container: build it into an image of your own, and name that image here"
)
_DRIVER_VGPU: Final = "it is for virtual GPUs, which Shoal does not serve: leave it out"


class DriverSection(ComponentFields, frozen=True, kw_only=True):
    """NVIDIA's driver, by NVIDIA's driver image. Nodes that have a driver keep theirs."""

    enabled: Annotated[
        bool, said("Install the driver on GPU nodes that have none. Off: every node brings its own.")
    ] = True
    kernel_module_type: Annotated[
        Literal["auto", "open", "proprietary"], said("Which kernel modules the driver's container builds.")
    ] = "auto"
    startup_probe: Annotated[ProbeFields, said("When the driver's start counts as failed.")] = ProbeFields(
        initial_delay_seconds=60, timeout_seconds=60, period_seconds=10, success_threshold=1, failure_threshold=120
    )
    liveness_probe: Annotated[
        ProbeFields, said("Times of the driver's liveness probe; where all are 0 the manifest's stays.")
    ] = ProbeFields()
    readiness_probe: Annotated[
        ProbeFields, said("Times of the driver's readiness probe; where all are 0 the manifest's stays.")
    ] = ProbeFields()
    upgrade_policy: Annotated[UpgradePolicyFields, said("How a new driver comes onto nodes.")] = UpgradePolicyFields()
    manager: Annotated[
        DriverManagerFields, said("NVIDIA's k8s-driver-manager, which runs before the driver's container.")
    ] = DriverManagerFields()
    secret_env: Annotated[
        str,
        said("Secret whose entries the driver's container has as variables; empty: none.", longest=253, rule=_NAME),
    ] = ""
    use_nvidia_driver_crd: Annotated[
        bool,
        said(
            "NVIDIA's switch to NVIDIADriver objects, without effect.",
            inert="Shoal reads no NVIDIADriver objects: name one driver here, or set driver.enabled to false",
        ),
    ] = msgspec.field(default=False, name="useNvidiaDriverCRD")
    use_precompiled: Annotated[
        bool,
        said(
            "Images with modules for one kernel, without effect.",
            inert="Shoal does not choose driver images by kernel: name an image that builds its modules",
        ),
    ] = False
    use_open_kernel_modules: Annotated[
        bool,
        said("NVIDIA's old field, without effect.", inert="kernelModuleType has taken its place: set that to open"),
    ] = False
    rdma: Annotated[
        RdmaFields,
        said(
            "GPUDirect RDMA, without effect.",
            inert="Shoal loads no nvidia-peermem: load it on the nodes by other means, and leave this false",
        ),
    ] = RdmaFields()
    repo_config: Annotated[
        DriverRepoFields, said("Package sources of the driver's container, without effect.", inert=_DRIVER_MOUNT)
    ] = DriverRepoFields()
    cert_config: Annotated[
        NameReference, said("Certificates of the driver's container, without effect.", inert=_DRIVER_MOUNT)
    ] = NameReference()
    kernel_module_config: Annotated[
        NameReference, said("Parameters of kernel modules, without effect.", inert=_DRIVER_MOUNT)
    ] = NameReference()
    licensing_config: Annotated[
        LicensingFields, said("Licences of virtual GPUs, without effect.", inert=_DRIVER_VGPU)
    ] = LicensingFields()
    virtual_topology: Annotated[
        TopologyFields, said("Topology of virtual GPUs, without effect.", inert=_DRIVER_VGPU)
    ] = TopologyFields()


class ToolkitSection(ComponentFields, frozen=True, kw_only=True):
    """NVIDIA's container toolkit, by NVIDIA's image: the runtime through which containers get cards."""

    enabled: Annotated[
        bool, said("Install the toolkit on GPU nodes. Off: every node's runtime knows NVIDIA's already.")
    ] = True
    install_dir: Annotated[str, said("Where the toolkit lies on the host.", longest=_LONGEST_PATH, rule=_PATH)] = (
        "/usr/local/nvidia"
    )


# --- device plugin, sharing ---------------------------------------------------------------------------------------


class PluginConfigFields(_Fields, frozen=True, kw_only=True):
    """The configuration of NVIDIA's device plugin, which the agent reads too."""

    name: Annotated[
        str,
        said(
            "ConfigMap with configurations of NVIDIA's device plugin, in the operator's namespace; empty: none. The "
            "chart's value devicePlugin.config.name is what lets the agent read it.",
            longest=_LONGEST_NAME,
            rule=_NAME,
        ),
    ] = ""
    default: Annotated[
        str,
        said(
            "Which of its entries holds for nodes without the label nvidia.com/device-plugin.config; empty: none.",
            longest=_LONGEST_NAME,
            rule=matching("[A-Za-z0-9._-]*", "is no entry of a ConfigMap: write letters, digits, -, _ and ."),
        ),
    ] = ""


class MpsRootFields(_Fields, frozen=True, kw_only=True):
    """NVIDIA's folder of MPS."""

    root: Annotated[
        str,
        said(
            "NVIDIA's folder for MPS, without effect: Shoal's daemon is in /tmp/nvidia-mps, where KETI's pods look.",
            longest=_LONGEST_PATH,
            rule=_PATH,
            inert="the MPS daemon is in /tmp/nvidia-mps: leave it out",
        ),
    ] = "/run/nvidia/mps"


class DevicePluginSection(ComponentFields, frozen=True, kw_only=True):
    """Shoal's agent: it serves cards and shares of them to kubelet, and keeps containers to their shares."""

    enabled: Annotated[bool, said("Run Shoal's agent, and its MPS daemon. Off: Shoal serves no card on any node.")] = (
        True
    )
    config: Annotated[
        PluginConfigFields, said("Configurations of NVIDIA's device plugin, for time-slicing of nvidia.com/gpu.")
    ] = PluginConfigFields()
    mps: Annotated[MpsRootFields, said("NVIDIA's settings of MPS.")] = MpsRootFields()


class SharingSection(_Fields, frozen=True, kw_only=True):
    """How cards are shared. Shoal's own section."""

    memory_unit: Annotated[
        Literal["GiB", "MiB"],
        said(
            "What 1 of aliyun.com/gpu-mem means. Scheduler and admission policies have the chart's value: change it "
            "there, where all get it."
        ),
    ] = "GiB"
    resources: Annotated[
        tuple[Annotated[SharedResource, said("A resource.")], ...],
        said("Which resources the agent serves; leave out those that another plugin serves.", longest=3),
    ] = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU)
    claims: Annotated[
        bool,
        said(
            "Offer the cards as claims too (dynamic resource allocation). Rights and folders come with the chart's "
            "value: change it there."
        ),
    ] = False
    mps: Annotated[bool, said("Run MPS daemons, so that shares of compute and of keti.com/mpsgpu are kept.")] = True
    mps_clients: Annotated[int, said("Clients of keti.com/mpsgpu per card.", least=1, most=keti.CLIENTS_MAX)] = (
        keti.CLIENTS_DEFAULT
    )
    isolation: Annotated[
        Literal["auto", "cgroup", "mps-namespace", "mps", "none"],
        said("What keeps containers to their shares: auto takes the best that a node has, any other that one alone."),
    ] = "auto"
    counting: Annotated[
        Literal["auto", "devices", "node-status"],
        said("How units of memory are counted: auto takes devices while their list fits into kubelet's message."),
    ] = "auto"
    device_list_strategy: Annotated[
        Literal["auto", "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"],
        said("How a container is told its cards; auto takes CDI where the node has it."),
    ] = "auto"
    without_allocation: Annotated[
        Literal["choose", "refuse"],
        said("What becomes of a pod that no scheduler of Shoal placed: choose a card on the node, or refuse it."),
    ] = "choose"


# --- metrics, discovery, validator --------------------------------------------------------------------------------


def _speaks_one_api(influx: InfluxFields) -> bool:
    if not influx.url:
        return True
    if influx.api == "v1":
        others = influx.org or influx.bucket or influx.token_file
        return bool(influx.database and not others and bool(influx.username) == bool(influx.password_file))
    return bool(influx.bucket and influx.token_file) and not (
        influx.username or influx.password_file or influx.retention
    )


class InfluxFields(_Fields, frozen=True, kw_only=True):
    """The InfluxDB that KETI's measurements are written to."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.url) || self.url == '' || (self.api == 'v1'"
            " ? self.database != '' && self.org == '' && self.bucket == '' && self.tokenFile == ''"
            " && (self.username == '') == (self.passwordFile == '')"
            " : self.bucket != '' && self.tokenFile != '' && self.username == '' && self.passwordFile == ''"
            " && self.retention == '')",
            holds=_speaks_one_api,
            words="the server is not told in a way that one API takes: write database, and username with passwordFile "
            "or neither, for v1, or bucket and tokenFile for v2",
        ),
    )

    url: Annotated[
        str,
        said(
            "Address of the server, such as http://influxdb:8086; empty: none. It holds no password.",
            longest=512,
            rule=_URL,
            secret=True,
        ),
    ] = ""
    api: Annotated[Literal["v1", "v2"], said("Which of the server's interfaces is spoken.")] = "v1"
    database: Annotated[str, said("v1: the database.", longest=128)] = keti.DATABASE
    retention: Annotated[
        str, said("v1: how long a database that is made keeps points, such as 30d.", longest=64, rule=_DURATION)
    ] = ""
    username: Annotated[str, said("v1: the user.", longest=128)] = ""
    password_file: Annotated[str, said("v1: file in the pod with the password.", longest=_LONGEST_PATH)] = ""
    org: Annotated[str, said("v2: the organisation.", longest=128)] = ""
    bucket: Annotated[str, said("v2: the bucket.", longest=256)] = ""
    token_file: Annotated[str, said("v2: file in the pod with the token.", longest=_LONGEST_PATH)] = ""
    ca_file: Annotated[
        str, said("File in the pod with certificates that the server's is checked against.", longest=_LONGEST_PATH)
    ] = ""


class CollectorFields(_Fields, frozen=True, kw_only=True):
    """Settings of `shoal metrics` that a policy may change."""

    interval_seconds: Annotated[float, said("Seconds between two readings of the cards.", least=0.05, most=300)] = 5.0
    overuse_grace_seconds: Annotated[
        float, said("Seconds of using more than was booked before an Event tells of it.", least=0, most=_DAY)
    ] = 60.0
    pod_labels: Annotated[
        Literal["auto", "always", "never"],
        said("Whether series name pods; auto: while a NetworkPolicy or authentication protects the port."),
    ] = "auto"
    influx: Annotated[InfluxFields, said("The InfluxDB that KETI's measurements are written to.")] = InfluxFields()


class TrafficFields(_Fields, frozen=True, kw_only=True):
    """The Service of the metrics."""

    type: Annotated[Literal["", "ClusterIP", "NodePort", "LoadBalancer"], said("Type of the Service.")] = ""
    internal_traffic_policy: Annotated[
        Literal["", "Cluster", "Local"], said("Which nodes' metrics a caller within the cluster reaches.")
    ] = ""


class JobMappingFields(_Fields, frozen=True, kw_only=True):
    """Jobs of batch systems."""

    enabled: Annotated[bool, said("Read which job has which card.")] = False
    directory: Annotated[str, said("Folder of the host that says so.", longest=_LONGEST_PATH)] = ""


_CHART_SERVICE: Final = "the operator makes none: set the chart's value of the same name"


class DcgmExporterSection(ComponentFields, frozen=True, kw_only=True):
    """Shoal's metrics: what cards and containers use, in dcgm-exporter's names too."""

    enabled: Annotated[bool, said("Run `shoal metrics` on GPU nodes.")] = True
    annotations: Annotated[dict[Key, AnnotationValue], said("Annotations of the pods.", longest=32)] = {}
    config: Annotated[NameReference, said("dcgm-exporter's list of fields to serve, in a ConfigMap.")] = NameReference()
    enable_pod_uid: Annotated[bool, said("Put the pod's UID on the series of its cards.")] = msgspec.field(
        default=False, name="enablePodUID"
    )
    settings: Annotated[CollectorFields, said("Settings of `shoal metrics`.")] = CollectorFields()
    service_monitor: Annotated[
        ServiceMonitorFields,
        said("NVIDIA's field, without effect: the chart makes ServiceMonitors.", inert=_CHART_SERVICE),
    ] = ServiceMonitorFields()
    service: Annotated[
        TrafficFields, said("NVIDIA's field, without effect: the chart makes the Service.", inert=_CHART_SERVICE)
    ] = TrafficFields()
    host_pid: Annotated[
        bool,
        said(
            "NVIDIA's field, without effect: `shoal metrics` sees the host's processes anyway.",
            inert="`shoal metrics` has its own way to see processes: leave it out",
        ),
    ] = msgspec.field(default=False, name="hostPID")
    enable_pod_labels: Annotated[
        bool,
        said(
            "NVIDIA's field, without effect: labels of pods are not put on series.",
            inert="tenants choose the labels of pods: join kube_pod_labels of kube-state-metrics",
        ),
    ] = False
    pod_label_allowlist_regex: Annotated[
        tuple[Annotated[str, said("An expression.", longest=256)], ...],
        said(
            "NVIDIA's field, without effect: labels of pods are not put on series.",
            longest=64,
            inert="tenants choose the labels of pods: join kube_pod_labels of kube-state-metrics",
        ),
    ] = ()
    hpc_job_mapping: Annotated[
        JobMappingFields,
        said(
            "NVIDIA's field, without effect: jobs of batch systems are not read.",
            inert="Shoal reads pods, not jobs of other batch systems: leave it out",
        ),
    ] = JobMappingFields()


class FinderFields(_Fields, frozen=True, kw_only=True):
    """Settings of `shoal discovery` that a policy may change."""

    interval_seconds: Annotated[float, said("Seconds between two readings of the machine.", least=1, most=_DAY)] = 60.0


class GfdSection(ComponentFields, frozen=True, kw_only=True):
    """Shoal's discovery: the labels of GPU feature discovery, and NFD's of the PCI bus."""

    enabled: Annotated[
        bool, said("Run the part of `shoal discovery` that reads cards. Nodes with cards are found without it.")
    ] = True
    settings: Annotated[FinderFields, said("Settings of `shoal discovery`.")] = FinderFields()


class ValidatorCheck(_Fields, frozen=True, kw_only=True):
    """One check of the validator."""

    env: Environment = ()


class InertCheck(_Fields, frozen=True, kw_only=True):
    """A check that Shoal does not have."""

    env: Annotated[
        tuple[EnvironmentVariable, ...],
        said("NVIDIA's field, without effect.", longest=64, inert="Shoal has no such check: leave it out"),
    ] = ()


_CHECK: Final = "Variables of the check's container."


class ValidatorSection(ContainerFields, frozen=True, kw_only=True):
    """Shoal's validator: checks driver, runtime and plugin on each node, and says which step waits for what."""

    driver: Annotated[ValidatorCheck, said(_CHECK)] = ValidatorCheck()
    toolkit: Annotated[ValidatorCheck, said(_CHECK)] = ValidatorCheck()
    cuda: Annotated[ValidatorCheck, said(_CHECK)] = ValidatorCheck()
    plugin: Annotated[ValidatorCheck, said(_CHECK)] = ValidatorCheck()
    vfio_pci: Annotated[InertCheck, said("NVIDIA's check of virtual machines, without effect.")] = msgspec.field(
        default=InertCheck(), name="vfioPCI"
    )
    vgpu_manager: Annotated[InertCheck, said("NVIDIA's check of virtual GPUs, without effect.")] = InertCheck()
    vgpu_devices: Annotated[InertCheck, said("NVIDIA's check of virtual GPUs, without effect.")] = InertCheck()


# --- MIG, CDI, paths ----------------------------------------------------------------------------------------------


class MigSection(_Fields, frozen=True, kw_only=True):
    """How cards with MIG are shown."""

    strategy: Annotated[
        Literal["none", "single", "mixed"],
        said("How MIG devices are told as resources and labels: not at all, as nvidia.com/gpu, or by their profile."),
    ] = "single"


class CdiSection(_Fields, frozen=True, kw_only=True):
    """The Container Device Interface."""

    enabled: Annotated[
        bool, said("Make the RuntimeClasses nvidia-cdi and nvidia-legacy too, and let the toolkit write CDI specs.")
    ] = True
    default: Annotated[
        bool,
        said("NVIDIA's old field, without effect.", inert="it does nothing in NVIDIA's operator either: leave it out"),
    ] = False
    nri_plugin_enabled: Annotated[
        bool,
        said(
            "NVIDIA's NRI plugin, without effect.",
            inert="Shoal puts cards into containers by CDI: leave it false",
        ),
    ] = False


class HostPathsSection(_Fields, frozen=True, kw_only=True):
    """Where things lie on hosts."""

    root_fs: Annotated[str, said("The host's root.", longest=_LONGEST_PATH, rule=_ROOT)] = msgspec.field(
        default="/", name="rootFS"
    )
    driver_install_dir: Annotated[
        str, said("Where the driver's container puts the driver.", longest=_LONGEST_PATH, rule=_PATH)
    ] = "/run/nvidia/driver"
    kubelet_root_dir: Annotated[
        str, said("kubelet's folder; change it where kubelet has --root-dir.", longest=_LONGEST_PATH, rule=_PATH)
    ] = "/var/lib/kubelet"


# --- what NVIDIA's operator has and Shoal does not ----------------------------------------------------------------


class InertFields(ContainerFields, frozen=True, kw_only=True):
    """A component that Shoal does not have. Its fields are taken and do nothing."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    enabled: Annotated[bool, said("NVIDIA's switch of the component, without effect.")] = False


class InertManagerFields(InertFields, frozen=True, kw_only=True):
    """A component with a driver manager."""

    driver_manager: Annotated[
        DriverManagerFields, said("NVIDIA's driver manager of the component, without effect.")
    ] = DriverManagerFields()
    kernel_module_config: Annotated[NameReference, said("Parameters of kernel modules, without effect.")] = (
        NameReference()
    )


class InertConfigFields(_Fields, frozen=True, kw_only=True):
    """A ConfigMap and an entry of it."""

    name: Annotated[str, said("Name of the ConfigMap, without effect.", longest=_LONGEST_NAME)] = ""
    default: Annotated[str, said("Entry of the ConfigMap, without effect.", longest=_LONGEST_NAME)] = ""


class MigManagerSection(InertFields, frozen=True, kw_only=True):
    """NVIDIA's MIG manager."""

    config: Annotated[InertConfigFields, said("Layouts of MIG, without effect.")] = InertConfigFields()
    gpu_clients_config: Annotated[NameReference, said("Clients of cards, without effect.")] = NameReference()


class VgpuDeviceManagerSection(InertFields, frozen=True, kw_only=True):
    """NVIDIA's manager of virtual GPUs."""

    config: Annotated[InertConfigFields, said("Layouts of virtual GPUs, without effect.")] = InertConfigFields()


class DcgmSection(InertFields, frozen=True, kw_only=True):
    """NVIDIA's DCGM as a service of its own."""

    host_port: Annotated[int, said("Port on the host, without effect.", least=0, most=65535)] = 0


class KataConfigFields(_Fields, frozen=True, kw_only=True):
    """Settings of NVIDIA's Kata manager."""

    artifacts_dir: Annotated[str, said("Folder of the host, without effect.", longest=_LONGEST_PATH)] = ""


class KataManagerSection(InertFields, frozen=True, kw_only=True):
    """NVIDIA's Kata manager."""

    config: Annotated[KataConfigFields, said("Settings of the manager, without effect.")] = KataConfigFields()


class CcManagerSection(InertFields, frozen=True, kw_only=True):
    """NVIDIA's manager of confidential computing."""

    default_mode: Annotated[
        Literal["", "on", "off", "devtools"], said("Mode of confidential computing, without effect.")
    ] = ""


class SwitchFields(_Fields, frozen=True, kw_only=True):
    """A switch that does nothing."""

    enabled: Annotated[bool, said("NVIDIA's switch, without effect.")] = False


_NO_MACHINES: Final = Rule(
    cel="!self",
    holds=lambda enabled: not enabled,
    words="Shoal runs containers on cards, no virtual machines: set sandboxWorkloads.enabled to false, and leave nodes "
    "with virtual machines to NVIDIA's operator",
)


class SandboxSection(_Fields, frozen=True, kw_only=True):
    """Virtual machines on cards: refused."""

    enabled: Annotated[bool, said("Virtual machines on cards. Only false is taken.", rule=_NO_MACHINES)] = False
    default_workload: Annotated[
        Literal["container", "vm-passthrough", "vm-vgpu"],
        said(
            "What nodes without the label nvidia.com/gpu.workload.config are for, without effect.",
            inert="Shoal runs containers alone: write container",
        ),
    ] = "container"
    mode: Annotated[Literal["kubevirt", "kata"], said("Which virtual machines, without effect.")] = "kubevirt"


# --- the whole ----------------------------------------------------------------------------------------------------


class ClusterPolicySpec(_Fields, frozen=True, kw_only=True):
    """What is wished of a cluster's GPU nodes."""

    operator: Annotated[OperatorSection, said("What holds for the operator and for all components.")] = (
        OperatorSection()
    )
    daemonsets: Annotated[DaemonsetsSection, said("What holds for the DaemonSets of all components.")] = (
        DaemonsetsSection()
    )
    driver: Annotated[
        DriverSection, said("NVIDIA's driver, by NVIDIA's image. Nodes that have a driver keep theirs.")
    ] = DriverSection()
    toolkit: Annotated[ToolkitSection, said("NVIDIA's container toolkit, by NVIDIA's image.")] = ToolkitSection()
    device_plugin: Annotated[
        DevicePluginSection, said("Shoal's agent: it serves cards, and shares of them, to kubelet.")
    ] = DevicePluginSection()
    sharing: Annotated[SharingSection, said("How cards are shared. Shoal's own section.")] = SharingSection()
    dcgm_exporter: Annotated[DcgmExporterSection, said("Shoal's metrics, in dcgm-exporter's names too.")] = (
        DcgmExporterSection()
    )
    gfd: Annotated[GfdSection, said("Shoal's discovery: the labels of GPU feature discovery.")] = GfdSection()
    validator: Annotated[
        ValidatorSection, said("Shoal's validator: it checks driver, runtime and plugin on each node.")
    ] = ValidatorSection()
    mig: Annotated[MigSection, said("How cards with MIG are shown.")] = MigSection()
    cdi: Annotated[CdiSection, said("The Container Device Interface.")] = CdiSection()
    host_paths: Annotated[HostPathsSection, said("Where things lie on hosts.")] = HostPathsSection()
    sandbox_workloads: Annotated[SandboxSection, said("Virtual machines on cards, which Shoal does not serve.")] = (
        SandboxSection()
    )
    psa: Annotated[
        SwitchFields,
        said(
            "Labels for Pod Security Admission, without effect.",
            inert="the operator labels no namespaces: run kubectl label namespace NAME "
            "pod-security.kubernetes.io/enforce=privileged",
        ),
    ] = SwitchFields()
    psp: Annotated[
        SwitchFields,
        said("PodSecurityPolicies, which Kubernetes has no more.", inert="Kubernetes has none any more: leave it out"),
    ] = SwitchFields()
    dcgm: Annotated[
        DcgmSection,
        said(
            "NVIDIA's DCGM, without effect: Shoal's metrics read the driver themselves.",
            inert=f"{_NOT_RUN}: leave it off, Shoal's metrics read the driver themselves",
        ),
    ] = DcgmSection()
    mig_manager: Annotated[
        MigManagerSection,
        said(
            "NVIDIA's MIG manager, without effect: Shoal serves MIG devices as it finds them.",
            inert=f"{_NOT_RUN}: set enabled to false, and partition cards with nvidia-smi mig or NVIDIA's mig-parted",
        ),
    ] = MigManagerSection()
    node_status_exporter: Annotated[
        InertFields,
        said(
            "NVIDIA's exporter of validation results, without effect.",
            inert=f"{_NOT_RUN}: leave it off, the status of this policy tells what nodes wait for",
        ),
    ] = InertFields()
    gds: Annotated[
        InertFields,
        said(
            "GPUDirect Storage, without effect.",
            inert=f"{_NOT_RUN}: install nvidia-fs on the nodes by other means, and set enabled to false",
        ),
    ] = InertFields()
    gdrcopy: Annotated[
        InertFields,
        said(
            "GDRCopy, without effect.",
            inert=f"{_NOT_RUN}: install gdrdrv on the nodes by other means, and set enabled to false",
        ),
    ] = InertFields()
    vfio_manager: Annotated[InertManagerFields, said("NVIDIA's VFIO manager, without effect.", inert=_NO_SANDBOX)] = (
        InertManagerFields()
    )
    vgpu_manager: Annotated[InertManagerFields, said("NVIDIA's vGPU manager, without effect.", inert=_NO_SANDBOX)] = (
        InertManagerFields()
    )
    vgpu_device_manager: Annotated[
        VgpuDeviceManagerSection, said("NVIDIA's vGPU device manager, without effect.", inert=_NO_SANDBOX)
    ] = VgpuDeviceManagerSection()
    sandbox_device_plugin: Annotated[
        InertFields, said("NVIDIA's device plugin for virtual machines, without effect.", inert=_NO_SANDBOX)
    ] = InertFields()
    kata_sandbox_device_plugin: Annotated[
        InertFields, said("NVIDIA's device plugin for Kata, without effect.", inert=_NO_SANDBOX)
    ] = InertFields()
    kata_manager: Annotated[
        KataManagerSection, said("NVIDIA's Kata manager, without effect there and here.", inert=_NO_SANDBOX)
    ] = KataManagerSection()
    cc_manager: Annotated[
        CcManagerSection,
        said(
            "NVIDIA's manager of confidential computing, without effect.",
            inert=f"{_NOT_RUN}: set the mode of cards by other means, and enabled to false",
        ),
    ] = CcManagerSection()


@dataclass(frozen=True, slots=True)
class PolicyReading:
    """A policy as it is in force, and what of it is not."""

    spec: ClusterPolicySpec
    problems: tuple[PolicyProblem, ...] = ()


def read_policy(raw: object) -> PolicyReading:
    """A policy, the whole object. Whatever is wrong with it, the rest is read; nothing is raised."""
    problems = Problems()
    if not isinstance(raw, Mapping):
        problems.add(PolicyProblem("policy", shown(raw), "is no object", "write apiVersion, kind, metadata and spec"))
        return PolicyReading(ClusterPolicySpec(), problems.told())
    spec = raw.get("spec")
    read = read_struct(ClusterPolicySpec, {} if spec is None else spec, "spec", problems) or ClusterPolicySpec()
    return PolicyReading(read, problems.told())


def components(spec: ClusterPolicySpec) -> tuple[tuple[str, ContainerFields], ...]:
    """The sections that Shoal runs, by their names in a policy, in the order in which a node needs them."""
    return (
        ("driver", spec.driver),
        ("toolkit", spec.toolkit),
        ("devicePlugin", spec.device_plugin),
        ("gfd", spec.gfd),
        ("dcgmExporter", spec.dcgm_exporter),
        ("validator", spec.validator),
    )


def image_reference(image: ImageFields, fallback: str, *, suffix: str = "") -> str | None:
    """The image to run: of the three parts, of `image` alone, or the fallback; None for half an image.

    Whoever gets None leaves the component as it is: `read_policy` has told the problem. NVIDIA's driver images have the
    node's system behind their version, which is the suffix: `595.91.07-ubuntu24.04`. A digest has none.
    """
    if _half_image(image):
        return None
    if not image.repository:
        return image.image or fallback
    if image.version.startswith("sha256:"):
        return f"{image.repository}/{image.image}@{image.version}"
    return f"{image.repository}/{image.image}:{image.version}{f'-{suffix}' if suffix else ''}"


#: Variables of NVIDIA's driver manager that say how it evicts.
_SUPERSEDED: Final = (
    nvidia.ENV_AUTO_DRAIN,
    *("DRAIN_USE_FORCE", "DRAIN_POD_SELECTOR_LABEL", "DRAIN_TIMEOUT_SECONDS", "DRAIN_DELETE_EMPTYDIR_DATA"),
)
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,6}").fullmatch


def unavailable_nodes(value: int | str, total: int) -> int:
    """How many of all nodes may be down: a number, or a percentage, rounded up. At least one, or nothing changes."""
    text = str(value)
    if text.endswith("%") and _WHOLE_NUMBER(text[:-1]):
        return max(1, -(-total * int(text[:-1]) // 100))
    return max(1, int(text)) if _WHOLE_NUMBER(text) else 1


def config_maps(spec: ClusterPolicySpec) -> tuple[tuple[str, str], ...]:
    """The ConfigMaps that components in force read: field and name."""
    found = []
    if spec.device_plugin.enabled and spec.device_plugin.config.name:
        found.append(("spec.devicePlugin.config.name", spec.device_plugin.config.name))
    if spec.dcgm_exporter.enabled and spec.dcgm_exporter.config.name:
        found.append(("spec.dcgmExporter.config.name", spec.dcgm_exporter.config.name))
    return tuple(found)


def missing_config_maps(spec: ClusterPolicySpec, present: frozenset[str]) -> tuple[PolicyProblem, ...]:
    """A problem for each ConfigMap that is named and is not there."""
    return tuple(
        PolicyProblem(
            field,
            shown(name),
            "there is no such ConfigMap in the operator's namespace",
            f"make ConfigMap {name}, or leave the field empty",
        )
        for field, name in config_maps(spec)
        if name not in present
    )


def evicts_at_restart(manager: DriverManagerFields) -> bool:
    """Whether pods with GPUs are evicted when a driver's pod restarts outside an upgrade: NVIDIA's variable says no."""
    values = {one.name: one.value for one in manager.env}
    return values.get(nvidia.ENV_GPU_POD_EVICTION, "true").lower() not in ("false", "f", "0")


def superseded_variables(spec: ClusterPolicySpec) -> tuple[PolicyProblem, ...]:
    """A problem for each variable of the driver manager that does nothing, since the operator evicts in its place."""
    return tuple(
        PolicyProblem(
            f"spec.driver.manager.env[{number}]",
            shown(one.name),
            "the operator evicts pods, and the driver manager's account cannot",
            "set spec.driver.upgradePolicy.podDeletion or .drain, and leave the variable out",
            "ignored",
        )
        for number, one in enumerate(spec.driver.manager.env)
        if one.name in _SUPERSEDED
    )


def written(spec: ClusterPolicySpec) -> dict[str, Any]:
    """The spec as the API server stores it, with every default."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec))
    return made
