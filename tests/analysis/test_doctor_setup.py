"""What the doctor says of the operator's nodes."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from shoal.analysis.doctor.findings import Finding, Level
from shoal.analysis.doctor.installation import Installation
from shoal.analysis.doctor.setup import explain, set_up
from shoal.kube.objects.pod import ContainerState, ContainerStatus, ContainerWaiting
from tests.operator.scene import LABELLED, NAMESPACE, PREFIX, node, operand_pod, policy, validation
from tests.operator.test_status import pods_of

WISH = {**policy(), "status": {"state": "notReady", "ready": "1/2", "namespace": NAMESPACE}}
PULL = ContainerStatus(
    name="agent", state=ContainerState(waiting=ContainerWaiting(reason="ImagePullBackOff", message="denied"))
)
HERE = Installation(
    version="v1.36.3",
    now=datetime(2026, 5, 1, tzinfo=UTC),
    namespace="kube-system",
    nodes=[
        node("good", valid=validation()),
        node("bad", valid=validation(3)),
        node("plain", {}),
        node("off", LABELLED | {PREFIX + "operands": "false"}),
    ],
    pods=[
        *pods_of("good"),
        *pods_of("bad", "shoal-agent"),
        operand_pod("shoal-agent", "bad", ready=False, container_statuses=(PULL,)),
    ],
    wishes=[WISH],
)


def said(findings: Any) -> list[tuple[Level, str]]:
    return [(one.level, one.says) for one in findings]


def only(findings: Any) -> Finding:
    (found,) = findings
    assert isinstance(found, Finding)
    return found


def test_nodes_that_do_not_serve() -> None:
    found = only(set_up(HERE))
    assert found.level is Level.FAILED
    assert found.says.startswith("bad waits for plugin since 2026-01-03T00:00:00Z: image")
    assert "devicePlugin" in found.fix


def test_one_node() -> None:
    assert only(explain(HERE, "good")).level is Level.OK
    assert only(explain(HERE, "bad")).says == only(set_up(HERE)).says
    assert "not known to have cards" in only(explain(HERE, "plain")).says
    assert "switched off" in only(explain(HERE, "off")).says
    assert only(explain(HERE, "absent")).level is Level.FAILED


def test_all_well() -> None:
    well = dataclasses.replace(HERE, nodes=[node("good", valid=validation())])
    assert said(set_up(well)) == [(Level.OK, "all 1 GPU nodes serve")]


def test_without_an_operator_nothing_is_said() -> None:
    assert not list(set_up(dataclasses.replace(HERE, wishes=[])))
    assert only(set_up(dataclasses.replace(HERE, wishes=None))).level is Level.UNKNOWN


def test_a_policy_that_nobody_has_looked_at() -> None:
    first, *_ = set_up(dataclasses.replace(HERE, wishes=[policy()]))
    assert (first.level, "nobody has looked" in first.says) == (Level.FAILED, True)


def test_problems_and_other_policies() -> None:
    status = {
        **WISH["status"],
        "problems": [{"field": "spec.x", "value": "'y'", "why": "is wrong", "fix": "write z", "effect": "default"}],
        "conditions": [{"type": "Error", "reason": "ReconcileFailed", "message": "403\nforged line"}],
    }
    wishes = [{**WISH, "status": status}, policy("young", born="2026-03-01T00:00:00Z")]
    found = said(set_up(dataclasses.replace(HERE, wishes=wishes)))
    assert (Level.WARNING, "spec.x 'y': is wrong") in found
    assert (Level.FAILED, "403 forged line") in found
    assert any(level is Level.NOTE and "young is ignored" in says for level, says in found)


def test_many_nodes_are_counted() -> None:
    nodes = [node(f"n{number}") for number in range(30)]
    found = said(set_up(dataclasses.replace(HERE, nodes=nodes, pods=[])))
    assert (Level.WARNING, "20 more nodes do not serve") in found
    assert len(found) == 11
