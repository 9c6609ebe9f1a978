"""The collector's settings."""

from pathlib import Path

import pytest

from shoal.cli.settings import ServiceSettingsError, load
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.metrics.app import snapshot_readers
from shoal.metrics.config import MetricsConfig
from shoal.model.contract.gpushare import MemoryUnit


def test_the_file_counts_and_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text("{nodeName: n1, memoryUnit: MiB, intervalSeconds: 2.5, procRoot: /host/proc}")
    config = load(MetricsConfig, path, {"node_name": None, "interval_seconds": 1.0}, command="metrics")
    assert (config.node_name, config.memory_unit, config.interval_seconds) == ("n1", MemoryUnit.MIB, 1.0)
    assert config.proc_root == "/host/proc"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nodeName"),
        ("nodeName: N!", "nodeName"),
        ("{nodeName: n, colour: red}", "colour"),
        ("{nodeName: n, intervalSeconds: 0}", "intervalSeconds"),
        ("{nodeName: n, overuseGraceSeconds: -1}", "overuseGraceSeconds"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(text)
    with pytest.raises(ServiceSettingsError, match=str(path)) as told:
        load(MetricsConfig, path, {}, command="metrics")
    assert words in str(told.value)


def test_parts_are_off_unless_the_file_has_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(
        "{nodeName: n, keti: {v1Port: null}, influx: {url: 'http://influxdb:8086', username: u, passwordFile: /p}}"
    )
    config = load(MetricsConfig, path, {}, command="metrics")
    access = Access("http://127.0.0.1:1", StoredCredential())
    names = [name for name, _ in snapshot_readers(config, Client(access))]
    assert names == ["InfluxDB", "KETI's gRPC"]
    assert snapshot_readers(MetricsConfig(node_name="n"), Client(access)) == []
