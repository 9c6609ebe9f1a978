"""The policy as it is read: defaults, problems in words, images, and that nothing is ever raised."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given, settings

from shoal.agent.config import Counting, WithoutAllocation
from shoal.agent.limits.tiers import IsolationSetting
from shoal.metrics.influx_writer import InfluxApi
from shoal.model.contract import nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.operator.fields import MAX_PROBLEMS, field_type
from shoal.operator.policy import (
    ClusterPolicySpec,
    ImageFields,
    InfluxFields,
    SharingSection,
    config_maps,
    image_reference,
    missing_config_maps,
    read_policy,
    unavailable_nodes,
    written,
)
from tests.operator.policy_cases import CASES, PolicyCase, at, policy
from tests.operator.policy_strategies import GARBAGE, SPECS, WILD
from tests.soak import times

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_policy_is_read_and_its_problems_are_told(case: PolicyCase) -> None:
    reading = read_policy(policy(case.spec))
    told = [str(problem) for problem in reading.problems]
    for words in case.problems:
        assert any(words in line for line in told), told
    assert bool(told) == bool(case.problems), told
    if case.refused:
        assert any(problem.effect != "ignored" or "no field" in problem.why for problem in reading.problems)
    spec = written(reading.spec)
    assert {path: at(spec, path) for path in case.reads} == case.reads


@pytest.mark.parametrize("raw", [None, "text", 3, [], {}, {"spec": None}, {"spec": "text"}, {"spec": []}])
def test_what_is_no_policy_is_read_as_the_default(raw: object) -> None:
    reading = read_policy(raw)
    assert reading.spec == ClusterPolicySpec()
    assert bool(reading.problems) == (raw not in ({}, {"spec": None}))


def test_reading_what_was_written_changes_nothing() -> None:
    for case in CASES:
        once = read_policy(policy(case.spec)).spec
        again = read_policy(policy(written(once)))
        assert again.spec == once
        assert all(problem.effect in ("ignored", "kept") for problem in again.problems)


def test_very_many_problems_are_told_in_part() -> None:
    reading = read_policy(policy({f"section{number}": {} for number in range(5000)}))
    assert len(reading.problems) == MAX_PROBLEMS + 1
    assert "4936 more problems are not told" in str(reading.problems[-1])


def test_a_problem_tells_no_values_of_variables() -> None:
    reading = read_policy(policy({"driver": {"env": [{"name": "TOKEN", "value": "s3cret" * 1000}]}}))
    (problem,) = reading.problems
    assert "spec.driver.env[0].value: has 6000 characters: write at most 4096" in str(problem)
    assert "s3cret" not in str(problem)


def test_a_value_forges_no_line_of_a_log() -> None:
    reading = read_policy(policy({"mig": {"strategy": "a\nERROR forged"}, "evil\nkey": 1}))
    assert len(reading.problems) == 2
    assert all("\n" not in str(problem) for problem in reading.problems)


@pytest.mark.parametrize(
    ("image", "suffix", "reference"),
    [
        (ImageFields(), "", "fallback:1"),
        (ImageFields(), "ubuntu24.04", "fallback:1"),
        (
            ImageFields(repository="r.example.org/gpu", image="driver", version="595"),
            "",
            "r.example.org/gpu/driver:595",
        ),
        (
            ImageFields(repository="r.example.org", image="driver", version="595"),
            "ubuntu24.04",
            "r.example.org/driver:595-ubuntu24.04",
        ),
        (ImageFields(repository="r.example.org", image="d", version=DIGEST), "rhel9", f"r.example.org/d@{DIGEST}"),
        (ImageFields(image=f"r.example.org/d@{DIGEST}"), "", f"r.example.org/d@{DIGEST}"),
        (ImageFields(repository="r.example.org", image="d"), "", None),
        (ImageFields(repository="r.example.org", version="v1"), "", None),
        (ImageFields(image="d", version="v1"), "", None),
        (ImageFields(repository="r.example.org"), "", None),
        (ImageFields(version="v1"), "", None),
    ],
)
def test_an_image_is_whole_or_none(image: ImageFields, suffix: str, reference: str | None) -> None:
    assert image_reference(image, "fallback:1", suffix=suffix) == reference


@pytest.mark.parametrize(
    ("value", "total", "nodes"),
    [
        ("25%", 50, 13),
        ("25%", 1, 1),
        ("25%", 0, 1),
        ("100%", 50, 50),
        (1, 50, 1),
        ("7", 50, 7),
        ("0", 9, 1),
        ("x", 9, 1),
    ],
)
def test_percentages_are_rounded_up(value: int | str, total: int, nodes: int) -> None:
    assert unavailable_nodes(value, total) == nodes


def test_config_maps_that_are_not_there_are_told() -> None:
    spec = read_policy(
        policy({"devicePlugin": {"config": {"name": "profiles"}}, "dcgmExporter": {"config": {"name": "fields"}}})
    ).spec
    assert [name for _, name in config_maps(spec)] == ["profiles", "fields"]
    (problem,) = missing_config_maps(spec, frozenset({"fields"}))
    assert str(problem) == (
        "spec.devicePlugin.config.name 'profiles': there is no such ConfigMap in the operator's namespace: make "
        "ConfigMap profiles, or leave the field empty"
    )
    off = read_policy(policy({"devicePlugin": {"enabled": False, "config": {"name": "profiles"}}})).spec
    assert config_maps(off) == ()


def test_choices_are_those_of_the_services() -> None:
    def choices(struct: type, name: str) -> tuple[str, ...]:
        return field_type(typing.get_type_hints(struct, include_extras=True)[name]).choices

    assert choices(SharingSection, "memory_unit") == tuple(MemoryUnit)
    assert choices(SharingSection, "isolation") == tuple(IsolationSetting)
    assert choices(SharingSection, "counting") == tuple(Counting)
    assert choices(SharingSection, "without_allocation") == tuple(WithoutAllocation)
    assert choices(SharingSection, "device_list_strategy") == ("auto", *nvidia.DEVICE_LIST_STRATEGIES)
    assert choices(InfluxFields, "api") == tuple(InfluxApi)


@settings(deadline=None, max_examples=times(300))
@given(SPECS | WILD | GARBAGE)
def test_whatever_comes_is_read(spec: object) -> None:
    reading = read_policy(policy(spec))
    again = read_policy(policy(written(reading.spec)))
    assert again.spec == reading.spec
    assert all(problem.effect in ("ignored", "kept") for problem in again.problems)
    for problem in reading.problems:
        assert str(problem).isprintable()
        assert len(str(problem)) < 1000
        assert problem.fix
