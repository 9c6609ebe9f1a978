"""The objects that a decision depends on, as they were at one moment: what pictures and snapshots are made of."""

from __future__ import annotations

import msgspec

from shoal.kube.objects.meta import Object
from shoal.kube.objects.node import Namespace, Node
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.kube.resources import Resource
from shoal.model.contract import keti, kubernetes
from shoal.model.contract.gpushare import MemoryUnit


class PriorityClass(Object, frozen=True, kw_only=True):
    """How important pods are that name it."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", PriorityClass, namespaced=False
)


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of the scheduler's own settings, and where each is known from."""

    memory_unit: MemoryUnit = MemoryUnit.GIB
    #: The configured policy: KETI's ConfigMap, where there is one, comes before it.
    policy: str = "fragmentation"
    policy_from: str = "the default"
    policy_namespaces: tuple[str, ...] = (keti.NAMESPACE,)
    scheduler_names: tuple[str, ...] = (keti.SCHEDULER_NAME, kubernetes.DEFAULT_SCHEDULER)
    cluster_name: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All objects of each kind."""

    settings: Settings = Settings()
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    volumes: tuple[PersistentVolume, ...] = ()
    claims: tuple[PersistentVolumeClaim, ...] = ()
    storage_classes: tuple[StorageClass, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    #: KETI's policy and gpushare's lists of sick cards.
    config_maps: tuple[ConfigMap, ...] = ()
    #: Kinds that could not be read, in words for a person.
    missing: tuple[str, ...] = ()
