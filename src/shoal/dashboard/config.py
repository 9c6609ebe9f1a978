"""Settings of the dashboard. Every value is checked when they are made."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final

import msgspec

from shoal.model.contract.gpushare import MemoryUnit

PORT: Final = 8443
PROBE_PORT: Final = 8086
METRICS_PORT: Final = 9446

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.2, le=3600)]


class _Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class DashboardTlsConfig(_Settings, frozen=True, kw_only=True):
    """PEM files of the server's certificate, read again when they change; without them it makes one at each start."""

    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("give both certificate and key, or neither")


class PrometheusConfig(_Settings, frozen=True, kw_only=True):
    """A Prometheus that scrapes the collectors."""

    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s]+$", max_length=2048)]
    #: A file with the certificate authority of the server, and one with the header Authorization as it is sent.
    ca_file: str = ""
    authorization_file: str = ""
    #: Which series count, as in a query: those of other targets, which a tenant may have scraped, do not.
    matchers: Annotated[str, msgspec.Meta(max_length=1024)] = 'job="shoal-metrics"'


class DashboardConfig(_Settings, frozen=True, kw_only=True):
    """All settings."""

    #: Where it serves; port 0 takes a free one.
    host: str = "127.0.0.1"
    port: _Port = PORT
    #: Without it, only a loopback address is served: a cookie must not cross a network in the clear.
    tls: DashboardTlsConfig | None = None
    #: Where probes and Prometheus are answered; null: nowhere.
    probe_host: str = "0.0.0.0"
    probe_port: _Port | None = None
    metrics_port: _Port | None = None
    #: What 1 of aliyun.com/gpu-mem means; null takes it from the nodes.
    memory_unit: MemoryUnit | None = None
    #: Seconds between two rounds to the collectors; longer where a round takes long, and while nobody looks.
    measure_seconds: _Seconds = 5.0
    #: The ServiceAccount whose token collectors are shown, as NAMESPACE/NAME; empty: the one of deploy/metrics.
    collectors_account: str = ""
    #: Where the past is asked for, for longer than the collectors keep; null: they are asked.
    prometheus: PrometheusConfig | None = None
    #: The manager's namespace, for the joined clusters; empty: that of deploy/cluster-manager.
    manager_namespace: str = ""

    def __post_init__(self) -> None:
        if self.tls is None and not is_loopback(self.host):
            raise ValueError(f"host {self.host} is reached from elsewhere: give tls, or host 127.0.0.1")


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
