"""What one `aliyun.com/gpu-mem` of a node stands for, found from the node itself.

A node with Shoal's inventory tells it: its cards hold so many MiB, and what it offers is either about that number or a
thousandth of it. Without an inventory it is gpushare's guess from the size of a card.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.model import quantity
from shoal.model.contract import gpushare
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import QuantityError
from shoal.model.gpu import Gpu


def offered(resources: Mapping[str, object], resource: str) -> int:
    """How many of a resource a node offers; 0 for what cannot be read."""
    try:
        return max(0, quantity.whole(resources.get(resource, 0)))
    except QuantityError:
        return 0


def unit_of_inventory(units: int, gpus: Iterable[Gpu]) -> MemoryUnit | None:
    """The unit in which these cards are offered as so many units; None when none are."""
    most_gib = sum(MemoryUnit.GIB.ceil(gpu.memory_mib) for gpu in gpus)
    if not units or not most_gib:
        return None
    return MemoryUnit.MIB if units > most_gib else MemoryUnit.GIB


def unit_of_capacity(resources: Mapping[str, object]) -> MemoryUnit | None:
    """gpushare's guess; None for a node that does not count memory."""
    units, count = offered(resources, gpushare.RESOURCE_MEMORY), offered(resources, gpushare.RESOURCE_COUNT)
    return gpushare.guess_unit(units // count) if units and count else None
