"""Volumes, the claims for them and their classes, as far as they say where a pod can run."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.kube.objects.meta import Base, Object, ObjectReference
from shoal.kube.objects.pod import Quantities, Resources


class VolumeNodeAffinity(Base, frozen=True, kw_only=True):
    """The nodes a volume can be reached from; `required` stays as it came."""

    required: dict[str, Any] | None = None


class PersistentVolumeSpec(Base, frozen=True, kw_only=True):
    """What the volume is and to whom it is promised."""

    capacity: Quantities = msgspec.field(default_factory=dict)
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolumeStatus(Base, frozen=True, kw_only=True):
    """Available, Bound, Released or Failed."""

    phase: str = ""


class PersistentVolume(Object, frozen=True, kw_only=True):
    """A volume."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class PersistentVolumeClaimSpec(Base, frozen=True, kw_only=True):
    """What is wanted of a volume; `selector` stays as it came."""

    access_modes: tuple[str, ...] = ()
    resources: Resources = Resources()
    selector: dict[str, Any] | None = None
    storage_class_name: str | None = None
    volume_attributes_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str = ""


class PersistentVolumeClaimStatus(Base, frozen=True, kw_only=True):
    """Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Object, frozen=True, kw_only=True):
    """A claim for a volume."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class StorageClass(Object, frozen=True, kw_only=True):
    """How volumes of a class come to be; `allowed_topologies` stays as it came."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[dict[str, Any], ...] = ()
