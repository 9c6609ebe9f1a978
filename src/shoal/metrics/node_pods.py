"""The pods of this node, from a watch of them alone: whose a container is, and what was booked for it.

The record of a pod counts as far as its request bears it out (`shoal.model.bound`), as for scheduler and agent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.kube.client import Client
from shoal.kube.events import reference_to
from shoal.kube.objects.meta import ObjectReference
from shoal.kube.objects.pod import Pod
from shoal.kube.reflector import Reflector
from shoal.kube.resources import PODS
from shoal.kube.store import Change
from shoal.metrics.processes import ContainerRef
from shoal.model import quantity
from shoal.model.allocation import CardShare
from shoal.model.bound import allocation_of
from shoal.model.contract import gpushare, keti, kubernetes, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import ModelError, QuantityError
from shoal.model.gpu import LimitedBy, NodeGpus
from shoal.model.manifest import PodContainer, PodParts, pod_parts
from shoal.model.pod import gpus_of

log = logging.getLogger(__name__)

_MEBIBYTE: Final = 2**20
#: On the API server's copy of a static pod: the name that kubelet knows the pod by.
_ANNOTATION_HASH: Final = "kubernetes.io/config.hash"
#: Resources by which a container asks for cards. NVIDIA's partitions have one name each.
_CARDS: Final = frozenset({gpushare.RESOURCE_MEMORY, gpushare.RESOURCE_COMPUTE, keti.RESOURCE_MPS, shoal.RESOURCE_SLOT})
_NVIDIA: Final = nvidia.RESOURCE_GPU.partition("/")[0] + "/"


@dataclass(frozen=True, slots=True)
class BookedShare:
    """What is booked for a container on one card."""

    #: None: it asked for no amount of memory: for a whole card, or for clients or compute alone.
    requested_bytes: int | None = None
    #: None: nothing limits it.
    limit_bytes: int | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of the node, as far as the collector needs it."""

    namespace: str
    name: str
    uid: str
    about: ObjectReference
    #: The name in cgroups; another one than the UID for static pods.
    hash: str = ""
    #: No container of it runs or will run, by the API server.
    over: bool = False
    #: By container ID, its name. Only those that kubelet has told.
    containers: Mapping[str, str] = field(default_factory=dict)
    #: By container and card's UUID.
    booked: Mapping[tuple[str, str], BookedShare] = field(default_factory=dict)
    #: Containers of which it is not known what was booked: their record cannot be believed, or they have partitions or
    #: replicas, which are not booked by memory.
    unknown: frozenset[str] = frozenset()


def known_pod(pod: Pod, node: NodeGpus, unit: MemoryUnit) -> KnownPod:
    """What is known of a pod bound to the node. `node` may be without cards, while they are not known."""
    meta, status = pod.metadata, pod.status
    statuses = (*status.init_container_statuses, *status.container_statuses)
    booked, unknown = _booked(pod_parts(pod), node, unit)
    return KnownPod(
        meta.namespace,
        meta.name,
        meta.uid,
        reference_to(PODS, pod),
        meta.annotations.get(_ANNOTATION_HASH, ""),
        status.phase in kubernetes.FINISHED_PHASES,
        {one.container_id.rpartition("/")[2]: one.name for one in statuses if one.container_id},
        booked,
        unknown,
    )


def _booked(
    parts: PodParts, node: NodeGpus, unit: MemoryUnit
) -> tuple[dict[tuple[str, str], BookedShare], frozenset[str]]:
    asking = frozenset(one.name for one in parts.containers if _asks(one))
    try:
        request = gpus_of(parts, unit=unit)
        allocation = allocation_of(parts, node=node, unit=unit, request=request)
    except ModelError as error:
        log.debug("a pod's record does not count: %s", error)
        return {}, asking
    if allocation is None:
        return {}, asking
    limited_by = LimitedBy.read(str(parts.annotations.get(shoal.ANNOTATION_ISOLATION, "")))
    limited = limited_by is not None and limited_by.memory.enforces_memory
    booked = {
        (entry.name, card.uuid): _share(card, entry.memory_limit_mib, limited=limited)
        for entry in allocation.containers
        for card in entry.cards
    }
    return booked, asking - {container for container, _ in booked}


def _share(card: CardShare, limit_mib: int | None, *, limited: bool) -> BookedShare:
    """A share in bytes. A whole GPU has no limit, nor has a share whose memory limit the pod could lift."""
    if card.share.exclusive:
        return BookedShare(whole=True)
    asked = card.share.memory_mib
    limit = limit_mib or asked if limited else 0
    return BookedShare(asked * _MEBIBYTE or None, limit * _MEBIBYTE or None)


def _asks(container: PodContainer) -> bool:
    """Whether a container asks for cards, by whatever resource."""
    for amounts in (container.limits, container.requests):
        for resource, amount in amounts.items():
            if resource in _CARDS or resource.startswith(_NVIDIA):
                try:
                    if quantity.whole(amount) > 0:
                        return True
                except QuantityError:
                    return True
    return False


class NodeContainers:
    """The containers of a node by what the API server shows. Its reflector is for the caller to run."""

    def __init__(self, client: Client, node: str, *, unit: MemoryUnit) -> None:
        self._node = NodeGpus(node)
        self._unit = unit
        self._pods: dict[str, KnownPod] = {}
        #: By container ID, the UID of its pod.
        self._owners: dict[str, str] = {}
        self.reflector: Reflector[Pod] = Reflector(
            client, PODS, fields=f"spec.nodeName={node}", consumers=[self.on_pod]
        )

    @property
    def synced(self) -> bool:
        """Whether the pods were told at least once: before, no use can be told from nobody's."""
        return self.reflector.synced.is_set()

    def booked_on(self, uuid: str) -> list[tuple[KnownPod, str]]:
        """The containers that have a part of a card booked, of pods that are not over."""
        return [
            (pod, container)
            for pod in self._pods.values()
            if not pod.over
            for container, card in pod.booked
            if card == uuid
        ]

    def on_cards(self) -> dict[str, list[ContainerRef]]:
        """By card's UUID, the containers that have a part of it booked and have been created."""
        found: dict[str, list[ContainerRef]] = {}
        for pod in self._pods.values():
            ids = {name: container for container, name in pod.containers.items()}
            for name, uuid in () if pod.over else pod.booked:
                if name in ids:
                    found.setdefault(uuid, []).append(ContainerRef(pod.hash or pod.uid, ids[name]))
        return found

    def move_to(self, node: NodeGpus) -> None:
        """The node's cards are others now: records are read again."""
        if node == self._node:
            return
        self._node = node
        for pod in self.reflector.store:
            self._put(known_pod(pod, node, self._unit))

    def find(self, ref: ContainerRef) -> tuple[KnownPod, str] | None:
        """The pod of a container and the container's name, empty while kubelet has not told it; None for no pod's.

        The UID in the cgroup's name is kubelet's word, and counts first: annotations and status can be written by
        others. Only a cgroup without any pod's UID may be a static pod's, by its hash and a container that it has.
        """
        pod = self._pods.get(ref.pod_uid)
        if pod is None:
            pod = self._pods.get(self._owners.get(ref.container_id, ""))
            if pod is None or pod.hash != ref.pod_uid:
                return None
        return pod, pod.containers.get(ref.container_id, "")

    def on_pod(self, change: Change[Pod]) -> None:
        """The watch tells of a change."""
        if change.new is None:
            self._drop(change.object.metadata.uid)
        else:
            self._put(known_pod(change.new, self._node, self._unit))

    def _put(self, pod: KnownPod) -> None:
        self._drop(pod.uid)
        self._pods[pod.uid] = pod
        for container in pod.containers:
            self._owners[container] = pod.uid

    def _drop(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        for container in () if pod is None else pod.containers:
            if self._owners.get(container) == uid:
                del self._owners[container]
