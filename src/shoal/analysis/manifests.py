"""Pods from manifests, as the API server and the controllers would make them: Pod, Deployment, ReplicaSet,
StatefulSet, Job, CronJob, and lists of them. Other kinds are passed over.

Defaults that change a decision are filled in: the priority of the pod's class, its scheduler. LimitRanges, quotas and
admission of others are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shoal.analysis.errors import WorkloadFileError
from shoal.analysis.snapshot import ClusterSnapshot, PriorityClass
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.pod import ClaimVolume, Pod, PodSpec, Volume
from shoal.kube.objects.storage import PersistentVolumeClaim
from shoal.model.contract import kubernetes
from shoal.model.errors import shown

MAX_BYTES: Final = 4 << 20
MAX_PODS: Final = 10_000
_KINDS: Final = ("Pod", "Deployment", "ReplicaSet", "StatefulSet", "Job", "CronJob")
#: Kubernetes' label that sets the pods of one rollout apart.
_HASH: Final = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class ManifestWorkload:
    """The pods of one manifest, and the claims that come with them."""

    kind: str
    name: str
    pods: tuple[Pod, ...]
    claims: tuple[PersistentVolumeClaim, ...] = field(default=())


def workloads(
    text: bytes, *, namespace: str, snapshot: ClusterSnapshot, count: int | None = None
) -> list[ManifestWorkload]:
    """The workloads of a file, each with as many pods as it asks for, or `count`. Raises WorkloadFileError."""
    from shoal.analysis.documents import documents

    if len(text) > MAX_BYTES:
        raise WorkloadFileError(f"the file has more than {MAX_BYTES} bytes: give one with the pods in question only")
    try:
        given = documents(text)
    except ValueError as error:  # also a date or a number that there is not
        raise WorkloadFileError(f"the file is no YAML: {error}") from error
    found = [_workload(one, namespace, snapshot, count) for one in _objects(given) if one.get("kind") in _KINDS]
    if not found:
        raise WorkloadFileError(f"the file holds no pods: give a {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
    return found


def _objects(documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise WorkloadFileError(f"the file holds a {type(document).__name__}: write Kubernetes objects")
        if document.get("kind") == "List":
            items = document.get("items")
            yield from _objects(items if isinstance(items, list) else [])
        else:
            yield document


def _workload(
    manifest: Mapping[str, Any], namespace: str, snapshot: ClusterSnapshot, count: int | None
) -> ManifestWorkload:
    kind = str(manifest["kind"])
    meta, spec = _part(manifest, "metadata"), _part(manifest, "spec")
    if kind == "CronJob":
        spec = _part(_part(spec, "jobTemplate"), "spec")
    name = str(meta.get("name") or meta.get("generateName") or kind.lower())
    template = manifest if kind == "Pod" else _part(spec, "template")
    pods = _replicas(kind, spec) if count is None else count
    if pods > MAX_PODS:
        raise WorkloadFileError(
            f"{kind} {shown(name)} asks for {pods} pods, at most {MAX_PODS} are tried: give a --count"
        )
    pod = _pod(template, kind, name, snapshot)
    where = str(meta.get("namespace") or namespace)
    templates = _claim_templates(kind, spec)
    mounted = tuple(claim.metadata.name for claim in templates)
    first = 0 if kind == "StatefulSet" else 1
    made = tuple(_numbered(pod, kind, name, where, number, mounted) for number in range(first, first + pods))
    if kind == "Pod" and pods == 1:
        alone = msgspec.structs.replace(made[0].metadata, name=name)
        made = (msgspec.structs.replace(made[0], metadata=alone),)
    claims = tuple(_claim_for(template, one) for template in templates for one in made)
    return ManifestWorkload(kind, name, made, claims)


def _part(manifest: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = manifest.get(key) or {}
    if not isinstance(part, dict):
        raise WorkloadFileError(f"{key} holds a {type(part).__name__}: write it as kubectl explain tells")
    return part


def _replicas(kind: str, spec: Mapping[str, Any]) -> int:
    def number(key: str, default: int) -> int:
        value = spec.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise WorkloadFileError(f"{key} holds {shown(value)}: write a number of pods")
        return default if value is None else value

    if kind == "Pod":
        return 1
    if kind in ("Job", "CronJob"):
        parallel = number("parallelism", 1)
        return min(parallel, number("completions", parallel))
    return number("replicas", 1)


def _pod(template: Mapping[str, Any], kind: str, name: str, snapshot: ClusterSnapshot) -> Pod:
    kept = {"metadata": _told(_part(template, "metadata")), "spec": template.get("spec") or {}}
    try:
        pod = msgspec.convert(kept, Pod)
    except msgspec.ValidationError as error:
        raise WorkloadFileError(f"{kind} {shown(name)} holds no pod: {error}") from error
    if not pod.spec.containers:
        raise WorkloadFileError(f"{kind} {shown(name)} has a pod without containers: add spec.containers")
    return msgspec.structs.replace(pod, spec=_defaulted(pod.spec, snapshot))


def _told(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Labels and annotations; the rest of a template's metadata is made anew."""
    return {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}


def _defaulted(spec: PodSpec, snapshot: ClusterSnapshot) -> PodSpec:
    named = {one.metadata.name: one for one in snapshot.priority_classes}
    default = next((one for one in snapshot.priority_classes if one.global_default), PriorityClass())
    importance = named.get(spec.priority_class_name, default)
    return msgspec.structs.replace(
        spec,
        scheduler_name=spec.scheduler_name or kubernetes.DEFAULT_SCHEDULER,
        priority=importance.value if spec.priority is None else spec.priority,
        preemption_policy=spec.preemption_policy or importance.preemption_policy,
    )


def _numbered(pod: Pod, kind: str, name: str, namespace: str, number: int, claims: tuple[str, ...]) -> Pod:
    """The pod of that number; those of a StatefulSet are counted from 0, and mount claims of their own."""
    own = f"{name}-{number}"
    labels = {**pod.metadata.labels, **({_HASH: "what-if"} if kind in ("Deployment", "ReplicaSet") else {})}
    meta = ObjectMeta(
        name=own, namespace=namespace, uid=f"what-if-{kind}-{own}", labels=labels, annotations=pod.metadata.annotations
    )
    mounted = tuple(
        Volume(name=claim, persistent_volume_claim=ClaimVolume(claim_name=f"{claim}-{own}")) for claim in claims
    )
    kept = tuple(volume for volume in pod.spec.volumes if volume.name not in claims)
    return msgspec.structs.replace(
        pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, volumes=(*kept, *mounted))
    )


def _claim_templates(kind: str, spec: Mapping[str, Any]) -> tuple[PersistentVolumeClaim, ...]:
    if kind != "StatefulSet":
        return ()
    try:
        return msgspec.convert(spec.get("volumeClaimTemplates") or [], tuple[PersistentVolumeClaim, ...])
    except msgspec.ValidationError as error:
        raise WorkloadFileError(f"volumeClaimTemplates cannot be read: {error}") from error


def _claim_for(template: PersistentVolumeClaim, pod: Pod) -> PersistentVolumeClaim:
    meta = ObjectMeta(
        name=f"{template.metadata.name}-{pod.metadata.name}",
        namespace=pod.metadata.namespace,
        uid=f"what-if-claim-{template.metadata.name}-{pod.metadata.name}",
        annotations=template.metadata.annotations,
    )
    return msgspec.structs.replace(template, metadata=meta)
