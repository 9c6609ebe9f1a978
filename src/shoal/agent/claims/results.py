"""What was allocated to a claim on this node, checked; and which of its requests containers use together. Pure.

Any scheduler may write an allocation, and nobody else checks it: the API server takes a card that does not exist, and
more memory than a card has. The claim's spec limits what its allocation can contain (`shoal.kube.claim_excess`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.agent.claims.devices import NodeDevices
from shoal.agent.errors import RefusedError
from shoal.kube.claim_excess import excess
from shoal.kube.objects.claims import AllocatedDevice, ExactDeviceRequest, ResourceClaim
from shoal.kube.objects.pod import Container, Pod
from shoal.model.allocation import CardShare
from shoal.model.contract import dra, mechanisms
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError, shown
from shoal.model.manifest import pod_parts
from shoal.model.pod import gpus_of
from shoal.model.request import NO_SHARE, ContainerKind, ContainerRequest, Share

#: In the place of a request's name, which it cannot be: all of them.
ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A device that a claim got for a request: a share of a card, or a MIG partition."""

    request: str
    device: str
    #: Of the card, or of the partition.
    uuid: str
    share: Share = NO_SHARE
    share_id: str | None = None
    partition: bool = False


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """The container for which a request was made of a resource name."""

    resource: str
    kind: ContainerKind = ContainerKind.APP
    memory_limit_mib: int | None = None


def read_results(
    claim: ResourceClaim, uid: str, *, node: str, devices: NodeDevices, shares: bool = True
) -> tuple[ClaimResult, ...]:
    """The devices of the claim with this UID on the node; those of other drivers are left out.

    RefusedError if the claim is another one, has no allocation, one that cannot be, or one that exceeds its spec.
    Without `shares` the API server has no consumable capacity, and claims get whole GPUs.
    """
    meta = claim.metadata
    if meta.uid != uid:
        raise RefusedError(
            f"claim {shown(meta.name)} is another one now, with UID {shown(meta.uid)} and not {shown(uid)}: delete the "
            "pod"
        )
    if claim.status.allocation is None:
        raise RefusedError(f"claim {shown(meta.name)} has no allocation: it is prepared when a scheduler has made one")
    own = [one for one in claim.status.allocation.devices.results if one.driver == dra.DRIVER]
    results = tuple(_result(one, node, devices) for one in own)
    if found := excess(claim, shares=shares):
        raise RefusedError(found)
    _check_whole(results)
    return results


def _result(one: AllocatedDevice, node: str, devices: NodeDevices) -> ClaimResult:
    where = f"request {shown(one.request)}"
    if one.pool != node:
        raise RefusedError(f"{where} has a device of pool {shown(one.pool)}, and this is node {shown(node)}")
    if one.admin_access:
        raise RefusedError(f"{where} asks for admin access, which driver {dra.DRIVER} does not give")
    request = dra.base_request(one.request)
    gpu, part = devices.gpus.get(one.device), devices.partitions.get(one.device)
    if part is not None:
        return ClaimResult(request, one.device, part[2].uuid, share_id=one.share_id, partition=True)
    if gpu is None:
        raise RefusedError(
            f"{where} has device {shown(one.device)}, which node {shown(node)} does not have: delete the pod so that "
            "its claim is allocated again"
        )
    try:
        share = dra.allocated_share(one.consumed_capacity, share_id=one.share_id, memory_mib=gpu.memory_mib)
    except CodecError as error:
        raise RefusedError(f"{where} on card {gpu.index} ({gpu.uuid}): {error}") from error
    return ClaimResult(request, one.device, gpu.uuid, share, one.share_id)


def _check_whole(results: Sequence[ClaimResult]) -> None:
    """RefusedError if a claim has a device alone and a second time."""
    for one in results:
        others = [other for other in results if other is not one and other.uuid == one.uuid]
        if others and (one.partition or one.share.exclusive):
            raise RefusedError(f"the claim has device {shown(one.device)} whole, and once more: delete the pod")


def requests_of(results: Iterable[ClaimResult]) -> tuple[str, ...]:
    """The requests of a claim that have devices, each once."""
    return tuple(dict.fromkeys(one.request for one in results))


def card_shares(results: Iterable[ClaimResult], indices: Mapping[str, int]) -> tuple[CardShare, ...]:
    """What results take of cards: one entry a card, in the order of the results."""
    sums: dict[str, Share] = {}
    for one in results:
        if not one.partition:
            sums[one.uuid] = sums.get(one.uuid, NO_SHARE) + one.share
    return tuple(CardShare(uuid, indices.get(uuid, 0), share) for uuid, share in sums.items())


# Which requests containers use together. A container gets a CDI device for each of its requests, and of equal variables
# only the last one's value. Containers that name no request get all devices of the claim, and last one that tells of
# all requests (`ALL`). For those that name several, the last of these tells of all of them.


def views_of(
    requests: Sequence[str], name: str, pods: Iterable[Pod], *, ours: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """By request of the claim `name`, the requests that its CDI device tells a container of.

    `ours` are the claims of this driver in the namespace. RefusedError if a container cannot be told of its devices.
    """
    found: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            used = used_requests(pod, container)
            if name not in used:
                continue
            several = sorted(claim for claim in used if claim in ours or claim == name)
            if len(several) > 1:
                raise RefusedError(
                    f"container {shown(container.name)} uses claims {shown(several[0])} and {shown(several[1])}, and "
                    "can be told of the cards of one only: ask for all in one claim, by several requests"
                )
            order = [one for entry in used[name] for one in ([entry] if entry else (*requests, ALL))]
            together = tuple(one for one in requests if one in order)
            if order[-1] == ALL or not together:
                continue
            if found.setdefault(order[-1], together) != together:
                raise RefusedError(
                    f"containers of pod {shown(pod.metadata.name)} use request {shown(order[-1])} each with other "
                    "requests, and cannot all be told of their cards: give each container a request or claim of its own"
                )
    return {one: found.get(one, (one,)) for one in requests}


def names_of(claim: ResourceClaim, pods: Iterable[Pod], unit: MemoryUnit) -> dict[str, NamedRequest]:
    """By request of the claim, the resource name of which it was made; none if pods ask for the claim itself.

    A pod's status can be written by others than the scheduler. RefusedError if it maps resource names to a claim that
    was not made for this pod, or that requests something else than the pod.
    """
    found: dict[str, NamedRequest] = {}
    for pod in pods:
        made, where = pod.status.extended_resource_claim_status, f"pod {shown(pod.metadata.name)}"
        if made is None or made.resource_claim_name != claim.metadata.name:
            continue
        if not claim.is_made_for(pod.metadata.uid):
            raise RefusedError(
                f"the status of {where} maps resource names to claim {shown(claim.metadata.name)}, which was not made "
                "for this pod: delete the pod"
            )
        try:
            asked = gpus_of(pod_parts(pod), unit=unit)
        except RequestError as error:
            raise RefusedError(f"{where}: {error}") from error
        containers = {one.name: one for one in asked.containers}
        for mapping in made.request_mappings:
            one = containers.get(mapping.container_name)
            if one is None or mapping.resource_name not in mechanisms.NAMES:
                continue
            request = shown(mapping.request_name)
            if not _requests(claim, mapping.request_name, one):
                raise RefusedError(
                    f"request {request} of claim {shown(claim.metadata.name)} is not what container "
                    f"{shown(one.name)} of {where} asks for: delete the pod"
                )
            found[mapping.request_name] = NamedRequest(mapping.resource_name, one.kind, one.memory_limit_mib)
    return found


def _requests(claim: ResourceClaim, name: str, asked: ContainerRequest) -> bool:
    """Whether a request of a claim is for as many GPUs, and as much of each, as a container asks for."""
    made = next((one.exactly for one in claim.spec.devices.requests if one.name == name), None)
    wanted = msgspec.convert(dra.exact_request(asked), ExactDeviceRequest)
    return made is not None and (made.allocation_mode, made.count, made.capacity) == (
        wanted.allocation_mode,
        wanted.count,
        wanted.capacity,
    )


def used_requests(pod: Pod, container: Container) -> dict[str, list[str]]:
    """By claim, the requests that a container uses in the order in which it gets them; empty text for all."""
    names = {one.name: one.resource_claim_name or "" for one in pod.spec.resource_claims}
    names |= {one.name: one.resource_claim_name or "" for one in pod.status.resource_claim_statuses}
    found: dict[str, list[str]] = {}
    for used in container.resources.claims:
        if claim := names.get(used.name):
            found.setdefault(claim, []).append(used.request)
    extended = pod.status.extended_resource_claim_status
    for mapping in () if extended is None else extended.request_mappings:
        if extended is not None and mapping.container_name == container.name:
            found.setdefault(extended.resource_claim_name, []).append(mapping.request_name)
    return found
