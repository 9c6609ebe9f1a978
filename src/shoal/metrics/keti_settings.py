"""Settings of KETI's gRPC, apart from it: gRPC is loaded where it is switched on."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from shoal.model.contract import keti
from shoal.model.errors import shown

_ADDRESS: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}").fullmatch
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.05, le=3600)]


class KetiGrpcSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where KETI's clients find the collector; a port that is null is not served."""

    host: str = "0.0.0.0"
    port: _Port | None = keti.PORT_COLLECTOR
    v1_port: _Port | None = keti.PORT_COLLECTOR_V1

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        if self.port is None and self.v1_port is None:
            raise ValueError("keti has neither port nor v1Port: set one of them, or leave keti out")
        if self.port is not None and self.port == self.v1_port and self.port != 0:
            raise ValueError(f"keti has {self.port} as port and as v1Port: give them two numbers")


class KetiScoresSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where the collectors are, and how they are asked."""

    #: host:port of collectors. A host with several addresses, such as a headless Service, is all of them.
    collectors: tuple[str, ...]
    host: str = "0.0.0.0"
    port: _Port = keti.PORT_ENGINE
    #: Answers that are younger are not asked for again.
    refresh_seconds: _Seconds = 5.0
    #: How long a collector is waited for.
    timeout_seconds: _Seconds = 3.0
    #: How long a node is told whose collector does not answer any more.
    ttl_seconds: _Seconds = 60.0

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        if not self.collectors:
            raise ValueError("collectors is empty: name at least one as host:port, such as gpu-metric-collector:9323")
        for address in self.collectors:
            if not _ADDRESS(address) or not 0 < int(address.rpartition(":")[2]) <= 65535:
                raise ValueError(f"collector {shown(address)} cannot be used: write host:port, such as 10.0.0.7:9323")
