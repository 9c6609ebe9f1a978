"""dcgm-exporter's flags and variables: each is known, and those that mean something do."""

from __future__ import annotations

import logging

import msgspec
import pytest
from click.testing import CliRunner

from shoal.cli.metrics import metrics
from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.metrics.exporter.settings import (
    DCGM_SETTINGS,
    ExporterSettings,
    HostnameLabel,
    PodLabels,
    SharedSeries,
    address,
    interval_seconds,
    with_environment,
)

#: Every variable of dcgm-exporter 4.5.3-4.8.2 with its flag and short flag.
VARIABLES = """
DCGM_EXPORTER_COLLECTORS collectors f
DCGM_EXPORTER_LISTEN address a
DCGM_EXPORTER_INTERVAL collect-interval c
DCGM_EXPORTER_KUBERNETES kubernetes k
DCGM_EXPORTER_USE_OLD_NAMESPACE use-old-namespace o
DCGM_EXPORTER_CPU_DEVICES_STR cpu-devices p
DCGM_EXPORTER_CONFIGMAP_DATA configmap-data m
DCGM_REMOTE_HOSTENGINE_INFO remote-hostengine-info r
DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS kubernetes-enable-pod-labels
DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID kubernetes-enable-pod-uid
DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE kubernetes-gpu-id-type
DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX kubernetes-pod-label-allowlist-regex
DCGM_EXPORTER_DEVICES_STR devices d
DCGM_EXPORTER_NO_HOSTNAME no-hostname n
DCGM_EXPORTER_OTHER_DEVICES_STR switch-devices s
DCGM_EXPORTER_USE_FAKE_GPUS fake-gpus
DCGM_EXPORTER_WEB_CONFIG_FILE web-config-file
DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE xid-count-window-size x
DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME replace-blanks-in-model-name
DCGM_EXPORTER_DEBUG debug
DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE clock-events-count-window-size
DCGM_EXPORTER_ENABLE_DCGM_LOG enable-dcgm-log
DCGM_EXPORTER_DCGM_LOG_LEVEL dcgm-log-level
DCGM_EXPORTER_LOG_FORMAT log-format
DCGM_POD_RESOURCES_KUBELET_SOCKET pod-resources-kubelet-socket
DCGM_HPC_JOB_MAPPING_DIR hpc-job-mapping-dir
NVIDIA_RESOURCE_NAMES nvidia-resource-names
KUBERNETES_VIRTUAL_GPUS kubernetes-virtual-gpus
DCGM_EXPORTER_DUMP_ENABLED dump-enabled
DCGM_EXPORTER_DUMP_DIRECTORY dump-directory
DCGM_EXPORTER_DUMP_RETENTION dump-retention
DCGM_EXPORTER_DUMP_COMPRESSION dump-compression
KUBERNETES_ENABLE_DRA kubernetes-enable-dra
DISABLE_STARTUP_VALIDATE disable-startup-validate
DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH enable-gpu-bind-unbind-watch
DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL gpu-bind-unbind-poll-interval
DCGM_EXPORTER_ENABLE_PPROF enable-pprof
DCGM_EXPORTER_SYSTEMD_SOCKET web-systemd-socket
"""


def test_every_variable_and_flag_is_known_and_heeded_or_explained() -> None:
    known = {setting.variable: (setting.flag, *filter(None, [setting.short])) for setting in DCGM_SETTINGS}
    assert known == {line.split()[0]: tuple(line.split()[1:]) for line in VARIABLES.strip().splitlines()}
    assert len(known) == len(DCGM_SETTINGS)
    assert all((setting.changes is None) == bool(setting.why) for setting in DCGM_SETTINGS)


@pytest.mark.parametrize(
    ("environment", "changed"),
    [
        ({"DCGM_EXPORTER_LISTEN": "127.0.0.1:9500"}, {"listen": "127.0.0.1:9500"}),
        ({"DCGM_EXPORTER_COLLECTORS": "/etc/x.csv"}, {"counters_file": "/etc/x.csv"}),
        ({"DCGM_EXPORTER_CONFIGMAP_DATA": "gpu:metrics"}, {"counters_config_map": "gpu:metrics"}),
        ({"DCGM_EXPORTER_CONFIGMAP_DATA": "none"}, {}),
        (
            {"DCGM_EXPORTER_CONFIGMAP_DATA": "gpu:metrics", "DCGM_EXPORTER_COLLECTORS": "/etc/x.csv"},
            {"counters_config_map": "gpu:metrics"},
        ),
        ({"DCGM_EXPORTER_KUBERNETES": "false"}, {"pod_labels": PodLabels.NEVER}),
        # dcgm-exporter has no pod labels without it, and NVIDIA's own manifests ask for them by it.
        ({"DCGM_EXPORTER_KUBERNETES": "true"}, {"pod_labels": PodLabels.ALWAYS}),
        ({"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "1"}, {"pod_uid": True}),
        ({"DCGM_EXPORTER_NO_HOSTNAME": "true"}, {"hostname_label": HostnameLabel.NONE}),
        ({"DCGM_EXPORTER_NO_HOSTNAME": "false"}, {}),
        ({"DCGM_EXPORTER_USE_OLD_NAMESPACE": "true"}, {"old_labels": True}),
        ({"DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME": "T"}, {"replace_blanks_in_model_name": True}),
        ({"KUBERNETES_VIRTUAL_GPUS": "true"}, {"shared_series": SharedSeries.DCGM}),
        ({"DCGM_EXPORTER_WEB_CONFIG_FILE": "/etc/web.yaml"}, {"web_config_file": "/etc/web.yaml"}),
        ({"DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE": "300000", "PATH": "/bin"}, {}),
    ],
)
def test_variables_change_settings(environment: dict[str, str], changed: dict[str, object]) -> None:
    expected = msgspec.structs.replace(ExporterSettings(), **changed)
    assert with_environment(ExporterSettings(), environment) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DCGM_EXPORTER_KUBERNETES": "yes"}, "DCGM_EXPORTER_KUBERNETES='yes' cannot be used: write true or false"),
        ({"DCGM_EXPORTER_LISTEN": "9400"}, "listen '9400' is no address: write host:port"),
        ({"DCGM_EXPORTER_CONFIGMAP_DATA": "metrics"}, "'metrics' cannot be read: write namespace:name"),
        ({"DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE": "1"}, "the window is 300000 ms here"),
    ],
)
def test_variables_that_cannot_be_heeded_are_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ExporterConfigError, match=words):
        with_environment(ExporterSettings(), environment)


def test_what_means_nothing_here_is_told(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"DCGM_REMOTE_HOSTENGINE_INFO": "localhost:5555", "DCGM_EXPORTER_DEBUG": "false"}
    with caplog.at_level(logging.WARNING):
        assert with_environment(ExporterSettings(), environment) == ExporterSettings()
    assert caplog.messages == [
        "DCGM_REMOTE_HOSTENGINE_INFO means nothing here: there is no DCGM host engine: cards are read by NVML"
    ]


def test_the_interval_is_in_milliseconds() -> None:
    assert interval_seconds({}) is None
    assert interval_seconds({"DCGM_EXPORTER_INTERVAL": "30000"}) == 30.0
    with pytest.raises(ExporterConfigError, match="write milliseconds"):
        interval_seconds({"DCGM_EXPORTER_INTERVAL": "30s"})


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        (":9400", ("", 9400)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9400", ("::1", 9400)),
        ("gpu-1:9400", ("gpu-1", 9400)),
    ],
)
def test_addresses_are_gos(listen: str, found: tuple[str, int]) -> None:
    assert address(listen) == found


@pytest.mark.parametrize("listen", ["9400", "::1:9400", "host:", "host:99999", "host:-1", "host:٩"])
def test_other_addresses_are_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        ExporterSettings(listen=listen)


def test_settings_that_nobody_knows_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="sharedSerie"):
        msgspec.convert({"sharedSerie": "dcgm"}, ExporterSettings)
    assert msgspec.convert({"sharedSeries": "dcgm"}, ExporterSettings).shared_series is SharedSeries.DCGM
    with pytest.raises(ValueError, match="both set"):
        ExporterSettings(counters_file="a", counters_config_map="b:c")


def test_dcgm_exporters_flags_reach_the_settings() -> None:
    arguments = "--node-name gpu-1 -f /etc/x.csv -a :9500 -k=false --no-hostname -c 30000 --kubernetes-virtual-gpus -n"
    context = metrics.make_context("metrics", arguments.split())
    given = {setting.variable: context.params[setting.variable.lower()] for setting in DCGM_SETTINGS}
    assert {name: text for name, text in given.items() if text is not None} == {
        "DCGM_EXPORTER_COLLECTORS": "/etc/x.csv",
        "DCGM_EXPORTER_LISTEN": ":9500",
        "DCGM_EXPORTER_KUBERNETES": "=false",
        "DCGM_EXPORTER_NO_HOSTNAME": "true",
        "DCGM_EXPORTER_INTERVAL": "30000",
        "KUBERNETES_VIRTUAL_GPUS": "true",
    }


def test_a_flag_that_cannot_be_heeded_is_refused_in_words() -> None:
    done = CliRunner().invoke(metrics, ["--node-name", "gpu-1", "-k=maybe"], env={"KUBECONFIG": "/nonexistent"})
    assert done.exit_code == 1
    assert "DCGM_EXPORTER_KUBERNETES='maybe' cannot be used: write true or false" in done.output
