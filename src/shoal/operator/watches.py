"""What the operator watches, kept small, and the world that its pure parts read.

5,000 nodes with seven operands each are 35,000 pods: of pods and nodes only what is read is kept, and indexes are kept
up by change. The world refers to them without a copy: it is for the moment, and not kept.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from shoal.kube.client import Client
from shoal.kube.objects.meta import Object, ObjectMeta, OwnerReference
from shoal.kube.objects.node import Node, NodeInfo, NodeSpec, NodeStatus
from shoal.kube.objects.pod import Container, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus
from shoal.kube.reflector import Pace, Reflector
from shoal.kube.resources import CONFIG_MAPS, NODES, PODS, RawObject, Resource, meta_of
from shoal.kube.store import Change
from shoal.model.backoff import Backoff
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.kubernetes import LABEL_REVISION
from shoal.model.contract.operator import ANNOTATION_VALIDATION, LABEL_POLICY
from shoal.operator.drift import ANNOTATION_APPLIED
from shoal.operator.gpu_pods import uses_gpu
from shoal.operator.manifests import Manifests
from shoal.operator.nvidia import NVIDIA_POLICIES
from shoal.operator.uninstall import NODE_ANNOTATIONS
from shoal.operator.world import World, is_ready
from shoal.operator.writes import DAEMON_SETS, POLICIES, RUNTIME_CLASSES

log = logging.getLogger(__name__)
T = TypeVar("T")

_LABEL_PREFIXES: Final = (
    nvidia.LABEL_DEPLOY_PREFIX,
    "nvidia.com/gpu-driver-upgrade",
    "shoal.dev/",
    nvidia.LABEL_PCI_PREFIX,
    "feature.node.kubernetes.io/system-os_release.",
)
_LABELS: Final = frozenset((nvidia.LABEL_PRESENT, gpushare.LABEL_NODE, keti.LABEL_NODE))
#: Annotations of nodes whose value is read; of the others of Shoal's it is enough to know that they are there.
_ANNOTATION_PREFIXES: Final = ("nvidia.com/gpu-driver-upgrade", "shoal.dev/upgrade", "shoal.dev/driver")
#: Sets of labels, containers and owners that are kept once.
_ALIKE: Final = 4096
_READY: Final = (PodCondition(type="Ready", status="True"),)
#: A kind that is there need not be asked for often; one that is refused neither.
_PACE: Final = Pace(backoff=Backoff(first=0.2, longest=10.0))


class ControllerRevision(Object, frozen=True, kw_only=True):
    """A past or present template of a DaemonSet, without the template."""

    revision: int = 0


REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision", ControllerRevision)


def slim_node(node: Node) -> Node:
    """A node with what the operator reads."""
    meta = node.metadata
    labels = {
        sys.intern(key): sys.intern(value)
        for key, value in meta.labels.items()
        if key in _LABELS or key.startswith(_LABEL_PREFIXES)
    }
    annotations = {
        sys.intern(key): value if _is_read(key) else ""
        for key, value in meta.annotations.items()
        if key in NODE_ANNOTATIONS or _is_read(key)
    }
    kept = ObjectMeta(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        labels=labels,
        annotations=annotations,
    )
    info = node.status.node_info
    return Node(
        metadata=kept,
        spec=NodeSpec(unschedulable=node.spec.unschedulable, taints=node.spec.taints),
        status=NodeStatus(
            conditions=tuple(one for one in node.status.conditions if one.type == "Ready"),
            node_info=NodeInfo(boot_id=info.boot_id, os_image=sys.intern(info.os_image)),
        ),
    )


def _is_read(key: str) -> bool:
    return key == ANNOTATION_VALIDATION or key.startswith(_ANNOTATION_PREFIXES)


def slim_operand_pod(pod: Pod) -> Pod:
    """A pod of the operator's namespace with what the operator reads."""
    spec = pod.spec
    return msgspec.structs.replace(
        pod,
        metadata=_slim_meta(pod.metadata),
        spec=PodSpec(
            node_name=sys.intern(spec.node_name),
            # Before it is bound this tells which node it is for.
            affinity=None if spec.node_name else spec.affinity,
            containers=_slim_containers(spec.containers),
            init_containers=_slim_containers(spec.init_containers),
        ),
        status=_slim_status(pod),
    )


def _slim_containers(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    return _containers(tuple((one.name, one.image) for one in containers))


# The pods of a DaemonSet are alike in these: each is kept once.


@lru_cache(maxsize=_ALIKE)
def _containers(named: tuple[tuple[str, str], ...]) -> tuple[Container, ...]:
    return tuple(Container(name=name, image=image) for name, image in named)


@lru_cache(maxsize=_ALIKE)
def _ready_containers(names: tuple[str, ...]) -> tuple[ContainerStatus, ...]:
    return tuple(ContainerStatus(name=name, ready=True) for name in names)


@lru_cache(maxsize=_ALIKE)
def _labels(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {sys.intern(key): sys.intern(value) for key, value in pairs}


@lru_cache(maxsize=_ALIKE)
def _owners(owners: tuple[OwnerReference, ...]) -> tuple[OwnerReference, ...]:
    return owners


def _slim_meta(meta: ObjectMeta) -> ObjectMeta:
    return ObjectMeta(
        name=meta.name,
        namespace=sys.intern(meta.namespace),
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        labels=_labels(tuple(meta.labels.items())),
        owner_references=_owners(meta.owner_references),
    )


def _slim_status(pod: Pod) -> PodStatus:
    status = pod.status
    if is_ready(pod):
        # Nobody asks how it came to be so.
        names = tuple(one.name for one in status.container_statuses)
        return PodStatus(phase=sys.intern(status.phase), conditions=_READY, container_statuses=_ready_containers(names))
    return status


def slim_any_pod(pod: Pod) -> Pod:
    """A pod of any namespace: one with a card as it is but for what is long, any other by its name alone."""
    if not uses_gpu(pod):
        meta = pod.metadata
        return Pod(
            metadata=ObjectMeta(
                name=meta.name,
                namespace=sys.intern(meta.namespace),
                uid=meta.uid,
                resource_version=meta.resource_version,
            )
        )
    return msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(pod.spec, tolerations=(), affinity=None, topology_spread_constraints=()),
    )


def slim_raw(kind: str, api_version: str, *, data: bool = True) -> Callable[[RawObject], RawObject]:
    """An object as it is, with its kind, without what the server keeps beside it."""

    def slim(obj: RawObject) -> RawObject:
        metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "managedFields"}
        kept = {**obj, "apiVersion": api_version, "kind": kind, "metadata": metadata}
        if not data and not is_owned(kept):
            kept.pop("data", None)
            kept.pop("binaryData", None)
        return kept

    return slim


def is_owned(obj: RawObject) -> bool:
    """Whether the operator has made an object."""
    metadata = obj.get("metadata") or {}
    return LABEL_POLICY in (metadata.get("labels") or {}) or ANNOTATION_APPLIED in (metadata.get("annotations") or {})


def slim_revision(revision: ControllerRevision) -> ControllerRevision:
    """A revision with what the operator reads."""
    return msgspec.structs.replace(revision, metadata=_slim_meta(revision.metadata))


class PodIndex:
    """Pods by node."""

    def __init__(self, keeps: Callable[[Pod], bool] = lambda pod: True) -> None:
        self._keeps = keeps
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._tuples: dict[str, tuple[Pod, ...]] = {}

    @property
    def by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """All of them; those without a node under ""."""
        return self._tuples

    def take(self, change: Change[Pod]) -> None:
        """Follow a change."""
        if change.old is not None:
            self._remove(change.old)
        if change.new is None:
            self._remove(change.object)
        elif self._keeps(change.new):
            node = change.new.spec.node_name
            self._by_node.setdefault(node, {})[change.new.metadata.uid] = change.new
            self._tuples[node] = tuple(self._by_node[node].values())

    def clear(self) -> None:
        """Forget all."""
        self._by_node.clear()
        self._tuples.clear()

    def _remove(self, pod: Pod) -> None:
        node = pod.spec.node_name
        held = self._by_node.get(node)
        if held is None or held.pop(pod.metadata.uid, None) is None:
            return
        if held:
            self._tuples[node] = tuple(held.values())
        else:
            del self._by_node[node]
            del self._tuples[node]


class OperatorWatches:
    """All reflectors of the operator, and the world as they show it. Use it in `async with`."""

    def __init__(self, client: Client, namespace: str, *, changed: Callable[[], None]) -> None:
        self.namespace = namespace
        self._client = client
        self._changed = changed
        self.nodes: dict[str, Node] = {}
        self.operand_pods = PodIndex()
        self.gpu_pods = PodIndex(uses_gpu)
        raw_config_maps = CONFIG_MAPS.raw
        self.policies = Reflector(
            client, POLICIES, consumers=[self._on_any], slim=slim_raw("ClusterPolicy", POLICIES.api_version)
        )
        self.node_objects = Reflector(client, NODES, consumers=[self._on_node], slim=slim_node)
        self.pods = Reflector(
            client, PODS, namespace=namespace, consumers=[self._on_operand_pod], slim=slim_operand_pod
        )
        self.daemon_sets = Reflector(
            client,
            DAEMON_SETS,
            namespace=namespace,
            consumers=[self._on_any],
            slim=slim_raw("DaemonSet", DAEMON_SETS.api_version),
        )
        self.config_maps = Reflector(
            client,
            raw_config_maps,
            namespace=namespace,
            consumers=[self._on_config_map],
            slim=slim_raw("ConfigMap", raw_config_maps.api_version, data=False),
        )
        self.runtime_classes = Reflector(
            client,
            RUNTIME_CLASSES,
            consumers=[self._on_any],
            slim=slim_raw("RuntimeClass", RUNTIME_CLASSES.api_version),
        )
        self.revisions = Reflector(client, REVISIONS, namespace=namespace, consumers=[self._on_any], slim=slim_revision)
        self._nvidia: Reflector[RawObject] | None = None
        self._all_pods: Reflector[Pod] | None = None

    @property
    def always(self) -> dict[str, Reflector[Any]]:
        """Those that always run, by what they watch."""
        return {
            "clusterpolicies.shoal.dev": self.policies,
            "nodes": self.node_objects,
            "pods": self.pods,
            "daemonsets": self.daemon_sets,
            "configmaps": self.config_maps,
            "runtimeclasses": self.runtime_classes,
            "controllerrevisions": self.revisions,
        }

    @property
    def running(self) -> dict[str, Reflector[Any]]:
        """Those that run now."""
        found = self.always
        if self._nvidia is not None:
            found["clusterpolicies.nvidia.com"] = self._nvidia
        if self._all_pods is not None:
            found["pods of all namespaces"] = self._all_pods
        return found

    async def __aenter__(self) -> OperatorWatches:
        for reflector in self.always.values():
            await reflector.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for reflector in self.running.values():
            await reflector.stop()

    async def wait_synced(self) -> None:
        """Return when everything has been read once."""
        for reflector in self.always.values():
            await reflector.wait_synced()

    async def refresh(self) -> None:
        """Read everything anew: what another replica wrote last may not have come by the watch yet."""
        for reflector in self.running.values():
            await reflector.refresh()

    async def look_for_nvidia(self) -> None:
        """Watch NVIDIA's policies while the cluster knows them. Raises KubeError."""
        served = await self._is_served(NVIDIA_POLICIES)
        if served and self._nvidia is None:
            self._nvidia = Reflector(
                self._client,
                NVIDIA_POLICIES,
                consumers=[self._on_any],
                slim=slim_raw("ClusterPolicy", NVIDIA_POLICIES.api_version),
                pace=_PACE,
            )
            await self._nvidia.__aenter__()
            await self._nvidia.wait_synced()
            self._changed()
        elif not served and self._nvidia is not None:
            gone, self._nvidia = self._nvidia, None
            await gone.stop()
            self._changed()

    async def look_at_all_pods(self, wanted: bool) -> None:
        """Watch the pods of all namespaces, or do not: they are read for driver upgrades and on removal only."""
        if wanted and self._all_pods is None:
            self._all_pods = Reflector(self._client, PODS, consumers=[self._on_pod], slim=slim_any_pod)
            await self._all_pods.__aenter__()
            await self._all_pods.wait_synced()
        elif not wanted and self._all_pods is not None:
            gone, self._all_pods = self._all_pods, None
            await gone.stop()
            self.gpu_pods.clear()

    async def _is_served(self, resource: Resource[Any]) -> bool:
        # The list of groups: asking for one that is not there is answered with an error.
        groups = msgspec.json.decode(await self._client.request("GET", "/apis"), type=_Groups)
        if not any(group.name == resource.group for group in groups.groups):
            return False
        path = f"/apis/{resource.group}/{resource.version}"
        with contextlib.suppress(msgspec.ValidationError):
            kinds = msgspec.json.decode(await self._client.request("GET", path), type=_Kinds)
            return any(kind.name == resource.plural for kind in kinds.resources)
        return False

    # Changes

    def _on_any(self, change: Change[Any]) -> None:
        self._changed()

    def _on_node(self, change: Change[Node]) -> None:
        if change.new is None:
            self.nodes.pop(change.object.metadata.name, None)
            self._changed()
            return
        self.nodes[change.new.metadata.name] = change.new
        # Every node says every few minutes that it is alive.
        if change.old is None or _plain(change.old) != _plain(change.new):
            self._changed()

    def _on_operand_pod(self, change: Change[Pod]) -> None:
        self.operand_pods.take(change)
        self._changed()

    def _on_pod(self, change: Change[Pod]) -> None:
        self.gpu_pods.take(change)
        if any(pod is not None and uses_gpu(pod) for pod in (change.old, change.new)):
            self._changed()

    def _on_config_map(self, change: Change[RawObject]) -> None:
        old, new = change.old, change.new
        # A ConfigMap that others use for elections is written every second.
        if old is None or new is None or is_owned(old) or is_owned(new):
            self._changed()

    # The world

    def world(self, manifests: Manifests, *, now: float, **more: Any) -> World:
        """This moment. It refers to what the watches keep: use it up before anything else runs."""
        return World(
            namespace=self.namespace,
            now=now,
            policies=tuple(self.policies.store),
            nvidia_policies=tuple(self._nvidia.store) if self._nvidia is not None else (),
            nodes=self.nodes,
            operand_pods=self.operand_pods.by_node,
            gpu_pods=self.gpu_pods.by_node,
            revisions=dict(self._newest_revisions()),
            owned={
                (str(obj["kind"]), meta_of(obj).name): obj
                for reflector in (self.daemon_sets, self.config_maps, self.runtime_classes)
                for obj in reflector.store
                if is_owned(obj)
            },
            config_maps=_names(self.config_maps),
            runtime_classes=_names(self.runtime_classes),
            operands=manifests,
            **more,
        )

    def _newest_revisions(self) -> Iterator[tuple[str, str]]:
        newest: dict[str, ControllerRevision] = {}
        for one in self.revisions.store:
            for owner in one.metadata.owner_references:
                if owner.kind == "DaemonSet" and (
                    owner.name not in newest or newest[owner.name].revision < one.revision
                ):
                    newest[owner.name] = one
        for name, one in newest.items():
            yield name, one.metadata.labels.get(LABEL_REVISION, "")

    def terminating(self, kind: str, name: str, namespace: str, uid: str) -> bool:
        """Whether an object that was asked to go is gone or on its way, as the watches show it."""
        stores: dict[str, Reflector[Any]] = {
            "DaemonSet": self.daemon_sets,
            "ConfigMap": self.config_maps,
            "RuntimeClass": self.runtime_classes,
        }
        if kind == "Pod":
            both = (self.pods, self._all_pods)
            return all(_is_going(one, name, namespace, uid) for one in both if one is not None)
        return kind not in stores or _is_going(stores[kind], name, namespace, uid)


def _is_going(reflector: Reflector[Any], name: str, namespace: str, uid: str) -> bool:
    found = reflector.store.get(name, namespace)
    if found is None:
        return True
    meta = meta_of(found)
    return (uid != "" and meta.uid != uid) or meta.deletion_timestamp is not None


def _names(reflector: Reflector[Any]) -> frozenset[str]:
    return frozenset(meta_of(obj).name for obj in reflector.store)


def _plain(node: Node) -> Node:
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, resource_version=""))


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Groups(msgspec.Struct, frozen=True):
    groups: tuple[_Named, ...] = ()


class _Kinds(msgspec.Struct, frozen=True):
    resources: tuple[_Named, ...] = ()
