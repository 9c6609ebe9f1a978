"""Whose the use of a card is, on a real kubelet with real processes in the cgroups of their containers."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml

from shoal.metrics.processes import ContainerRef, container_of
from shoal.model.request import Share
from tests.agent.lab import GIB, memory_pod
from tests.agent.real.conftest import NewLab, RealLab
from tests.kubelet.pods import FOREVER, container, container_status
from tests.metrics.real.conftest import NewCollector, described, pid_of
from tests.testbed.waiting import wait_for

CARDS = "2xT4"
BYTES = 2**30
DAEMONSET = Path(__file__).parents[3] / "deploy" / "metrics" / "daemonset.yaml"


def shared(lab: RealLab, name: str, gib: int) -> int:
    """A pod with a share of the first card, and the PID of its process."""
    mark = f"{name}-{uuid.uuid4().hex}"
    script = f": {mark}; {FOREVER}"
    lab.place(memory_pod(name, gib, script), lab.allocation({"main": [0]}, {"main": Share(gib * GIB)}))
    lab.pods.wait_running(name)
    return pid_of(mark)


@pytest.mark.parametrize("apart", [False, True], ids=["plain", "apart"])
def test_each_pod_gets_its_own_use_and_no_more(new_lab: NewLab, new_collector: NewCollector, apart: bool) -> None:
    lab = new_lab(CARDS)
    assert isinstance(lab, RealLab)
    collector = new_collector(lab, apart=apart)
    one, two = shared(lab, "one", 8), shared(lab, "two", 4)
    if apart:
        paths = subprocess.run(
            ["nsenter", "-t", str(collector_inside(collector.process.pid)), "--cgroup", "cat", f"/proc/{one}/cgroup"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert ":/../" in paths, "paths begin outside of the collector's root"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as outsider:
        try:
            uses = {(0, one): 6 * BYTES, (0, two): 1 * BYTES, (1, two): 2 * BYTES, (0, outsider.pid): 3 * BYTES}
            lab.shim.write(described(CARDS, uses))
            collector.wait_used(
                {("one", "main", "0"): 6 * BYTES, ("two", "main", "0"): 1 * BYTES, ("two", "main", "1"): 2 * BYTES}
            )
            assert collector.unattributed() == {"0": 3 * BYTES, "1": 0}
            requested = {
                (labels["pod"], labels["gpu"]): value
                for name, labels, value in collector.series()
                if name == "shoal_container_memory_requested_bytes"
            }
            assert requested == {("one", "0"): 8 * BYTES, ("two", "0"): 4 * BYTES, ("two", "1"): 0}
        finally:
            outsider.kill()
    # A pod that is gone takes its use with it; what still runs under its PID is nobody's.
    lab.pods.delete("one")
    collector.wait_used({("two", "main", "0"): 1 * BYTES, ("two", "main", "1"): 2 * BYTES})
    wait_for(lambda: collector.unattributed() == {"0": 9 * BYTES, "1": 0}, "nobody's")


def collector_inside(outer: int) -> int:
    """The collector itself, below the programs that made its namespaces."""
    while True:
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        if not children:
            return outer
        outer = int(children[0])


def shares(lab: RealLab) -> tuple[object, ...]:
    """What the agent and kubelet have made of the pod, on disk and in the cluster."""
    status = container_status(lab.pods.get("one"), "main")
    run = (status["containerID"], status["restartCount"], status["state"])
    return run, lab.specs(), lab.node.checkpoint(), lab.written("one")


def test_killed_and_started_again_it_touches_no_share(new_lab: NewLab, new_collector: NewCollector) -> None:
    lab = new_lab(CARDS)
    assert isinstance(lab, RealLab)
    pid = shared(lab, "one", 8)
    lab.shim.write(described(CARDS, {(0, pid): 6 * BYTES}))
    before = shares(lab)
    collector = new_collector(lab)
    for _ in range(3):
        collector.wait_used({("one", "main", "0"): 6 * BYTES})
        collector.process.kill()
        assert collector.series() == []
        collector.process.start()
    collector.wait_used({("one", "main", "0"): 6 * BYTES})
    assert shares(lab) == before
    os.kill(pid, 0)
    assert lab.asked("readyz")[0] == 200


def test_a_pod_as_the_daemonset_has_it_can_tell_whose_a_process_is(new_lab: NewLab) -> None:
    """Not root and without capabilities, by the host's /proc alone, mounted read-only."""
    lab = new_lab(CARDS, start=False)
    spec = yaml.safe_load(DAEMONSET.read_text())["spec"]["template"]["spec"]
    (collector,) = spec["containers"]
    mark = f"seen-{uuid.uuid4().hex}"
    lab.pods.create(
        {"metadata": {"name": "other"}, "spec": {"containers": [container("main", f": {mark}; {FOREVER}")]}}, lab.node
    )
    other = lab.pods.wait_running("other")
    look = (
        f"cd /host/proc; for p in [0-9]*; do grep -qs {mark[:-1]}[{mark[-1]}] $p/cmdline && cat $p/stat $p/cgroup; done"
    )
    probe = container(
        "main",
        f"id -u; {look}; grep /host/proc /proc/mounts; echo told=all; sleep 3600",
        securityContext=collector["securityContext"],
    )
    names = ("proc", "cgroups")
    probe["volumeMounts"] = [mount for mount in collector["volumeMounts"] if mount["name"] in names]
    volumes = [volume for volume in spec["volumes"] if volume["name"] in names]
    lab.pods.create({"metadata": {"name": "probe"}, "spec": {"containers": [probe], "volumes": volumes}}, lab.node)
    lab.pods.wait_running("probe")
    said = lab.told("probe")
    assert said.splitlines()[0] == str(collector["securityContext"]["runAsUser"])
    runtime_id = container_status(other, "main")["containerID"].rpartition("/")[2]
    assert container_of(said) == ContainerRef(other["metadata"]["uid"], runtime_id)
    (mount,) = [line.split() for line in said.splitlines() if " /host/proc " in line]
    assert "ro" in mount[3].split(",")
