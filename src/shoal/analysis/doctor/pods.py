"""The pods: whether a scheduler looks at them, and whether their allocations fit the cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from shoal.analysis.doctor.cluster import moment
from shoal.analysis.doctor.findings import Finding, failed, ok, some, warning
from shoal.analysis.doctor.installation import Installation
from shoal.analysis.doctor.nodes import unit_of
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import manifest_of
from shoal.model.allocation import CardShare
from shoal.model.bound import allocation_of
from shoal.model.contract import kubernetes, mechanisms, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError
from shoal.model.gpu import NodeGpus
from shoal.model.manifest import PodParts, pod_parts
from shoal.model.node import held_written, node_gpus
from shoal.model.pod import request_of
from shoal.model.request import Request, Share
from shoal.scheduler.state.holdings import claims_for_nothing

#: A scheduler that is there says something within this time.
_SILENCE_SECONDS: Final = 60.0


def unheard(installation: Installation) -> Iterator[Finding]:
    """Pods with GPUs that no scheduler has said a word about."""
    silent: dict[str, list[str]] = {}
    for pod in installation.pods:
        if pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp is not None:
            continue
        if pod.status.phase in kubernetes.FINISHED_PHASES or any(
            one.type == "PodScheduled" for one in pod.status.conditions
        ):
            continue
        born = moment(pod.metadata.creation_timestamp)
        if born is not None and (installation.now - born).total_seconds() > _SILENCE_SECONDS and _asks(pod_parts(pod)):
            silent.setdefault(pod.spec.scheduler_name, []).append(_name(pod))
    for scheduler, names in silent.items():
        yield failed(
            "pods",
            f"{some(sorted(names))}: no scheduler named {scheduler} has looked at them",
            "start one: deploy/scheduler serves gpu-scheduler; shoal config kube-scheduler wires the default one",
        )


def allocations(installation: Installation) -> Iterator[Finding]:
    """Every running GPU pod says which cards it has, and no card is given away twice."""
    unit = unit_of(installation) or MemoryUnit.GIB
    inventories = {}
    for node in installation.nodes:
        try:
            inventories[node.metadata.name] = node_gpus(manifest_of(node), unit=unit)
        except CodecError:
            continue  # told with the cards
    held: dict[tuple[str, str], Share] = {}
    placed, without, broken = 0, [], []
    told = {node.metadata.name: _held(node) for node in installation.nodes}
    by_claims = {node.metadata.name: mechanisms.by_claims(node.metadata.annotations) for node in installation.nodes}
    for pod in installation.pods:
        inventory = inventories.get(pod.spec.node_name)
        if inventory is None or pod.status.phase in kubernetes.FINISHED_PHASES:
            continue
        parts = pod_parts(pod, by_claims=by_claims[inventory.name])
        if not _asks(parts):
            continue
        given = told[inventory.name].get(pod.metadata.uid)
        if given is not None:
            placed += 1
            for card in given:
                key = inventory.name, card.uuid
                held[key] = held.get(key, Share()) + card.share
            continue
        try:
            allocation = allocation_of(parts, node=inventory, unit=unit)
        except CodecError as error:
            broken.append(f"{_name(pod)} ({error})")
            continue
        if allocation is None:
            without.append(_name(pod))
            continue
        placed += 1
        for uuid, share in allocation.held().items():
            key = inventory.name, uuid
            held[key] = held.get(key, Share()) + share
    if without:
        yield warning(
            "pods",
            f"{some(without)}: on a node, and nobody wrote which card",
            "wire kube-scheduler to the extender (shoal config kube-scheduler), or let the agent choose",
        )
    claims = [
        _name(pod) for pod in installation.pods if not _asks(pod_parts(pod)) and claims_for_nothing(pod, Request())
    ]
    if claims:
        yield warning(
            "pods",
            f"{some(claims)}: a record of cards, and no request for any; it has no effect",
            "see who wrote it; deploy/admission keeps records from those who do not decide",
        )
    if broken:
        yield failed("pods", f"decisions that cannot be read: {some(broken)}", "delete these pods; they are made anew")
    over = [text for (node, uuid), share in held.items() if (text := _over(inventories[node], uuid, share))]
    if over:
        yield failed("pods", f"over-booked: {some(over)}", "delete or move pods there until it fits")
    if placed and not (without or broken or over):
        yield ok("pods", f"{placed} with GPUs, each with its cards, no card given away twice")


def _over(node: NodeGpus, uuid: str, share: Share) -> str:
    card = next((gpu for gpu in node.gpus if gpu.uuid == uuid), None)
    if card is None or share.memory_mib <= card.memory_mib:
        return ""
    return f"GPU{card.index} of {node.name} ({share.memory_mib} of {card.memory_mib} MiB)"


def _asks(pod: PodParts) -> bool:
    """Whether the pod wants cards; one that cannot be read is told by its scheduler."""
    try:
        return bool(request_of(pod, unit=MemoryUnit.GIB).containers)
    except RequestError:
        return False


def _held(node: Node) -> Mapping[str, tuple[CardShare, ...]]:
    """What the node's agent says pods hold, by UID; nothing where it does not say."""
    try:
        return shoal.decode_held(held_written(node.metadata.annotations, node.status.capacity) or "").pods
    except CodecError:
        return {}


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
