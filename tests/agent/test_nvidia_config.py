"""The configuration file of NVIDIA's device plugin."""

import contextlib
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.errors import ConfigError
from shoal.agent.nvidia_config import choose, parse
from shoal.model.contract import nvidia

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "nvidia_config.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_file(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(ConfigError) as caught:
            parse(case["file"])
        assert case["error"] in str(caught.value)
        return
    config = parse(case["file"])
    assert [list(astuple(one)) for one in config.sharing] == case["sharing"]
    assert config.device_list_strategy == case.get("strategy")
    assert any(case["warning"] in one for one in config.warnings) if "warning" in case else not config.warnings


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse(text).sharing == ()


def test_choice_by_label() -> None:
    files = {"slow": "version: v1", "fast": "version: v1"}
    label = nvidia.LABEL_DEVICE_PLUGIN_CONFIG
    assert choose(files, {label: "fast"}, default="slow") == "fast"
    assert choose(files, {}, default="slow") == "slow"
    assert choose(files, {}) is None
    assert choose({"only": ""}, {}) == "only"
    with pytest.raises(ConfigError, match="asks for 'gone', which is not there: choose of fast, slow"):
        choose(files, {label: "gone"})
