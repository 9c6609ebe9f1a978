"""Volumes: where a pod's claims let it run, and what must be written for them before it is bound.

Volume limits of nodes and the free capacity that CSI drivers publish are not looked at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim
from shoal.model.contract import kubernetes
from shoal.placement.columns import BoolArray
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.feasibility.filters.matching import Choices, choose
from shoal.scheduler.feasibility.filters.objection import Objection, Objections
from shoal.scheduler.feasibility.state.nodes import NodeTable
from shoal.scheduler.feasibility.state.pods import Held
from shoal.scheduler.feasibility.state.storage import KnownVolume, Stage
from shoal.scheduler.feasibility.wish.wish import Claim, Wish

_RESTRICTIONS, _BINDING, _ZONE = "VolumeRestrictions", "VolumeBinding", "VolumeZone"
_ALONE = "ReadWriteOncePod"
_LOST = "Lost"
#: A volume in several zones names them with this between.
_ZONES = "__"
_TOPOLOGY = (
    kubernetes.LABEL_OLD_ZONE,
    kubernetes.LABEL_OLD_REGION,
    kubernetes.LABEL_ZONE,
    kubernetes.LABEL_REGION,
)
_NEWER = {
    kubernetes.LABEL_OLD_ZONE: kubernetes.LABEL_ZONE,
    kubernetes.LABEL_OLD_REGION: kubernetes.LABEL_REGION,
}


@dataclass(frozen=True, slots=True)
class VolumeView:
    """What a pod's claims say, whatever other pods do."""

    #: The filter and the reason why the pod can run nowhere.
    fault: tuple[str, str] | None = None
    #: Claims that only one pod may use.
    alone: tuple[str, ...] = ()
    binding: Objections = ()
    zone: Objections = ()
    choices: Choices | None = None


@dataclass(frozen=True, slots=True)
class VolumeDecision:
    """What must be written for a claim before its pod is bound to the node, and then waited for.

    The claim is ready once its ANNOTATION_BIND_COMPLETED is there. What the server answers to the write should go into
    the cluster at once, so that the next decision does not choose the same volume.
    """

    claim: PersistentVolumeClaim
    node: str
    #: The volume that is promised to the claim; None when one shall be made for the node.
    volume: PersistentVolume | None = None

    def patch(self) -> dict[str, Any]:
        """The merge patch: of the volume if there is one, else of the claim. A conflict means: decide again."""
        if self.volume is None:
            chosen = {kubernetes.ANNOTATION_SELECTED_NODE: self.node}
            return {"metadata": {"resourceVersion": self.claim.metadata.resource_version, "annotations": chosen}}
        meta = self.claim.metadata
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        metadata: dict[str, Any] = {"resourceVersion": self.volume.metadata.resource_version}
        if self.volume.spec.claim_ref is None:
            metadata["annotations"] = {kubernetes.ANNOTATION_BOUND_BY_CONTROLLER: "yes"}
        return {"metadata": metadata, "spec": {"claimRef": reference}}


def view(cluster: Cluster, wish: Wish) -> VolumeView:
    """How the claims of a pod restrict it."""
    claims: list[PersistentVolumeClaim] = []
    for asked in wish.claims:
        claim = cluster.storage.claims.get((wish.namespace, asked.name))
        fault = _fault(asked, claim)
        if fault is not None or claim is None:
            return VolumeView(fault)
        claims.append(claim)
    stages = [cluster.storage.stage(claim) for claim in claims]
    if Stage.WAITS_FOR_VOLUME in stages:
        return VolumeView((_BINDING, "pod has unbound immediate PersistentVolumeClaims"))
    mounted = [claim for asked, claim in zip(wish.claims, claims, strict=True) if not asked.owner]
    for claim in mounted:
        if claim.spec.volume_name and claim.spec.volume_name not in cluster.storage.volumes:
            return VolumeView((_ZONE, f'persistentvolume "{claim.spec.volume_name}" not found'))
    bound = [claim for claim, stage in zip(claims, stages, strict=True) if stage is Stage.BOUND]
    waiting = [claim for claim, stage in zip(claims, stages, strict=True) if stage is Stage.WAITS_FOR_POD]
    choices = choose(cluster, waiting) if waiting else None
    return VolumeView(
        alone=tuple(claim.metadata.name for claim in mounted if _ALONE in claim.spec.access_modes),
        binding=_binding(cluster, bound, choices),
        zone=_zone(cluster, [claim for claim in mounted if claim in bound]),
        choices=choices,
    )


def _fault(asked: Claim, claim: PersistentVolumeClaim | None) -> tuple[str, str] | None:
    name = asked.name
    if claim is None:
        if not asked.owner:
            return _RESTRICTIONS, f'persistentvolumeclaim "{name}" not found'
        reason = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        return _BINDING, reason
    if claim.status.phase == _LOST:
        volume = claim.spec.volume_name
        return _BINDING, f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
    if claim.metadata.deletion_timestamp is not None:
        return _BINDING, f'persistentvolumeclaim "{name}" is being deleted'
    owners = claim.metadata.owner_references
    if asked.owner and not any(owner.controller and owner.uid == asked.owner for owner in owners):
        return _BINDING, f"PVC {claim.metadata.namespace}/{name} was not created for pod {asked.pod} (pod is not owner)"
    return None


def _binding(cluster: Cluster, bound: list[PersistentVolumeClaim], choices: Choices | None) -> Objections:
    found = []
    reached = cluster.nodes.alive.copy()
    for claim in bound:
        volume = cluster.storage.volumes.get(claim.spec.volume_name)
        if volume is None:
            reason = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
            found.append(Objection(_BINDING, reason, np.ones(cluster.nodes.size, np.bool_), False))
        elif volume.nodes is not None:
            reached &= cluster.nodes.matching(volume.nodes)
    if (reached != cluster.nodes.alive).any():
        found.append(Objection(_BINDING, "node(s) didn't match PersistentVolume's node affinity", ~reached, False))
    if choices is not None:
        reason = "node(s) didn't find available persistent volumes to bind"
        found.append(Objection(_BINDING, reason, ~choices.satisfied, False))
    return tuple(found)


def _zone(cluster: Cluster, bound: list[PersistentVolumeClaim]) -> Objections:
    nodes = cluster.nodes
    zoned = np.zeros(nodes.size, np.bool_)
    elsewhere = np.zeros(nodes.size, np.bool_)
    for claim in bound:
        elsewhere |= _elsewhere(nodes, cluster.storage.volumes[claim.spec.volume_name])
    if not elsewhere.any():
        return ()
    for key in _TOPOLOGY:
        zoned |= nodes.label(key).ids >= 0
    return (Objection(_ZONE, "node(s) had no available volume zone", elsewhere & zoned, False),)


def _elsewhere(nodes: NodeTable, known: KnownVolume) -> BoolArray:
    mask = np.zeros(nodes.size, np.bool_)
    for key in _TOPOLOGY:
        value = known.volume.metadata.labels.get(key)
        zones = [zone.strip() for zone in value.split(_ZONES)] if value is not None else [""]
        if "" in zones:
            continue  # not there, or unreadable, which counts as not there
        column = nodes.label(key)
        here = column.where_one_of(zones)
        if key in _NEWER:
            here |= (column.ids < 0) & nodes.label(_NEWER[key]).where_one_of(zones)
        mask |= ~here
    return mask


def alone_objections(cluster: Cluster, wish: Wish, alone: tuple[str, ...], gone: tuple[Held, ...] = ()) -> Objections:
    """Another pod has a claim that only one may use."""
    for name in alone:
        users = Counter(cluster.pods.claims.get((wish.namespace, name), {}))
        for held in gone:
            if held.crowd.namespace == wish.namespace:
                users[held.row] -= held.claims.count(name)
        # Pods whose node is gone hold nothing any more.
        if any(count > 0 and cluster.nodes.alive[row] for row, count in users.items()):
            reason = (
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
                "another pod"
            )
            return (Objection(_RESTRICTIONS, reason, np.ones(cluster.nodes.size, np.bool_), True),)
    return ()


def decisions(found: VolumeView, row: int, node: str) -> list[VolumeDecision]:
    """What must be written so that the claims that wait get their volumes on this node."""
    if found.choices is None:
        return []
    chosen = [(choice.claim, choice.on(row)) for choice in found.choices.choices]
    return [VolumeDecision(claim, node, None if known is None else known.volume) for claim, known in chosen]
