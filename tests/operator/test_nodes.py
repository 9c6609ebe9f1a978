"""Labels of nodes and the start-up taint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.node import Node, NodeInfo, NodeSpec, NodeStatus, Taint
from shoal.model.contract.operator import (
    ANNOTATION_VALIDATION,
    TAINT_STARTING,
    Step,
    StepReport,
    ValidationReport,
    encode_validation,
)
from shoal.operator.nodes import DEPLOYED, LABELS_DEPLOY, deploy_labels, plan
from shoal.operator.validation import STEPS, is_validated, unreadable, validation_of

PREFIX = "nvidia.com/gpu.deploy."
PRESENT = {"nvidia.com/gpu.present": "true"}
ALL = {PREFIX + name: "true" for name in DEPLOYED}


def report(ready: int = len(STEPS), boot: str = "") -> str:
    """The annotation of a node whose first steps are ready."""
    steps: dict[Step, StepReport] = {step: StepReport(ready=n < ready, since=1) for n, step in enumerate(STEPS)}
    return encode_validation(ValidationReport(version=1, boot=boot, steps=steps))


def node(labels: dict[str, str], *, taints: tuple[str, ...] = (), validation: str = "", boot: str = "") -> Node:
    return Node(
        metadata=ObjectMeta(
            name="n",
            uid="u",
            labels=labels,
            annotations={ANNOTATION_VALIDATION: validation} if validation else {},
        ),
        spec=NodeSpec(taints=tuple(Taint(key=key, effect="NoSchedule") for key in taints)),
        status=NodeStatus(node_info=NodeInfo(boot_id=boot)),
    )


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        ({}, {}),
        (PRESENT, ALL),
        ({"gpushare": "true"}, ALL),
        ({"gpu": "on"}, ALL),
        ({"nvidia.com/gpu.present": "false"}, {}),
        # An administrator's values, and the driver manager's, are honoured; an empty one counts as absent.
        (PRESENT | ALL | {PREFIX + "device-plugin": "false"}, {}),
        (PRESENT | ALL | {PREFIX + "device-plugin": ""}, {PREFIX + "device-plugin": "true"}),
        (PRESENT | ALL | {PREFIX + "driver": "pre-installed"}, {}),
        (PRESENT | ALL | {PREFIX + "client": "paused-for-driver-upgrade"}, {}),
        (PRESENT | ALL | {PREFIX + "client": "mine_paused-for-driver-upgrade"}, {}),
        # Nothing of ours on a node that wants none, or has no card any more.
        (PRESENT | ALL | {PREFIX + "operands": "false"}, dict.fromkeys(ALL)),
        (PRESENT | {PREFIX + "operands": "false"}, {}),
        ({"nvidia.com/gpu.present": "false"} | ALL, dict.fromkeys(ALL)),
        (ALL | {PREFIX + "driver": "paused-for-driver-upgrade"}, dict.fromkeys(ALL)),
        (ALL | {PREFIX + "driver": "false"}, {key: None for key in ALL if key != PREFIX + "driver"}),
        (PRESENT | ALL | {PREFIX + "operands": "true"}, {}),
    ],
)
def test_deploy_labels(labels: dict[str, str], changes: dict[str, str | None]) -> None:
    assert deploy_labels(labels) == changes


_VALUES = st.sampled_from(["", "true", "false", "pre-installed", "paused-for-driver-upgrade", "x"])


@given(
    st.dictionaries(
        st.sampled_from([*LABELS_DEPLOY, PREFIX + "operands", "nvidia.com/gpu.present", "gpushare"]), _VALUES
    )
)
def test_deploy_labels_settle_at_once(labels: dict[str, str]) -> None:
    changes = deploy_labels(labels)
    after = {key: value for key, value in (labels | changes).items() if value is not None}
    assert deploy_labels(after) == {}
    assert set(changes) <= set(LABELS_DEPLOY)
    # Somebody's word stays.
    for key, value in labels.items():
        if value in ("false", "x"):
            assert after[key] == value


@pytest.mark.parametrize(
    ("taints", "validation", "lifted"),
    [
        ((TAINT_STARTING,), report(), True),
        ((TAINT_STARTING, "nvidia.com/gpu"), report(), True),
        ((TAINT_STARTING,), report(3), False),
        ((TAINT_STARTING,), "", False),
        ((TAINT_STARTING,), "{broken", False),
        (("nvidia.com/gpu",), report(), False),
    ],
)
def test_start_up_taint(taints: tuple[str, ...], validation: str, lifted: bool) -> None:
    found = list(plan([node(PRESENT | ALL, taints=taints, validation=validation)]))
    assert [patch.remove_taints for patch in found] == ([(TAINT_STARTING,)] if lifted else [])


def test_a_node_without_cards_keeps_its_taint() -> None:
    assert not list(plan([node({}, taints=(TAINT_STARTING,), validation=report())]))


def test_beside_nvidias_operator_its_nodes_are_left_to_it() -> None:
    assert not list(plan([node(PRESENT)], beside_nvidia=True))
    assert not list(plan([node({"feature.node.kubernetes.io/pci-10de.present": "true"} | ALL)], beside_nvidia=True))
    # It does not look at gpushare's labels.
    (patch,) = plan([node({"gpushare": "true"})], beside_nvidia=True)
    assert patch.labels == ALL


def test_a_report_of_another_boot_says_nothing() -> None:
    assert is_validated(node({}, validation=report(boot="b1"), boot="b1"))
    assert not is_validated(node({}, validation=report(boot="b1"), boot="b2"))
    assert is_validated(node({}, validation=report(), boot="b2"))
    assert validation_of(node({}, validation=report(boot="b1"), boot="b2")) is None


def test_why_a_report_cannot_be_read() -> None:
    assert not unreadable(node({}))
    assert not unreadable(node({}, validation=report()))
    assert ANNOTATION_VALIDATION in unreadable(node({}, validation='{"version": 9}'))
