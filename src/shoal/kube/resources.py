"""Kinds of objects: where each lives on the API server and as what it is decoded.

A further kind is one line. `Resource.raw` gives the same kind as plain dictionaries with every field, for reading what
the slim structs leave out and for writing objects back whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from shoal.kube.errors import AnswerError, KubeError
from shoal.kube.objects.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.node import Namespace, Node
from shoal.kube.objects.others import ConfigMap, Event, Lease, Secret
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+", re.ASCII).fullmatch

T_co = TypeVar("T_co", covariant=True)
#: An object with all its fields, as JSON has them.
RawObject = dict[str, Any]
#: Namespace and name; the namespace is empty for kinds that have none.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Resource(Generic[T_co]):
    """One kind of object."""

    group: str
    version: str
    plural: str
    kind: str
    type: type[T_co]
    namespaced: bool = True
    #: Whether `type` keeps every field, so that an object may be written back whole.
    whole: bool = False

    @property
    def api_version(self) -> str:
        """As objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def raw(self) -> Resource[RawObject]:
        """The same kind, undecoded."""
        return Resource(self.group, self.version, self.plural, self.kind, dict, self.namespaced, whole=True)

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of the collection, of an object, or of a part of one."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", _segment(namespace, "namespace")]
        parts.append(self.plural)
        if name:
            parts.append(_segment(name, self.kind))
        if subresource:
            parts += [_segment(part, "subresource") for part in subresource.split("/")]
        return "/" + "/".join(parts)


def _segment(name: str, what: str) -> str:
    if name in (".", "..") or not name:
        raise KubeError(f"{name!r} is no name of a {what}: give the name of an object")
    # Nearly every name is plain; looking costs a tenth of quoting.
    return name if _PLAIN(name) else quote(name, safe="")


PODS = Resource("", "v1", "pods", "Pod", Pod)
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", Namespace, namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap, whole=True)
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", PersistentVolume, namespaced=False)
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", PersistentVolumeClaim)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", StorageClass, namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret", Secret, whole=True)
EVENTS = Resource("", "v1", "events", "Event", Event, whole=True)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", PodDisruptionBudget)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", ResourceClaim)
RESOURCE_CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplate
)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease, whole=True)


def meta_of(obj: object) -> ObjectMeta:
    """The metadata of an object of any kind, decoded or not."""
    if isinstance(obj, dict):
        try:
            return msgspec.convert(obj.get("metadata") or {}, ObjectMeta)
        except msgspec.ValidationError as error:
            raise AnswerError(f"an object with broken metadata: {error}") from error
    meta = getattr(obj, "metadata", None)
    if not isinstance(meta, ObjectMeta):
        raise AnswerError(f"a {type(obj).__name__} without metadata: only objects have names")
    return meta


def key_of(obj: object) -> Key:
    """Namespace and name of an object."""
    meta = meta_of(obj)
    return meta.namespace, meta.name


def manifest_of(obj: object) -> RawObject:
    """The object as the plain mapping that `shoal.model` reads. The slim structs keep every field it looks at."""
    manifest = msgspec.to_builtins(obj)
    if not isinstance(manifest, dict):
        raise AnswerError(f"a {type(obj).__name__} is no object: give a decoded Kubernetes object")
    return manifest
