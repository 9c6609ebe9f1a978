"""Volumes, claims and storage classes by name, and what a claim is waiting for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from typing import Final

import msgspec

from shoal.kube.objects.meta import Base
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.kube.selectors import NodeSelector, NodeSelectorTerm, Requirement, read_node_selector
from shoal.model import quantity
from shoal.model.contract import kubernetes
from shoal.model.errors import QuantityError

_WAIT: Final = "WaitForFirstConsumer"
_SIZE: Final = "storage"
_TOO_LARGE: Final = Fraction(2**64)


NOWHERE: Final = NodeSelector(())


class _RawTopologyRequirement(Base, frozen=True, kw_only=True):
    key: str = ""
    values: tuple[str, ...] = ()


class _RawTopology(Base, frozen=True, kw_only=True):
    match_label_expressions: tuple[_RawTopologyRequirement, ...] = ()


class ClaimStage(Enum):
    """How far a claim has come."""

    #: It has its volume.
    BOUND = auto()
    #: The scheduler chooses volume or node for it.
    WAITS_FOR_POD = auto()
    #: A controller will find it a volume, or somebody must make one.
    WAITS_FOR_VOLUME = auto()


@dataclass(frozen=True, slots=True)
class KnownVolume:
    """A volume and what was read of it."""

    volume: PersistentVolume
    #: Where it can be reached from; None for everywhere.
    nodes: NodeSelector | None
    size: Fraction

    @property
    def name(self) -> str:
        return self.volume.metadata.name


class StorageTable:
    """All volumes, claims and classes."""

    def __init__(self) -> None:
        self.volumes: dict[str, KnownVolume] = {}
        self.claims: dict[tuple[str, str], PersistentVolumeClaim] = {}
        self.classes: dict[str, StorageClass] = {}
        self._of_class: dict[str, dict[str, KnownVolume]] = {}
        self.version = 0

    def set_volume(self, volume: PersistentVolume) -> bool:
        """Set a volume; whether that changes anything. The other methods answer the same."""
        name = volume.metadata.name
        old = self.volumes.get(name)
        if old is not None:
            if _volume_facts(old.volume) == _volume_facts(volume):
                return False
            self._of_class[class_of_volume(old.volume)].pop(name)
        known = KnownVolume(volume, _reachable(volume), _size(volume.spec.capacity, unreadable=Fraction(-1)))
        self.volumes[name] = self._of_class.setdefault(class_of_volume(volume), {})[name] = known
        return self._changed()

    def remove_volume(self, name: str) -> bool:
        old = self.volumes.pop(name, None)
        if old is None:
            return False
        self._of_class[class_of_volume(old.volume)].pop(name)
        return self._changed()

    def set_claim(self, claim: PersistentVolumeClaim) -> bool:
        key = (claim.metadata.namespace, claim.metadata.name)
        old, self.claims[key] = self.claims.get(key), claim
        return (old is None or _claim_facts(old) != _claim_facts(claim)) and self._changed()

    def remove_claim(self, namespace: str, name: str) -> bool:
        return self.claims.pop((namespace, name), None) is not None and self._changed()

    def set_class(self, storage_class: StorageClass) -> bool:
        name = storage_class.metadata.name
        old, self.classes[name] = self.classes.get(name), storage_class
        return (old is None or _class_facts(old) != _class_facts(storage_class)) and self._changed()

    def remove_class(self, name: str) -> bool:
        return self.classes.pop(name, None) is not None and self._changed()

    def _changed(self) -> bool:
        self.version += 1
        return True

    def stage(self, claim: PersistentVolumeClaim) -> ClaimStage:
        """What the claim is waiting for."""
        if claim.spec.volume_name:
            bound = kubernetes.ANNOTATION_BIND_COMPLETED in claim.metadata.annotations
            return ClaimStage.BOUND if bound else ClaimStage.WAITS_FOR_VOLUME
        storage_class = self.classes.get(class_of_claim(claim))
        waits = storage_class is not None and storage_class.volume_binding_mode == _WAIT
        return ClaimStage.WAITS_FOR_POD if waits else ClaimStage.WAITS_FOR_VOLUME

    def volumes_of(self, storage_class: str) -> Mapping[str, KnownVolume]:
        """The volumes of a class, by name."""
        return self._of_class.get(storage_class, {})


def class_of_claim(claim: PersistentVolumeClaim) -> str:
    """The claim's class; empty for none."""
    old = claim.metadata.annotations.get(kubernetes.ANNOTATION_STORAGE_CLASS)
    return old if old is not None else claim.spec.storage_class_name or ""


def class_of_volume(volume: PersistentVolume) -> str:
    """The volume's class; empty for none."""
    old = volume.metadata.annotations.get(kubernetes.ANNOTATION_STORAGE_CLASS)
    return old if old is not None else volume.spec.storage_class_name


def wanted(claim: PersistentVolumeClaim) -> Fraction:
    """The size the claim asks for."""
    return _size(claim.spec.resources.requests, unreadable=_TOO_LARGE)


def makes_volumes_on(storage_class: StorageClass) -> NodeSelector | None:
    """The nodes for which volumes of the class can be made; None for all."""
    if storage_class.provisioner in ("", kubernetes.NO_PROVISIONER):
        return NOWHERE
    if not storage_class.allowed_topologies:
        return None
    try:
        terms = msgspec.convert(storage_class.allowed_topologies, tuple[_RawTopology, ...])
    except msgspec.ValidationError:
        return NOWHERE
    return NodeSelector(
        tuple(
            NodeSelectorTerm(
                tuple(Requirement(item.key, "In", frozenset(item.values)) for item in term.match_label_expressions)
            )
            for term in terms
            if term.match_label_expressions
        )
    )


def _reachable(volume: PersistentVolume) -> NodeSelector | None:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    found = read_node_selector(affinity.required)
    # Kubernetes asks for the labels of a node only, not for its name.
    return NodeSelector(tuple(NodeSelectorTerm(term.labels) for term in found.terms))


def _size(amounts: Mapping[str, object], *, unreadable: Fraction) -> Fraction:
    try:
        return quantity.parse(amounts.get(_SIZE, 0))
    except QuantityError:
        return unreadable


def _volume_facts(volume: PersistentVolume) -> tuple[object, ...]:
    meta = volume.metadata
    return volume.spec, volume.status, meta.labels, meta.annotations, meta.deletion_timestamp


def _claim_facts(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    meta = claim.metadata
    return claim.spec, claim.status, meta.uid, meta.annotations, meta.deletion_timestamp, meta.owner_references


def _class_facts(found: StorageClass) -> tuple[object, ...]:
    return found.provisioner, found.volume_binding_mode, found.allowed_topologies
