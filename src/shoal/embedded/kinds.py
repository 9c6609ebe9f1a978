"""The kinds of objects that the server knows, and a catalogue that grows with custom resource definitions.

A kind says how it is named and addressed. What a good object of it looks like is for `shoal.embedded.rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Group and plural: objects are stored once, whatever version they are asked for in.
ResourceKey = tuple[str, str]
VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS: Final = {
    "binding": ("create",),
    "eviction": ("create",),
    "finalize": ("update",),
    "log": ("get",),
    "token": ("create",),
}
#: Subresources that speak in objects of another kind: group, version, kind.
SUBRESOURCE_KINDS: Final = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}


ANYTHING: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object in one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    #: Whether metadata.generation counts the changes of the specification.
    counted: bool = False
    custom: bool = False
    #: The kind in whose form its objects are stored, if that is another.
    home: Kind | None = None
    #: Of a custom kind: what its definition says of this version.
    served: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> ResourceKey:
        """Where its objects are stored."""
        return self.stored.group, self.plural

    @property
    def stored(self) -> Kind:
        """The kind in whose form its objects are stored."""
        return self.home or self

    @property
    def api_version(self) -> str:
        """As objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def schema(self) -> Mapping[str, Any]:
        """Of a custom kind: the schema of its objects; one that takes anything if it has none."""
        whole: Mapping[str, Any] = (self.served.get("schema") or {}).get("openAPIV3Schema") or ANYTHING
        return whole

    @property
    def list_kind(self) -> str:
        """The kind of a list of them."""
        return f"{self.kind}List"

    @property
    def single(self) -> str:
        """The name of one, as kubectl accepts it."""
        return self.singular or self.kind.lower()

    @property
    def verbs(self) -> tuple[str, ...]:
        """What may be done; namespaces go one at a time."""
        return tuple(verb for verb in VERBS if self.plural != "namespaces" or verb != "deletecollection")

    @property
    def create_on_update(self) -> bool:
        """Whether a PUT to a name that is not there makes the object."""
        return self.key in {("coordination.k8s.io", "leases"), ("", "events"), ("", "endpoints")}

    @property
    def unconditional(self) -> bool:
        """Whether a PUT without a version is taken as it is."""
        return not self.custom and self.group not in {"coordination.k8s.io", "apiextensions.k8s.io", "resource.k8s.io"}


EVENTS: Final = Kind("", "v1", "events", "Event", short_names=("ev",))
BUILT_IN: Final = (
    Kind("", "v1", "configmaps", "ConfigMap", short_names=("cm",)),
    Kind("", "v1", "endpoints", "Endpoints", short_names=("ep",)),
    EVENTS,
    Kind("", "v1", "limitranges", "LimitRange", short_names=("limits",)),
    Kind(
        "", "v1", "namespaces", "Namespace", namespaced=False, short_names=("ns",), subresources=("finalize", "status")
    ),
    Kind("", "v1", "nodes", "Node", namespaced=False, short_names=("no",), subresources=("status",)),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",), subresources=("status",)),
    Kind(
        "",
        "v1",
        "persistentvolumes",
        "PersistentVolume",
        namespaced=False,
        short_names=("pv",),
        subresources=("status",),
    ),
    Kind(
        "",
        "v1",
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=("binding", "eviction", "log", "status"),
        counted=True,
    ),
    Kind("", "v1", "podtemplates", "PodTemplate"),
    Kind(
        "",
        "v1",
        "replicationcontrollers",
        "ReplicationController",
        short_names=("rc",),
        categories=("all",),
        subresources=("scale", "status"),
        counted=True,
    ),
    Kind("", "v1", "resourcequotas", "ResourceQuota", short_names=("quota",), subresources=("status",)),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), subresources=("token",)),
    Kind("", "v1", "services", "Service", short_names=("svc",), categories=("all",), subresources=("status",)),
    Kind("apps", "v1", "controllerrevisions", "ControllerRevision"),
    Kind(
        "apps",
        "v1",
        "daemonsets",
        "DaemonSet",
        short_names=("ds",),
        categories=("all",),
        subresources=("status",),
        counted=True,
    ),
    Kind(
        "apps",
        "v1",
        "deployments",
        "Deployment",
        short_names=("deploy",),
        categories=("all",),
        subresources=("scale", "status"),
        counted=True,
    ),
    Kind(
        "apps",
        "v1",
        "replicasets",
        "ReplicaSet",
        short_names=("rs",),
        categories=("all",),
        subresources=("scale", "status"),
        counted=True,
    ),
    Kind(
        "apps",
        "v1",
        "statefulsets",
        "StatefulSet",
        short_names=("sts",),
        categories=("all",),
        subresources=("scale", "status"),
        counted=True,
    ),
    Kind("events.k8s.io", "v1", "events", "Event", short_names=("ev",), home=EVENTS),
    Kind(
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        short_names=("hpa",),
        categories=("all",),
        subresources=("status",),
    ),
    Kind(
        "batch",
        "v1",
        "cronjobs",
        "CronJob",
        short_names=("cj",),
        categories=("all",),
        subresources=("status",),
        counted=True,
    ),
    Kind("batch", "v1", "jobs", "Job", categories=("all",), subresources=("status",), counted=True),
    Kind("networking.k8s.io", "v1", "ingressclasses", "IngressClass", namespaced=False, counted=True),
    Kind(
        "networking.k8s.io", "v1", "ingresses", "Ingress", short_names=("ing",), subresources=("status",), counted=True
    ),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short_names=("netpol",), counted=True),
    Kind(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        short_names=("pdb",),
        subresources=("status",),
        counted=True,
    ),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False),
    Kind("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False, short_names=("sc",)),
    Kind("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False, subresources=("status",)),
    Kind(
        "storage.k8s.io",
        "v1",
        "volumeattributesclasses",
        "VolumeAttributesClass",
        namespaced=False,
        short_names=("vac",),
    ),
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicies",
        "MutatingAdmissionPolicy",
        namespaced=False,
        categories=("api-extensions",),
        counted=True,
    ),
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicybindings",
        "MutatingAdmissionPolicyBinding",
        namespaced=False,
        categories=("api-extensions",),
        counted=True,
    ),
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
        counted=True,
    ),
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        namespaced=False,
        categories=("api-extensions",),
        subresources=("status",),
        counted=True,
    ),
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        namespaced=False,
        categories=("api-extensions",),
        counted=True,
    ),
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
        counted=True,
    ),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
        counted=True,
    ),
    Kind(
        "scheduling.k8s.io",
        "v1",
        "priorityclasses",
        "PriorityClass",
        namespaced=False,
        short_names=("pc",),
        counted=True,
    ),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", counted=True),
    Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False, counted=True),
    Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", subresources=("status",)),
    Kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False, counted=True),
)


def _built_in(group: str, plural: str) -> Kind:
    return next(kind for kind in BUILT_IN if kind.key == (group, plural))


CLAIMS: Final = _built_in("", "persistentvolumeclaims")
NAMESPACES: Final = _built_in("", "namespaces")
NODES: Final = _built_in("", "nodes")
PODS: Final = _built_in("", "pods")
SECRETS: Final = _built_in("", "secrets")
SERVICE_ACCOUNTS: Final = _built_in("", "serviceaccounts")
DAEMON_SETS: Final = _built_in("apps", "daemonsets")
DEPLOYMENTS: Final = _built_in("apps", "deployments")
REPLICA_SETS: Final = _built_in("apps", "replicasets")
REVISIONS: Final = _built_in("apps", "controllerrevisions")
STATEFUL_SETS: Final = _built_in("apps", "statefulsets")
JOBS: Final = _built_in("batch", "jobs")
BUDGETS: Final = _built_in("policy", "poddisruptionbudgets")
DEVICE_CLASSES: Final = _built_in("resource.k8s.io", "deviceclasses")
RESOURCE_CLAIMS: Final = _built_in("resource.k8s.io", "resourceclaims")
RESOURCE_SLICES: Final = _built_in("resource.k8s.io", "resourceslices")
RESOURCE_TEMPLATES: Final = _built_in("resource.k8s.io", "resourceclaimtemplates")
DEFINITIONS: Final = _built_in("apiextensions.k8s.io", "customresourcedefinitions")
MUTATING_POLICIES: Final = _built_in("admissionregistration.k8s.io", "mutatingadmissionpolicies")
MUTATING_BINDINGS: Final = _built_in("admissionregistration.k8s.io", "mutatingadmissionpolicybindings")
POLICIES: Final = _built_in("admissionregistration.k8s.io", "validatingadmissionpolicies")
POLICY_BINDINGS: Final = _built_in("admissionregistration.k8s.io", "validatingadmissionpolicybindings")


class Catalogue:
    """Every kind that can be asked for now, in the order of discovery."""

    def __init__(self, kinds: Iterable[Kind] = BUILT_IN) -> None:
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in kinds}
        self._groups: dict[str, dict[str, list[Kind]]] = {}

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind behind a path."""
        return self._kinds.get((group, version, plural))

    def add(self, kind: Kind) -> None:
        """Serve a further kind, or a kind anew."""
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self._groups = {}

    def remove(self, kind: Kind) -> None:
        """Serve a kind no longer."""
        self._kinds.pop((kind.group, kind.version, kind.plural), None)
        self._groups = {}

    def all(self) -> list[Kind]:
        """Every kind."""
        return list(self._kinds.values())

    def groups(self) -> dict[str, dict[str, list[Kind]]]:
        """Kinds by group and version."""
        if not self._groups:
            for kind in self._kinds.values():
                self._groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
        return self._groups
