"""`-w`: the table again whenever it changes."""

import signal
import subprocess

from tests.cli.inspect.cluster import Cluster, objects
from tests.cli.terminal import COMMAND, on_terminal

NODES = {"n1": {"mem": 15, "count": 1}}


def pods(name: str, mem: int) -> list[dict]:
    return objects({}, {name: {"node": "n1", "mem": mem, "index": 0}})


def test_elsewhere_tables_follow_each_other(cluster: Cluster) -> None:
    cluster.put(objects(NODES, {}))
    command = [*COMMAND, "inspect", "-w", "--kubeconfig", str(cluster.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(5)]
        assert first[-1] == "0/15 (0%)  \n"
        cluster.put(pods("p", 3))
        second = [process.stdout.readline() for _ in range(5)]
        assert second[-1] == "3/15 (20%)  \n"
        # What changes nothing in the table is not shown.
        cluster.demand(
            "PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"a": "b"}}}, "application/merge-patch+json"
        )
        cluster.put(pods("q", 4))
        third = [process.stdout.readline() for _ in range(5)]
        assert third[-1] == "7/15 (46%)  \n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
        assert (process.returncode, rest, errors) == (0, "", "")


def test_on_a_terminal_the_table_is_drawn_over(cluster: Cluster) -> None:
    cluster.put(objects(NODES, {"waits": {"mem": 20, "why": "no room"}}))
    with on_terminal(["inspect", "-w", "n1", "--kubeconfig", str(cluster.kubeconfig)]) as session:
        session.see("0/15 (0%)")
        cluster.put(pods("p", 3))
        seen = session.see("3/15 (20%)")
        assert seen.count("NAME") == 1
        assert "0/15 (0%)" not in seen
        session.type("\x03")
        assert session.end() == 0


def test_a_terminal_is_told_why_pods_wait(cluster: Cluster) -> None:
    cluster.put(objects(NODES, {"waits": {"mem": 20, "why": "no room"}}))
    with on_terminal(["inspect", "--kubeconfig", str(cluster.kubeconfig)]) as session:
        session.end()
        assert "default/waits (20 GiB): no room" in session.screen.text
