"""What a pod's spec says to the scheduler, read once per template: amounts, ports, affinity, node selector, spread.

Pods of one template share one `PodInfo` and one `PodConstraints` object. Their keys are made of the fields that are
read, so names and most labels, which differ from pod to pod, do not matter. Nothing raises: a spec that cannot be read
becomes constraints with a `fault`, which no node can meet.

Amounts are whole: thousandths for CPU, bytes or pieces for the rest, summed exactly and rounded up once. A resize of a
running pod that only its status tells about is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeVar

import msgspec

from shoal.kube.objects.pod import Container, Pod, PodSpec, Quantities, Toleration
from shoal.kube.selectors import NodeSelector, NodeSelectorTerm, labels_term, node_selector, node_term
from shoal.model import quantity
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import gpushare, keti, kubernetes, mechanisms
from shoal.model.errors import QuantityError
from shoal.model.request import ContainerKind, phases
from shoal.scheduler.feasibility.affinity import (
    PodAffinity,
    RawAffinity,
    RawNodeAffinity,
    RawTopologySpreadConstraint,
    TopologySpreadConstraint,
    pod_affinity,
    spread_constraint,
)

#: Templates remembered; those unused for longest are forgotten beyond it.
_TEMPLATES: Final = 10_000
#: A template with this field has the pod's labels in its key: their values go into its selectors.
_BY_LABELS: Final = b"matchLabelKeys"

#: What is read of a pod's constraints, as JSON: a tenant can write 1.5 MB of them, and every decision goes through them
#: for each node and pod. This is room for some 300 terms, or 1,000 names of nodes.
MAX_CONSTRAINTS: Final = 32 << 10
#: In the message for a pod with more.
_TOO_LONG: Final = (
    "{what} take {length} bytes, of which at most {most} are read: write fewer terms, containers or volumes"
)

_encode = msgspec.json.Encoder().encode
T = TypeVar("T")
NO_AFFINITY: Final = PodAffinity()

#: No node has more of anything; what asks for more fits nowhere. 64 bits hold the sum of a thousand such pods.
MOST: Final = 2**53
#: An amount that no node has.
_TOO_MUCH: Final = 2**62

_OF_THE_POD: Final = frozenset((kubernetes.RESOURCE_CPU, kubernetes.RESOURCE_MEMORY))
_PLAIN: Final = frozenset((kubernetes.RESOURCE_CPU, kubernetes.RESOURCE_MEMORY, kubernetes.RESOURCE_STORAGE))
_ANY_ADDRESS: Final = "0.0.0.0"
_ALWAYS: Final = "Always"

#: Amounts by resource, in kube-scheduler's order: CPU, memory, storage, then the others by name. None is zero.
ResourceRequests = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that one pod can have."""

    protocol: str
    number: int
    address: str

    def clashes(self, address: str) -> bool:
        """Whether a pod that has the port on this address is in conflict with this one."""
        return self.address in (_ANY_ADDRESS, address) or address == _ANY_ADDRESS


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """The host's ports the pod holds while it runs."""
    running = [c for c in spec.init_containers if c.restart_policy == _ALWAYS]
    return tuple(
        HostPort(port.protocol or "TCP", port.host_port, port.host_ip or _ANY_ADDRESS)
        for container in (*running, *spec.containers)
        for port in container.ports
        if port.host_port > 0
    )


def resource_requests(spec: PodSpec) -> ResourceRequests:
    """The amounts the pod needs. Raises QuantityError for one that cannot be read."""
    each = (
        *(
            (ContainerKind.SIDECAR if c.restart_policy == _ALWAYS else ContainerKind.INIT, _requested(c))
            for c in spec.init_containers
        ),
        *((ContainerKind.APP, _requested(c)) for c in spec.containers),
    )
    total: dict[str, Fraction] = {}
    for phase in phases(each):
        for name, amount in _sum(phase).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    if spec.resources is not None:
        limits, requests = _whole_pod(spec.resources.limits), _whole_pod(spec.resources.requests)
        total = {**limits, **total, **requests}
    wanted = ((name, units(name, amount)) for name, amount in _sum((total, _parsed(spec.overhead))).items())
    return tuple(sorted(((name, amount) for name, amount in wanted if amount > 0 and counted(name)), key=_order))


def _requested(container: Container) -> dict[str, Fraction]:
    return _parsed({**container.resources.limits, **container.resources.requests})


def _whole_pod(amounts: Quantities) -> dict[str, Fraction]:
    return {
        name: amount
        for name, amount in _parsed(amounts).items()
        if name in _OF_THE_POD or name.startswith(kubernetes.PREFIX_HUGE_PAGES)
    }


def _parsed(amounts: Quantities) -> dict[str, Fraction]:
    return {name: quantity.parse(value) for name, value in amounts.items()}


def _sum(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total


def counted(resource: str) -> bool:
    """Whether this resource is compared with what nodes have: as kube-scheduler does, but for compute.

    Few nodes publish compute, and the ledger counts it by card; kube-scheduler is told to pass it over, too.
    """
    if resource == gpushare.RESOURCE_COMPUTE:
        return False
    if resource in _PLAIN or resource.startswith((kubernetes.PREFIX_HUGE_PAGES, kubernetes.PREFIX_ATTACHABLE)):
        return True
    return "/" in resource and not resource.startswith(kubernetes.PREFIX_QUOTA)


def units(resource: str, value: object) -> int:
    """A quantity in the unit its resource is counted in, rounded up."""
    amount = quantity.parse(value)
    whole = math.ceil(amount * 1000 if resource == kubernetes.RESOURCE_CPU else amount)
    return whole if whole <= MOST else _TOO_MUCH


def _order(need: tuple[str, int]) -> tuple[int, str]:
    name = need[0]
    plain = (kubernetes.RESOURCE_CPU, kubernetes.RESOURCE_MEMORY, kubernetes.RESOURCE_STORAGE)
    return (plain.index(name) if name in plain else len(plain), name)


@dataclass(frozen=True, slots=True, eq=False)
class PodInfo:
    """What other pods have to know of a pod on a node: what it takes, and its pod affinity."""

    requests: ResourceRequests
    ports: tuple[HostPort, ...]
    affinity: PodAffinity
    #: Why the manifest cannot be read: the filter that would have, and its words.
    fault: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class MountedClaim:
    """A claim the pod mounts. One that comes with the pod must be owned by it."""

    name: str
    owner: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class RequiredNodeAffinity:
    """The nodes a pod may run on: its node selector and its required node affinity."""

    labels: NodeSelectorTerm | None
    affinity: NodeSelector | None


@dataclass(frozen=True, slots=True, eq=False)
class PodConstraints:
    """What decides where a waiting pod may run."""

    namespace: str
    info: PodInfo
    #: The only nodes it may run on, by name: all that are set must agree.
    node_names: tuple[str, ...]
    node_affinity: RequiredNodeAffinity
    tolerations: tuple[Toleration, ...]
    required_spread: tuple[TopologySpreadConstraint, ...]
    preferred_spread: tuple[TopologySpreadConstraint, ...]
    preferred_nodes: tuple[tuple[NodeSelectorTerm, int], ...]
    claims: tuple[MountedClaim, ...]
    #: The names by which it asks for cards, and why it cannot have them by claims; empty if it can.
    names: tuple[str, ...] = ()
    not_by_claims: str = ""
    #: As in `PodInfo`.
    fault: tuple[str, str] | None = None


class PodReader:
    """Reads pods, each template once."""

    def __init__(self) -> None:
        self._infos: BoundedCache[bytes, PodInfo] = BoundedCache(_TEMPLATES)
        self._constraints: BoundedCache[bytes, PodConstraints] = BoundedCache(_TEMPLATES)

    def info(self, pod: Pod) -> PodInfo:
        """The pod as other pods have to know it."""
        meta, spec = pod.metadata, pod.spec
        affinity = spec.affinity
        around = b""
        if affinity is not None:
            around = _encode((meta.namespace, affinity.get("podAffinity"), affinity.get("podAntiAffinity")))
        key = _encode(_amounts(spec)) + around
        if _BY_LABELS in key:
            key += _encode(meta.labels)
        if len(key) > MAX_CONSTRAINTS:  # what is kept of them would have no bound
            return _read_info(pod, affinity_bytes=len(around))
        return self._infos.of(key, lambda: _read_info(pod))

    def constraints(self, pod: Pod) -> PodConstraints:
        """What decides where the pod may run."""
        meta, spec = pod.metadata, pod.spec
        claims, node_names = _claims(pod), _node_names(pod)
        key = _encode(
            (
                meta.namespace,
                _amounts(spec),
                spec.affinity,
                spec.node_selector,
                spec.tolerations,
                spec.topology_spread_constraints,
                [(claim.name, claim.owner) for claim in claims],
                node_names,
            )
        )
        if _BY_LABELS in key:
            key += _encode(meta.labels)
        if len(key) > MAX_CONSTRAINTS:
            return self._too_long(meta.namespace, len(key))
        return self._constraints.of(key, lambda: self._read_constraints(pod, claims, node_names))

    def _too_long(self, namespace: str, length: int) -> PodConstraints:
        """The constraints of a pod that has too many of them: no node meets them."""
        words = _TOO_LONG.format(what="the pod's constraints", length=length, most=MAX_CONSTRAINTS)
        fault = ("NodeAffinity", words)
        return self._constraints.of(
            _encode((namespace, length)),
            lambda: PodConstraints(
                namespace=namespace,
                info=PodInfo((), (), NO_AFFINITY, fault),
                node_names=(),
                node_affinity=RequiredNodeAffinity(None, None),
                tolerations=(),
                required_spread=(),
                preferred_spread=(),
                preferred_nodes=(),
                claims=(),
                fault=fault,
            ),
        )

    def _read_constraints(
        self, pod: Pod, claims: tuple[MountedClaim, ...], node_names: tuple[str, ...]
    ) -> PodConstraints:
        spec, info = pod.spec, self.info(pod)
        fault = info.fault
        node, constraints = RawNodeAffinity(), tuple[RawTopologySpreadConstraint, ...]()
        try:
            node = _converted((spec.affinity or {}).get("nodeAffinity") or {}, RawNodeAffinity, "NodeAffinity")
            constraints = _converted(
                spec.topology_spread_constraints, tuple[RawTopologySpreadConstraint, ...], "PodTopologySpread"
            )
        except _UnreadableError as error:
            fault = fault or (error.filter, str(error))
        required = node.required_during_scheduling_ignored_during_execution
        preferred = node.preferred_during_scheduling_ignored_during_execution or ()
        return PodConstraints(
            namespace=pod.metadata.namespace,
            info=info,
            node_names=node_names,
            node_affinity=RequiredNodeAffinity(
                labels_term(spec.node_selector) if spec.node_selector else None,
                None if required is None else node_selector(required.node_selector_terms or ()),
            ),
            tolerations=spec.tolerations,
            required_spread=_spreads(constraints, pod, "DoNotSchedule"),
            preferred_spread=_spreads(constraints, pod, "ScheduleAnyway"),
            preferred_nodes=tuple(
                (term, item.weight)
                for item in preferred
                if item.weight and (term := node_term(item.preference)) is not None
            ),
            claims=claims,
            names=tuple(name for name, _ in info.requests if name in mechanisms.NAMES),
            not_by_claims=_not_by_claims(spec),
            fault=fault,
        )


class _UnreadableError(ValueError):
    """A part of a pod's spec that is not of its type."""

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(message)
        self.filter = plugin


def _converted(raw: Any, into: type[T], plugin: str) -> T:
    try:
        return msgspec.convert(raw, into)
    except msgspec.ValidationError as error:
        raise _UnreadableError(plugin, f"parsing pod: {error}") from error


def _amounts(spec: PodSpec) -> tuple[object, ...]:
    containers = [(c.resources, c.ports) for c in spec.containers]
    first = [(c.restart_policy, c.resources, c.ports) for c in spec.init_containers]
    return containers, first, spec.resources, spec.overhead


def _read_info(pod: Pod, *, affinity_bytes: int = 0) -> PodInfo:
    """`affinity_bytes` is the length of the pod's affinity to pods, where it may be too long."""
    wanted: ResourceRequests = ()
    around, fault = NO_AFFINITY, None
    try:
        wanted = resource_requests(pod.spec)
    except QuantityError as error:
        fault = ("NodeResourcesFit", str(error))
    if affinity_bytes > MAX_CONSTRAINTS:
        words = _TOO_LONG.format(what="the pod's affinity to pods", length=affinity_bytes, most=MAX_CONSTRAINTS)
        fault = ("InterPodAffinity", words)
    elif pod.spec.affinity:
        try:
            raw = _converted(pod.spec.affinity, RawAffinity, "InterPodAffinity")
            around = pod_affinity(raw, pod.metadata.namespace, pod.metadata.labels)
        except _UnreadableError as error:
            fault = (error.filter, str(error))
    return PodInfo(wanted, host_ports(pod.spec), around, fault)


def _not_by_claims(spec: PodSpec) -> str:
    """Why the pod cannot have its cards by a claim that is made of its names; empty if it can."""
    for container in spec.init_containers:
        if container.restart_policy != _ALWAYS and mechanisms.BY_NUMBER & container.resources.limits.keys():
            return "init containers cannot have cards so"
    for container in (*spec.init_containers, *spec.containers):
        limits = container.resources.limits
        if gpushare.RESOURCE_COMPUTE in limits and gpushare.RESOURCE_MEMORY not in limits:
            return "compute without memory cannot be had so"
        if mechanisms.BY_NUMBER & container.resources.requests.keys() - limits.keys():
            return "cards are had so by limits only"
    return ""


def _claims(pod: Pod) -> tuple[MountedClaim, ...]:
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(MountedClaim(volume.persistent_volume_claim.claim_name))
        elif volume.ephemeral is not None:
            meta = pod.metadata
            found.append(MountedClaim(f"{meta.name}-{volume.name}", meta.uid, f"{meta.namespace}/{meta.name}"))
    return tuple(found)


def mounted(pod: Pod) -> tuple[str, ...]:
    """The claims that the pod mounts by name, which other pods may mount too."""
    return tuple(
        v.persistent_volume_claim.claim_name for v in pod.spec.volumes if v.persistent_volume_claim is not None
    )


def _node_names(pod: Pod) -> tuple[str, ...]:
    annotations = pod.metadata.annotations
    pin = annotations.get(keti.ANNOTATION_NODE, "") if annotations else ""
    return tuple(name for name in (pod.spec.node_name, pin) if name)


def _spreads(
    constraints: tuple[RawTopologySpreadConstraint, ...], pod: Pod, when: str
) -> tuple[TopologySpreadConstraint, ...]:
    labels = pod.metadata.labels
    return tuple(spread_constraint(raw, labels) for raw in constraints if raw.when_unsatisfiable == when)
