"""Which pods stay together: those of one gang, else those of one controller. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from shoal.kube.resources import RawObject
from shoal.model.contract import clusters as contract
from shoal.model.contract.clusters import Sent
from shoal.model.contract.groups import PodGroup, decode_group
from shoal.model.contract.kubernetes import FINISHED_PHASES
from shoal.model.errors import CodecError


def gang_of(meta: Mapping[str, Any]) -> PodGroup | None:
    """The gang of a pod; None also when what it says of it cannot be read: the scheduler that gets it will say so."""
    try:
        return decode_group(meta.get("labels") or {}, meta.get("annotations") or {})
    except CodecError:
        return None


def group_of(meta: Mapping[str, Any]) -> Hashable:
    """What a pod shares with its siblings, from its metadata; None for a pod on its own."""
    gang = gang_of(meta)
    if gang is not None:
        return meta.get("namespace", ""), gang.name
    owners = [owner.get("uid") for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    return owners[0] if owners else None


def sent_of(meta: Mapping[str, Any]) -> Sent | None:
    """Where a pod was sent; None if nowhere, or if that cannot be read."""
    written = (meta.get("annotations") or {}).get(contract.ANNOTATION_DISPATCH)
    if not written:
        return None
    try:
        return contract.decode(Sent, written, what=contract.ANNOTATION_DISPATCH)
    except CodecError:
        return None


def siblings_of(pod: RawObject, pods: Iterable[RawObject]) -> frozenset[str]:
    """The clusters that other pods of its group were sent to and stay in, of pods at home that are not over."""
    index = SiblingIndex()
    for one in pods:
        meta = one.get("metadata") or {}
        index.put(str(meta.get("uid", "")), group_of(meta), _stays_in(one))
    meta = pod.get("metadata") or {}
    return index.of(str(meta.get("uid", "")), group_of(meta))


def _stays_in(pod: RawObject) -> str:
    """The cluster that a pod was sent to and stays in; empty if there is none, or it is over."""
    meta = pod.get("metadata") or {}
    if (pod.get("status") or {}).get("phase") in FINISHED_PHASES or meta.get("deletionTimestamp"):
        return ""
    sent = sent_of(meta)
    return "" if sent is None or sent.leaving else sent.cluster


class SiblingIndex:
    """The same, kept up by change: where the pods of each group are, of those that are told by their UID."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Hashable, str]] = {}
        self._groups: dict[Hashable, Counter[str]] = {}

    def put(self, uid: str, group: Hashable, cluster: str) -> None:
        """A pod of a group is in this cluster now; empty: in none, or gone."""
        self._remove(uid)
        if group is not None and cluster:
            self._of[uid] = group, cluster
            self._groups.setdefault(group, Counter())[cluster] += 1

    def _remove(self, uid: str) -> None:
        known = self._of.pop(uid, None)
        if known is None:
            return
        group, cluster = known
        clusters = self._groups[group]
        clusters[cluster] -= 1
        if not clusters[cluster]:
            del clusters[cluster]
        if not clusters:
            del self._groups[group]

    def of(self, uid: str, group: Hashable) -> frozenset[str]:
        """The clusters that a pod's siblings are in."""
        found = self._groups.get(group) if group is not None else None
        if not found:
            return frozenset()
        own = self._of.get(uid, (None, ""))[1]
        return frozenset(cluster for cluster, count in found.items() if count > (cluster == own))
