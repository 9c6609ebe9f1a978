"""Which pods may hold a card, of whatever family: those that must be gone before a driver is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shoal.kube.objects.pod import Pod, Resources
from shoal.model.contract import gpushare, keti, nvidia

#: How the names of resources begin that are cards or parts of cards.
PREFIXES: Final = (
    gpushare.RESOURCE_MEMORY,
    "aliyun.com/gpu-core",
    gpushare.RESOURCE_COUNT,
    keti.RESOURCE_MPS,
    nvidia.RESOURCE_GPU,
    nvidia.RESOURCE_MIG_PREFIX,
    "shoal.dev/",
)
#: What is asked for none of.
_NOTHING: Final = frozenset(("0", "", 0))


def uses_gpu(pod: Pod) -> bool:
    """Whether a pod asks for a card of any family, or has a claim of devices, which may be for one.

    What a claim is for stands in another object; a pod that claims a device of another kind counts too.
    """
    if pod.spec.resource_claims:
        return True
    return any(_asks(resources) for resources in _resources(pod))


def _resources(pod: Pod) -> Iterator[Resources]:
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        yield container.resources
    if pod.spec.resources is not None:
        yield pod.spec.resources


def _asks(resources: Resources) -> bool:
    return any(
        name.startswith(PREFIXES) and amount not in _NOTHING
        for amounts in (resources.limits, resources.requests)
        for name, amount in amounts.items()
    )
