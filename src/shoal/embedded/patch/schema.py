"""Which lists merge by key, and which objects are replaced whole, in the built-in kinds.

Only the exceptions stand here. What is not listed behaves as the API server's defaults say: an object is merged member
by member, a list is replaced whole. Strategic merge patch and server-side apply go by different marks that mostly
agree: `merge` belongs to the first, `keys`, `members` and `atomic` to the second. Kinds outside of core, apps and batch
have only what their metadata has in common; schemas of custom resources are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MergedField:
    """How one field is merged. `of` is the type of the object, or of the list's elements."""

    of: str = ""
    keys: tuple[str, ...] = ()
    members: bool = False
    atomic: bool = False
    merge: str | None = None


def _keyed(*keys: str, of: str = "", atomic: bool = False) -> MergedField:
    return MergedField(of=of, keys=keys, atomic=atomic, merge=keys[0])


def _struct(of: str) -> MergedField:
    return MergedField(of=of)


PLAIN: Final = MergedField()
_ATOMIC: Final = MergedField(atomic=True)
_SET: Final = MergedField(members=True, merge="")
_SET_APPLIED_ONLY: Final = MergedField(members=True)
_META: Final = {"metadata": _struct("ObjectMeta")}
_CONDITIONS: Final = {"conditions": _keyed("type")}
_TEMPLATE: Final = _struct("PodTemplateSpec")
_WORKLOAD: Final = {"selector": _ATOMIC, "template": _TEMPLATE}
_SECRET: Final = _struct("SecretRefSource")
_CONTAINER: Final = {
    "env": _keyed("name", of="EnvVar"),
    "ports": _keyed("containerPort", "protocol"),
    "resources": _struct("ResourceRequirements"),
    "volumeDevices": _keyed("devicePath"),
    "volumeMounts": _keyed("mountPath"),
}

# Keys that the API server fills in when an element leaves them out.
KEY_DEFAULTS: Final = {"protocol": "TCP"}

BUILT_IN_GROUPS: Final = frozenset(
    {
        "",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)

_KINDS: Final[dict[tuple[str, str], dict[str, MergedField]]] = {
    ("", "Binding"): _META | {"target": _ATOMIC},
    ("", "Event"): _META | {"involvedObject": _ATOMIC, "related": _ATOMIC},
    ("", "Namespace"): _META | {"status": _struct("Conditions")},
    ("", "Node"): _META | {"spec": _struct("NodeSpec"), "status": _struct("NodeStatus")},
    ("", "PersistentVolume"): _META | {"spec": _struct("PersistentVolumeSpec")},
    ("", "PersistentVolumeClaim"): _META | {"spec": _struct("ClaimSpec"), "status": _struct("Conditions")},
    ("", "Pod"): _META | {"spec": _struct("PodSpec"), "status": _struct("PodStatus")},
    ("", "PodTemplate"): _META | {"template": _TEMPLATE},
    ("", "ReplicationController"): _META | {"spec": _struct("Workload"), "status": _struct("Conditions")},
    ("", "ResourceQuota"): _META | {"spec": _struct("ResourceQuotaSpec")},
    ("", "Service"): _META | {"spec": _struct("ServiceSpec"), "status": _struct("Conditions")},
    ("", "ServiceAccount"): _META | {"secrets": _keyed("name", atomic=True)},
    ("apps", "DaemonSet"): _META | {"spec": _struct("Workload"), "status": _struct("Conditions")},
    ("apps", "Deployment"): _META | {"spec": _struct("Workload"), "status": _struct("Conditions")},
    ("apps", "ReplicaSet"): _META | {"spec": _struct("Workload"), "status": _struct("Conditions")},
    ("apps", "StatefulSet"): _META | {"spec": _struct("Workload"), "status": _struct("Conditions")},
    ("batch", "CronJob"): _META | {"spec": _struct("CronJobSpec")},
    ("batch", "Job"): _META | {"spec": _struct("Workload"), "status": _struct("JobStatus")},
    ("events.k8s.io", "Event"): _META | {"regarding": _ATOMIC, "related": _ATOMIC},
}

_TYPES: Final[dict[str, dict[str, MergedField]]] = {
    "Affinity": {"nodeAffinity": _struct("NodeAffinity")},
    "ClaimSpec": {"dataSource": _ATOMIC, "selector": _ATOMIC},
    "ClaimTemplate": _META | {"spec": _struct("ClaimSpec")},
    "Conditions": _CONDITIONS,
    "Container": _CONTAINER,
    "CronJobSpec": {"jobTemplate": _struct("JobTemplateSpec")},
    "CsiPersistentVolumeSource": {
        "controllerExpandSecretRef": _ATOMIC,
        "controllerPublishSecretRef": _ATOMIC,
        "nodeExpandSecretRef": _ATOMIC,
        "nodePublishSecretRef": _ATOMIC,
        "nodeStageSecretRef": _ATOMIC,
    },
    "CsiVolumeSource": {"nodePublishSecretRef": _ATOMIC},
    "EnvVar": {"valueFrom": _struct("EnvVarSource")},
    "EnvVarSource": {
        "configMapKeyRef": _ATOMIC,
        "fieldRef": _ATOMIC,
        "fileKeyRef": _ATOMIC,
        "resourceFieldRef": _ATOMIC,
        "secretKeyRef": _ATOMIC,
    },
    "EphemeralVolumeSource": {"volumeClaimTemplate": _struct("ClaimTemplate")},
    "JobStatus": {"conditions": MergedField(merge="type"), "uncountedTerminatedPods": _struct("UncountedPods")},
    "JobTemplateSpec": _META | {"spec": _struct("Workload")},
    "NodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _ATOMIC},
    "NodeSpec": {"podCIDRs": _SET},
    "NodeStatus": _CONDITIONS | {"addresses": _keyed("type")},
    "ObjectMeta": {"finalizers": _SET, "ownerReferences": _keyed("uid", atomic=True)},
    "PersistentVolumeSpec": {
        "csi": _struct("CsiPersistentVolumeSource"),
        "nodeAffinity": _struct("VolumeNodeAffinity"),
        **dict.fromkeys(("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"), _SECRET),
    },
    "PodSpec": {
        "affinity": _struct("Affinity"),
        "containers": _keyed("name", of="Container"),
        "ephemeralContainers": _keyed("name", of="Container"),
        "hostAliases": _keyed("ip"),
        "imagePullSecrets": _keyed("name", atomic=True),
        "initContainers": _keyed("name", of="Container"),
        "nodeSelector": _ATOMIC,
        "resourceClaims": _keyed("name"),
        "resources": _struct("ResourceRequirements"),
        "schedulingGates": _keyed("name"),
        "topologySpreadConstraints": _keyed("topologyKey", "whenUnsatisfiable", of="TopologySpreadConstraint"),
        "volumes": _keyed("name", of="Volume"),
    },
    "PodStatus": _CONDITIONS
    | {
        "hostIPs": MergedField(merge="ip"),
        "podIPs": _keyed("ip"),
        "resourceClaimStatuses": _keyed("name"),
        "resources": _struct("ResourceRequirements"),
    },
    "PodTemplateSpec": _META | {"spec": _struct("PodSpec")},
    "ResourceQuotaSpec": {"scopeSelector": _ATOMIC},
    "ResourceRequirements": {"claims": MergedField(keys=("name",))},
    "SecretRefSource": {"secretRef": _ATOMIC},
    "ServiceSpec": {"ports": _keyed("port", "protocol"), "selector": _ATOMIC},
    "TopologySpreadConstraint": {"labelSelector": _ATOMIC},
    "UncountedPods": {"failed": _SET_APPLIED_ONLY, "succeeded": _SET_APPLIED_ONLY},
    "Volume": {
        "csi": _struct("CsiVolumeSource"),
        "ephemeral": _struct("EphemeralVolumeSource"),
        **dict.fromkeys(("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"), _SECRET),
    },
    "VolumeNodeAffinity": {"required": _ATOMIC},
    "Workload": _WORKLOAD,
}


def root_of(kind: str, group: str) -> MergedField:
    """The whole object, as if it were a field."""
    return MergedField(of=f"{group}/{kind}")


def member_of(parent: MergedField, name: str) -> MergedField:
    """How a member of this object, or of this list's elements, is merged."""
    if "/" in parent.of:
        group, _, kind = parent.of.partition("/")
        return _KINDS.get((group, kind), _META).get(name, PLAIN)
    return _TYPES.get(parent.of, {}).get(name, PLAIN)
