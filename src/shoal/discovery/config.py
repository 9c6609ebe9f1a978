"""Settings of discovery. Every value is checked when they are made."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from shoal.kube.plugin_config import ConfigPlace
from shoal.model.contract.discovery import NAME_LEADER
from shoal.model.contract.nvidia import MigStrategy

_NAMESPACED: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?").fullmatch
_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]


class DiscoveryConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All settings, of workers and of the leader."""

    #: Worker: the node it runs on.
    node_name: _Name | None = None
    #: Worker: how often the machine is read.
    interval_seconds: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    #: Worker: where the kernel's /sys is seen.
    sys_root: str = "/sys"
    #: Worker: ask NVIDIA's driver. Without it only the bus is read, and what is known of cards stays as it is.
    driver: bool = True
    #: Worker: the configuration of NVIDIA's device plugin, as the agent has it: a file, or a ConfigMap as
    #: namespace/name. Of this the node's label names the key, or the default does.
    nvidia_config: str = ""
    nvidia_config_map: str = ""
    nvidia_config_default: str = ""
    #: Worker: how MIG partitions are served where that configuration says nothing of it, as the agent has it.
    mig_strategy: MigStrategy = "none"
    #: Where probes are answered; no port, no probes.
    host: str = "0.0.0.0"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    #: Leader: how long there must be no sign of a card before labels say that there is none.
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 300.0
    #: Leader: how many nodes are written to at once.
    writers: Annotated[int, msgspec.Meta(ge=1, le=128)] = 16
    #: Leader: the Lease by which one of several replicas leads.
    lease_namespace: _Name = "kube-system"
    lease_name: _Name = NAME_LEADER

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        if self.nvidia_config and self.nvidia_config_map:
            raise ValueError("nvidiaConfig and nvidiaConfigMap are both set: keep one of them")
        if self.nvidia_config_map and not _NAMESPACED(self.nvidia_config_map):
            raise ValueError(f"nvidiaConfigMap {self.nvidia_config_map!r} cannot be read: write namespace/name")

    @property
    def plugin_config(self) -> ConfigPlace:
        """Where the configuration of NVIDIA's device plugin is."""
        return ConfigPlace(self.nvidia_config, self.nvidia_config_map, self.nvidia_config_default, self.mig_strategy)
