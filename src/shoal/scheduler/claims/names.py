"""Claims that are made of the resource names by which a pod asks for cards, for nodes that serve these names so. Pure.

As the stock scheduler makes them of device counts: one claim a pod, owned by it, with a request for each container; and
kubelet is told in the pod's status which container has which request. Its name is made of the pod's UID, so that a
claim which an earlier try has left is found, and none is made twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from shoal.kube.objects.pod import Container, Pod
from shoal.kube.resources import PODS, RESOURCE_CLAIMS, RawObject
from shoal.model.allocation import Allocation
from shoal.model.contract import dra, mechanisms
from shoal.model.contract.mechanisms import Mechanism
from shoal.model.errors import CodecError, QuantityError, shown
from shoal.model.request import Request
from shoal.scheduler.claims.acceptance import Fit, written
from shoal.scheduler.claims.capacity import consumed
from shoal.scheduler.claims.devices import PublishedDevice
from shoal.scheduler.claims.wishes import ClaimWish, DeviceWish
from shoal.scheduler.errors import ClaimError

_CHANGING: Final = (Mechanism.TO_CLAIMS, Mechanism.TO_DEVICES)
_INFIX: Final = "-extended-resources-"
_DIGEST_BYTES: Final = 5
_MAX_NAME: Final = 253


def names_of(pod: Pod) -> set[str]:
    """The names by which containers ask for cards and which nodes may serve by claims."""
    return {name for one in _containers(pod) for name in mechanisms.NAMES if name in one.resources.limits}


def asks_by_name(pod: Pod) -> bool:
    """Whether a container asks for cards by such a name."""
    return bool(names_of(pod))


def changing(served: Mapping[str, Mechanism], pod: Pod) -> str:
    """Why a node with these mechanisms takes no pods of these names now; empty if it does."""
    name = next((name for name in names_of(pod) if served.get(name) in _CHANGING), None)
    return "" if name is None else f"the node is changing the mechanism of {name}"


def claim_name(pod: Pod) -> str:
    """The name of the claim that is made of a pod's names."""
    digest = hashlib.blake2b(pod.metadata.uid.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{pod.metadata.name[: _MAX_NAME - len(_INFIX) - len(digest)].rstrip('-.')}{_INFIX}{digest}"


def claim_of(pod: Pod, request: Request) -> RawObject:
    """The claim that is made for a pod with this request."""
    meta = pod.metadata
    owner = {"apiVersion": PODS.api_version, "kind": PODS.kind, "name": meta.name, "uid": meta.uid, "controller": True}
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "name": claim_name(pod),
            "namespace": meta.namespace,
            "annotations": {dra.ANNOTATION_EXTENDED_RESOURCE: "true"},
            "finalizers": [dra.FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {
            "devices": {
                "requests": [
                    {"name": _request_name(pod, one.name)[0], "exactly": dra.exact_request(one)}
                    for one in request.containers
                ]
            }
        },
    }


def status_of(pod: Pod, claim: str, request: Request) -> dict[str, Any]:
    """What the pod's status says of the claim that was made for it."""
    mappings = []
    for one in request.containers:
        name, resource = _request_name(pod, one.name)
        mappings.append({"containerName": one.name, "resourceName": resource, "requestName": name})
    return {"resourceClaimName": claim, "requestMappings": mappings}


def results_of(
    pod: Pod, wish: ClaimWish, placed: Allocation, devices: Sequence[PublishedDevice]
) -> tuple[tuple[DeviceWish, Fit], ...]:
    """The devices that the claim gets: the cards that were decided. Raises ClaimError."""
    by_name = {alternatives[0].name: alternatives[0] for alternatives in wish.requests}
    by_uuid = {device.uuid: device for device in devices}
    found = []
    for container in placed.containers:
        one = by_name[_request_name(pod, container.name)[0]]
        for card in container.cards:
            device = by_uuid.get(card.uuid)
            if device is None:
                raise ClaimError(f"node {placed.node} publishes no device for card {card.uuid} at the moment")
            found.append((one, _fit(one, device)))
    return tuple(found)


def _fit(wish: DeviceWish, device: PublishedDevice) -> Fit:
    try:
        taken = consumed(dict(wish.capacity), device.device.capacity)
        if taken is not None:
            if dict(wish.capacity).get(dra.CAPACITY_MEMORY) == "0":
                taken[dra.CAPACITY_MEMORY] = Fraction(0)  # an MPS client without a size
            share = dra.allocated_share(written(taken), share_id="share", memory_mib=device.memory_mib)
            return Fit(device, share, taken)
    except (QuantityError, CodecError) as error:
        raise ClaimError(f"device {device.device.name} cannot be shared: {error}") from error
    raise ClaimError(f"device {device.device.name} cannot give what the pod asks for")


def _containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _request_name(pod: Pod, container: str) -> tuple[str, str]:
    """The name of a container's request, as the stock scheduler makes it, and the resource of which it is made."""
    for number, one in enumerate(_containers(pod)):
        if one.name == container:
            names = sorted({**one.resources.limits, **one.resources.requests})
            resource = next((name for name in mechanisms.NAMES if name in names), None)
            if resource is not None:
                return f"container-{number}-request-{names.index(resource)}", resource
    raise ClaimError(f"container {shown(container)} asks for no card by a name that can be served by claims")
