"""Snapshot files: a cluster snapshot in one JSON file, compressed when its name ends in `.gz`, without what a decision
does not need, so that it may be given to others.

The format has a version. A file of another version, one that is no snapshot, and one too large to be one are refused
with what to do.

What is kept is named here field by field, so that a field added elsewhere is left out until somebody names it. Labels,
affinity and names of objects are kept: the filters read them. Env, arguments, commands, images, addresses, volumes that
are no claims, and all annotations but those of the contract are not.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

import msgspec

from shoal.analysis.errors import SnapshotError
from shoal.analysis.snapshot import ClusterSnapshot, PriorityClass
from shoal.kube.access.secret_files import write_secret
from shoal.kube.objects.claims import (
    AllocationResult,
    DeviceAllocation,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
    ResourceSlice,
)
from shoal.kube.objects.meta import ObjectMeta, ObjectReference, OwnerReference
from shoal.kube.objects.node import Namespace, Node, NodeSpec, NodeStatus
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Container, ContainerPort, Pod, PodSpec, PodStatus, Volume
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.kube.resources import key_of
from shoal.model.contract import clusters, dra, gpushare, groups, keti, kubernetes, mechanisms, shoal
from shoal.model.contract.decisions import DECISION_ANNOTATIONS
from shoal.model.errors import shown
from shoal.model.pod import ANNOTATIONS_READ
from shoal.placement.errors import PolicyError
from shoal.placement.policies import policy_named

#: On a pod: what it asks for besides its resources, and its group.
_ASKED: Final = frozenset(
    {
        *ANNOTATIONS_READ,
        keti.ANNOTATION_NODE,
        keti.ANNOTATION_CLUSTER,
        keti.ANNOTATION_PRIORITY,
        groups.NAME_MINIMUM,
        groups.NAME_LIGHT_MINIMUM,
        groups.NAME_TIMEOUT,
    }
)
#: On a node: its cards.
_INVENTORY: Final = frozenset({shoal.ANNOTATION_GPUS, mechanisms.ANNOTATION_MECHANISMS})
#: On claims and volumes.
_VOLUMES: Final = frozenset(
    {
        kubernetes.ANNOTATION_SELECTED_NODE,
        kubernetes.ANNOTATION_BIND_COMPLETED,
        kubernetes.ANNOTATION_BOUND_BY_CONTROLLER,
        kubernetes.ANNOTATION_STORAGE_CLASS,
    }
)


_NOTHING: frozenset[str] = frozenset()
#: On a pod: the decision, whoever made it, and what it asks for.
_POD = _ASKED | frozenset({*DECISION_ANNOTATIONS, clusters.ANNOTATION_DISPATCH})
#: On a device claim: for which pod it was made.
_CLAIM = frozenset({dra.ANNOTATION_EXTENDED_RESOURCE})
_CONFIG = frozenset({gpushare.UNHEALTHY_KEY, *keti.encode_policy(keti.DEFAULT_POLICY)})


def cleaned(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot without what decides nothing; a dry run on it gives the same answers."""
    return ClusterSnapshot(
        settings=snapshot.settings,
        nodes=tuple(_node(one) for one in snapshot.nodes),
        pods=tuple(_pod(one) for one in snapshot.pods),
        namespaces=tuple(Namespace(metadata=_meta(one.metadata, _NOTHING)) for one in snapshot.namespaces),
        volumes=tuple(_volume(one) for one in snapshot.volumes),
        claims=tuple(_claim(one) for one in snapshot.claims),
        storage_classes=tuple(_storage_class(one) for one in snapshot.storage_classes),
        resource_claims=tuple(_resource_claim(one) for one in snapshot.resource_claims),
        claim_templates=tuple(_claim_template(one) for one in snapshot.claim_templates),
        device_classes=tuple(_device_class(one) for one in snapshot.device_classes),
        resource_slices=tuple(
            ResourceSlice(metadata=_meta(one.metadata, _NOTHING), spec=one.spec) for one in snapshot.resource_slices
        ),
        budgets=tuple(_budget(one) for one in snapshot.budgets),
        priority_classes=tuple(_priority_class(one) for one in snapshot.priority_classes),
        config_maps=tuple(_config_map(one) for one in snapshot.config_maps),
        loads=snapshot.loads,
        missing=snapshot.missing,
    )


def _meta(meta: ObjectMeta, keep: Collection[str], *, owners: bool = False) -> ObjectMeta:
    return ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        labels=meta.labels,
        annotations={name: text for name, text in meta.annotations.items() if name in keep},
        # A claim that comes with a pod is known by its owner.
        owner_references=tuple(
            OwnerReference(kind=owner.kind, name=owner.name, uid=owner.uid, controller=owner.controller)
            for owner in meta.owner_references
            if owners
        ),
    )


def _node(node: Node) -> Node:
    return Node(
        metadata=_meta(node.metadata, _INVENTORY),
        spec=NodeSpec(unschedulable=node.spec.unschedulable, taints=node.spec.taints),
        status=NodeStatus(capacity=node.status.capacity, allocatable=node.status.allocatable),
    )


def _pod(pod: Pod) -> Pod:
    spec, status = pod.spec, pod.status
    return Pod(
        metadata=_meta(pod.metadata, _POD),
        spec=PodSpec(
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name,
            priority=spec.priority,
            priority_class_name=spec.priority_class_name,
            preemption_policy=spec.preemption_policy,
            containers=tuple(_container(one) for one in spec.containers),
            init_containers=tuple(_container(one) for one in spec.init_containers),
            resources=spec.resources,
            overhead=spec.overhead,
            node_selector=spec.node_selector,
            affinity=spec.affinity,
            topology_spread_constraints=spec.topology_spread_constraints,
            tolerations=spec.tolerations,
            scheduling_gates=spec.scheduling_gates,
            volumes=tuple(_claim_of(one) for one in spec.volumes if _is_claim(one)),
            resource_claims=spec.resource_claims,
        ),
        status=PodStatus(
            phase=status.phase,
            start_time=status.start_time,
            nominated_node_name=status.nominated_node_name,
            conditions=tuple(one for one in status.conditions if one.type == "PodScheduled"),
            resource_claim_statuses=status.resource_claim_statuses,
            extended_resource_claim_status=status.extended_resource_claim_status,
        ),
    )


def _resource_claim(claim: ResourceClaim) -> ResourceClaim:
    allocation = claim.status.allocation
    if allocation is not None:
        devices = DeviceAllocation(results=allocation.devices.results)
        allocation = AllocationResult(devices=devices, node_selector=allocation.node_selector)
    return ResourceClaim(
        metadata=_meta(claim.metadata, _CLAIM, owners=True),
        spec=_claim_spec(claim.spec),
        status=ResourceClaimStatus(allocation=allocation, reserved_for=claim.status.reserved_for),
    )


def _claim_template(template: ResourceClaimTemplate) -> ResourceClaimTemplate:
    spec = ResourceClaimTemplateSpec(spec=_claim_spec(template.spec.spec))
    return ResourceClaimTemplate(metadata=_meta(template.metadata, _NOTHING), spec=spec)


def _claim_spec(spec: ResourceClaimSpec) -> ResourceClaimSpec:
    """What is asked for, without the settings for drivers."""
    return ResourceClaimSpec(devices=DeviceClaim(requests=spec.devices.requests, constraints=spec.devices.constraints))


def _device_class(known: DeviceClass) -> DeviceClass:
    return DeviceClass(metadata=_meta(known.metadata, _NOTHING), spec=DeviceClassSpec(selectors=known.spec.selectors))


def _container(container: Container) -> Container:
    return Container(
        name=container.name,
        restart_policy=container.restart_policy,
        resources=container.resources,
        ports=tuple(
            ContainerPort(
                container_port=port.container_port,
                host_port=port.host_port,
                host_ip=port.host_ip,
                protocol=port.protocol,
            )
            for port in container.ports
            if port.host_port
        ),
    )


def _is_claim(volume: Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def _claim_of(volume: Volume) -> Volume:
    return Volume(name=volume.name, persistent_volume_claim=volume.persistent_volume_claim, ephemeral=volume.ephemeral)


def _volume(volume: PersistentVolume) -> PersistentVolume:
    reference = volume.spec.claim_ref
    if reference is not None:
        reference = ObjectReference(namespace=reference.namespace, name=reference.name, uid=reference.uid)
    return PersistentVolume(
        metadata=_meta(volume.metadata, _VOLUMES),
        spec=msgspec.structs.replace(volume.spec, claim_ref=reference),
        status=volume.status,
    )


def _claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=_meta(claim.metadata, _VOLUMES, owners=True), spec=claim.spec, status=claim.status
    )


def _storage_class(one: StorageClass) -> StorageClass:
    return StorageClass(
        metadata=_meta(one.metadata, _NOTHING),
        provisioner=one.provisioner,
        volume_binding_mode=one.volume_binding_mode,
        allowed_topologies=one.allowed_topologies,
    )


def _budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    return PodDisruptionBudget(metadata=_meta(budget.metadata, _NOTHING), spec=budget.spec, status=budget.status)


def _priority_class(one: PriorityClass) -> PriorityClass:
    return PriorityClass(
        metadata=_meta(one.metadata, _NOTHING),
        value=one.value,
        global_default=one.global_default,
        preemption_policy=one.preemption_policy,
    )


def _config_map(configmap: ConfigMap) -> ConfigMap:
    return ConfigMap(
        metadata=_meta(configmap.metadata, _NOTHING),
        data={key: text for key, text in configmap.data.items() if key in _CONFIG},
    )


KIND: Final = "ShoalSnapshot"
VERSION: Final = 1
#: Larger than a snapshot of 10,000 nodes and 100,000 pods.
MAX_BYTES: Final = 1 << 29


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The content of a snapshot file."""

    kind: Literal["ShoalSnapshot"]
    version: Literal[1]
    #: When the cluster was read, and by which version of Shoal.
    taken: str
    shoal: str
    snapshot: ClusterSnapshot = msgspec.field(name="facts")


class _FileHead(msgspec.Struct):
    kind: str = ""
    version: int = 0


def content_of(snapshot: ClusterSnapshot, *, taken: str, shoal: str) -> bytes:
    """The JSON of the file. Raises SnapshotError."""
    document = SnapshotFile(kind=KIND, version=VERSION, taken=taken, shoal=shoal, snapshot=cleaned(snapshot))
    content = msgspec.json.encode(document)
    if len(content) > MAX_BYTES:
        raise SnapshotError(f"the cluster takes {len(content)} bytes, a snapshot holds at most {MAX_BYTES}")
    return content


def save(snapshot: ClusterSnapshot, path: Path, *, taken: str, shoal: str) -> int:
    """Write the file, readable by its owner alone, whole or not at all: how many bytes it has."""
    content = content_of(snapshot, taken=taken, shoal=shoal)
    if path.suffix == ".gz":
        content = gzip.compress(content)
    try:
        _write(path, content)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror or error}: give another file") from error
    return len(content)


def _write(path: Path, content: bytes) -> None:
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a pipe, or /dev/stdout
        return
    write_secret(path, content)


def load(path: Path) -> SnapshotFile:
    """Read the file. Raises SnapshotError."""
    try:
        with _opened(path) as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise SnapshotError(f"{path} cannot be read: {why}: give a file that `shoal snapshot` wrote") from error
    if len(content) > MAX_BYTES:
        raise SnapshotError(f"{path} holds more than {MAX_BYTES} bytes: give a file that `shoal snapshot` wrote")
    try:
        head = msgspec.json.decode(content, type=_FileHead)
        if head.kind != KIND:
            raise SnapshotError(f"{path} is no snapshot: give a file that `shoal snapshot` wrote")
        if head.version != VERSION:
            raise SnapshotError(
                f"{path} has version {head.version} of the format, this Shoal reads {VERSION}: take the snapshot again"
            )
        found = msgspec.json.decode(content, type=SnapshotFile)
        _check(found.snapshot)
        return found
    except (msgspec.MsgspecError, PolicyError, ValueError, RecursionError) as error:
        raise SnapshotError(f"{path} is no snapshot: {error}: give a file that `shoal snapshot` wrote") from error


def _check(snapshot: ClusterSnapshot) -> None:
    """Check what the API server guarantees and a file written by hand may lack. Raises ValueError and PolicyError."""
    policy_named(snapshot.settings.policy)
    known: dict[str, Pod] = {}
    for pod in snapshot.pods:
        name, uid = "/".join(key_of(pod)), pod.metadata.uid
        if not uid:
            raise ValueError(f"pod {name} has no metadata.uid, by which its cards are known")
        other = known.setdefault(uid, pod)
        if other is not pod:
            raise ValueError(f"pods {'/'.join(key_of(other))} and {name} have one metadata.uid, {shown(uid)}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The content, decompressed if it is compressed, whatever the file is called."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            opened: Any = unpacked
            yield cast(BinaryIO, opened)
