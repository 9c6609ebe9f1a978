"""The agent's settings, checked when they are read."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from shoal.agent.errors import AgentConfigError
from shoal.agent.health.state import HealthRules, rules
from shoal.agent.limits.tiers import IsolationSetting
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.nvidia import MigStrategy

#: The families of resources that can be served.
FAMILIES: Final = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU)
AUTO: Final = "auto"

_NAMESPACED: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?").fullmatch
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Counting(StrEnum):
    """How units of memory are counted; `auto` takes devices while their list fits into kubelet's message."""

    AUTO = "auto"
    DEVICES = "devices"
    NODE_STATUS = "node-status"


class WithoutAllocation(StrEnum):
    """What becomes of a pod that came to the node without an allocation."""

    CHOOSE = "choose"
    REFUSE = "refuse"


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All settings."""

    node_name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
    memory_unit: MemoryUnit = MemoryUnit.GIB
    #: Which resources are served; leave out those that another plugin on the node serves.
    resources: tuple[str, ...] = FAMILIES
    #: Clients of `keti.com/mpsgpu` per card, if the card can serve as many.
    mps_clients: Annotated[int, msgspec.Meta(ge=1, le=keti.CLIENTS_MAX)] = keti.CLIENTS_DEFAULT
    counting: Counting = Counting.AUTO
    #: Containers per card that can have a slot when memory is counted in node status.
    slots_per_card: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 64
    #: How a container is told its cards: one of NVIDIA's names, or `auto`.
    device_list_strategy: str = AUTO
    without_allocation: WithoutAllocation = WithoutAllocation.CHOOSE
    #: The configuration of NVIDIA's device plugin: a file, or a ConfigMap as namespace/name. Of this the node's label
    #: names the key, or the default does.
    nvidia_config: str = ""
    nvidia_config_map: str = ""
    nvidia_config_default: str = ""
    #: How MIG partitions are served where that configuration says nothing of it.
    mig_strategy: MigStrategy = "none"
    #: Offer the cards as claims too (dynamic resource allocation), where the cluster can do that.
    claims: bool = False
    #: Count the memory of a card without what driver and firmware keep of it.
    without_reserved: bool = False
    #: What keeps containers to their shares: the best tier that the node has, or one tier and no weaker one.
    isolation: IsolationSetting = IsolationSetting.AUTO
    #: The program of the hook that limits cgroups; it is put on the host from here.
    limit_hook: str = "/usr/libexec/shoal/shoal-limit"
    #: NVIDIA's MPS control program; without it there is no MPS.
    mps_program: str = ""
    #: Start the MPS daemon if it does not run; otherwise somebody else does (`shoal agent --mps-only`).
    mps_start: bool = True
    mps_directory: str = keti.MPS_DIRECTORY
    mps_log_directory: str = nvidia.MPS_LOG_DIRECTORY
    #: The host's folder that the MPS daemon and its clients both have as /dev/shm.
    mps_shared_memory: str = ""
    #: Let pods of all namespaces be clients of an MPS daemon with protocol 2, which cannot keep them apart.
    mps_for_all: bool = False
    #: Only the MPS server may compute on cards whose shares MPS limits; this holds for pods with a whole card too.
    mps_exclusive: bool = False
    #: Health checks to leave out, and to do in any case: XID numbers, `xids` or `all`, separated by commas.
    disable_health_checks: str = ""
    enable_health_checks: str = ""
    #: How long a card must be quiet before it counts as healthy again.
    recovery_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 60.0
    #: Where health and metrics answer; port 0 takes a free one, none switches them off.
    host: str = "0.0.0.0"
    port: _Port | None = 9402

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        if unknown := [name for name in self.resources if name not in FAMILIES]:
            raise ValueError(f"resource {unknown[0]!r} is not served: choose of {', '.join(FAMILIES)}")
        if self.device_list_strategy not in (AUTO, *nvidia.DEVICE_LIST_STRATEGIES):
            known = ", ".join((AUTO, *nvidia.DEVICE_LIST_STRATEGIES))
            raise ValueError(f"deviceListStrategy {self.device_list_strategy!r} is not known: choose one of {known}")
        if self.nvidia_config and self.nvidia_config_map:
            raise ValueError("nvidiaConfig and nvidiaConfigMap are both set: keep one of them")
        if self.nvidia_config_map and not _NAMESPACED(self.nvidia_config_map):
            raise ValueError(f"nvidiaConfigMap {self.nvidia_config_map!r} cannot be read: write namespace/name")
        try:
            self.health_rules()
        except AgentConfigError as error:
            raise ValueError(str(error)) from error

    def health_rules(self) -> HealthRules:
        """What makes a card unhealthy."""
        return rules(
            disable=self.disable_health_checks, enable=self.enable_health_checks, hold=float(self.recovery_seconds)
        )
