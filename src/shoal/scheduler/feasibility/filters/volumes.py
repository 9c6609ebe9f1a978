"""Volumes: where a pod's claims let it run, and what must be written for them before it is bound.

Claims that wait for the pod choose volumes on each node, from small to large; each takes the smallest volume that will
do. A claim for which there is none has one made, if its class makes volumes for that node. A claim that has its node
already stays there, and one that a volume is promised to takes no other. Volume limits of nodes and the free capacity
that CSI drivers publish are not looked at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim
from shoal.kube.selectors import LabelSelector, read_label_selector
from shoal.model.contract import kubernetes
from shoal.placement.columns import BoolArray, IntArray
from shoal.scheduler.feasibility.filters import Rejection, Rejections
from shoal.scheduler.feasibility.node_table import NodeTable
from shoal.scheduler.feasibility.pod_spec import MountedClaim, PodConstraints
from shoal.scheduler.feasibility.pod_table import PlacedPod
from shoal.scheduler.feasibility.storage_table import ClaimStage, KnownVolume, class_of_claim, makes_volumes_on, wanted
from shoal.scheduler.feasibility.tables import ClusterTables

_RESTRICTIONS, _BINDING, _ZONE = "VolumeRestrictions", "VolumeBinding", "VolumeZone"
_EXCLUSIVE = "ReadWriteOncePod"
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
_FILESYSTEM = "Filesystem"
_AVAILABLE = "Available"
#: In place of a volume's number: one has to be made.
_NEW = -1


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """What one claim would get: by row the number of a volume, or -1 for one to be made."""

    claim: PersistentVolumeClaim
    volumes: tuple[KnownVolume, ...]
    numbers: IntArray

    def on(self, row: int) -> KnownVolume | None:
        """The volume it would get on this row; None for one to be made."""
        number = int(self.numbers[row])
        return None if number == _NEW else self.volumes[number]


@dataclass(frozen=True, slots=True)
class VolumeChoices:
    """What all claims would get, and the rows where every one of them gets something."""

    satisfied: BoolArray
    choices: tuple[VolumeChoice, ...]


def choose(tables: ClusterTables, claims: list[PersistentVolumeClaim]) -> VolumeChoices:
    """What these claims, which wait for the pod, would get on each row."""
    satisfied = tables.nodes.alive.copy()
    taken: dict[str, BoolArray] = {}
    choices = []
    for claim in sorted(claims, key=wanted):
        node = claim.metadata.annotations.get(kubernetes.ANNOTATION_SELECTED_NODE)
        if node is not None:
            satisfied &= tables.nodes.named((node,))
            choice = VolumeChoice(claim, (), np.full(tables.nodes.size, _NEW))
        else:
            choice = _choose(tables, claim, taken)
        makes = np.zeros(tables.nodes.size, np.bool_)
        makes[_makes(tables, claim)] = True
        satisfied &= makes | (choice.numbers != _NEW)
        choices.append(choice)
    return VolumeChoices(satisfied, tuple(choices))


def _makes(tables: ClusterTables, claim: PersistentVolumeClaim) -> IntArray:
    return tables.nodes.rows(makes_volumes_on(tables.storage.classes[class_of_claim(claim)]))


def _choose(tables: ClusterTables, claim: PersistentVolumeClaim, taken: dict[str, BoolArray]) -> VolumeChoice:
    fitting = [known for known in tables.storage.volumes_of(class_of_claim(claim)).values() if _could_be(known, claim)]
    promised = [known for known in fitting if known.volume.spec.claim_ref is not None]
    if promised:
        candidates = promised[:1]
    else:
        selector = _selector(claim)
        candidates = [known for known in fitting if _is_free(known.volume, claim, selector)]
        candidates.sort(key=lambda known: (known.size, known.name))
    numbers = np.full(tables.nodes.size, _NEW)
    for number, known in enumerate(candidates):
        rows = tables.nodes.rows(known.nodes)
        rows = rows[numbers[rows] == _NEW]
        if known.name in taken:
            rows = rows[~taken[known.name][rows]]
        numbers[rows] = number
        if len(rows):
            taken.setdefault(known.name, np.zeros(tables.nodes.size, np.bool_))[rows] = True
    return VolumeChoice(claim, tuple(candidates), numbers)


def _could_be(known: KnownVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the claim could have the volume, by size, mode and promises."""
    spec = known.volume.spec
    return (
        (spec.claim_ref is None or _is_promised(known.volume, claim))
        and known.size >= wanted(claim)
        and (claim.spec.volume_mode or _FILESYSTEM) == (spec.volume_mode or _FILESYSTEM)
        and (claim.spec.volume_attributes_class_name or "") == (spec.volume_attributes_class_name or "")
        and known.volume.metadata.deletion_timestamp is None
    )


def _is_promised(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    ref, meta = volume.spec.claim_ref, claim.metadata
    return ref is not None and (ref.namespace, ref.name) == (meta.namespace, meta.name) and ref.uid in ("", meta.uid)


def _is_free(volume: PersistentVolume, claim: PersistentVolumeClaim, selector: LabelSelector | None) -> bool:
    return (
        volume.status.phase == _AVAILABLE
        and (selector is None or selector.matches(volume.metadata.labels))
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
    )


def _selector(claim: PersistentVolumeClaim) -> LabelSelector | None:
    return None if claim.spec.selector is None else read_label_selector(claim.spec.selector)


@dataclass(frozen=True, slots=True)
class VolumeView:
    """Where a pod's claims let it run, whatever other pods there are."""

    #: The filter and the reason why the pod can run nowhere.
    fault: tuple[str, str] | None = None
    #: Claims that only one pod may use.
    exclusive: tuple[str, ...] = ()
    binding: Rejections = ()
    zone: Rejections = ()
    choices: VolumeChoices | None = None


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


def view(tables: ClusterTables, constraints: PodConstraints) -> VolumeView:
    """How the claims of a pod restrict it."""
    claims: list[PersistentVolumeClaim] = []
    for asked in constraints.claims:
        claim = tables.storage.claims.get((constraints.namespace, asked.name))
        fault = _fault(asked, claim)
        if fault is not None or claim is None:
            return VolumeView(fault)
        claims.append(claim)
    stages = [tables.storage.stage(claim) for claim in claims]
    if ClaimStage.WAITS_FOR_VOLUME in stages:
        return VolumeView((_BINDING, "pod has unbound immediate PersistentVolumeClaims"))
    mounted = [claim for asked, claim in zip(constraints.claims, claims, strict=True) if not asked.owner]
    for claim in mounted:
        if claim.spec.volume_name and claim.spec.volume_name not in tables.storage.volumes:
            return VolumeView((_ZONE, f'persistentvolume "{claim.spec.volume_name}" not found'))
    bound = [claim for claim, stage in zip(claims, stages, strict=True) if stage is ClaimStage.BOUND]
    waiting = [claim for claim, stage in zip(claims, stages, strict=True) if stage is ClaimStage.WAITS_FOR_POD]
    choices = choose(tables, waiting) if waiting else None
    return VolumeView(
        exclusive=tuple(claim.metadata.name for claim in mounted if _EXCLUSIVE in claim.spec.access_modes),
        binding=_binding(tables, bound, choices),
        zone=_zone(tables, [claim for claim in mounted if claim in bound]),
        choices=choices,
    )


def _fault(asked: MountedClaim, claim: PersistentVolumeClaim | None) -> tuple[str, str] | None:
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


def _binding(tables: ClusterTables, bound: list[PersistentVolumeClaim], choices: VolumeChoices | None) -> Rejections:
    found = []
    reached = tables.nodes.alive.copy()
    for claim in bound:
        volume = tables.storage.volumes.get(claim.spec.volume_name)
        if volume is None:
            reason = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
            found.append(Rejection(_BINDING, reason, np.ones(tables.nodes.size, np.bool_), False))
        elif volume.nodes is not None:
            reached &= tables.nodes.matching(volume.nodes)
    if (reached != tables.nodes.alive).any():
        found.append(Rejection(_BINDING, "node(s) didn't match PersistentVolume's node affinity", ~reached, False))
    if choices is not None:
        reason = "node(s) didn't find available persistent volumes to bind"
        found.append(Rejection(_BINDING, reason, ~choices.satisfied, False))
    return tuple(found)


def _zone(tables: ClusterTables, bound: list[PersistentVolumeClaim]) -> Rejections:
    nodes = tables.nodes
    zoned = np.zeros(nodes.size, np.bool_)
    elsewhere = np.zeros(nodes.size, np.bool_)
    for claim in bound:
        elsewhere |= _elsewhere(nodes, tables.storage.volumes[claim.spec.volume_name])
    if not elsewhere.any():
        return ()
    for key in _TOPOLOGY:
        zoned |= nodes.label(key).ids >= 0
    return (Rejection(_ZONE, "node(s) had no available volume zone", elsewhere & zoned, False),)


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


def exclusive_claim_rejections(
    tables: ClusterTables, constraints: PodConstraints, exclusive: tuple[str, ...], gone: tuple[PlacedPod, ...] = ()
) -> Rejections:
    """All nodes, if another pod has a claim that only one pod may use."""
    for name in exclusive:
        users = Counter(tables.pods.claims.get((constraints.namespace, name), {}))
        for placed in gone:
            if placed.alike.namespace == constraints.namespace:
                users[placed.row] -= placed.claims.count(name)
        # Pods whose node is gone hold nothing any more.
        if any(count > 0 and tables.nodes.alive[row] for row, count in users.items()):
            reason = (
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
                "another pod"
            )
            return (Rejection(_RESTRICTIONS, reason, np.ones(tables.nodes.size, np.bool_), True),)
    return ()


def decisions(found: VolumeView, row: int, node: str) -> list[VolumeDecision]:
    """What must be written so that the claims that wait get their volumes on this node."""
    if found.choices is None:
        return []
    chosen = [(choice.claim, choice.on(row)) for choice in found.choices.choices]
    return [VolumeDecision(claim, node, None if known is None else known.volume) for claim, known in chosen]
