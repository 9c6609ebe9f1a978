"""A pod at home and its copy in another cluster: how each is kept and read, and the manifest of the copy. Pure.

Of ten thousand pods only what the next step needs is kept: a spec goes once its copy is on its way, and comes back with
an answer of the server where it is needed again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shoal.clusters.dispatch import CopyPod, Dispatch, HomePod
from shoal.kube.objects.meta import Base, Object, ObjectMeta, OwnerReference
from shoal.kube.objects.pod import SchedulingGate
from shoal.kube.resources import RawObject, Resource
from shoal.model.contract import clusters, keti, kubernetes
from shoal.model.contract.clusters import CopyOrigin, LostMode, Sent
from shoal.model.contract.decisions import DECISION_ANNOTATIONS
from shoal.model.contract.groups import GROUP_NAMES
from shoal.model.errors import CodecError

#: A longer status is not kept: a member can write what it likes.
MAX_STATUS: Final = 64 * 1024
#: What home's admission worked out, and the member's works out anew.
_OF_HOME: Final = (
    "ephemeralContainers",
    "nodeName",
    "overhead",
    "preemptionPolicy",
    "priority",
    "schedulingGates",
    "serviceAccount",
)
#: What a pod at home is told by, or was decided there: nothing of it holds elsewhere.
_NOT_COPIED: Final = frozenset(
    {
        *DECISION_ANNOTATIONS,
        clusters.ANNOTATION_DISPATCH,
        clusters.ANNOTATION_CLUSTERS,
        clusters.ANNOTATION_AVOID_CLUSTERS,
        clusters.ANNOTATION_SPREAD,
        clusters.ANNOTATION_LOST,
        keti.ANNOTATION_CLUSTER,
        kubernetes.ANNOTATION_LAST_APPLIED,
    }
)
_READ_AT_HOME: Final = frozenset(
    {
        clusters.ANNOTATION_DISPATCH,
        clusters.ANNOTATION_LOST,
        keti.ANNOTATION_CLUSTER,
        kubernetes.ANNOTATION_COMPLETION_INDEX,
        *GROUP_NAMES,
    }
)


class DispatchedMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata, and how long a deleted pod may still run."""

    deletion_grace_period_seconds: int | None = None


class DispatchedPod(Object, frozen=True, kw_only=True):
    """A pod on either side. Spec and status stay as text until somebody asks."""

    metadata: DispatchedMeta = DispatchedMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


#: Pods as the manager reads them, on either side.
DISPATCHED_PODS: Final = Resource("", "v1", "pods", "Pod", DispatchedPod)


class _Spec(Base, frozen=True, kw_only=True):
    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class _Terminated(msgspec.Struct, frozen=True):
    terminated: dict[str, Any] | None = None


class _Container(msgspec.Struct, frozen=True):
    state: _Terminated = _Terminated()


class _Status(Base, frozen=True, kw_only=True):
    phase: str = ""
    container_statuses: tuple[_Container, ...] = ()
    init_container_statuses: tuple[_Container, ...] = ()


_SPEC: Final = msgspec.json.Decoder(_Spec)
_STATUS: Final = msgspec.json.Decoder(_Status)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


# Kept


def slim_home(pod: DispatchedPod) -> DispatchedPod:
    """A pod at home with what is read of it: all of one that is not sent yet, its name of one that is not ours."""
    meta = pod.metadata
    if not is_held(pod):
        return DispatchedPod(metadata=_named(meta))
    if clusters.ANNOTATION_DISPATCH not in meta.annotations:
        return DispatchedPod(metadata=meta, spec=pod.spec.copy(), status=_short(pod.status))
    slim = msgspec.structs.replace(
        _named(meta),
        deletion_timestamp=meta.deletion_timestamp,
        labels={key: value for key, value in meta.labels.items() if key in GROUP_NAMES},
        annotations={key: value for key, value in meta.annotations.items() if key in _READ_AT_HOME},
        owner_references=meta.owner_references,
        finalizers=_interned(meta.finalizers),
    )
    return DispatchedPod(metadata=slim, spec=_slim_spec(pod), status=_short(pod.status))


def slim_copy(pod: DispatchedPod) -> DispatchedPod:
    """A copy with what is read of it."""
    meta = pod.metadata
    slim = msgspec.structs.replace(
        _named(meta),
        deletion_timestamp=meta.deletion_timestamp,
        deletion_grace_period_seconds=meta.deletion_grace_period_seconds,
        labels={key: value for key, value in meta.labels.items() if key == clusters.LABEL_ORIGIN},
        annotations={key: value for key, value in meta.annotations.items() if key == clusters.ANNOTATION_ORIGIN},
        finalizers=_interned(meta.finalizers),
    )
    return DispatchedPod(metadata=slim, spec=_slim_spec(pod), status=_short(pod.status))


def _named(meta: DispatchedMeta) -> DispatchedMeta:
    return DispatchedMeta(
        name=meta.name, namespace=sys.intern(meta.namespace), uid=meta.uid, resource_version=meta.resource_version
    )


def _interned(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(sys.intern, words))


def _slim_spec(pod: DispatchedPod) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(_SPEC.decode(pod.spec)))
    except _UNREADABLE:
        return msgspec.Raw(b"[]")  # which is no spec: whoever reads it is told


def _short(status: msgspec.Raw) -> msgspec.Raw:
    """The status in bytes of its own: as it came it would keep the whole answer."""
    if len(memoryview(status)) <= MAX_STATUS:
        return status.copy()
    try:
        read = _STATUS.decode(status)
    except _UNREADABLE:
        return msgspec.Raw(b"{}")
    return msgspec.Raw(msgspec.json.encode(_Status(phase=read.phase[:64])))


def _spec(pod: DispatchedPod) -> _Spec:
    try:
        return _SPEC.decode(pod.spec)
    except _UNREADABLE as error:
        raise _unreadable(pod, "spec", error) from error


def _unreadable(pod: DispatchedPod, part: str, error: Exception) -> CodecError:
    return CodecError(f"the {part} of pod {_full_name(pod)} cannot be read: {error}: look at it with kubectl")


def _full_name(pod: DispatchedPod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


# Read


def is_held(pod: DispatchedPod) -> bool:
    """Whether a pod at home is held, or was: it has the gate or the finalizer."""
    if clusters.FINALIZER_HOME in pod.metadata.finalizers:
        return True
    try:
        return clusters.GATE_HOME in gates_of(pod)
    except CodecError:
        return False


def gates_of(pod: DispatchedPod) -> tuple[str, ...]:
    """The scheduling gates of a pod, in their order."""
    return tuple(gate.name for gate in _spec(pod).scheduling_gates)


def node_of(pod: DispatchedPod) -> str:
    """The node of a pod; empty while it has none."""
    return _spec(pod).node_name


def sent_of(pod: DispatchedPod) -> Sent | None:
    """Where a pod at home was sent; CodecError if somebody has written what cannot be read."""
    written = pod.metadata.annotations.get(clusters.ANNOTATION_DISPATCH)
    if written is None:
        return None
    return clusters.decode(Sent, written, what=clusters.ANNOTATION_DISPATCH)


def read_home(pod: DispatchedPod) -> HomePod:
    """A pod at home, as the decision sees it: a cluster is its identity there. CodecError if it cannot be read."""
    meta, sent, status = pod.metadata, sent_of(pod), _status(pod)
    return HomePod(
        uid=meta.uid,
        version=meta.resource_version,
        held=clusters.GATE_HOME in gates_of(pod),
        kept=clusters.FINALIZER_HOME in meta.finalizers,
        deleting=meta.deletion_timestamp is not None,
        over=status.phase in kubernetes.FINISHED_PHASES,
        ran=status.phase == "Running" or bool(status.container_statuses),
        dispatch=None if sent is None else _dispatch(sent),
    )


def _dispatch(sent: Sent) -> Dispatch:
    return Dispatch(sent.uid or sent.cluster, sent.attempt, sent.leaving, sent.fence > 0, sent.lost)


def is_lost(pod: DispatchedPod) -> bool:
    """Whether a pod at home was given up, since its cluster is lost."""
    try:
        sent = sent_of(pod)
    except CodecError:
        return False
    return sent is not None and sent.lost


def read_copy(pod: DispatchedPod, home_cluster: str) -> CopyPod:
    """A pod in a member that has the name of one at home. Another's has no origin here.

    CodecError if it bears signs of a copy of ours and does not say whose: somebody has edited it.
    """
    meta, spec = pod.metadata, _spec(pod)
    gated = any(gate.name == clusters.GATE_COPY for gate in spec.scheduling_gates)
    kept = clusters.FINALIZER_COPY in meta.finalizers
    written = meta.annotations.get(clusters.ANNOTATION_ORIGIN)
    if written is None:
        if gated or kept or meta.labels.get(clusters.LABEL_ORIGIN) == home_cluster:
            raise CodecError(
                f"pod {_full_name(pod)} has lost its annotation {clusters.ANNOTATION_ORIGIN}: write it again as "
                "another copy has it, or delete the pod"
            )
        origin = None
    else:
        origin = clusters.decode(CopyOrigin, written, what=clusters.ANNOTATION_ORIGIN)
    ours = origin is not None and origin.cluster == home_cluster
    return CopyPod(
        uid=meta.uid,
        version=meta.resource_version,
        origin=origin.uid if ours and origin is not None else "",
        attempt=origin.attempt if ours and origin is not None else 0,
        gated=gated,
        placed=bool(spec.node_name),
        kept=kept,
        deleting=meta.deletion_timestamp is not None,
        over=_is_over(pod),
    )


def _status(pod: DispatchedPod) -> _Status:
    try:
        return _STATUS.decode(pod.status)
    except _UNREADABLE as error:
        raise _unreadable(pod, "status", error) from error


def _is_over(pod: DispatchedPod) -> bool:
    """Whether a copy has run and nothing of it does: by its phase, or it is deleted and kubelet says that all ended.

    One without a node has not run, whatever its phase: PodGC calls it failed when it is deleted.
    """
    status, meta = _status(pod), pod.metadata
    if not node_of(pod):
        return False
    if status.phase in kubernetes.FINISHED_PHASES:
        return True
    if meta.deletion_timestamp is None:
        return False
    if status.container_statuses:
        return all(
            one.state.terminated is not None for one in (*status.container_statuses, *status.init_container_statuses)
        )
    # Nothing was ever started, and its time is up.
    return meta.deletion_grace_period_seconds == 0 and not status.init_container_statuses


def job_of(pod: DispatchedPod) -> tuple[str, str]:
    """The UID of the Job that owns a pod, empty if none does, and its completion index, empty if it has none."""
    owner = controller_of(pod)
    if owner is None or owner.kind != "Job":
        return "", ""
    return owner.uid, pod.metadata.annotations.get(kubernetes.ANNOTATION_COMPLETION_INDEX, "")


def mode_of(pod: DispatchedPod) -> LostMode:
    """What becomes of a pod at home whose cluster is lost: as its annotation says, else by its owner.

    A StatefulSet counts on its pods being one at a time, and nobody makes a bare pod anew. CodecError for an unknown
    word.
    """
    said = clusters.lost_mode(pod.metadata.annotations)
    if said is not None:
        return said
    owner = controller_of(pod)
    return LostMode.WAIT if owner is None or owner.kind == "StatefulSet" else LostMode.REPLACE


def controller_of(pod: DispatchedPod) -> OwnerReference | None:
    """The owner that makes such pods anew."""
    return next((one for one in pod.metadata.owner_references if one.controller), None)


# Made


def whole(pod: DispatchedPod) -> RawObject | None:
    """A pod with its whole spec; None where that was not kept."""
    try:
        spec = msgspec.json.decode(pod.spec)
    except _UNREADABLE as error:
        raise _unreadable(pod, "spec", error) from error
    if not isinstance(spec, dict) or "containers" not in spec:
        return None
    return {"apiVersion": "v1", "kind": "Pod", "metadata": msgspec.to_builtins(pod.metadata), "spec": spec}


def copy_of(pod: RawObject, origin: CopyOrigin) -> RawObject:
    """The manifest of a pod's copy: as it was asked for, behind the manager's gate, without what home decided."""
    meta = pod["metadata"]
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key not in _NOT_COPIED}
    annotations[clusters.ANNOTATION_ORIGIN] = clusters.encode(origin, what=clusters.ANNOTATION_ORIGIN)
    spec = {key: value for key, value in pod["spec"].items() if key not in _OF_HOME}
    tokens = {name for name in map(_name, spec.get("volumes") or ()) if name.startswith(kubernetes.VOLUME_TOKEN_PREFIX)}
    if tokens:
        spec["volumes"] = [volume for volume in spec["volumes"] if _name(volume) not in tokens]
        for group in ("containers", "initContainers"):
            if group in spec:
                spec[group] = [_without_mounts(container, tokens) for container in spec[group]]
    spec["schedulingGates"] = [{"name": clusters.GATE_COPY}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {**(meta.get("labels") or {}), clusters.LABEL_ORIGIN: origin.cluster},
            "annotations": annotations,
        },
        "spec": spec,
    }


def _name(volume: Mapping[str, Any]) -> str:
    return str(volume.get("name", ""))


def _without_mounts(container: Mapping[str, Any], volumes: set[str]) -> dict[str, Any]:
    mounts = [mount for mount in container.get("volumeMounts") or () if _name(mount) not in volumes]
    return {**container, "volumeMounts": mounts}


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """An object of its namespace that a pod cannot do without."""

    #: As in the API: `v1`, `secrets`, `Secret`.
    api: str
    plural: str
    kind: str
    name: str

    @property
    def resource(self) -> Resource[Object]:
        """Its kind, of which only the name is read."""
        group, _, version = self.api.rpartition("/")
        return Resource(group, version, self.plural, self.kind, Object)

    @property
    def has_content(self) -> bool:
        """Whether it is a ConfigMap or a Secret: content alone, that means the same in any cluster."""
        return self.plural in ("configmaps", "secrets")


_CONFIG_MAP: Final = ("v1", "configmaps", "ConfigMap")
_SECRET: Final = ("v1", "secrets", "Secret")
_ACCOUNT: Final = ("v1", "serviceaccounts", "ServiceAccount")
_CLAIM: Final = ("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
_DEVICES: Final = ("resource.k8s.io/v1", "resourceclaims", "ResourceClaim")
_DEVICES_TEMPLATE: Final = ("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate")


def references(pod: RawObject, *, optional: bool = False) -> tuple[Reference, ...]:
    """What a pod names and must find in the cluster it runs in, each once; `optional`: what it can do without instead.

    What is optional in one place and needed in another is needed.
    """
    spec = copy_of(pod, CopyOrigin(cluster="-", uid="-", attempt=1))["spec"]
    found = [*_of_volumes(spec), *_of_containers(spec), *((one, False) for one in _of_pod(spec))]
    needed = {one for one, spare in found if not spare}
    named = {one for one, _ in found} - needed if optional else needed
    return tuple(sorted(one for one in named if one.name))


def _of_pod(spec: Mapping[str, Any]) -> Iterator[Reference]:
    account = str(spec.get("serviceAccountName") or "")
    if account != "default":
        yield Reference(*_ACCOUNT, account)
    for secret in spec.get("imagePullSecrets") or ():
        yield Reference(*_SECRET, _name(secret))
    for claim in spec.get("resourceClaims") or ():
        yield Reference(*_DEVICES, str(claim.get("resourceClaimName") or ""))
        yield Reference(*_DEVICES_TEMPLATE, str(claim.get("resourceClaimTemplateName") or ""))


def _of_volumes(spec: Mapping[str, Any]) -> Iterator[tuple[Reference, bool]]:
    for volume in spec.get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            yield from _named_in(source.get("configMap"), _CONFIG_MAP, "name")
            yield from _named_in(source.get("secret"), _SECRET, "secretName" if source is volume else "name")
        yield from _named_in(volume.get("persistentVolumeClaim"), _CLAIM, "claimName")


def _of_containers(spec: Mapping[str, Any]) -> Iterator[tuple[Reference, bool]]:
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for source in container.get("envFrom") or ():
            yield from _named_in(source.get("configMapRef"), _CONFIG_MAP, "name")
            yield from _named_in(source.get("secretRef"), _SECRET, "name")
        for variable in container.get("env") or ():
            value = variable.get("valueFrom") or {}
            yield from _named_in(value.get("configMapKeyRef"), _CONFIG_MAP, "name")
            yield from _named_in(value.get("secretKeyRef"), _SECRET, "name")


def _named_in(
    source: Mapping[str, Any] | None, what: tuple[str, str, str], key: str
) -> Iterator[tuple[Reference, bool]]:
    """What is named, and whether it is optional."""
    if source is not None:
        yield Reference(*what, str(source.get(key) or "")), bool(source.get("optional"))
