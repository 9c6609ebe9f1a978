"""Settings of the scheduler. Every value is checked when they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from shoal.model.contract import gpushare, keti, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.placement.policies import POLICIES
from shoal.scheduler.extender.filtering import OFFER_ALL

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file; an unknown key is an error."""


class Tls(_Section, frozen=True, kw_only=True):
    """Certificate and key of the extender; with `client_ca`, callers must show a certificate signed by it."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Election(_Section, frozen=True, kw_only=True):
    """The Lease by which one of several replicas leads. Off: this process is the only one."""

    enabled: bool = True
    namespace: _Name = gpushare.EXTENDER_NAMESPACE
    name: _Name = shoal.NAME_SCHEDULER


class Config(_Section, frozen=True, kw_only=True):
    """All settings."""

    #: Pods that name one of these are placed by the standalone loop; none switches the loop off.
    scheduler_names: tuple[str, ...] = (keti.SCHEDULER_NAME,)
    #: What this cluster is called. Set, pods whose annotation names another cluster are left alone here.
    cluster_name: str = ""
    #: Where the extender, health and metrics answer. Port 0 takes a free one.
    host: str = "0.0.0.0"
    port: _Port = gpushare.PORT_DEFAULT
    tls: Tls | None = None
    memory_unit: MemoryUnit = MemoryUnit.GIB
    policy: str = "fragmentation"
    #: Where KETI's policy ConfigMap counts, the first before the others. Who may write one there decides for all.
    policy_namespaces: tuple[_Name, ...] = (keti.NAMESPACE, gpushare.EXTENDER_NAMESPACE)
    election: Election = Election()
    #: Asked about more nodes than this, the extender offers kube-scheduler the best alone, unless somebody prefers a
    #: node for other reasons than its cards. Beside another extender or score plugins of your own set it to a million.
    offer_all_up_to: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = OFFER_ALL
    #: Bindings on their way at one time.
    binds: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 64
    #: Events written per second; the others wait, and are dropped when too many do.
    events_per_second: _Seconds = 50.0

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        if self.policy not in POLICIES:
            raise ValueError(f"no policy {self.policy!r}: choose one of {', '.join(sorted(POLICIES))}")
