"""`shoal why` on small clusters, word by word."""

import json
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from shoal.analysis.live_load import LoadRules, NodeDigest, SeenLoads
from shoal.cli.main import main
from shoal.kube.objects.pod import Pod
from shoal.model.contract.load import CardDigest, LoadDigest, encode_load
from shoal.scheduler.config import LoadSource
from tests.analysis.small import Small, shoal

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}

WAITS = """\
default/web waits for a node.
It asks for 14336 MiB of 1 card; policy binpack (the test).
Live load is not known of any node (no digest): requests count alone.
It fits on no node now:

NODE   CARD   FREE             WHY NOT
n2                             Cards: 0 of 1 cards fit 14336 MiB, 1 wanted
       GPU0   0/24576 MiB      taken whole by another pod
n3                             TaintToleration: node(s) had untolerated taint(s)
n1                             NodeResourcesFit: Insufficient aliyun.com/gpu-mem
       GPU0   6144/16384 MiB   6144 MiB free of 16384, 14336 wanted
       GPU1   4096/16384 MiB   4096 MiB free of 16384, 14336 wanted

What would help:
  With 6144 MiB per card or less it would fit now.
  Were default/b gone, it would fit on n1; the scheduler sends nobody away.
  n3 has room, were it not for TaintToleration: node(s) had untolerated taint(s).

The scheduler's last word:
  0/3 nodes are available.
"""

PLACED = """\
default/a is on n1.
It asks for 10240 MiB of 1 card.
Its record is Shoal's (shoal.dev/allocation), by policy binpack.

CONTAINER   CARD   UUID       MODEL         SHARE
main        GPU0   GPU-n1-0   Testbed T16   10240 MiB

Live load is not known of any node (no digest): requests count alone.
Were it placed now, by the cluster as it is and not as it was then, policy binpack (the test):

NODE   CARDS   SCORE
n1     GPU0    -0.4425   it is here, best
2 nodes would not take it.
"""


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """Two cards shared, one taken whole, one behind a taint, and a pod that waits."""
    small = Small({"n1": {"gpus": 2}, "n2": {"gpus": [24]}, "n3": {"gpus": 1, "taints": [TAINT]}})
    for name, short in {"a": {"mem": 10}, "b": {"mem": 12}, "c": {"gpu": 1}}.items():
        small.add(name, short)
    told = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}
    small.add("web", {"mem": 14}, conditions=[told])
    return small.save(tmp_path / "crowded.json")


def test_a_pod_that_waits(crowded: Path) -> None:
    result = shoal("why", "web", "--snapshot", crowded)
    assert (result.stdout, result.exit_code) == (WAITS, 0)


def test_a_pod_that_is_placed(crowded: Path) -> None:
    assert shoal("why", "a", "--snapshot", crowded).stdout == PLACED


LOADED = """\
default/web waits for a node.
It asks for 14336 MiB of 1 card; policy binpack (the test).
Live load counts on 1 of 3 nodes; requests count alone on n2 (its digest is 500 s old), n3 (no digest).
It fits on no node now:

NODE   CARD   FREE             WHY NOT
n1                             Cards: 0 of 1 cards fit 14336 MiB, 1 wanted
       GPU0   8192/16384 MiB   8192 MiB free of 16384, 14336 wanted, 8192 MiB used by nobody's pod
n2                             Cards: 0 of 1 cards fit 14336 MiB, 1 wanted
       GPU0   0/16384 MiB      taken whole by another pod
n3                             Cards: 0 of 1 cards fit 14336 MiB, 1 wanted
       GPU0   0/16384 MiB      taken whole by another pod

What would help:
  With 8192 MiB per card or less it would fit now.
  Were default/a gone, it would fit on n2; the scheduler sends nobody away.
  n1 has room by requests: when less is used beyond them, it is tried again.
"""


def test_a_pod_that_waits_for_memory_in_nobodys_name(tmp_path: Path) -> None:
    """And a digest that is too old counts for nothing."""
    small = Small({"n1": {"gpus": 1}, "n2": {"gpus": 1}, "n3": {"gpus": 1}})
    stray = encode_load(LoadDigest({"GPU-n1-0": CardDigest(9000, unattributed_mib=8192, overuse_mib=0)}))
    old = encode_load(LoadDigest({"GPU-n2-0": CardDigest(unattributed_mib=16384)}))
    loads = SeenLoads((NodeDigest("n1", stray, 20), NodeDigest("n2", old, 500), NodeDigest("gone", old, 1)))
    small.snapshot = msgspec.structs.replace(small.snapshot, loads=loads)
    for name in ("a", "b"):
        small.add(name, {"gpu": 1})
    small.add("web", {"mem": 14})
    file = small.save(tmp_path / "s.json")
    assert shoal("why", "web", "--snapshot", file).stdout == LOADED
    told = json.loads(shoal("why", "web", "--snapshot", file, "-o", "json").stdout)
    assert told["unplaced"]["message"].startswith("0/3 nodes are available: ")
    assert "1 of them has room by requests: memory there is used by nobody's pod" in told["unplaced"]["message"]
    assert [node.get("byLiveLoad", False) for node in told["unplaced"]["nodes"]] == [True, False, False]


@pytest.mark.parametrize(
    ("rules", "loads", "words"),
    [
        (LoadRules(LoadSource.OFF), SeenLoads(), "switched off: requests count alone"),
        (LoadRules(LoadSource.PROMETHEUS), SeenLoads(), "comes from prometheus, which is not asked here"),
        (LoadRules(), SeenLoads(problem="you may not read leases in shoal-load"), "for you may not read leases"),
        (LoadRules(), SeenLoads((NodeDigest("n1", "{", 1),)), "(its digest cannot be read): requests count alone"),
        (LoadRules(ttl_seconds=10), SeenLoads((NodeDigest("n1", '{"version":1}', 11),)), "(its digest is 11 s old)"),
        (LoadRules(), SeenLoads((NodeDigest("n1", '{"version":1}', 11),)), "Live load counts."),
    ],
)
def test_whether_live_load_counts_is_said(tmp_path: Path, rules: LoadRules, loads: SeenLoads, words: str) -> None:
    small = Small({"n1": {"gpus": 1}})
    small.add("web", {"mem": 14}, place=False)
    settings = msgspec.structs.replace(small.snapshot.settings, live_load=rules)
    small.snapshot = msgspec.structs.replace(small.snapshot, loads=loads, settings=settings)
    assert words in shoal("why", "web", "--snapshot", small.save(tmp_path / "s.json")).stdout


def in_namespace(pod: Pod, namespace: str) -> Pod:
    meta = msgspec.structs.replace(pod.metadata, namespace=namespace, uid=f"{namespace}-{pod.metadata.uid}")
    return msgspec.structs.replace(pod, metadata=meta)


def test_the_namespace_need_not_be_known(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}})
    a, b = small.add("a", {"mem": 2}, place=False), small.add("b", {"mem": 2}, place=False)
    pods = (in_namespace(a, "team"), in_namespace(b, "team"), in_namespace(b, "other"))
    small.snapshot = msgspec.structs.replace(small.snapshot, pods=pods)
    file = small.save(tmp_path / "s")
    assert shoal("why", "a", "-A", "--snapshot", file).stdout.startswith("team/a waits for a node.")
    several = shoal("why", "b", "-A", "--snapshot", file)
    assert several.exit_code == 1
    assert several.stderr == "Error: there are 2 pods 'b', in other, team: give the namespace with -n\n"
    assert "there is no pod 'c' in any namespace: see" in shoal("why", "c", "-A", "--snapshot", file).stderr
    assert "there is one in team: give it with -n" in shoal("why", "a", "--snapshot", file).stderr


def test_for_programs(crowded: Path) -> None:
    told = json.loads(shoal("why", "web", "--snapshot", crowded, "-o", "json").stdout)
    assert (told["pod"], told["state"], told["policy"]) == ("default/web", "pending", "binpack")
    assert [node["refusedBy"] for node in told["unplaced"]["nodes"]] == ["Cards", "TaintToleration", "NodeResourcesFit"]
    assert told["unplaced"]["clearing"] == {"node": "n1", "pods": ["default/b"]}
    assert told["unplaced"]["wouldFitMib"] == 6144


def test_by_another_policy_it_would_go_elsewhere(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}, "n2": {"gpus": 1}})
    small.add("a", {"mem": 2})
    small.add("b", {"mem": 2})
    text = shoal("why", "b", "--policy", "spread", "--snapshot", small.save(tmp_path / "s")).stdout
    assert "by policy binpack." in text
    assert "policy spread (asked for):" in text
    assert "It would go to n2, GPU0." in text


def told(tmp_path: Path, short: dict[str, Any], **more: Any) -> str:
    small = Small({"n1": {"gpus": 1}})
    small.add("p", short, **{"place": False, **more})
    return shoal("why", "p", "--snapshot", small.save(tmp_path / "s")).stdout


GROUP = {"shoal.dev/pod-group": "g", "shoal.dev/pod-group-min": "3"}


@pytest.mark.parametrize(
    ("short", "words"),
    [
        ({"cpu": 1}, "asks for no GPU: Shoal has no say in where it runs."),
        ({"mem": "10G"}, "cannot be placed as it is written:\n  container 'main' asks for 10G of aliyun.com/gpu-mem"),
        ({"mem": 1, "annotations": {"shoal.dev/policy": "best"}}, "no policy 'best': choose one of"),
        ({"mem": 4, "spec": {"schedulingGates": [{"name": "w"}]}}, "held up: scheduling gates: w: it is not tried"),
        ({"mem": 4, "spec": {"schedulerName": "other"}}, "held up: its scheduler is other: Shoal decides only if"),
        ({"mem": 4, "labels": GROUP}, "held up: pod group g: 1 of 3 pods are there."),
        ({"mem": 4, "labels": {"shoal.dev/pod-group": "g"}}, "held up: shoal.dev/pod-group names pod group 'g'"),
        (
            {"mem": 4},
            "It fits now, and would go where it is best:\n\nNODE   CARDS   SCORE\nn1     GPU0    -0.8500   best",
        ),
        ({"mem": 100}, "With 16384 MiB per card or less it would fit now."),
        (
            {"mem": 4, "annotations": {"shoal.dev/dispatch": '{"attempt":1,"cluster":"west"}'}},
            "default/p was sent to cluster west.\nIt asks for 4096 MiB of 1 card.\n`shoal clusters explain`",
        ),
        ({"gpu": 4}, "No pod's leaving would help: it takes another node, or another request."),
    ],
)
def test_what_else_a_pod_may_be(tmp_path: Path, short: dict[str, Any], words: str) -> None:
    assert words in told(tmp_path, short)


def test_a_finished_pod_holds_nothing(tmp_path: Path) -> None:
    assert "has finished and holds nothing." in told(
        tmp_path, {"mem": 4, "spec": {"nodeName": "n1"}}, phase="Succeeded"
    )


def test_a_pod_whose_node_is_gone(tmp_path: Path) -> None:
    text = told(tmp_path, {"mem": 4, "spec": {"nodeName": "gone"}}, phase="Running")
    assert "default/p is on gone." in text
    assert "these are a guess" in text
    assert "n1     GPU0    -0.8500   best" in text


def test_cards_that_nobody_recorded_are_called_a_guess(tmp_path: Path) -> None:
    text = told(tmp_path, {"mem": 4, "spec": {"nodeName": "n1"}}, phase="Running")
    assert "It carries no record of its cards: these are a guess." in text


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "4"}, "gpushare's (ALIYUN_COM_GPU_MEM_IDX)."),
        ({"shoal.dev/allocation": "{"}, "these are a guess. shoal.dev/allocation holds '{'"),
    ],
)
def test_whose_record_it_is(tmp_path: Path, annotations: dict[str, str], words: str) -> None:
    short = {"mem": 4, "annotations": annotations, "spec": {"nodeName": "n1"}}
    assert words in told(tmp_path, short, phase="Running")


def test_a_record_of_keti(tmp_path: Path) -> None:
    short = {"mps": 1, "annotations": {"UUID": "GPU-n1-0"}, "spec": {"nodeName": "n1"}}
    text = told(tmp_path, short, phase="Running")
    assert "KETI's (UUID)." in text
    assert "main        GPU0   GPU-n1-0   Testbed T16   1 MPS client" in text


def test_a_node_that_is_cleared_for_another_is_told(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}})
    small.add("first", {"mem": 12, "spec": {"priority": 9}}, place=False, nominatedNodeName="n1")
    small.add("p", {"mem": 4}, place=False)
    text = shoal("why", "p", "--snapshot", small.save(tmp_path / "s")).stdout
    assert "\nn1                   Preemption: is being cleared for default/first" in text
    assert "n1 has room, were it not for Preemption" in text


def test_many_nodes_are_summed_up_unless_all_are_asked_for(tmp_path: Path) -> None:
    small = Small({f"n{number:02}": {"gpus": 1, "taints": [TAINT]} for number in range(14)})
    small.add("p", {"mem": 4})
    file = small.save(tmp_path / "s")
    few, every = (shoal("why", "p", "--snapshot", file, *more).stdout for more in ([], ["--all"]))
    rest = "and 4 more nodes: 4 × TaintToleration: node(s) had untolerated taint(s). --all tells every one."
    assert rest in few
    assert "n13" not in few
    assert "n13" in every
    assert rest not in every


def test_an_unknown_pod_is_told_with_those_that_begin_like_it(crowded: Path) -> None:
    result = shoal("why", "we", "--snapshot", crowded)
    assert result.exit_code == 1
    assert "there is no pod 'we' in namespace 'default': did you mean web?" in result.stderr
    assert "there is one in default: give it with -n" in shoal("why", "web", "-n", "x", "--snapshot", crowded).stderr
    assert "kubectl get pods" in shoal("why", "x", "--snapshot", crowded).stderr


def test_an_unknown_policy_is_refused_with_the_choice(crowded: Path) -> None:
    result = shoal("why", "web", "--policy", "best", "--snapshot", crowded)
    assert result.exit_code == 2
    assert "binpack" in result.stderr


def test_colours_are_for_terminals_that_want_them(crowded: Path) -> None:
    arguments = ["why", "web", "--snapshot", str(crowded)]
    coloured, plain, dumb = (
        CliRunner().invoke(main, arguments, color=True, env={"NO_COLOR": none, "TERM": term}).stdout
        for none, term in ((None, "xterm"), ("1", "xterm"), (None, "dumb"))
    )
    assert click.unstyle(coloured) == plain == dumb == WAITS
    assert "\x1b[31m" in coloured


@pytest.mark.parametrize("command", [["why"], ["what-if"], ["snapshot"], ["policy", "show"], ["policy", "diff"]])
def test_help_teaches_by_example(command: list[str]) -> None:
    text = shoal(*command, "--help").stdout
    assert f"\n  shoal {' '.join(command)}" in text
    assert "--kubeconfig" in text
