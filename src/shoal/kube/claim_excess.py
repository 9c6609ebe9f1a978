"""Compares the devices that a ResourceClaim was allocated with the devices that its spec requests. Pure.

Anyone who can write `status.allocation` chooses its content, and API servers before Kubernetes 1.36 accept that write
from everyone who can update `resourceclaims/status`. The spec cannot be changed, so it limits what an allocation of
Shoal's driver can contain: the scheduler books no more than that, and the agent prepares no more than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from shoal.kube.objects.claims import AllocatedDevice, ExactDeviceRequest, ResourceClaim
from shoal.model import quantity
from shoal.model.contract import dra
from shoal.model.errors import CodecError, QuantityError, shown

#: By capacity, the least amount and the step to which a requested amount is rounded up; 0 and 1 for the others.
_STEPS: Final = {dra.CAPACITY_MEMORY: (quantity.MEBIBYTE, quantity.MEBIBYTE)}
#: By capacity, the amount of a request that does not name it. A request without memory gets all of the GPU.
_DEFAULTS: Final = {dra.CAPACITY_COMPUTE: dra.COMPUTE_MIN, dra.CAPACITY_CLIENTS: dra.CLIENTS_MIN}
_ALL: Final = "All"
#: In MiB: more than any GPU has.
_MEMORY_MAX: Final = 2**40
_FIX: Final = "only a scheduler writes allocations: delete the claim and its pod, and create them again"


def excess(claim: ResourceClaim, *, shares: bool = True) -> str:
    """What the claim's allocation of Shoal's devices has beyond its spec, and how to fix that; empty if nothing.

    Without `shares` the API server has no consumable capacity: each request gets whole GPUs.
    """
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    by_request: dict[str, list[AllocatedDevice]] = {}
    for result in results:
        by_request.setdefault(dra.base_request(result.request), []).append(result)
    for of_request in by_request.values():
        if any(result.driver == dra.DRIVER for result in of_request):
            found = _request_excess(claim, of_request, shares=shares)
            if found:
                return f"status.allocation of claim {shown(claim.metadata.name)} {found}; {_FIX}"
    return ""


def _request_excess(claim: ResourceClaim, results: Sequence[AllocatedDevice], *, shares: bool) -> str:
    names = sorted({result.request for result in results})
    if len(names) > 1:
        return f"has devices for {shown(names[0])} and {shown(names[1])}, which are alternatives of one request"
    asked = _asked(claim, names[0])
    if asked is None:
        return f"has a device for request {shown(names[0])}, which the spec does not have"
    count = max(1, asked.count)
    if asked.allocation_mode != _ALL and len(results) > count:
        return f"has {len(results)} devices for request {shown(names[0])}, which asks for {count}"
    found = (_amount_excess(asked, one) for one in results if one.driver == dra.DRIVER and shares)
    return next((f"has {one}" for one in found if one), "")


def _asked(claim: ResourceClaim, name: str) -> ExactDeviceRequest | None:
    """The request, or the alternative of a request, with this name."""
    for request in claim.spec.devices.requests:
        if request.exactly is not None and request.name == name:
            return request.exactly
        for one in request.first_available:
            if f"{request.name}{dra.REQUEST_SEPARATOR}{one.name}" == name:
                return one
    return None


def _amount_excess(asked: ExactDeviceRequest, result: AllocatedDevice) -> str:
    # A MIG device is allocated whole to a request for part of its memory.
    partial = asked.capacity is not None and not dra.is_partition(result.device)
    requested = dict(asked.capacity.requests) if asked.capacity is not None and partial else {}
    memory = requested.get(dra.CAPACITY_MEMORY)
    where = f"of device {shown(result.device)} for request {shown(result.request)}"
    if not result.share_id:
        return "" if memory is None else f"all {where}, which asks for {shown(memory)} of {dra.CAPACITY_MEMORY}"
    for name, amount in result.consumed_capacity.items():
        wanted = requested.get(name, _DEFAULTS.get(name))
        if wanted is not None and _is_more(amount, wanted, name):
            return f"{shown(amount)} of {name} {where}, which asks for {shown(wanted)}"
    return "" if memory is None or _is_share(result) else f"amounts {where} that are no share of a GPU"


def _is_more(amount: object, wanted: object, name: str) -> bool:
    """Whether a consumed amount is above the requested one, rounded up to the steps of the capacity."""
    least, step = _STEPS.get(name, (0, 1))
    try:
        return quantity.parse(amount) > max(least, step * math.ceil(quantity.parse(wanted) / step))
    except QuantityError:
        return True


def _is_share(result: AllocatedDevice) -> bool:
    """Whether the amounts of a share can be read, whatever the size of its GPU."""
    try:
        dra.allocated_share(result.consumed_capacity, share_id=result.share_id, memory_mib=_MEMORY_MAX)
    except CodecError:
        return False
    return True
