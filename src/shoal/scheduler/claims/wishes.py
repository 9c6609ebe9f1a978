"""What claims ask for, read once for all claims with the same spec; and which claims a pod has.

What Shoal's scheduler cannot do is refused in words that say who can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.kube.objects.claims import (
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from shoal.kube.objects.pod import Pod
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import dra
from shoal.model.errors import RequestError, shown
from shoal.scheduler.claims.costs import Meter
from shoal.scheduler.claims.errors import NotReadyError, OwnClaimError, PodCostError, SelectorError
from shoal.scheduler.claims.selectors import Selectors

#: Specs of claims kept, where a long one counts as several; the ones unused for longest are forgotten beyond it.
_SPECS: Final = 10_000
_CHARACTERS: Final = 500
#: Bytes of a claim's spec that cost one unit to look up.
_BYTES_PER_UNIT: Final = 64
#: Ways to combine the alternatives of a pod's requests that are tried.
MAX_WAYS: Final = 64
_MODES: Final = ("", "ExactCount")
_ALL: Final = "All"
_STOCK: Final = "schedule the pod with the stock scheduler"

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWish:
    """One alternative of one request. Compared by identity: equal specs are read once."""

    #: As a result names it: `gpu`, or `gpu/small` for an alternative.
    name: str
    device_class: str
    #: Expressions of the request's own; the class has others.
    selectors: tuple[str, ...]
    #: How many devices; None for all that match.
    count: int | None
    capacity: tuple[tuple[str, str | int | float], ...] = ()
    admin: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()

    @property
    def request(self) -> str:
        """The request it is an alternative of."""
        return dra.base_request(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class ClaimWish:
    """A claim's spec: per request its alternatives, the best first."""

    requests: tuple[tuple[DeviceWish, ...], ...]
    constraints: tuple[DeviceConstraint, ...] = ()


class ClaimWishes:
    """Specs of claims, each read once."""

    def __init__(self, selectors: Selectors) -> None:
        self._selectors = selectors
        self._known: BoundedCache[bytes, ClaimWish | str] = BoundedCache(_SPECS, weigh=_weight)

    def of(self, claim: ResourceClaim, meter: Meter) -> ClaimWish:
        """What the claim asks for. Raises RequestError, and PodCostError when the meter runs out."""
        text = _encode(claim.spec)
        meter.spend(len(text) // _BYTES_PER_UNIT)
        known = self._known.of(hashlib.sha256(text).digest(), lambda: self._read(claim.spec, meter))
        if isinstance(known, str):
            raise RequestError(f"claim {shown(claim.metadata.name)}: {known}")
        return known

    def _read(self, spec: ResourceClaimSpec, meter: Meter) -> ClaimWish | str:
        try:
            requests = tuple(_alternatives(request) for request in spec.devices.requests)
            for alternatives in requests:
                for wish in alternatives:
                    for expression in wish.selectors:
                        self._selectors.of(expression, meter)
        except PodCostError:
            raise  # it depends on what else the pod cost
        except (RequestError, SelectorError) as error:
            return str(error)
        return ClaimWish(requests, spec.devices.constraints)


def _weight(known: ClaimWish | str) -> int:
    if isinstance(known, str):
        return 1
    texts = (one for alternatives in known.requests for wish in alternatives for one in (wish.name, *wish.selectors))
    return 1 + sum(map(len, texts)) // _CHARACTERS


def _alternatives(request: DeviceRequest) -> tuple[DeviceWish, ...]:
    if request.exactly is not None:
        return (_wish(request.name, request.exactly),)
    if not request.first_available:
        raise RequestError(f"request {shown(request.name)} is of a kind that is not known here: {_STOCK}")
    return tuple(_wish(f"{request.name}{dra.REQUEST_SEPARATOR}{one.name}", one) for one in request.first_available)


def _wish(name: str, asked: ExactDeviceRequest) -> DeviceWish:
    mode = asked.allocation_mode
    if mode not in (*_MODES, _ALL):
        raise RequestError(f"request {shown(name)} has allocationMode {shown(mode)}, not known here: {_STOCK}")
    count = None if mode == _ALL else max(1, asked.count)
    if count is not None and count > dra.MAX_RESULTS:
        raise RequestError(f"request {shown(name)} asks for {count} devices: a claim gets at most {dra.MAX_RESULTS}")
    if any(selector.cel is None for selector in asked.selectors):
        raise RequestError(f"request {shown(name)} has a selector that is no CEL expression: {_STOCK}")
    return DeviceWish(
        name,
        asked.device_class_name,
        tuple(selector.cel.expression for selector in asked.selectors if selector.cel is not None),
        count,
        () if asked.capacity is None else tuple(sorted(asked.capacity.requests.items())),
        bool(asked.admin_access),
        asked.tolerations,
    )


def waits_for_claims(pod: Pod) -> bool:
    """Whether Kubernetes has still to make a claim of the pod from a template."""
    made = _made(pod)
    return any(claim.resource_claim_name is None and claim.name not in made for claim in pod.spec.resource_claims)


def claims_of(pod: Pod, find: Callable[[str, str], ResourceClaim | None]) -> list[ResourceClaim]:
    """The claims of a pod, in the order of its spec.

    Raises NotReadyError when one is still to be made for it, OwnClaimError when one is not there or not its own.
    """
    made = _made(pod)
    namespace, found = pod.metadata.namespace, []
    for wanted in pod.spec.resource_claims:
        generated = wanted.resource_claim_name is None
        name = wanted.resource_claim_name
        if generated:
            if wanted.name not in made:
                raise NotReadyError(f"waits for Kubernetes to make its claim {shown(wanted.name)} of a template")
            name = made[wanted.name]
            if name is None:
                continue  # Kubernetes found that none is needed
        claim = find(namespace, name or "")
        if claim is None and generated:
            raise NotReadyError(f"waits for the watch to show its claim {namespace}/{name}")
        if claim is None:
            raise OwnClaimError(f"claim {namespace}/{name} is not there: create it")
        _check_is_its(pod, claim, generated=generated)
        found.append(claim)
    return found


def _made(pod: Pod) -> dict[str, str | None]:
    """Names of the claims that Kubernetes made for the pod, by their names in its spec; None where none is needed."""
    return {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}


def _check_is_its(pod: Pod, claim: ResourceClaim, *, generated: bool) -> None:
    meta = claim.metadata
    if generated and not any(owner.uid == pod.metadata.uid for owner in meta.owner_references):
        raise OwnClaimError(f"claim {meta.namespace}/{meta.name} was not made for this pod: delete the claim")
    if meta.deletion_timestamp is not None:
        raise OwnClaimError(f"claim {meta.namespace}/{meta.name} is being deleted: create it again")
