"""A cluster snapshot: the objects that a decision depends on, as they were at one moment, and how they are read.

Each kind is listed once. Nodes and pods must be readable; what else is not is said. Of the scheduler's settings, what a
command's options say comes first, then the ConfigMap that `deploy/scheduler` makes. Without it the unit of GPU memory
shows in the nodes, and the policy in the newest decision. Flags of the scheduler's own process are not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from shoal.analysis.inspect.use import offered, unit_of_capacity, unit_of_inventory
from shoal.analysis.installed import namespace_of
from shoal.analysis.live_load import LoadRules, SeenLoads, read_loads
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.objects.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from shoal.kube.objects.meta import Object
from shoal.kube.objects.node import Namespace, Node
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
    key_of,
)
from shoal.model.contract import dra, gpushare, keti, kubernetes, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError
from shoal.placement.policies import POLICIES
from shoal.scheduler.config import SchedulerConfig


class PriorityClass(Object, frozen=True, kw_only=True):
    """The priority of pods that name it."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", PriorityClass, namespaced=False
)


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of the scheduler's own settings, and where each is known from."""

    memory_unit: MemoryUnit = MemoryUnit.GIB
    #: The configured policy: KETI's ConfigMap, where there is one, comes before it.
    policy: str = "fragmentation"
    policy_from: str = "the default"
    policy_namespaces: tuple[str, ...] = (keti.NAMESPACE,)
    scheduler_names: tuple[str, ...] = (keti.SCHEDULER_NAME, kubernetes.DEFAULT_SCHEDULER)
    cluster_name: str = ""
    live_load: LoadRules = LoadRules()


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The objects of a cluster at one moment, all of each kind."""

    settings: SchedulerSettings = SchedulerSettings()
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    volumes: tuple[PersistentVolume, ...] = ()
    claims: tuple[PersistentVolumeClaim, ...] = ()
    storage_classes: tuple[StorageClass, ...] = ()
    #: Claims of devices, and what they are made of and allocated from.
    resource_claims: tuple[ResourceClaim, ...] = ()
    claim_templates: tuple[ResourceClaimTemplate, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    #: KETI's policy and gpushare's lists of sick cards.
    config_maps: tuple[ConfigMap, ...] = ()
    #: What is measured of the cards.
    loads: SeenLoads = SeenLoads()
    #: Kinds that could not be read, in words for a person.
    missing: tuple[str, ...] = ()


#: The scheduler's settings, in the namespace of its installation.
CONFIGMAP: Final = shoal.NAME_SCHEDULER
_KEY: Final = "scheduler.yaml"
_MAX_TEXT: Final = 1 << 16
#: Newest decisions that are looked at for the policy.
_NEWEST: Final = 50


def settings_of(
    nodes: Sequence[Node], pods: Sequence[Pod], configmap: ConfigMap | None, *, unit: MemoryUnit | None = None
) -> tuple[SchedulerSettings, list[str]]:
    """What the scheduler is set to, and what is wrong with its ConfigMap in words."""
    problems: list[str] = []
    config = None
    place = "/".join(key_of(configmap)) if configmap is not None else ""
    if configmap is not None and _KEY in configmap.data:
        try:
            config = _read(configmap.data[_KEY])
        except ValueError as error:
            problems.append(f"the settings in ConfigMap {place} cannot be read and do not count: {error}")
    if config is not None:
        return SchedulerSettings(
            memory_unit=unit or config.memory_unit,
            policy=config.policy,
            policy_from=f"ConfigMap {place}",
            policy_namespaces=config.policy_namespaces,
            # The stock kube-scheduler asks the extender about the pods that name it.
            scheduler_names=(*config.scheduler_names, kubernetes.DEFAULT_SCHEDULER),
            cluster_name=config.cluster_name,
            live_load=LoadRules(
                source=config.live_load.source,
                ttl_seconds=config.live_load.ttl_seconds,
                tolerated_mib=config.live_load.tolerated_mib,
            ),
        ), problems
    policy, known_from = _decided_by(pods)
    return SchedulerSettings(
        memory_unit=unit or unit_of(nodes),
        policy=policy,
        policy_from=known_from,
        policy_namespaces=SchedulerConfig().policy_namespaces,
    ), problems


def _read(text: str) -> SchedulerConfig:
    from shoal.analysis.documents import documents

    if len(text) > _MAX_TEXT:
        raise ValueError(f"they are longer than {_MAX_TEXT} characters")
    given = documents(text)
    if len(given) > 1:
        raise ValueError(f"they are {len(given)} documents")
    try:
        return msgspec.convert((given and given[0]) or {}, SchedulerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def unit_of(nodes: Iterable[Node]) -> MemoryUnit:
    """The unit that the first node with GPU memory counts in: by its inventory, else by the size of its cards."""
    for node in nodes:
        capacity = node.status.capacity
        inventory = node.metadata.annotations.get(shoal.ANNOTATION_GPUS)
        try:
            gpus = () if inventory is None else shoal.decode_gpus(inventory)
        except CodecError:
            continue
        units = offered(capacity, gpushare.RESOURCE_MEMORY)
        found = unit_of_inventory(units, gpus) or unit_of_capacity(capacity)
        if found is not None:
            return found
    return MemoryUnit.GIB


def _decided_by(pods: Sequence[Pod]) -> tuple[str, str]:
    """The policy of the newest decision of Shoal's on a pod that names none itself, and how that is known."""
    decided = [
        pod
        for pod in pods
        if shoal.ANNOTATION_ALLOCATION in pod.metadata.annotations
        and shoal.ANNOTATION_POLICY not in pod.metadata.annotations
    ]
    decided.sort(key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    for pod in decided[:_NEWEST]:
        try:
            name = shoal.decode_allocation(pod.metadata.annotations[shoal.ANNOTATION_ALLOCATION]).policy
        except CodecError:
            continue
        if name in POLICIES:
            return name, f"the newest decision, of pod {pod.metadata.namespace}/{pod.metadata.name}"
    return SchedulerSettings().policy, "the default: no decision tells"


T = TypeVar("T")

_STORAGE: Final = "pods with volumes may be told wrong"
_DEVICES: Final = "pods with claims of devices may be told wrong"
_SICK: Final = "cards that gpushare's lists call unhealthy count as healthy"
_POLICY_PLACES: Final = (keti.NAMESPACE, gpushare.EXTENDER_NAMESPACE)
_POLICY_NAMES: Final = keti.POLICY_CONFIGMAPS


async def read_snapshot(client: Client, *, unit: MemoryUnit | None = None) -> ClusterSnapshot:
    """All that a decision depends on. Raises KubeError when nodes or pods cannot be read."""
    reading = _SnapshotReader(client)
    workloads = asyncio.gather(
        client.list(NODES),
        client.list(PODS),
        reading.all(NAMESPACES, "namespaces selected by label count as if there were none"),
        reading.all(POD_DISRUPTION_BUDGETS, "disruption budgets count as if there were none"),
        reading.all(PRIORITY_CLASSES, "pods of a file have the priority 0"),
    )
    storage = asyncio.gather(
        reading.all(VOLUMES, _STORAGE), reading.all(CLAIMS, _STORAGE), reading.all(STORAGE_CLASSES, _STORAGE)
    )
    devices = asyncio.gather(
        reading.all(RESOURCE_CLAIMS, _DEVICES),
        reading.all(RESOURCE_CLAIM_TEMPLATES, _DEVICES),
        reading.all(DEVICE_CLASSES, _DEVICES),
        reading.all(RESOURCE_SLICES, _DEVICES),
    )
    (
        (nodes, pods, namespaces, budgets, priorities),
        (volumes, claims, classes),
        (device_claims, templates, device_classes, slices),
        (maps, own),
        loads,
    ) = await asyncio.gather(workloads, storage, devices, reading.config_maps(), read_loads(client))
    settings, problem = settings_of(nodes.items, pods.items, own, unit=unit)
    return ClusterSnapshot(
        settings=settings,
        nodes=tuple(nodes.items),
        pods=tuple(pods.items),
        namespaces=namespaces,
        volumes=volumes,
        claims=claims,
        storage_classes=classes,
        resource_claims=device_claims,
        claim_templates=templates,
        device_classes=device_classes,
        resource_slices=tuple(one for one in slices if one.spec.driver == dra.DRIVER),
        budgets=budgets,
        priority_classes=priorities,
        config_maps=tuple({key_of(one): one for one in maps}.values()),
        loads=loads,
        missing=tuple(dict.fromkeys([*reading.missing, *problem])),
    )


class _SnapshotReader:
    """Lists kinds, and remembers those that this user may not read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.missing: list[str] = []

    async def all(self, resource: Resource[T], so: str, *, namespace: str = "") -> tuple[T, ...]:
        """All objects of a kind; none when they may not be read, or when the server does not know the kind."""
        try:
            return tuple((await self._client.list(resource, namespace=namespace)).items)
        except ForbiddenError:
            where = f" in {namespace}" if namespace else ""
            self.missing.append(f"you may not read {resource.plural}{where}: {so}")
        except NotFoundError:
            pass
        return ()

    async def config_maps(self) -> tuple[list[ConfigMap], ConfigMap | None]:
        """KETI's policy and gpushare's lists of sick cards; and the scheduler's settings."""
        home = await namespace_of(self._client)
        places = dict.fromkeys((namespace, name) for namespace in (*_POLICY_PLACES, home) for name in _POLICY_NAMES)
        listed, named, own = await asyncio.gather(
            self.all(CONFIG_MAPS, _SICK, namespace=gpushare.UNHEALTHY_CONFIGMAP_NAMESPACE),
            asyncio.gather(*(self._config_map(*place) for place in places)),
            self._config_map(home, CONFIGMAP),
        )
        return [*filter(_lists_cards, listed), *(one for one in named if one is not None)], own

    async def _config_map(self, namespace: str, name: str) -> ConfigMap | None:
        try:
            return await self._client.get(CONFIG_MAPS, name, namespace=namespace)
        except ForbiddenError:
            self.missing.append(f"you may not read configmap {namespace}/{name}: it counts as if there were none")
        except NotFoundError:
            pass
        return None


def _lists_cards(configmap: ConfigMap) -> bool:
    return configmap.metadata.name.startswith(gpushare.UNHEALTHY_CONFIGMAP_PREFIX)
