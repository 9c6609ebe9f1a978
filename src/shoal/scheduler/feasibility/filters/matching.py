"""Which waiting claim would get which volume on which node.

On each node, claims choose from small to large, and each takes the smallest volume that will do; a claim for which
there is none has one made, if its class makes volumes for that node. A claim whose node was chosen before stays with
that node, and one that a volume is promised to takes no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim
from shoal.model.contract import kubernetes
from shoal.placement.columns import BoolArray, IntArray
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.feasibility.state.storage import KnownVolume, class_of_claim, makes_volumes_on, wanted
from shoal.scheduler.feasibility.wish.selectors import NOTHING, RawSelector, Selector, label_selector

_FILESYSTEM = "Filesystem"
_AVAILABLE = "Available"
#: No volume of those that are there.
_NEW = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """What one claim would get: by row the number of a volume, or -1 for one to be made."""

    claim: PersistentVolumeClaim
    volumes: tuple[KnownVolume, ...]
    numbers: IntArray

    def on(self, row: int) -> KnownVolume | None:
        """The volume it would get on this row; None for one to be made."""
        number = int(self.numbers[row])
        return None if number == _NEW else self.volumes[number]


@dataclass(frozen=True, slots=True)
class Choices:
    """What all claims would get, and the rows where every one of them gets something."""

    satisfied: BoolArray
    choices: tuple[Choice, ...]


def choose(cluster: Cluster, claims: list[PersistentVolumeClaim]) -> Choices:
    """What these claims, which wait for the pod, would get on each row."""
    satisfied = cluster.nodes.alive.copy()
    taken: dict[str, BoolArray] = {}
    choices = []
    for claim in sorted(claims, key=wanted):
        node = claim.metadata.annotations.get(kubernetes.ANNOTATION_SELECTED_NODE)
        if node is not None:
            satisfied &= cluster.nodes.named((node,))
            choice = Choice(claim, (), np.full(cluster.nodes.size, _NEW))
        else:
            choice = _choose(cluster, claim, taken)
        makes = np.zeros(cluster.nodes.size, np.bool_)
        makes[_makes(cluster, claim)] = True
        satisfied &= makes | (choice.numbers != _NEW)
        choices.append(choice)
    return Choices(satisfied, tuple(choices))


def _makes(cluster: Cluster, claim: PersistentVolumeClaim) -> IntArray:
    return cluster.nodes.rows(makes_volumes_on(cluster.storage.classes[class_of_claim(claim)]))


def _choose(cluster: Cluster, claim: PersistentVolumeClaim, taken: dict[str, BoolArray]) -> Choice:
    fitting = [known for known in cluster.storage.volumes_of(class_of_claim(claim)).values() if _could_be(known, claim)]
    promised = [known for known in fitting if known.volume.spec.claim_ref is not None]
    if promised:
        candidates = promised[:1]
    else:
        selector = _selector(claim)
        candidates = [known for known in fitting if _is_free(known.volume, claim, selector)]
        candidates.sort(key=lambda known: (known.size, known.name))
    numbers = np.full(cluster.nodes.size, _NEW)
    for number, known in enumerate(candidates):
        rows = cluster.nodes.rows(known.nodes)
        rows = rows[numbers[rows] == _NEW]
        if known.name in taken:
            rows = rows[~taken[known.name][rows]]
        numbers[rows] = number
        if len(rows):
            taken.setdefault(known.name, np.zeros(cluster.nodes.size, np.bool_))[rows] = True
    return Choice(claim, tuple(candidates), numbers)


def _could_be(known: KnownVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether size, mode and promises allow it."""
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


def _is_free(volume: PersistentVolume, claim: PersistentVolumeClaim, selector: Selector | None) -> bool:
    return (
        volume.status.phase == _AVAILABLE
        and (selector is None or selector.matches(volume.metadata.labels))
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
    )


def _selector(claim: PersistentVolumeClaim) -> Selector | None:
    if claim.spec.selector is None:
        return None
    try:
        return label_selector(msgspec.convert(claim.spec.selector, RawSelector))
    except msgspec.ValidationError:
        return NOTHING
