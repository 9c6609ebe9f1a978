"""The configuration file of NVIDIA's device plugin."""

import contextlib
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract import nvidia
from shoal.model.contract.plugin_config import choose_file, parse
from shoal.model.errors import PluginConfigError

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "plugin_configs.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_file(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(PluginConfigError) as caught:
            parse(case["file"])
        assert case["error"] in str(caught.value)
        return
    config = parse(case["file"])
    assert [list(astuple(one)) for one in config.sharing] == case["sharing"]
    assert (config.mig_strategy, config.packed) == (case.get("mig", "none"), case.get("packed", False))
    assert any(case["warning"] in one for one in config.warnings) if "warning" in case else not config.warnings


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(PluginConfigError):
        assert parse(text).sharing == ()


WORDS = st.sampled_from(
    (
        *("version", "v1", "flags", "sharing", "timeSlicing", "mps", "resources", "name", "replicas", "migStrategy"),
        *("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "mixed", "renameByDefault", "devices", "plugin", "imex"),
    )
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=20) | st.binary(max_size=9)
DOCUMENTS = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.integers(), inner, max_size=5)
)
SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "renameByDefault": DOCUMENTS,
        "failRequestsGreaterThanOne": DOCUMENTS,
        "resources": st.lists(
            st.fixed_dictionaries({"name": WORDS, "replicas": st.integers(1, 60)}, optional={"devices": DOCUMENTS}),
            max_size=3,
        ),
    },
)


@given(flags=DOCUMENTS, slicing=SECTIONS | st.none(), mps=SECTIONS | st.none())
def test_any_file_is_read_or_refused(flags: object, slicing: object, mps: object) -> None:
    file = {"version": "v1", "flags": flags, "sharing": {"timeSlicing": slicing, "mps": mps}}
    with contextlib.suppress(PluginConfigError):
        for one in parse(yaml.safe_dump(file)).sharing:
            assert one.replicas >= 2
            assert one.resource.startswith(("nvidia.com/gpu", "nvidia.com/mig-"))


@given(DOCUMENTS)
def test_any_document_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(PluginConfigError):
        parse(yaml.safe_dump(document))


@pytest.mark.parametrize(
    "text",
    [
        "&a {version: v1, sharing: *a}",
        "&a {version: v1, resources: *a, imex: [*a, *a]}",
        "{version: v1, sharing: {timeSlicing: {resources: [&a {name: gpu, replicas: 2, devices: [*a]}]}}}",
        "version: v1\nresources: " + "[" * 5000,
    ],
)
def test_files_that_contain_themselves_end(text: str) -> None:
    with contextlib.suppress(PluginConfigError):
        parse(text)


def test_choice_by_label() -> None:
    files = {"slow": "version: v1", "fast": "version: v1"}
    label = nvidia.LABEL_DEVICE_PLUGIN_CONFIG
    assert choose_file(files, {label: "fast"}, default="slow") == "fast"
    assert choose_file(files, {}, default="slow") == "slow"
    assert choose_file(files, {}) is None
    assert choose_file({"only": ""}, {}) == "only"
    with pytest.raises(PluginConfigError, match="asks for 'gone', which is not there: choose of fast, slow"):
        choose_file(files, {label: "gone"})


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("version: v1", "single"),
        ("version: v1\nflags: {migStrategy: none}", "none"),
        ("version: v1\nflags: {migStrategy: mixed}", "mixed"),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}", "single"),
        ("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}", "none"),
    ],
)
def test_a_strategy_holds_where_the_file_says_nothing_of_it(text: str, strategy: str) -> None:
    assert parse(text, mig_strategy="single").mig_strategy == strategy
