"""What a pod takes of its node, by Kubernetes' rules: amounts of all resources, and ports of the host.

Amounts are whole: thousandths for CPU, bytes or pieces for the rest, summed exactly and rounded up once. A resize of a
running pod that only its status tells about is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from shoal.kube.objects.pod import Container, PodSpec, Quantities
from shoal.model import quantity
from shoal.model.contract import gpushare, kubernetes
from shoal.model.request import ContainerKind, phases

#: No node has more of anything; what asks for more fits nowhere. 64 bits hold the sum of a thousand such pods.
MOST: Final = 2**53
#: Asked for and nowhere to be had.
_TOO_MUCH: Final = 2**62

_OF_THE_POD: Final = frozenset((kubernetes.RESOURCE_CPU, kubernetes.RESOURCE_MEMORY))
_PLAIN: Final = frozenset((kubernetes.RESOURCE_CPU, kubernetes.RESOURCE_MEMORY, kubernetes.RESOURCE_STORAGE))
_ANY_ADDRESS: Final = "0.0.0.0"
_ALWAYS: Final = "Always"

#: Amounts by resource, in kube-scheduler's order: CPU, memory, storage, then the others by name. None is zero.
Needs = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that one pod can have."""

    protocol: str
    number: int
    address: str

    def clashes(self, address: str) -> bool:
        """Whether somebody who has the port on this address is in the way."""
        return self.address in (_ANY_ADDRESS, address) or address == _ANY_ADDRESS


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """The host's ports the pod holds while it runs."""
    running = [c for c in spec.init_containers if c.restart_policy == _ALWAYS]
    return tuple(
        HostPort(port.protocol or "TCP", port.host_port, port.host_ip or _ANY_ADDRESS)
        for container in (*running, *spec.containers)
        for port in container.ports
        if port.host_port > 0
    )


def needs(spec: PodSpec) -> Needs:
    """The amounts the pod needs. Raises QuantityError for one that cannot be read."""
    each = (
        *(
            (ContainerKind.SIDECAR if c.restart_policy == _ALWAYS else ContainerKind.INIT, _requested(c))
            for c in spec.init_containers
        ),
        *((ContainerKind.APP, _requested(c)) for c in spec.containers),
    )
    total: dict[str, Fraction] = {}
    for phase in phases(each):
        for name, amount in _sum(phase).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    if spec.resources is not None:
        limits, requests = _whole_pod(spec.resources.limits), _whole_pod(spec.resources.requests)
        total = {**limits, **total, **requests}
    wanted = ((name, units(name, amount)) for name, amount in _sum((total, _parsed(spec.overhead))).items())
    return tuple(sorted(((name, amount) for name, amount in wanted if amount > 0 and counted(name)), key=_order))


def _requested(container: Container) -> dict[str, Fraction]:
    return _parsed({**container.resources.limits, **container.resources.requests})


def _whole_pod(amounts: Quantities) -> dict[str, Fraction]:
    return {
        name: amount
        for name, amount in _parsed(amounts).items()
        if name in _OF_THE_POD or name.startswith(kubernetes.PREFIX_HUGE_PAGES)
    }


def _parsed(amounts: Quantities) -> dict[str, Fraction]:
    return {name: quantity.parse(value) for name, value in amounts.items()}


def _sum(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total


def counted(resource: str) -> bool:
    """Whether this resource is compared with what nodes have: as kube-scheduler does, but for compute.

    Few nodes publish compute, and the ledger counts it by card; kube-scheduler is told to pass it over, too.
    """
    if resource == gpushare.RESOURCE_COMPUTE:
        return False
    if resource in _PLAIN or resource.startswith((kubernetes.PREFIX_HUGE_PAGES, kubernetes.PREFIX_ATTACHABLE)):
        return True
    return "/" in resource and not resource.startswith(kubernetes.PREFIX_QUOTA)


def units(resource: str, value: object) -> int:
    """A quantity in the unit its resource is counted in, rounded up."""
    amount = quantity.parse(value)
    whole = math.ceil(amount * 1000 if resource == kubernetes.RESOURCE_CPU else amount)
    return whole if whole <= MOST else _TOO_MUCH


def _order(need: tuple[str, int]) -> tuple[int, str]:
    name = need[0]
    plain = (kubernetes.RESOURCE_CPU, kubernetes.RESOURCE_MEMORY, kubernetes.RESOURCE_STORAGE)
    return (plain.index(name) if name in plain else len(plain), name)
