"""`shoal top` on a terminal, on a cluster that changes."""

import json
import signal
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.main import main
from tests.cli.inspect.cluster import Cluster, objects
from tests.cli.terminal import Session, on_terminal
from tests.suites.embedded import EmbeddedServer
from tests.testbed.waiting import wait_for

NODES = {"n1": {"mem": 30, "count": 2}, "n2": {"mem": 15, "cards": {"0": {"memory_mib": 15360, "model": "T4"}}}}
PODS = {"alpha": {"node": "n1", "mem": 12, "index": 1}, "waits": {"mem": 20, "why": "no room"}}


def started(session: Session) -> None:
    session.see("n2")
    assert session.screen.other


def lines_of(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(word)]


def test_keys_and_changes(cluster: Cluster) -> None:
    cluster.put(objects(NODES, PODS))
    with on_terminal(["top", "--kubeconfig", str(cluster.kubeconfig)]) as session:
        started(session)
        seen = session.see("alpha=12")
        assert "shoal top: nodes 2, cards 3, pods 1, without a card 1; allocated 12/45 GiB (26%)" in seen
        assert "waits: default/waits: no room" in seen
        assert len(lines_of(seen, "n1")) == 2
        cluster.put(objects({}, {"beta": {"node": "n1", "mem": 3, "index": 0}}))
        session.see("beta=3")
        session.see("allocated 15/45 GiB")
        session.type("1")
        seen = session.see("nodes by name")
        assert len(lines_of(seen, "n1")) == 1
        session.type("3s")
        seen = session.see("pods by used")
        assert seen.index(" alpha ") < seen.index(" beta ")
        session.type("/beta\r")
        session.see("filter: beta")
        session.see(lambda text: " beta " in text and " alpha " not in text)
        session.type("\x1b")
        session.see(lambda text: " alpha " in text)
        session.type("q")
        assert session.end() == 0
        assert not session.screen.other
        assert session.modes() == session.before


def test_a_viewer_may_watch(real_cluster: Cluster) -> None:
    real_cluster.put(objects(NODES, PODS))
    with on_terminal(["top", "--kubeconfig", str(real_cluster.viewer())]) as session:
        session.see("alpha=12")
        real_cluster.put(objects({}, {"beta": {"node": "n1", "mem": 3, "index": 0}}))
        session.see("beta=3")


@pytest.mark.parametrize("how", ["ctrl-c", "terminated", "hung up"])
def test_the_terminal_is_given_back(cluster: Cluster, how: str) -> None:
    cluster.put(objects(NODES, {}))
    with on_terminal(["top", "--kubeconfig", str(cluster.kubeconfig)]) as session:
        started(session)
        assert session.modes() != session.before
        if how == "ctrl-c":
            session.type("\x03")
        else:
            session.process.send_signal(signal.SIGTERM if how == "terminated" else signal.SIGHUP)
        assert session.end() == 0
        assert not session.screen.other
        assert session.modes() == session.before


def test_another_size_is_another_picture(cluster: Cluster) -> None:
    cluster.put(objects(NODES, PODS))
    with on_terminal(["top", "--kubeconfig", str(cluster.kubeconfig)]) as session:
        started(session)
        session.resize(30, 6)
        seen = session.see(lambda text: max(map(len, text.splitlines())) <= 30)
        assert len(seen.splitlines()) == 6


def test_it_sleeps_and_wakes(cluster: Cluster) -> None:
    cluster.put(objects(NODES, PODS))
    with on_terminal(["top", "--kubeconfig", str(cluster.kubeconfig)]) as session:
        started(session)
        session.type("\x1a")
        session.leave()
        assert session.modes() == session.before
        stat = Path(f"/proc/{session.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "stopped")
        session.process.send_signal(signal.SIGCONT)
        session.see("alpha=12")
        assert session.screen.other


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour(cluster: Cluster, environ: dict[str, str], coloured: bool) -> None:
    cluster.put(objects(NODES, PODS))
    with on_terminal(["top", "--kubeconfig", str(cluster.kubeconfig)], environ=environ) as session:
        started(session)
        session.see("alpha=12")
        assert ("\x1b[33m" in session.screen.everything) is coloured
        assert ("\x1b[7m" in session.screen.everything) is coloured


def test_once_needs_no_terminal(cluster: Cluster) -> None:
    cluster.put(objects(NODES, PODS))
    result = CliRunner().invoke(main, ["top", "--once", "--show", "pods", "--kubeconfig", str(cluster.kubeconfig)])
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "GPU1=12" in result.output
    assert "waits: default/waits: no room" in result.output


def test_without_a_terminal_no_line_is_cut(cluster: Cluster) -> None:
    why = "no room " * 100
    cluster.put(objects(NODES, {"waits": {"mem": 20, "why": why}}))
    result = CliRunner().invoke(main, ["top", "--once", "--kubeconfig", str(cluster.kubeconfig)])
    assert result.stdout.splitlines()[-1] == f"waits: default/waits: {why}".rstrip()


def test_for_programs_it_reads_once(cluster: Cluster) -> None:
    cluster.put(objects(NODES, PODS))
    place = ("--kubeconfig", str(cluster.kubeconfig))
    result = CliRunner().invoke(main, ["top", "-o", "json", *place])
    assert result.exit_code == 0
    assert json.loads(result.output) == json.loads(cluster.inspect("-o", "json").output)
    assert yaml.safe_load(CliRunner().invoke(main, ["top", "-o", "yaml", *place]).output) == json.loads(result.output)


TEAM = {"ours": {"node": "n1", "mem": 3, "index": 0, "namespace": "team"}}


def test_a_namespace_chooses_who_is_named(cluster: Cluster) -> None:
    cluster.put(objects(NODES, PODS | TEAM))
    place = ("--kubeconfig", str(cluster.kubeconfig))

    def said(*arguments: str) -> str:
        return CliRunner().invoke(main, ["top", "--once", *place, *arguments]).output

    ours = said("--show", "pods", "-n", "team")
    assert "pods 1, without a card 0; allocated 15/45 GiB (33%)" in ours
    assert "namespace: team" in ours
    assert "alpha" not in ours
    assert "waits:" not in ours
    cards = said("-n", "team")
    assert "ours=3" in cards
    assert "alpha=12" not in cards
    assert "12/15" in cards
    assert said("--show", "pods", "-A", "-n", "team") == said("--show", "pods")
    assert "no pod of namespace 'nobody'" in said("-n", "nobody")
    assert [pod["name"] for pod in json.loads(said("-o", "json", "-n", "team"))["nodes"][0]["gpus"][0]["pods"]] == [
        "ours"
    ]


def test_it_begins_as_asked(cluster: Cluster) -> None:
    cluster.put(objects(NODES, PODS | TEAM))
    with on_terminal(["top", "--show", "pods", "-n", "team", "--kubeconfig", str(cluster.kubeconfig)]) as session:
        seen = session.see("pods by name  namespace: team")
        assert "GPU0=3" in seen
        assert "alpha" not in seen
        more = {"ours-too": TEAM["ours"] | {"mem": 1}, "beta": PODS["alpha"] | {"mem": 2}}
        cluster.put(objects({}, more))
        session.see("ours-too")
        seen = session.see("allocated 18/45 GiB")
        assert "beta" not in seen


def test_without_a_terminal_it_says_what_to_do() -> None:
    result = CliRunner().invoke(main, ["top"])
    assert result.exit_code == 1
    assert "use --once for one picture, or -o json" in result.stderr


def test_a_cluster_that_is_gone_is_told(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    try:
        Cluster(server).put(objects(NODES, PODS))
        with on_terminal(["top", "--kubeconfig", str(server.kubeconfig())]) as session:
            started(session)
            server.stop()
            seen = session.see("What you see may be old")
            assert "alpha=12" in seen
            session.type("q")
            assert session.end() == 0
    finally:
        server.stop()


def test_a_cluster_that_was_never_there(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.stop()
    with on_terminal(["top", "--kubeconfig", str(server.kubeconfig())]) as session:
        assert session.end() == 1
        assert "Error: " in session.screen.text
        assert "\x1b[?1049h" not in session.screen.everything
