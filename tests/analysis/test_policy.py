"""Which policy is in force and how that is known; the same pods under another one."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.analysis.dry_run import DryRun
from shoal.analysis.policy import in_force
from shoal.analysis.policy_diff import as_it_is, compare, replay
from shoal.analysis.snapshot import CONFIGMAP, ClusterSnapshot, settings_of
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.node import Node
from shoal.kube.objects.others import ConfigMap
from shoal.model.contract.gpushare import MemoryUnit
from tests.analysis.small import Small, shoal
from tests.soak import times
from tests.suites.scheduling import shorthand

SHOWN = """\
Policy binpack, known from the test.
Cards are chosen by LeastFree.

OF     SCORE       WEIGHT
node   FreeShare   -0.1
card   CardLeft    -1

Of the pods that are there: 3 pods by binpack.
"""

MOVED = """\
3 pods with cards, placed anew one after another in the order of their creation.

                        NOW     SPREAD
pods with a place       3       3
pods that wait          0       0
cards wholly free       1       0
free, in cards          1.25    1.25
of it on cards in use   20.0 %  100.0 %
"""


@pytest.fixture
def packed() -> Small:
    small = Small({"n1": {"gpus": 1}, "n2": {"gpus": 1}})
    for name in ("a", "b", "c"):
        small.add(name, {"mem": 4})
    return small


def test_the_policy_in_force(packed: Small, tmp_path: Path) -> None:
    assert shoal("policy", "show", "--snapshot", packed.save(tmp_path / "s")).stdout == SHOWN


def test_ketis_configmap_is_what_decides(packed: Small, tmp_path: Path) -> None:
    meta = ObjectMeta(name="gpu-scheduler-policy", namespace="gpu")
    configmap = ConfigMap(metadata=meta, data={"gpu-allocate-prefer": "binpack", "nvlink-weight-percentage": "lots"})
    packed.snapshot = msgspec.structs.replace(packed.snapshot, config_maps=(configmap,))
    file = packed.save(tmp_path / "s")
    text = shoal("policy", "show", "--snapshot", file).stdout
    assert "Policy keti, known from KETI's ConfigMap." in text
    assert "gpu-allocate-prefer            binpack" in text
    assert "Problem: ConfigMap gpu/gpu-scheduler-policy: policy key nvlink-weight-percentage holds 'lots'" in text
    document = json.loads(shoal("policy", "show", "--snapshot", file, "-o", "json").stdout)
    assert document["keti"]["nvlink-weight-percentage"] == "10"
    assert DryRun(packed.snapshot).engine.policy.name == "keti"
    asked = DryRun(packed.snapshot, policy="keti").in_force.keti
    assert asked is not None
    assert asked.prefer.value == "binpack"
    assert DryRun(packed.snapshot, policy="binpack").engine.policy.name == "binpack"


def test_what_would_change(packed: Small, tmp_path: Path) -> None:
    file = packed.save(tmp_path / "s")
    text = shoal("what-if", "--policy", "spread", "--snapshot", file).stdout
    table, _, moved = text.partition("\n\nPOD")
    assert table.replace("   ", "  ").split() == MOVED.replace("   ", "  ").split()
    assert moved == "         NOW       SPREAD\ndefault/b   n1 GPU0   n2 GPU0\n2 pods have the same place.\n"
    same = shoal("policy", "diff", "binpack", "binpack", "--snapshot", file)
    assert "Every pod has the same place." in same.stdout


def test_a_difference_for_programs(packed: Small, tmp_path: Path) -> None:
    file = packed.save(tmp_path / "s")
    told = json.loads(shoal("policy", "diff", "spread", "binpack", "--snapshot", file, "-o", "json").stdout)
    assert (told["before"], told["after"], told["same"]) == ("spread", "binpack", 2)
    assert told["moved"] == [
        {"pod": "default/b", "before": {"node": "n2", "cards": [0]}, "after": {"node": "n1", "cards": [0]}}
    ]
    assert told["measureAfter"]["wholeCardsFree"] == 1
    assert told["measureBefore"]["fragmented"] == 100.0


def test_a_namespace_chooses_who_is_told(packed: Small, tmp_path: Path) -> None:
    other = packed.snapshot.pods[1]
    meta = msgspec.structs.replace(other.metadata, namespace="team")
    pods = (packed.snapshot.pods[0], msgspec.structs.replace(other, metadata=meta), packed.snapshot.pods[2])
    packed.snapshot = msgspec.structs.replace(packed.snapshot, pods=pods)
    file = packed.save(tmp_path / "s")
    for command in (["what-if", "--policy", "spread"], ["policy", "diff", "binpack", "spread"]):
        ours = shoal(*command, "-n", "team", "--snapshot", file).stdout
        assert "3 pods with cards, placed anew" in ours
        assert "team/b" in ours
        assert "\n0 pods of namespace team have the same place.\n" in ours
        theirs = shoal(*command, "-n", "default", "--snapshot", file).stdout
        assert "team/b" not in theirs
        assert "Every pod of namespace default has the same place." in theirs
        assert "No pod of namespace nobody has cards." in shoal(*command, "-n", "nobody", "--snapshot", file).stdout
        everybody = shoal(*command, "--snapshot", file).stdout
        assert shoal(*command, "-A", "-n", "team", "--snapshot", file).stdout == everybody
        assert "team/b" in everybody
        told = json.loads(shoal(*command, "-n", "default", "-o", "json", "--snapshot", file).stdout)
        assert (told["namespace"], told["moved"], told["same"]) == ("default", [], 2)


def test_an_unknown_policy_is_refused_with_the_choice(packed: Small, tmp_path: Path) -> None:
    file = packed.save(tmp_path / "s")
    for command in (["policy", "diff", "binpack", "best"], ["what-if", "--policy", "best"]):
        result = shoal(*command, "--snapshot", file)
        assert result.exit_code == 2
        assert "no policy 'best': choose one of" in result.stderr


def test_pods_that_newly_fit_or_do_not() -> None:
    small = Small({"n1": {"gpus": 2}}, policy="spread")
    for name, short in {"a": {"mem": 8}, "b": {"mem": 8}, "whole": {"gpu": 1}}.items():
        small.add(name, short)
    moved = {
        one.pod: (one.before, one.after)
        for one in compare(as_it_is(small.snapshot), replay(small.snapshot, "binpack")).moved
    }
    assert moved["default/whole"][0] is None
    assert moved["default/whole"][1] is not None
    assert set(moved) == {"default/b", "default/whole"}


def test_pods_without_cards_stay_and_take_their_cpu() -> None:
    small = Small({"n1": {"gpus": 1, "cpu": 4}, "n2": {"gpus": 1, "cpu": 4}})
    small.add("cpu", {"cpu": 3, "spec": {"nodeName": "n1"}}, place=False)
    small.add("a", {"mem": 4, "cpu": 2})
    assert replay(small.snapshot, "binpack").places == as_it_is(small.snapshot).places
    assert list(as_it_is(small.snapshot).places) == ["default/a"]


SHORTS = st.sampled_from([{"mem": 2}, {"mem": 7}, {"mem": 12}, {"gpu": 1}, {"mps": 1}, {"mem": 4, "cpu": 60}])


@settings(max_examples=times(25))
@given(shorts=st.lists(SHORTS, max_size=9), policy=st.sampled_from(["binpack", "spread", "topology", "fragmentation"]))
def test_what_came_one_after_another_comes_the_same_way_again(shorts: list[dict[str, Any]], policy: str) -> None:
    small = Small({"n1": {"gpus": 2}, "n2": {"gpus": [24, 16]}}, policy=policy)
    for number, short in enumerate(shorts):
        small.add(f"p{number}", short)
    assert compare(as_it_is(small.snapshot), replay(small.snapshot, None)).moved == ()


# Where settings are known from


def settings_map(text: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(namespace="gpu-operator", name=CONFIGMAP), data={"scheduler.yaml": text})


def node(gpus: int, *, mib: bool) -> Node:
    return msgspec.convert(shorthand.node("n", {"gpus": gpus}, mib=mib), Node)


def test_the_schedulers_configmap_comes_first(packed: Small) -> None:
    text = "{memoryUnit: MiB, policy: spread, schedulerNames: [mine], clusterName: east, port: 12345}"
    known, problems = settings_of(packed.snapshot.nodes, packed.snapshot.pods, settings_map(text))
    assert (known.memory_unit, known.policy, known.cluster_name) == (MemoryUnit.MIB, "spread", "east")
    assert known.policy_from == "ConfigMap gpu-operator/shoal-scheduler"
    assert "mine" in known.scheduler_names
    assert problems == []


@pytest.mark.parametrize("text", ["policy: best", "a: [", "7", "more: 1", "x" * 70_000, "[" * 9_000, "a: 1\n---\nb: 2"])
def test_settings_that_cannot_be_read_are_told_and_do_not_count(packed: Small, text: str) -> None:
    known, problems = settings_of(packed.snapshot.nodes, packed.snapshot.pods, settings_map(text))
    assert known.policy == "binpack"
    assert len(problems) == 1
    assert "the settings in ConfigMap gpu-operator/shoal-scheduler cannot be read" in problems[0]


def test_without_it_the_newest_decision_and_the_nodes_tell(packed: Small) -> None:
    packed.add("own", {"mem": 1, "annotations": {"shoal.dev/policy": "spread"}})
    known, _ = settings_of([node(2, mib=True)], packed.snapshot.pods, None)
    assert (known.policy, known.memory_unit) == ("binpack", MemoryUnit.MIB)
    assert known.policy_from == "the newest decision, of pod default/c"


def test_nothing_known_is_the_default() -> None:
    known, _ = settings_of([node(2, mib=False), node(0, mib=False)], (), None)
    assert (known.policy, known.policy_from) == ("fragmentation", "the default: no decision tells")
    assert known.memory_unit is MemoryUnit.GIB
    assert settings_of([node(2, mib=True)], (), None, unit=MemoryUnit.GIB)[0].memory_unit is MemoryUnit.GIB
    assert in_force(ClusterSnapshot()).policy.name == "fragmentation"
