"""Pods and bindings, as far as a GPU scheduler, a node daemon and a command line read them."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.kube.objects.meta import Base, Object, ObjectMeta, ObjectReference

#: The server sends text; files written by people hold bare numbers too.
Quantities = dict[str, str | int | float]


class ContainerClaim(Base, frozen=True, kw_only=True):
    """A claim of the pod that the container uses, or one request of it."""

    name: str = ""
    request: str = ""


class Resources(Base, frozen=True, kw_only=True):
    """Amounts of a container or a pod, and the claims of a container."""

    limits: Quantities = msgspec.field(default_factory=dict)
    requests: Quantities = msgspec.field(default_factory=dict)
    claims: tuple[ContainerClaim, ...] = ()


class ContainerPort(Base, frozen=True, kw_only=True):
    """A port a container names."""

    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class Container(Base, frozen=True, kw_only=True):
    """A container or init container."""

    name: str = ""
    image: str = ""
    restart_policy: str | None = None
    resources: Resources = Resources()
    ports: tuple[ContainerPort, ...] = ()


class Toleration(Base, frozen=True, kw_only=True):
    """A taint the pod puts up with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SchedulingGate(Base, frozen=True, kw_only=True):
    """A reason not to schedule the pod yet."""

    name: str = ""


class ClaimVolume(Base, frozen=True, kw_only=True):
    """A claim that is mounted."""

    claim_name: str = ""


class EphemeralVolume(Base, frozen=True, kw_only=True):
    """A claim that comes and goes with the pod, named after pod and volume. What it asks for is in the claim."""


class EmptyDirVolume(Base, frozen=True, kw_only=True):
    """A folder of the node that goes with the pod; medium `Memory` is none on its disk."""

    medium: str = ""


class PodResourceClaim(Base, frozen=True, kw_only=True):
    """A claim of devices (dynamic resource allocation), by its own name or by that of a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class Volume(Base, frozen=True, kw_only=True):
    """A volume of a pod; all sources but claims and the pod's own folders are left out."""

    name: str = ""
    empty_dir: EmptyDirVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None
    ephemeral: EphemeralVolume | None = None


class PodSpec(Base, frozen=True, kw_only=True):
    """What the pod asks for. `affinity` and topology constraints stay as they came."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    restart_policy: str = ""
    service_account_name: str = ""
    termination_grace_period_seconds: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources | None = None
    overhead: Quantities = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()


class PodCondition(Base, frozen=True, kw_only=True):
    """One condition of a pod."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class ContainerRunning(Base, frozen=True, kw_only=True):
    """Since when a container runs."""

    started_at: str | None = None


class ContainerWaiting(Base, frozen=True, kw_only=True):
    """Why a container does not run yet."""

    reason: str | None = None
    message: str | None = None


class ContainerTerminated(Base, frozen=True, kw_only=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str | None = None
    message: str | None = None


class ContainerState(Base, frozen=True, kw_only=True):
    """At most one of the three."""

    running: ContainerRunning | None = None
    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


class LinuxContainerUser(Base, frozen=True, kw_only=True):
    """The user of a container's first process."""

    uid: int | None = None


class ContainerUser(Base, frozen=True, kw_only=True):
    """Who a container's first process ran as, where kubelet says so (1.31 and newer)."""

    linux: LinuxContainerUser | None = None


class ContainerStatus(Base, frozen=True, kw_only=True):
    """What kubelet says of a container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    container_id: str = msgspec.field(default="", name="containerID")
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None
    user: ContainerUser | None = None


class PodResourceClaimStatus(Base, frozen=True, kw_only=True):
    """The claim that was made of a template for the pod; without a name none was needed."""

    name: str = ""
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(Base, frozen=True, kw_only=True):
    """By which request of a claim a container gets an extended resource."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodExtendedResourceClaimStatus(Base, frozen=True, kw_only=True):
    """The claim that was made of the pod's extended resources."""

    resource_claim_name: str = ""
    request_mappings: tuple[ContainerExtendedResourceRequest, ...] = ()


class PodStatus(Base, frozen=True, kw_only=True):
    """What became of the pod."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


class Pod(Object, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Binding(Base, frozen=True, kw_only=True):
    """The write that gives a pod its node; annotations and labels go onto the pod with it."""

    metadata: ObjectMeta = ObjectMeta()
    target: ObjectReference = ObjectReference()
