"""The collector's settings, checked when they are read. Each part that reads snapshots brings its own."""

from __future__ import annotations

from typing import Annotated

import msgspec

from shoal.metrics.digest import DigestSettings
from shoal.metrics.exporter.settings import ExporterSettings
from shoal.metrics.history_server import HistorySettings
from shoal.metrics.influx_writer import InfluxSettings
from shoal.metrics.keti_settings import KetiGrpcSettings
from shoal.metrics.node_load import KubeletSettings
from shoal.model.contract.gpushare import MemoryUnit

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All settings."""

    node_name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
    #: What 1 of `aliyun.com/gpu-mem` means; the same as for scheduler and agent.
    memory_unit: MemoryUnit = MemoryUnit.GIB
    #: How often the cards are read. Each pause is up to a tenth shorter, so that nodes do not read in step.
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.05, le=300)] = 5.0
    #: Where the host's /proc and its cgroups are seen.
    proc_root: str = "/proc"
    #: A folder on the disk that is told as the node's. Null: the node is not this machine, and its load not known.
    host_root: str | None = "/"
    #: Who is asked what the node's pods use of CPU, memory, disk and network; nobody unless it is there.
    kubelet: KubeletSettings | None = None
    cgroup_root: str = "/sys/fs/cgroup"
    #: How long a container uses more than was booked for it before an Event tells of it.
    overuse_grace_seconds: _Seconds = 60.0
    #: The ring on disk and its server; off unless it is there. deploy/metrics has it.
    history: HistorySettings | None = None
    #: The InfluxDB that KETI's measurements are written to; none unless it is there.
    influx: InfluxSettings | None = None
    #: KETI's gRPC, which is plain text and asks nobody who he is: off unless it is there.
    keti: KetiGrpcSettings | None = None
    #: The digest by which the scheduler knows what is used; none unless it is there. deploy/metrics has it.
    digest: DigestSettings | None = None
    #: The port for Prometheus. `shoal metrics` has it also where the file says nothing of it.
    exporter: ExporterSettings | None = None
    # Each part has its settings here: `part: PartConfig = PartConfig()`.
