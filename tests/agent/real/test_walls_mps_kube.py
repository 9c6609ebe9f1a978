"""MPS on a real kubelet: what its clients are given, and what becomes of them when the daemon or the agent dies."""

import contextlib
import os
import signal
from pathlib import Path

from shoal.agent.limits.mps import server_of
from shoal.agent.node.cgroups import pod_of
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.gpu import Isolation
from shoal.model.request import Share
from tests.agent.lab import CLIENTS, GIB, MEMORY, TELL
from tests.agent.real.conftest import RealLab
from tests.agent.real.walls import (  # noqa: F401
    PIPE,
    Walled,
    client,
    daemon_pid,
    mounting,
    on_node,
    own_id,
    own_namespace,
    told,
    wait_marked,
    with_mps,
)
from tests.kubelet.pods import container, pod
from tests.testbed.waiting import wait_for


def test_each_container_has_a_namespace_and_sees_no_other(with_mps: Walled):  # noqa: F811
    lab = with_mps("mps-namespace")
    assert [gpu.isolation for gpu in lab.gpus] == [Isolation.NAMESPACE] * 2
    apps = [client("left", 3, compute=25), client("right", 5)]
    shares = {"left": Share(3 * GIB, compute=25), "right": Share(5 * GIB)}
    lab.place(mounting(pod("two", apps)), lab.allocation({"left": [1], "right": [1]}, shares))
    lab.pods.wait_running("two")
    left, right = (own_namespace(lab, "two", name) for name in ("left", "right"))
    assert left != right
    server = server_of([lab.gpus[1].uuid])
    for name, limits in ((left, "3072M --active-thread-percentage=25"), (right, "5120M")):
        assert f"namespace set {name} --server={server} --pinned-memory-limit={limits}" in told(lab)
    wait_marked(lab, "two", "mps-namespace")
    lab.pods.delete("two")
    gone = {f"namespace delete {name} --server={server}" for name in (left, right)} | {f"server delete {server}"}
    wait_for(lambda: gone <= set(told(lab)), "without namespaces and server")


def test_killed_daemon_is_back_with_its_namespaces(with_mps: Walled):  # noqa: F811
    lab = with_mps("mps-namespace")
    lab.place(pod("one", [client("main", 3)]), lab.allocation({"main": [0]}, {"main": Share(3 * GIB)}))
    lab.pods.wait_running("one")
    namespace = own_namespace(lab, "one", "main")
    first = daemon_pid(lab)
    os.kill(first, signal.SIGKILL)
    made = f"namespace set {namespace} --server={server_of([lab.gpus[0].uuid])} --pinned-memory-limit=3072M"
    wait_for(lambda: told(lab).count(made) == 2, "made again")
    assert daemon_pid(lab) != first
    lab.place(pod("two", [client("main", 4)]), lab.allocation({"main": [0]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("two")
    assert own_namespace(lab, "two", "main") != namespace


def test_killed_agent_ends_neither_the_daemon_nor_its_clients(with_mps: Walled):  # noqa: F811
    lab = with_mps("mps-namespace")
    lab.place(pod("one", [client("main", 3)]), lab.allocation({"main": [0]}, {"main": Share(3 * GIB)}))
    found = lab.pods.wait_running("one")
    first = daemon_pid(lab)
    namespace = own_namespace(lab, "one", "main")
    on_node(lab, f"{PIPE}/clients").write_text(f"4711 {server_of([lab.gpus[0].uuid])} {namespace} program\n")
    lab.kill()
    lab.start(**lab.settings)
    lab.place(pod("two", [client("main", 4)]), lab.allocation({"main": [0]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running("two")
    assert daemon_pid(lab) == first
    assert own_id(lab.pods.get("one")) == own_id(found)
    about = [line.split()[1] for line in told(lab) if namespace in line.split()]
    assert about == ["create", "set"], "and nothing since the agent's death"


def test_clients_of_a_deleted_pod_end_before_kubelet_kills_them(with_mps: Walled):  # noqa: F811
    """The program does not heed SIGTERM, so that only kubelet's SIGKILL ends it."""
    lab = with_mps("mps-namespace")
    share = container("main", "trap '' TERM; while true; do sleep 1; done", {MEMORY: 3})
    manifest = pod("one", [share])
    manifest["spec"]["terminationGracePeriodSeconds"] = 6
    lab.place(manifest, lab.allocation({"main": [0]}, {"main": Share(3 * GIB)}))
    uid = lab.pods.wait_running("one")["metadata"]["uid"]
    (pid, *_) = processes_of(uid)
    server = server_of([lab.gpus[0].uuid])
    on_node(lab, f"{PIPE}/clients").write_text(f"{pid} {server} n_1 program\n{os.getpid()} {server} n_2 other\n")
    lab.pods.apiserver.request("DELETE", f"/api/v1/namespaces/{lab.pods.namespace}/pods/one")
    wait_for(lambda: f"client terminate {pid}" in told(lab), "terminated by the MPS daemon")
    assert processes_of(uid), "and kubelet has not killed it yet"
    assert [line for line in told(lab) if line.startswith("client terminate")] == [f"client terminate {pid}"]


def processes_of(uid: str) -> list[int]:
    """The processes of a pod's containers, without the sandbox."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if pod_of(place.read_text()) == uid and b"pause" not in (place.parent / "cmdline").read_bytes():
                found.append(int(place.parent.name))
    return sorted(found)


def test_limits_in_the_environment_of_clients(with_mps: Walled):  # noqa: F811
    lab = with_mps("mps", mpsSharedMemory="/run/shoal/shm", mpsExclusive=True)
    opt_in(lab)
    assert [gpu.isolation for gpu in lab.gpus] == [Isolation.MPS] * 2
    assert lab.shim.told() == [f"compute_mode {index} 3" for index in range(2)]
    on_node(lab, "/run/shoal/shm/of-the-daemon").touch()
    script = f"ls /dev/shm; {TELL}"
    manifest = mounting(pod("client", [container("main", script, {CLIENTS: 1})]))
    manifest["metadata"]["annotations"] = {keti.ANNOTATION_MEMORY_LIMIT: "4Gi"}
    lab.bind(manifest)
    share = container("main", script, {MEMORY: 3, gpushare.RESOURCE_COMPUTE: 40})
    lab.place(pod("share", [share]), lab.allocation({"main": [1]}, {"main": Share(3 * GIB, compute=40)}))
    for name, limits in (("client", {"memory": "0=4096M"}), ("share", {"memory": "0=3072M", "threads": "40"})):
        lab.pods.wait_running(name)
        env = lab.env(name)
        assert env[nvidia.ENV_MPS_PIPE_DIRECTORY] == keti.MPS_DIRECTORY
        assert env[nvidia.ENV_MPS_MEMORY_LIMIT] == limits["memory"]
        assert env.get(nvidia.ENV_MPS_THREAD_PERCENTAGE) == limits.get("threads")
        assert env[shoal.ENV_ISOLATION] == "mps"
        assert lab.told(name).splitlines()[0] == "of-the-daemon"
        wait_marked(lab, name, "mps")
    lab.stop()
    lab.clean()
    assert told(lab)[-1] == "quit"
    assert lab.shim.told()[2:] == [f"compute_mode {index} 0" for index in range(2)]


def test_who_has_not_opted_in_is_kept_from_a_daemon_that_all_clients_command(with_mps: Walled):  # noqa: F811
    lab = with_mps("mps")
    lab.place(pod("share", [client("main", 3)]), lab.allocation({"main": [0]}, {"main": Share(3 * GIB)}))
    event = lab.pods.wait_event("share", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert f"label the namespace {shoal.LABEL_MPS}={shoal.MPS_ALLOW}" in event["message"]
    opt_in(lab)
    lab.pods.wait_running("share")
    assert lab.env("share")[shoal.ENV_ISOLATION] == "mps"


def opt_in(lab: RealLab) -> None:
    """Let the pods of the lab's namespace be clients beside those of others."""
    patch = {"metadata": {"labels": {shoal.LABEL_MPS: shoal.MPS_ALLOW}}}
    path = f"/api/v1/namespaces/{lab.pods.namespace}"
    lab.pods.apiserver.request("PATCH", path, patch, "application/merge-patch+json")
