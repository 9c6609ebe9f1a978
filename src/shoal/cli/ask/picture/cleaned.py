"""Facts without what a decision does not need: what is left may be given to others.

Field by field, what is kept is named here, so that a field added elsewhere is left out until somebody names it. Labels,
affinity and names of objects are kept: the filters read them. Env, arguments, commands, images, addresses, volumes that
are no claims, and all annotations but those of the contract are not.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from shoal.cli.ask.picture import names
from shoal.cli.ask.picture.facts import Facts, PriorityClass
from shoal.kube.objects.meta import ObjectMeta, ObjectReference, OwnerReference
from shoal.kube.objects.node import Namespace, Node, NodeSpec, NodeStatus
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Container, ContainerPort, Pod, PodSpec, PodStatus, Volume
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.model.contract import gpushare, keti

_NOTHING: frozenset[str] = frozenset()
_POD = names.DECISION | names.ASKED
_CONFIG = frozenset({gpushare.UNHEALTHY_KEY, *keti.encode_policy(keti.DEFAULT_POLICY)})


def cleaned(facts: Facts) -> Facts:
    """The same facts, fit to be given away; a picture made of them gives the same answers."""
    return Facts(
        settings=facts.settings,
        nodes=tuple(_node(one) for one in facts.nodes),
        pods=tuple(_pod(one) for one in facts.pods),
        namespaces=tuple(Namespace(metadata=_meta(one.metadata, _NOTHING)) for one in facts.namespaces),
        volumes=tuple(_volume(one) for one in facts.volumes),
        claims=tuple(_claim(one) for one in facts.claims),
        storage_classes=tuple(_storage_class(one) for one in facts.storage_classes),
        budgets=tuple(_budget(one) for one in facts.budgets),
        priority_classes=tuple(_priority_class(one) for one in facts.priority_classes),
        config_maps=tuple(_config_map(one) for one in facts.config_maps),
        missing=facts.missing,
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
        metadata=_meta(node.metadata, names.INVENTORY),
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
        ),
        status=PodStatus(
            phase=status.phase,
            start_time=status.start_time,
            nominated_node_name=status.nominated_node_name,
            conditions=tuple(one for one in status.conditions if one.type == "PodScheduled"),
        ),
    )


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
        metadata=_meta(volume.metadata, names.VOLUMES),
        spec=msgspec.structs.replace(volume.spec, claim_ref=reference),
        status=volume.status,
    )


def _claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=_meta(claim.metadata, names.VOLUMES, owners=True), spec=claim.spec, status=claim.status
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
