"""The CustomResourceDefinition: made from the structs, with words and defaults everywhere; the chart has this one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.operator.crd import FILE, definition, text
from shoal.operator.fields import PolicyProblem, fields_of
from shoal.operator.policy import ClusterPolicySpec
from shoal.operator.policy_status import (
    ClusterPolicyStatus,
    ComponentStatus,
    PolicyCondition,
    ProblemStatus,
    TroubledNode,
    bounded,
)

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def fields(schema: dict[str, Any], path: str, *, required: bool = False) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every field below a schema: path, schema, whether it must be given."""
    yield path, schema, required
    for name, one in schema.get("properties", {}).items():
        yield from fields(one, f"{path}.{name}", required=name in schema.get("required", ()))
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from fields(schema[name], f"{path}[]", required=True)


SPEC = list(fields(SCHEMA["properties"]["spec"], "spec"))
STATUS = list(fields(SCHEMA["properties"]["status"], "status"))


def test_the_chart_has_the_definition_that_the_structs_make() -> None:
    """`make crds` writes it."""
    assert (ROOT / "charts" / "shoal" / "crds" / FILE).read_text(encoding="utf-8") == text()
    assert yaml.safe_load(text()) == definition()


def test_every_field_has_words() -> None:
    assert len(SPEC) > 400
    for path, schema, _ in SPEC + STATUS:
        if not path.endswith("[]"):
            assert len(schema["description"]) > 4, path


def test_every_field_of_the_spec_has_a_default() -> None:
    without = [path for path, schema, required in SPEC if "default" not in schema and not required]
    assert without == []
    must = {path.rpartition(".")[2] for path, _, required in SPEC if required and not path.endswith("[]")}
    assert must == {"name"}  # of a variable


def test_every_text_list_and_number_is_bounded() -> None:
    for path, schema, _ in SPEC + STATUS:
        if schema.get("type") == "string" and "enum" not in schema:
            assert schema["maxLength"] <= 4096, path
        if schema.get("type") == "array":
            assert schema["maxItems"] <= 128, path
        if "additionalProperties" in schema:
            assert schema["maxProperties"] <= 32, path
        if schema.get("type") in ("integer", "number") and path.startswith("spec"):
            assert schema["minimum"] >= 0, path
            assert schema["maximum"] > 0, path


def test_every_rule_says_what_to_do() -> None:
    rules = [(path, rule) for path, schema, _ in SPEC for rule in schema.get("x-kubernetes-validations", ())]
    assert len(rules) > 50
    for path, rule in rules:
        assert re.search(r": (write|set|leave out|request) ", rule["message"]), path
        assert "\n" not in rule["message"], path


def test_the_definition_is_small_enough_for_kubectl_apply() -> None:
    assert len(text()) < 262_144


def test_a_whole_status_is_within_the_schema() -> None:
    status = ClusterPolicyStatus(
        state="notReady",
        namespace="gpu-operator",
        ready="48/50",
        waiting_for="driver on 2 nodes",
        observed_generation=3,
        conditions=(
            PolicyCondition(
                type="Ready", status="False", reason="A", message="b", last_transition_time="2026-01-01T00:00:00Z"
            ),
        ),
        components=(ComponentStatus(name="driver", state="notReady", ready="48/50"),),
        nodes=(TroubledNode(name="n1", step="driver", since="2026-01-01T00:00:00Z", why="w", fix="f"),),
        more_nodes=1,
        problems=(ProblemStatus(field="spec.x", value="'1'", why="w", fix="f", effect="ignored"),),
    )
    known = {path for path, _, _ in STATUS}
    written = status.document()
    assert {f"status.{name}" for name in written} == {
        path for path in known if path.count(".") == 1 and "[" not in path
    }
    assert written["nodes"] == [
        {"name": "n1", "step": "driver", "since": "2026-01-01T00:00:00Z", "why": "w", "fix": "f"}
    ]


@pytest.mark.parametrize(("text", "cut"), [("short", "short"), ("a\nb", "a b"), ("x" * 2000, "x" * 1023 + "…")])
def test_words_are_cut_to_what_a_status_takes(text: str, cut: str) -> None:
    assert bounded(text) == cut


def test_a_problem_becomes_a_part_of_the_status() -> None:
    problem = PolicyProblem("spec.driver", "'" + "x" * 5000 + "'", "w\nw", "f", "ignored")
    told = ProblemStatus.of(problem)
    assert len(told.value) == 512
    assert (told.field, told.why, told.fix, told.effect) == ("spec.driver", "w w", "f", "ignored")


def test_the_page_tells_every_section_as_it_is() -> None:
    page = (ROOT / "docs" / "clusterpolicy.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| .* \| (in force|inert|refused) \|$", page, re.MULTILINE))
    known = {field.key: "inert" if field.type.notes.inert else "in force" for field in fields_of(ClusterPolicySpec)}
    assert told == known | {"sandboxWorkloads": "refused"}
