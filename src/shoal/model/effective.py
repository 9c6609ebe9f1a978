"""The CPU and memory a pod needs of its node, by Kubernetes' rules.

A container that names only a limit requests that much. The pod needs the largest of its phases, or what
`spec.resources` says for the whole pod, and its overhead on top. Amounts are added exactly and rounded up once, at the
end. A resize of a running pod that its status tells about is not looked at.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from shoal.model import quantity
from shoal.model.errors import QuantityError, RequestError, shown
from shoal.model.manifest import Fields, PodContainer, PodManifest
from shoal.model.request import phases

CPU: Final = "cpu"
MEMORY: Final = "memory"
#: Amounts beyond this are exact in no float column and on no node.
_MAX_AMOUNT: Final = 2**53


def cpu_milli(pod: PodManifest) -> int:
    """The pod's CPU in thousandths of a core, rounded up."""
    return _bounded(quantity.milli(_needed(pod, CPU)), CPU)


def memory_mib(pod: PodManifest) -> int:
    """The pod's memory in MiB, rounded up."""
    return _bounded(quantity.mebibytes(_needed(pod, MEMORY)), MEMORY)


def _needed(pod: PodManifest, resource: str) -> Fraction:
    whole_pod = _amount(pod.pod_requests, resource, "the pod")
    if whole_pod is None:
        each = tuple((container.kind, _requested(container, resource)) for container in pod.containers)
        whole_pod = max(sum(phase, Fraction(0)) for phase in phases(each))
    if not whole_pod:
        # As the API server fills it in: a pod-level limit stands in for requests nobody made.
        whole_pod = _amount(pod.pod_limits, resource, "the pod") or Fraction(0)
    return whole_pod + (_amount(pod.overhead, resource, "the pod's overhead") or 0)


def _requested(container: PodContainer, resource: str) -> Fraction:
    try:
        request = _amount(container.requests, resource, "the container")
        if request is None:
            request = _amount(container.limits, resource, "the container")
    except RequestError as error:
        raise RequestError(f"container {shown(container.name)}: {error}") from error
    return request or Fraction(0)


def _amount(amounts: Fields, resource: str, where: str) -> Fraction | None:
    value = amounts.get(resource)
    if value is None:
        return None
    try:
        amount = quantity.parse(value)
    except QuantityError as error:
        raise RequestError(f"{resource} of {where} cannot be read: {error}") from error
    if amount < 0:
        raise RequestError(f"{resource} of {where} is {shown(value)}: an amount cannot be negative, write 0 or more")
    return amount


def _bounded(amount: int, resource: str) -> int:
    if amount > _MAX_AMOUNT:
        raise RequestError(f"{resource} of the pod adds up to more than any node has: lower the requests")
    return amount
