"""Tolerations against taints, by Kubernetes' table."""

import pytest

from shoal.kube.objects.node import Taint
from shoal.kube.taints import NO_EXECUTE, NO_SCHEDULE, read_taints, read_tolerations, tolerates, untolerated

TAINT = Taint(key="gpu", value="busy", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param({"key": "gpu", "operator": "Exists"}, True, id="any value"),
        pytest.param({"key": "gpu", "operator": "Equal", "value": "busy"}, True, id="its value"),
        pytest.param({"key": "gpu", "value": "busy"}, True, id="Equal is the default"),
        pytest.param(
            {"key": "gpu", "operator": "Equal", "value": "busy", "effect": "NoSchedule"}, True, id="its effect"
        ),
        pytest.param({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False, id="another effect"),
        pytest.param({"key": "gpu", "value": "idle"}, False, id="another value"),
        pytest.param({"key": "cpu", "operator": "Exists"}, False, id="another key"),
        pytest.param({"key": "gpu", "operator": "Gt", "value": "1"}, False, id="behind a gate"),
        pytest.param({"key": "gpu"}, False, id="no value"),
        pytest.param({"value": "busy"}, True, id="any key, as the API server does not let it through"),
        pytest.param({"value": "idle"}, False, id="any key, another value"),
    ],
)
def test_a_toleration_and_a_taint(toleration: dict[str, str], expected: bool) -> None:
    (read,) = read_tolerations([toleration])
    assert tolerates(read, TAINT) is expected


def test_taints_that_nobody_tolerates() -> None:
    taints = read_taints(
        [
            {"key": "a", "effect": "NoSchedule"},
            {"key": "b", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
            {"key": "c", "effect": "PreferNoSchedule"},
        ]
    )
    tolerations = read_tolerations([{"key": "a", "operator": "Exists", "tolerationSeconds": 5}])
    assert [taint.key for taint in untolerated(taints, (), (NO_SCHEDULE, NO_EXECUTE))] == ["a", "b"]
    assert [taint.key for taint in untolerated(taints, tolerations, (NO_SCHEDULE, NO_EXECUTE))] == ["b"]
    assert untolerated(taints, tolerations, (NO_SCHEDULE,)) == ()
    assert read_taints(None) == ()
    assert read_tolerations(None) == ()
