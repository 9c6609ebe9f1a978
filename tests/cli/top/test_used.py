"""`shoal top` where collectors run: what is used beside what is allocated."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.cli.top.command import marks
from shoal.cli.top.used_columns import BLOCKS, LETTERS, trend
from tests.cli.inspect.cluster import Cluster, objects
from tests.cli.inspect.test_used import BOTH, FIRST, HISTORY, NODES, PODS
from tests.cli.terminal import on_terminal
from tests.metrics.history_thread import collectors


@pytest.fixture
def used_cluster(cluster: Cluster) -> Cluster:
    cluster.put(objects(NODES, PODS))
    cluster.apply(HISTORY)
    return cluster


def once(cluster: Cluster, *arguments: str) -> list[list[str]]:
    result = CliRunner().invoke(main, ["top", "--once", "--kubeconfig", str(cluster.kubeconfig), *arguments])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return [
        line.replace("[", " [ ").replace("]", " ] ").replace("|", "").split() for line in result.stdout.splitlines()[2:]
    ]


def test_columns_of_what_is_used(used_cluster: Cluster, tmp_path: Path) -> None:
    with collectors(used_cluster.kubeconfig, tmp_path, BOTH):
        cards = once(used_cluster)
        nodes = once(used_cluster, "--show", "nodes")
        pods = once(used_cluster, "--show", "pods")
    assert cards[0][4:10] == ["ALLOCATED(GiB)", "USED", "UTIL", "10", "MIN", "TEMP"]
    line = cards[1][3:]
    assert line[:5] == ["[", "]", "7/16", "8.0", "40%"]
    assert set(line[5]) == {BLOCKS[3]}
    assert 1 <= len(line[5]) <= 12
    assert line[6:8] == ["55C", "70W"]
    assert cards[3][5:11] == ["2/16", "-", "-", "-", "-", "-"], "a card that does not answer"
    assert nodes[0][-4:] == ["ALLOCATED(GiB)", "USED", "CPU", "PODS"]
    assert [row[5:] for row in nodes[1:]] == [["7/32", "9.0", "1500m", "2"], ["2/16", "-", "1500m", "1"]]
    assert [row[:1] + row[1:2] + row[4:7] for row in pods[1:]] == [
        ["other", "b", "4", "5.0", "30%"],
        ["team", "a", "3", "2.0", "30%"],
        ["team", "idle", "2", "-", "-"],
    ]


def test_without_collectors_nothing_changes_and_it_is_said_why(used_cluster: Cluster) -> None:
    place = ["--kubeconfig", str(used_cluster.kubeconfig)]
    result = CliRunner().invoke(main, ["top", "--once", *place])
    assert "USED" not in result.stdout
    assert result.stderr == (
        "Note: what is used is not shown: no collector has said where it answers: apply deploy/metrics, which measures "
        "what is used\n"
    )
    document = json.loads(CliRunner().invoke(main, ["top", "-o", "json", *place]).stdout)
    assert document == json.loads(used_cluster.inspect("-o", "json").stdout)


def test_a_node_that_does_not_answer_is_told(used_cluster: Cluster, tmp_path: Path) -> None:
    with collectors(used_cluster.kubeconfig, tmp_path, [FIRST]):
        result = CliRunner().invoke(main, ["top", "--once", "--kubeconfig", str(used_cluster.kubeconfig)])
        document = CliRunner().invoke(main, ["top", "-o", "json", "--kubeconfig", str(used_cluster.kubeconfig)])
    assert result.stderr == "Not measured: n2: no collector runs there: apply deploy/metrics\n"
    assert list(json.loads(document.stdout)["notMeasured"]) == ["n2"]


def test_live(used_cluster: Cluster, tmp_path: Path) -> None:
    command = ["top", "--kubeconfig", str(used_cluster.kubeconfig)]
    with collectors(used_cluster.kubeconfig, tmp_path, BOTH), on_terminal(command) as session:
        seen = session.see("8.0")
        assert "UTIL" in seen
        session.type("3")
        session.see("5.0")
        session.type("q")
        assert session.end() == 0


def test_live_without_collectors_says_so(used_cluster: Cluster) -> None:
    with on_terminal(["top", "--kubeconfig", str(used_cluster.kubeconfig)]) as session:
        session.see("used: no collector has said")
        session.type("q")
        assert session.end() == 0


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((), "-"),
        ((None, None), "-"),
        ((0, 12.4, 12.5, 50, 99, 100), "▁▁▂▅██"),
        ((None, 1000, -5, 40), " █▁▄"),
    ],
)
def test_a_trend(values: tuple[float | None, ...], shown: str) -> None:
    assert trend(values, BLOCKS) == shown
    assert len(trend(values, LETTERS)) == len(shown)


def test_marks_follow_the_terminal() -> None:
    assert marks("UTF-8") == marks("utf8") == BLOCKS
    assert marks("ascii") == marks(None) == LETTERS
