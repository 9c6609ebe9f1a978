"""Settings of the scheduler. Every value is checked when they are made."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from shoal.http.server import Bounds
from shoal.model.contract import clusters, gpushare, keti, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.load import TOLERATED_MIB, TTL_SECONDS
from shoal.placement.policies import POLICIES
from shoal.scheduler.extender.filtering import OFFER_ALL

#: The Secret that `deploy/scheduler` has for the extender's certificates.
SECRET: Final = f"{shoal.NAME_SCHEDULER}-tls"
PORT_HEALTH: Final = 9401

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
#: Label matchers of PromQL, joined by commas; no braces, so that nothing but matchers can be said.
_MATCHERS: Final = r'^([a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\\n{}]{0,256}"(,(?=[a-zA-Z_])|$)){0,16}$'
_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file; an unknown key is an error."""


class TlsConfig(_Section, frozen=True, kw_only=True):
    """Whose certificates the extender shows and asks for: those of its own making in a Secret, or the operator's files.

    With the Secret, and with `client_ca`, callers must show a certificate, or get no further than the handshake.
    """

    #: In the namespace of the election.
    secret: _Name | None = None
    certificate: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        """Refuse a Secret together with files, and neither of both."""
        files = (self.certificate, self.key, self.client_ca)
        if self.secret is not None and any(files):
            raise ValueError("secret goes with no files: leave out one or the other")
        if self.secret is None and not (self.certificate and self.key):
            raise ValueError(f"give certificate and key, or secret: {SECRET}")


class CallerLimits(_Section, frozen=True, kw_only=True):
    """What callers of the extender may use, whoever they are."""

    #: Open connections, of all callers and of one address.
    connections: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = Bounds.connections
    connections_per_peer: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = Bounds.per_peer
    #: One request, and all that are being read or answered. 5,000 whole nodes (`nodeCacheCapable: false`) take 50 MiB,
    #: their names a fifth of one.
    body_mib: Annotated[int, msgspec.Meta(ge=1, le=1024)] = Bounds.body >> 20
    bodies_mib: Annotated[int, msgspec.Meta(ge=1, le=8192)] = Bounds.bodies >> 20
    #: Until a request has arrived, and until a caller takes more of its answer.
    seconds: _Seconds = Bounds.seconds

    def bounds(self) -> Bounds:
        """The limits in the form that the HTTP server takes."""
        return Bounds(
            connections=self.connections,
            per_peer=self.connections_per_peer,
            body=self.body_mib << 20,
            bodies=self.bodies_mib << 20,
            seconds=self.seconds,
        )


class ElectionConfig(_Section, frozen=True, kw_only=True):
    """The Lease by which one of several replicas leads. Off: this process is the only one."""

    enabled: bool = True
    namespace: _Name = gpushare.EXTENDER_NAMESPACE
    name: _Name = shoal.NAME_SCHEDULER


class LoadSource(StrEnum):
    """Where live load comes from."""

    #: The Lease of each node, written by its collector.
    LEASE = "lease"
    PROMETHEUS = "prometheus"
    INFLUXDB = "influxdb"
    #: What is requested counts alone.
    OFF = "off"


class LiveLoadConfig(_Section, frozen=True, kw_only=True):
    """What is really used of the cards: where it is read, and for how long it counts."""

    source: LoadSource = LoadSource.LEASE
    #: A digest that has not changed for so long counts for nothing. Collectors write at least three times in it.
    ttl_seconds: _Seconds = TTL_SECONDS
    #: Memory of each card that may be used beyond what is booked without any effect: the driver's own, and MPS'.
    tolerated_mib: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = TOLERATED_MIB
    #: The server of the sources prometheus and influxdb, and how often it is asked.
    url: Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s]+)?$", max_length=2048)] = ""
    interval_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 15.0
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=300)] = 5.0
    #: A file with the certificate authority of the server, and one with the header Authorization as it is sent.
    ca_file: str = ""
    authorization_file: str = ""
    #: Prometheus: which series count, as in a query. Series of other targets, which a tenant may have scraped, do not.
    matchers: Annotated[str, msgspec.Meta(pattern=_MATCHERS)] = 'job="shoal-metrics"'
    #: InfluxDB: the database with KETI's measurements.
    database: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = keti.DATABASE

    def __post_init__(self) -> None:
        """Refuse a server without an address, and one that is asked less often than its answers count."""
        if self.source in (LoadSource.PROMETHEUS, LoadSource.INFLUXDB):
            if not self.url:
                raise ValueError(f"source {self.source} needs url, such as http://prometheus.monitoring:9090")
            if self.ttl_seconds <= self.interval_seconds:
                raise ValueError(f"ttlSeconds must be more than intervalSeconds, which is {self.interval_seconds:g}")


class OfferConfig(_Section, frozen=True, kw_only=True):
    """Offers to cluster managers, and the room that is published for them. TLS is that of the extender."""

    enabled: bool = False
    host: str = "0.0.0.0"
    #: 0 takes a free one.
    port: _Port = clusters.OFFER_PORT
    #: Whom callers' tokens must be made for; empty: the API server itself, as a ServiceAccount's plain token is.
    audience: Annotated[str, msgspec.Meta(max_length=256)] = ""


class SchedulerConfig(_Section, frozen=True, kw_only=True):
    """All settings."""

    #: Pods that name one of these are placed by the standalone loop; none switches the loop off.
    scheduler_names: tuple[str, ...] = (keti.SCHEDULER_NAME,)
    #: What this cluster is called. Set, pods whose annotation names another cluster are left alone here.
    cluster_name: str = ""
    #: Where the extender answers. Port 0 takes a free one. Not said, the host is every address with TLS, and loopback
    #: without: who reaches a port without TLS may have pods placed.
    host: str = ""
    port: _Port = gpushare.PORT_DEFAULT
    tls: TlsConfig | None = None
    limits: CallerLimits = CallerLimits()
    #: Whether inspect, which shows the pods of all namespaces, is for callers without a client certificate too.
    open_inspect: bool = False
    #: Where health and metrics answer, without TLS.
    health_host: str = "0.0.0.0"
    health_port: _Port = PORT_HEALTH
    memory_unit: MemoryUnit = MemoryUnit.GIB
    policy: str = "fragmentation"
    #: Where KETI's policy ConfigMap counts, the first before the others. Who may write one there decides for all.
    policy_namespaces: tuple[_Name, ...] = (keti.NAMESPACE, gpushare.EXTENDER_NAMESPACE)
    election: ElectionConfig = ElectionConfig()
    live_load: LiveLoadConfig = LiveLoadConfig()
    offer: OfferConfig = OfferConfig()
    #: Whether claims of devices (dynamic resource allocation) are allocated for pods of the standalone loop, and booked
    #: whoever allocated them. Kubernetes before 1.34 has no such API (whole cards can be had there by the stock
    #: scheduler), before 1.36 none with shares by default.
    claims: bool = False
    #: Asked about more nodes than this, the extender offers kube-scheduler the best alone, unless somebody prefers a
    #: node for other reasons than its cards. Beside another extender or score plugins of your own set it to a million.
    offer_all_up_to: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = OFFER_ALL
    #: Bindings on their way at one time.
    binds: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 64
    #: Events written per second; the others wait, and are dropped when too many do.
    events_per_second: _Seconds = 50.0

    @property
    def extender_host(self) -> str:
        """The address that the extender listens on."""
        return self.host or ("127.0.0.1" if self.tls is None else "0.0.0.0")

    def __post_init__(self) -> None:
        """Refuse what the types of the fields let through."""
        if self.policy not in POLICIES:
            raise ValueError(f"no policy {self.policy!r}: choose one of {', '.join(sorted(POLICIES))}")
        if self.offer.enabled and self.tls is None:
            raise ValueError(f"offer is enabled and tls is not set: callers show tokens; set tls: {{secret: {SECRET}}}")
