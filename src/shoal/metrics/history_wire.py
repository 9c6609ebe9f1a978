"""What a collector answers about its node, and how it tells where it answers. JSON; what is not known is left out.

The same structs are written by the collector and read by whoever asks: a node is not trusted with more than its own
numbers, so all are bounded when they are read.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

#: What tokens for collectors are made for: one that is stolen on a node is good for nothing else.
AUDIENCE: Final = "shoal-metrics"
#: Carries the token where `Authorization` does not arrive: the API server's proxy to pods drops it.
TOKEN_HEADER: Final = "X-Shoal-Token"
#: The group and the resources that rights are given for; there are no such objects.
GROUP: Final = "shoal.dev"
CARD_METRICS: Final = "cardmetrics"
POD_METRICS: Final = "podmetrics"
#: The ServiceAccount whose token those get that ask; deploy/metrics/history.yaml.
VIEWER_ACCOUNT: Final = "shoal-metrics-viewer"
#: The namespace that is believed about where collectors are. Nothing else is there, and nobody but collectors writes.
NAMESPACE: Final = "shoal-history"
#: The label of the collectors' pods, wherever Shoal is installed.
POD_LABEL: Final = "app.kubernetes.io/name=shoal-metrics"
PORT: Final = 9401

PATH_SNAPSHOT: Final = "/v1/snapshot"
PATH_HISTORY: Final = "/v1/history"

#: On the Lease of a node, by the node's name: where its collector answers.
ANNOTATION: Final = "shoal.dev/history"
#: The name that the collectors' own certificates are for, whatever their address is.
SERVER_NAME: Final = "shoal-history"

_MOST_CARDS: Final = 1024
_MOST_CONTAINERS: Final = 4096
_Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Number = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
_Text = Annotated[str, msgspec.Meta(max_length=512)]


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class ExporterStatus(_Wire, frozen=True, kw_only=True):
    """The port for Prometheus: who can read which names there, and whether anybody scrapes it."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    #: The setting: auto, always or never.
    pod_labels: Annotated[str, msgspec.Meta(max_length=16)] = ""
    #: Whether series name pods.
    names_pods: bool = False
    #: Whether the settings say that a NetworkPolicy protects the port.
    network_policy: bool = False
    #: Whether clients show a password or a certificate.
    authenticates: bool = False
    #: Whether a client read the series in the last ten minutes; None while the collector runs for less.
    scraped: bool | None = None


class Announcement(_Wire, frozen=True, kw_only=True):
    """Where a collector answers, and by whose certificate it is known."""

    node: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    #: PEM.
    authority: Annotated[str, msgspec.Meta(max_length=1 << 16)]
    server_name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = SERVER_NAME
    #: The port for Prometheus of the same collector; None where it is closed.
    exporter: ExporterStatus | None = None


class ContainerReading(_Wire, frozen=True, kw_only=True):
    """A container on a card."""

    namespace: _Text
    pod: _Text
    container: _Text = ""
    requested_bytes: _Amount | None = None
    limit_bytes: _Amount | None = None
    used_bytes: _Amount | None = None
    utilisation: _Percent | None = None
    source: _Text | None = None
    overuse_seconds: _Number | None = None


class CardReading(_Wire, frozen=True, kw_only=True):
    """A card. Without the right to cards, it has only what names it, and the containers one may see."""

    uuid: _Text
    index: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    model: _Text = ""
    total_bytes: _Amount | None = None
    reserved_bytes: _Amount | None = None
    used_bytes: _Amount | None = None
    unattributed_bytes: _Amount | None = None
    utilisation: _Percent | None = None
    temperature_celsius: _Number | None = None
    power_watts: _Number | None = None
    containers: Annotated[tuple[ContainerReading, ...], msgspec.Meta(max_length=_MOST_CONTAINERS)] = ()


class LoadReading(_Wire, frozen=True, kw_only=True):
    """The machine."""

    cpu_total_milli: _Amount | None = None
    cpu_used_milli: _Amount | None = None
    memory_total_bytes: _Amount | None = None
    memory_used_bytes: _Amount | None = None


class NodeReading(_Wire, frozen=True, kw_only=True):
    """A node as its collector saw it `age_seconds` ago."""

    node: _Text
    #: Seconds since 1970, by the node's clock.
    time: _Number
    age_seconds: _Number
    interval_seconds: _Number
    #: Whether the caller may see the numbers of cards and of the node.
    sees_cards: bool = False
    #: Whether the caller may see the pods of all namespaces.
    sees_all_pods: bool = False
    driver: _Text | None = None
    cards: Annotated[tuple[CardReading, ...], msgspec.Meta(max_length=_MOST_CARDS)] = ()
    load: LoadReading | None = None


class SeriesReading(_Wire, frozen=True, kw_only=True):
    """One series: the mean of each step from the answer's `since` on, null where nothing was measured."""

    name: _Text
    card: _Text = ""
    namespace: _Text = ""
    pod: _Text = ""
    container: _Text = ""
    values: Annotated[tuple[_Number | None, ...], msgspec.Meta(max_length=1 << 16)]


class HistoryReading(_Wire, frozen=True, kw_only=True):
    """A page of series. With `continue_`, ask again with it for the next."""

    node: _Text
    since: _Number
    step: _Number
    series: Annotated[tuple[SeriesReading, ...], msgspec.Meta(max_length=1 << 14)] = ()
    continue_: Annotated[str, msgspec.Meta(max_length=8192)] = msgspec.field(name="continue", default="")
