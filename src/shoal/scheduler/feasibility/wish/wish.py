"""Pods by template: what a pod means to others, and what a waiting pod asks for.

Pods of one template give the same `Traits` and the same `Wish` object. Keys are made of the fields that are read, so
what differs from pod to pod (names, most labels) keeps none of them apart. Nothing raises: a manifest that cannot be
read becomes a wish with a `fault`, which no node can meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from shoal.kube.objects.pod import Pod, PodSpec, Toleration
from shoal.model.contract import keti
from shoal.model.errors import QuantityError
from shoal.scheduler.feasibility.wish.requests import HostPort, Needs, host_ports, needs
from shoal.scheduler.feasibility.wish.selectors import NodeSelector, NodeTerm, labels_term, node_selector, node_term
from shoal.scheduler.feasibility.wish.terms import (
    Company,
    RawNodeAffinity,
    RawPodAffinities,
    RawSpread,
    Spread,
    company,
    spread,
)

#: Templates remembered; those unused for longest are forgotten beyond it.
_TEMPLATES: Final = 10_000
#: A key with these in it is completed by the pod's labels, whose values they bring into selectors.
_BY_LABELS: Final = b"matchLabelKeys"

_encode = msgspec.json.Encoder().encode
T = TypeVar("T")
NO_COMPANY: Final = Company()


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """What a pod on a node means to the others."""

    needs: Needs
    ports: tuple[HostPort, ...]
    company: Company
    #: Why the manifest cannot be read: the filter that would have, and its words.
    fault: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim the pod mounts. One that comes with the pod must be owned by it."""

    name: str
    owner: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class NodeWish:
    """The nodes a pod may run on, by what they are called and labelled."""

    labels: NodeTerm | None
    affinity: NodeSelector | None


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """What a waiting pod asks for."""

    namespace: str
    traits: Traits
    #: The only nodes it may run on, by name: all that are set must agree.
    pins: tuple[str, ...]
    node: NodeWish
    tolerations: tuple[Toleration, ...]
    must_spread: tuple[Spread, ...]
    may_spread: tuple[Spread, ...]
    preferred_nodes: tuple[tuple[NodeTerm, int], ...]
    claims: tuple[Claim, ...]
    #: As in traits.
    fault: tuple[str, str] | None = None


class Templates(Generic[T]):
    """One answer per key, for the keys used last."""

    def __init__(self, size: int = _TEMPLATES) -> None:
        self._size = size
        self._known: dict[bytes, T] = {}

    def of(self, key: bytes, read: Callable[[], T]) -> T:
        found = self._known.pop(key, None)
        if found is None:
            found = read()
            if len(self._known) >= self._size:
                del self._known[next(iter(self._known))]
        self._known[key] = found
        return found


class Wishes:
    """Reads pods."""

    def __init__(self) -> None:
        self._traits: Templates[Traits] = Templates()
        self._wishes: Templates[Wish] = Templates()

    def traits(self, pod: Pod) -> Traits:
        """What the pod means to others."""
        meta, spec = pod.metadata, pod.spec
        affinity = spec.affinity
        around = None
        if affinity is not None:
            around = (meta.namespace, affinity.get("podAffinity"), affinity.get("podAntiAffinity"))
        key = _encode((_amounts(spec), around))
        if _BY_LABELS in key:
            key += _encode(meta.labels)
        return self._traits.of(key, lambda: _read_traits(pod))

    def wish(self, pod: Pod) -> Wish:
        """What the pod asks for."""
        meta, spec = pod.metadata, pod.spec
        claims, pins = _claims(pod), _pins(pod)
        key = _encode(
            (
                meta.namespace,
                _amounts(spec),
                spec.affinity,
                spec.node_selector,
                spec.tolerations,
                spec.topology_spread_constraints,
                [(claim.name, claim.owner) for claim in claims],
                pins,
            )
        )
        if _BY_LABELS in key:
            key += _encode(meta.labels)
        return self._wishes.of(key, lambda: self._read_wish(pod, claims, pins))

    def _read_wish(self, pod: Pod, claims: tuple[Claim, ...], pins: tuple[str, ...]) -> Wish:
        spec, traits = pod.spec, self.traits(pod)
        fault = traits.fault
        node, constraints = RawNodeAffinity(), tuple[RawSpread, ...]()
        try:
            node = _converted((spec.affinity or {}).get("nodeAffinity") or {}, RawNodeAffinity, "NodeAffinity")
            constraints = _converted(spec.topology_spread_constraints, tuple[RawSpread, ...], "PodTopologySpread")
        except _UnreadableError as error:
            fault = fault or (error.filter, str(error))
        required = node.required_during_scheduling_ignored_during_execution
        preferred = node.preferred_during_scheduling_ignored_during_execution or ()
        return Wish(
            namespace=pod.metadata.namespace,
            traits=traits,
            pins=pins,
            node=NodeWish(
                labels_term(spec.node_selector) if spec.node_selector else None,
                None if required is None else node_selector(required.node_selector_terms or ()),
            ),
            tolerations=spec.tolerations,
            must_spread=_spreads(constraints, pod, "DoNotSchedule"),
            may_spread=_spreads(constraints, pod, "ScheduleAnyway"),
            preferred_nodes=tuple(
                (term, item.weight)
                for item in preferred
                if item.weight and (term := node_term(item.preference)) is not None
            ),
            claims=claims,
            fault=fault,
        )


class _UnreadableError(ValueError):
    """A part of a manifest that is not of its form."""

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


def _read_traits(pod: Pod) -> Traits:
    wanted: Needs = ()
    around, fault = NO_COMPANY, None
    try:
        wanted = needs(pod.spec)
    except QuantityError as error:
        fault = ("NodeResourcesFit", str(error))
    if pod.spec.affinity:
        try:
            raw = _converted(pod.spec.affinity, RawPodAffinities, "InterPodAffinity")
            around = company(raw, pod.metadata.namespace, pod.metadata.labels)
        except _UnreadableError as error:
            fault = (error.filter, str(error))
    return Traits(wanted, host_ports(pod.spec), around, fault)


def _claims(pod: Pod) -> tuple[Claim, ...]:
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(Claim(volume.persistent_volume_claim.claim_name))
        elif volume.ephemeral is not None:
            meta = pod.metadata
            found.append(Claim(f"{meta.name}-{volume.name}", meta.uid, f"{meta.namespace}/{meta.name}"))
    return tuple(found)


def mounted(pod: Pod) -> tuple[str, ...]:
    """The claims the pod shares with others, if others mount them too."""
    return tuple(
        v.persistent_volume_claim.claim_name for v in pod.spec.volumes if v.persistent_volume_claim is not None
    )


def _pins(pod: Pod) -> tuple[str, ...]:
    annotations = pod.metadata.annotations
    pin = annotations.get(keti.ANNOTATION_NODE, "") if annotations else ""
    return tuple(name for name in (pod.spec.node_name, pin) if name)


def _spreads(constraints: tuple[RawSpread, ...], pod: Pod, when: str) -> tuple[Spread, ...]:
    labels = pod.metadata.labels
    return tuple(spread(raw, labels) for raw in constraints if raw.when_unsatisfiable == when)
