"""The decision a bound pod carries, whoever made it.

Shoal's own record is the full one and comes first; then gpushare's annotations, then KETI's, so that pods placed by
those schedulers are counted too. A record that cannot be read, or does not belong to this pod, is an error and never
an empty answer: the pod holds cards, only nobody knows which.

Who publishes a node's cards may change under its pods: Shoal's agent, which knows UUIDs, takes the place of a plugin
that only counts, or the other way round. A card that has a made-up name on one side is known by its index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shoal.model.allocation import Allocation, CardShare
from shoal.model.contract import gpushare, keti, shoal, text
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError, shown
from shoal.model.gpu import NodeGpus
from shoal.model.manifest import PodManifest, read_pod
from shoal.model.pod import request_of_manifest

_FOREIGN: Final = (gpushare.ANNOTATION_ALLOCATION, gpushare.NAME_INDEX, keti.ANNOTATION_UUID)


def allocation_of(pod: Mapping[str, object], *, node: NodeGpus, unit: MemoryUnit) -> Allocation | None:
    """The decision on a pod bound to `node`; None when the pod is not bound or carries none.

    Raises CodecError when the pod carries a decision that is broken, or is bound to another node.
    """
    try:
        manifest = read_pod(pod)
    except RequestError as error:
        raise CodecError(str(error)) from error
    return allocation_of_manifest(manifest, node=node, unit=unit)


def allocation_of_manifest(manifest: PodManifest, *, node: NodeGpus, unit: MemoryUnit) -> Allocation | None:
    """`allocation_of` for a pod that has been read already."""
    if not manifest.node:
        return None
    if manifest.node != node.name:
        raise CodecError(f"the pod is bound to {shown(manifest.node)}, not to {shown(node.name)}: give its own node")
    own = text.value_of(manifest.annotations, shoal.ANNOTATION_ALLOCATION)
    if own is not None:
        return on_cards(_belongs(shoal.decode_allocation(own), manifest), node)
    if not any(key in manifest.annotations for key in _FOREIGN):
        return None
    try:
        request = request_of_manifest(manifest, unit=unit)
    except RequestError as error:
        raise CodecError(f"the pod carries a decision, but its request is broken: {error}") from error
    return gpushare.decode(
        manifest.annotations, request=request, container_names=manifest.app_names(), node=node, unit=unit
    ) or keti.decode(manifest.annotations, request=request, node=node)


def _belongs(allocation: Allocation, pod: PodManifest) -> Allocation:
    """Annotations travel with a copied manifest; a decision is only as good as its pod."""
    if allocation.node != pod.node:
        raise CodecError(
            f"{shoal.ANNOTATION_ALLOCATION} is for node {shown(allocation.node)}, the pod is on {shown(pod.node)}: "
            "remove the annotation from the manifest and create the pod again"
        )
    kinds = {container.name: container.kind for container in pod.containers}
    for container in allocation.containers:
        if kinds.get(container.name) is not container.kind:
            raise CodecError(
                f"{shoal.ANNOTATION_ALLOCATION} names {container.kind.value} container {shown(container.name)}, which "
                "the pod does not have: remove the annotation from the manifest and create the pod again"
            )
    return allocation


def on_cards(allocation: Allocation, node: NodeGpus) -> Allocation:
    """The decision with the names that the node's cards go by now. A card that is gone keeps its own."""
    counted = any(shoal.is_made_up(gpu.uuid) for gpu in node.gpus)
    if all(shoal.is_made_up(card.uuid) is counted for one in allocation.containers for card in one.cards):
        return allocation
    names = {gpu.index: gpu.uuid for gpu in node.gpus}

    def named(card: CardShare) -> CardShare:
        changed = shoal.is_made_up(card.uuid) is not counted
        return replace(card, uuid=names.get(card.index, card.uuid)) if changed else card

    return replace(
        allocation, containers=tuple(replace(one, cards=tuple(map(named, one.cards))) for one in allocation.containers)
    )
