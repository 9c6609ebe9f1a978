"""The collector's settings."""

from pathlib import Path

import pytest

from shoal.cli.settings import ServiceSettingsError, load
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
