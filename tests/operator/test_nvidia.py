"""What NVIDIA's ClusterPolicy leaves to Shoal."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.operator.components import steps_of, wanted
from shoal.operator.nvidia import SECTIONS, NvidiaOperator, nvidia_operator
from shoal.operator.policy import read_policy
from tests.operator.scene import nvidia_policy, policy

EVERY = frozenset(SECTIONS)
OFF = {"enabled": False}


@pytest.mark.parametrize(
    ("spec", "sections"),
    [
        # Without a word a section counts as enabled, as NVIDIA's operator has it.
        ({}, EVERY),
        ({"driver": {}, "devicePlugin": {"enabled": None}}, EVERY),
        ({"devicePlugin": OFF}, EVERY - {"devicePlugin"}),
        (dict.fromkeys(SECTIONS, OFF), frozenset()),
        # Whatever somebody wrote there, nothing is taken away from it by mistake.
        ({"driver": "odd", "gfd": [OFF], "toolkit": {"enabled": "false"}}, EVERY),
        # What Shoal does not have says nothing.
        ({"migManager": {"enabled": True}, "dcgm": OFF}, EVERY),
    ],
)
def test_sections(spec: dict[str, Any], sections: frozenset[str]) -> None:
    assert nvidia_operator([nvidia_policy(**spec)]) == NvidiaOperator("cluster-policy", sections)


def test_no_policy_and_odd_ones() -> None:
    assert not nvidia_operator([]).is_there
    going = nvidia_policy()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not nvidia_operator([going]).is_there
    assert nvidia_operator([{**nvidia_policy(), "spec": "odd"}]).sections == EVERY


def test_the_oldest_counts() -> None:
    old = nvidia_policy(devicePlugin=OFF)
    young = nvidia_policy()
    young["metadata"] |= {"name": "a", "creationTimestamp": "2026-02-01T00:00:00Z"}
    assert nvidia_operator([young, old]).policy == "cluster-policy"


def test_the_plugin_is_a_step_where_somebody_serves() -> None:
    off = read_policy(policy(devicePlugin=OFF)).spec
    alone, beside = NvidiaOperator(), nvidia_operator([nvidia_policy()])
    assert steps_of(wanted(off, alone), alone) == ("driver", "toolkit", "cuda")
    assert steps_of(wanted(off, beside), beside)[-1] == "plugin"
    both = read_policy(policy()).spec
    assert steps_of(wanted(both, alone), alone)[-1] == "plugin"
