"""Which modes of isolation a node has for the shares of a GPU, and the limits of a container. Pure.

Memory and compute are limited apart: where the node has both, the driver limits the memory of cgroups and MPS limits
compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from shoal.gpu.protocol import VOLTA, Card, Driver, limits_memory
from shoal.model.allocation import ContainerAllocation
from shoal.model.gpu import Isolation, LimitedBy

STRENGTH: Final = {tier: place for place, tier in enumerate(reversed(Isolation))}


class IsolationSetting(StrEnum):
    """The setting `isolation`: the best tier that the node has, or one tier and no weaker one."""

    AUTO = "auto"
    CGROUP = "cgroup"
    NAMESPACE = "mps-namespace"
    MPS = "mps"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Means:
    """What a node has to limit containers with."""

    driver: Driver
    #: The host's cgroups are version 2.
    cgroup2: bool = False
    #: The program of the hook is there to be put on the host.
    hook: bool = False
    #: The runtime takes CDI devices, and with them hooks and mounts.
    cdi: bool = True
    #: There is a control program of MPS.
    mps: bool = False
    #: The MPS daemon can have namespaces.
    namespaces: bool = False


def weakest(found: Iterable[LimitedBy]) -> LimitedBy | None:
    """The weakest limit of memory and the weakest of compute; None of none."""
    limits = list(found)
    if not limits:
        return None
    weakest_of = partial(min, key=STRENGTH.__getitem__)
    return LimitedBy(weakest_of(one.memory for one in limits), weakest_of(one.compute for one in limits))


def hindrances(card: Card, means: Means) -> dict[Isolation, str]:
    """By tier, why it cannot be had on a card. Tiers that can are not listed."""
    found: dict[Isolation, str] = {}
    if not means.cdi:
        found[Isolation.CGROUP] = "the runtime takes no CDI devices, and so no hooks"
    elif not means.hook:
        found[Isolation.CGROUP] = "the program shoal-limit is not there: build it, or set limitHook to its path"
    elif not means.cgroup2:
        found[Isolation.CGROUP] = "the node has no cgroup v2"
    elif not limits_memory(means.driver, card):
        found[Isolation.CGROUP] = "it needs driver R615 (CUDA 13.4) and a card without MIG"
    if not means.cdi:
        reason = "the runtime takes no CDI devices, and so no mount of the MPS directory"
        found |= {Isolation.NAMESPACE: reason, Isolation.MPS: reason}
    elif not means.mps:
        reason = "no MPS control program is configured: set mpsProgram"
        found |= {Isolation.NAMESPACE: reason, Isolation.MPS: reason}
    elif not card.max_mps_clients or card.compute_capability is None or card.compute_capability < VOLTA:
        reason = "MPS can limit clients on Volta and newer cards without MIG only"
        found |= {Isolation.NAMESPACE: reason, Isolation.MPS: reason}
    elif not means.namespaces:
        found[Isolation.NAMESPACE] = "namespaces of MPS need driver R615 (CUDA 13.4)"
    else:
        found[Isolation.MPS] = "the node's MPS daemon has namespaces instead"
    return found


def chosen(card: Card, means: Means, wanted: IsolationSetting) -> tuple[LimitedBy, str]:
    """What limits shares of a GPU, and why it is not what was asked for; empty if it is."""
    against = hindrances(card, means)
    possible = [mode for mode in Isolation if mode not in against]
    by_mps = next((mode for mode in possible if mode.by_mps), Isolation.NONE)
    if wanted is IsolationSetting.AUTO:
        return LimitedBy(possible[0], by_mps), ""
    asked = Isolation(wanted.value)
    if asked in against:
        return LimitedBy(), f"isolation {asked.value} is asked for and cannot be had: {against[asked]}"
    return LimitedBy(asked, Isolation.NONE if asked is Isolation.NONE else by_mps), ""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """What a container is limited to."""

    #: MiB of each card's memory, by UUID, for the cards it has a limited part of.
    memory_mib: Mapping[str, int] = field(default_factory=dict)
    #: Percent of a card's threads; None: all of them.
    threads: int | None = None
    #: It asked for an MPS client.
    client: bool = False
    #: Its work gives way to that of others (a negative priority).
    yields: bool = False

    def __bool__(self) -> bool:
        return bool(self.memory_mib) or self.threads is not None or self.client


def container_limits(container: ContainerAllocation, *, yields: bool = False) -> ContainerLimits:
    """The limits of a container's shares. A whole card has none."""
    shared = [card for card in container.cards if not card.share.exclusive]
    memory = {
        card.uuid: container.memory_limit_mib or card.share.memory_mib
        for card in shared
        if container.memory_limit_mib or card.share.memory_mib
    }
    compute = {card.share.compute for card in shared if 0 < card.share.compute < 100}
    return ContainerLimits(memory, min(compute, default=None), any(card.share.clients for card in shared), yields)
