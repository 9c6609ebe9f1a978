"""The exporter's settings, and dcgm-exporter's flags and environment, as far as they mean something here."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.model.errors import shown

log = logging.getLogger(__name__)

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False", ""})
_CONFIG_MAP: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?").fullmatch
#: dcgm-exporter's word for no ConfigMap.
_NONE: Final = "none"
_HIGHEST_PORT: Final = 65535
_MILLI: Final = 1000


class HostnameLabel(StrEnum):
    """How the label with the node's name is written: releases up to 4.8.2, later ones, or not at all."""

    UPPER = "Hostname"
    LOWER = "hostname"
    NONE = "none"


class SharedSeries(StrEnum):
    """What is told of a card that several containers share."""

    #: Once, without a pod: sums over cards are right.
    ONCE = "once"
    #: A copy for each container, as dcgm-exporter does with KUBERNETES_VIRTUAL_GPUS.
    DCGM = "dcgm"


class PodLabels(StrEnum):
    """Whether series name pods: the pod labels of DCGM's series, and Shoal's series of containers."""

    #: Only while a NetworkPolicy or authentication protects the port.
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class ExporterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The settings of the port for Prometheus."""

    #: `host:port`, `:port` for all addresses, `[::]:port`; port 0 takes a free one, and nothing switches it off.
    listen: Annotated[str, msgspec.Meta(max_length=300)] = ":9400"
    #: Which fields are served: dcgm-exporter's CSV in a file, or in a ConfigMap as namespace:name.
    counters_file: str = ""
    counters_config_map: str = ""
    #: Whether series name pods, which everyone who reaches an open port can read.
    pod_labels: PodLabels = PodLabels.AUTO
    #: A NetworkPolicy admits only clients that may read the names of pods. The collector cannot see NetworkPolicies:
    #: the manifests that contain the policy set this.
    network_policy: bool = False
    pod_uid: bool = False
    hostname_label: HostnameLabel = HostnameLabel.UPPER
    shared_series: SharedSeries = SharedSeries.ONCE
    #: The labels of dcgm-exporter 1.x: uuid, pod_name, pod_namespace, container_name.
    old_labels: bool = False
    replace_blanks_in_model_name: bool = False
    #: TLS and basic authentication, in the format of Prometheus's exporters.
    web_config_file: str = ""

    def names_pods(self, *, authenticated: bool) -> bool:
        """Whether series name pods on a port whose clients are `authenticated`, or not."""
        if self.pod_labels is PodLabels.AUTO:
            return self.network_policy or authenticated
        return self.pod_labels is PodLabels.ALWAYS

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        if self.listen:
            address(self.listen)
        if self.counters_file and self.counters_config_map:
            raise ValueError("countersFile and countersConfigMap are both set: keep one of them")
        if self.counters_config_map and not _CONFIG_MAP(self.counters_config_map):
            raise ValueError(
                f"countersConfigMap {shown(self.counters_config_map)} cannot be read: write namespace:name"
            )


def address(listen: str) -> tuple[str, int]:
    """Host (empty: all) and port of an address as Go writes it. Raises ValueError."""
    host, colon, port = listen.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _HIGHEST_PORT:
        raise ValueError(f"listen {shown(listen)} is no address: write host:port, :9400 or [::]:9400")
    return host, int(port)


@dataclass(frozen=True, slots=True)
class DcgmSetting:
    """A setting of dcgm-exporter: its flag, its short flag, its variable."""

    flag: str
    short: str
    variable: str
    #: The settings it changes here, by its text; raises ValueError. None: it means nothing here.
    changes: Callable[[str], Mapping[str, object]] | None = None
    #: Why it means nothing here.
    why: str = ""
    #: The flag may stand without a value, which means true.
    switch: bool = False


def _switch(name: str, on: object = True, off: object = False) -> Callable[[str], Mapping[str, object]]:
    def changes(text: str) -> Mapping[str, object]:
        if text in _TRUE:
            return {name: on}
        if text in _FALSE:
            return {name: off}
        raise ValueError("write true or false")

    return changes


def _text(name: str) -> Callable[[str], Mapping[str, object]]:
    return lambda text: {name: text}


def _window(text: str) -> Mapping[str, object]:
    if text != "300000":
        raise ValueError("the window is 300000 ms here")
    return {}


_NO_ENGINE: Final = "there is no DCGM host engine: cards are read by NVML"
_ALL_CARDS: Final = "all cards of the node are read"
_NO_DUMP: Final = "nothing is dumped"
_LOGS: Final = "use --log-level"
_BY_CGROUP: Final = "containers are known by their cgroups, whatever the resource is called"

#: All of dcgm-exporter 4.5.3-4.8.2. The interval is the collector's own setting: see `interval_seconds`.
DCGM_SETTINGS: Final[tuple[DcgmSetting, ...]] = (
    DcgmSetting("collectors", "f", "DCGM_EXPORTER_COLLECTORS", _text("counters_file")),
    DcgmSetting("address", "a", "DCGM_EXPORTER_LISTEN", _text("listen")),
    DcgmSetting("collect-interval", "c", "DCGM_EXPORTER_INTERVAL", lambda text: {}),
    DcgmSetting(
        "kubernetes",
        "k",
        "DCGM_EXPORTER_KUBERNETES",
        _switch("pod_labels", PodLabels.ALWAYS, PodLabels.NEVER),
        switch=True,
    ),
    DcgmSetting("use-old-namespace", "o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", _switch("old_labels"), switch=True),
    DcgmSetting(
        "configmap-data",
        "m",
        "DCGM_EXPORTER_CONFIGMAP_DATA",
        lambda text: {"counters_config_map": "" if text == _NONE else text},
    ),
    DcgmSetting(
        "kubernetes-enable-pod-uid", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", _switch("pod_uid"), switch=True
    ),
    DcgmSetting(
        "no-hostname",
        "n",
        "DCGM_EXPORTER_NO_HOSTNAME",
        lambda text: _switch("hostname_label", HostnameLabel.NONE)(text) if text in _TRUE else {},
        switch=True,
    ),
    DcgmSetting("web-config-file", "", "DCGM_EXPORTER_WEB_CONFIG_FILE", _text("web_config_file")),
    DcgmSetting(
        "replace-blanks-in-model-name",
        "",
        "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",
        _switch("replace_blanks_in_model_name"),
        switch=True,
    ),
    DcgmSetting(
        "kubernetes-virtual-gpus",
        "",
        "KUBERNETES_VIRTUAL_GPUS",
        _switch("shared_series", SharedSeries.DCGM, SharedSeries.ONCE),
        switch=True,
    ),
    DcgmSetting("xid-count-window-size", "x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", _window),
    DcgmSetting("clock-events-count-window-size", "", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", _window),
    DcgmSetting("cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", why="node-exporter tells of CPUs"),
    DcgmSetting("remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO", why=_NO_ENGINE),
    DcgmSetting(
        "kubernetes-enable-pod-labels",
        "",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
        why="tenants choose them; join kube-state-metrics' kube_pod_labels",
        switch=True,
    ),
    DcgmSetting("kubernetes-gpu-id-type", "", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", why=_BY_CGROUP),
    DcgmSetting(
        "kubernetes-pod-label-allowlist-regex",
        "",
        "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
        why="labels of pods are not served",
    ),
    DcgmSetting("devices", "d", "DCGM_EXPORTER_DEVICES_STR", why=_ALL_CARDS),
    DcgmSetting("switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", why="NVSwitches are not read"),
    DcgmSetting("fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", why=_NO_ENGINE, switch=True),
    DcgmSetting("debug", "", "DCGM_EXPORTER_DEBUG", why=_LOGS, switch=True),
    DcgmSetting("enable-dcgm-log", "", "DCGM_EXPORTER_ENABLE_DCGM_LOG", why=_NO_ENGINE, switch=True),
    DcgmSetting("dcgm-log-level", "", "DCGM_EXPORTER_DCGM_LOG_LEVEL", why=_NO_ENGINE),
    DcgmSetting("log-format", "", "DCGM_EXPORTER_LOG_FORMAT", why=_LOGS),
    DcgmSetting("pod-resources-kubelet-socket", "", "DCGM_POD_RESOURCES_KUBELET_SOCKET", why=_BY_CGROUP),
    DcgmSetting("hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", why="jobs of other systems are not known"),
    DcgmSetting("nvidia-resource-names", "", "NVIDIA_RESOURCE_NAMES", why=_BY_CGROUP),
    DcgmSetting("dump-enabled", "", "DCGM_EXPORTER_DUMP_ENABLED", why=_NO_DUMP, switch=True),
    DcgmSetting("dump-directory", "", "DCGM_EXPORTER_DUMP_DIRECTORY", why=_NO_DUMP),
    DcgmSetting("dump-retention", "", "DCGM_EXPORTER_DUMP_RETENTION", why=_NO_DUMP),
    DcgmSetting("dump-compression", "", "DCGM_EXPORTER_DUMP_COMPRESSION", why=_NO_DUMP, switch=True),
    DcgmSetting("kubernetes-enable-dra", "", "KUBERNETES_ENABLE_DRA", why="claims are not read yet", switch=True),
    DcgmSetting("disable-startup-validate", "", "DISABLE_STARTUP_VALIDATE", why=_NO_ENGINE, switch=True),
    DcgmSetting(
        "enable-gpu-bind-unbind-watch",
        "",
        "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH",
        why="cards are looked for always",
        switch=True,
    ),
    DcgmSetting(
        "gpu-bind-unbind-poll-interval",
        "",
        "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL",
        why="cards are looked for always",
    ),
    DcgmSetting("enable-pprof", "", "DCGM_EXPORTER_ENABLE_PPROF", why="this is no Go program", switch=True),
    DcgmSetting("web-systemd-socket", "", "DCGM_EXPORTER_SYSTEMD_SOCKET", why="it listens by itself", switch=True),
)


def with_environment(settings: ExporterSettings, environment: Mapping[str, str]) -> ExporterSettings:
    """The settings, with what dcgm-exporter's variables say; these win. Raises ExporterConfigError.

    What means nothing here is told in the log, so that nobody waits for its effect.
    """
    changes: dict[str, object] = {}
    for setting in DCGM_SETTINGS:
        text = environment.get(setting.variable)
        if text is None:
            continue
        if setting.changes is None:
            if text not in _FALSE:
                log.warning("%s means nothing here: %s", setting.variable, setting.why)
            continue
        try:
            changes |= setting.changes(text)
        except ValueError as error:
            raise ExporterConfigError(f"{setting.variable}={shown(text)} cannot be used: {error}") from None
    if changes.get("counters_config_map"):
        changes["counters_file"] = ""  # dcgm-exporter reads the file only where there is no ConfigMap
    elif changes.get("counters_file"):
        changes["counters_config_map"] = ""
    try:
        return msgspec.structs.replace(settings, **changes)
    except ValueError as error:
        raise ExporterConfigError(f"dcgm-exporter's variables cannot be used: {error}") from None


def interval_seconds(environment: Mapping[str, str]) -> float | None:
    """How often the cards are read, if dcgm-exporter's variable says so. Raises ExporterConfigError."""
    text = environment.get("DCGM_EXPORTER_INTERVAL")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ExporterConfigError(f"DCGM_EXPORTER_INTERVAL={shown(text)} is no time: write milliseconds, such as 30000")
    return int(text) / _MILLI
