"""A createRuntime hook of the CDI spec: runs before the container's program, knows the container, can refuse it."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.kubelet.conftest import NewPlugin
from tests.kubelet.pods import FOREVER, Pods, container, container_status, pod
from tests.testbed.node import Node

# The state is JSON on one line; busybox has no reader for it, so the PID is cut out of it.
RECORD = """
cd {folder}
cat > state
pid=$(sed 's/.*"pid":\\([0-9]*\\).*/\\1/' state)
cat /proc/$pid/cgroup > cgroup
tr '\\0' ' ' < /proc/$pid/cmdline > cmdline
cut -d ' ' -f 1 /proc/uptime > uptime
"""


def hook(script: str) -> dict:
    busybox = shutil.which("busybox")
    return {"hookName": "createRuntime", "path": busybox, "args": ["busybox", "sh", "-c", script]}


def test_hook_runs_before_the_first_instruction_and_knows_its_container(
    kubelet: Node, pods: Pods, new_plugin: NewPlugin, tmp_path: Path
):
    async def edits(ids: Sequence[str]) -> dict:
        return {"hooks": [hook(RECORD.format(folder=tmp_path))]}

    plugin = new_plugin(kubelet, 8, edits)
    script = f"cut -d ' ' -f 1 /proc/uptime; {FOREVER}"
    pods.create(pod("hooked", [container("main", script, {plugin.resource: 1})]), kubelet)
    found = pods.wait_running("hooked")
    uid = found["metadata"]["uid"]
    container_id = container_status(found, "main")["containerID"].removeprefix("containerd://")

    state = json.loads((tmp_path / "state").read_text())
    assert state["id"] == container_id
    assert state["annotations"]["io.kubernetes.cri.container-name"] == "main"
    assert state["annotations"]["io.kubernetes.cri.sandbox-name"] == "hooked"
    assert state["annotations"]["io.kubernetes.cri.sandbox-namespace"] == pods.namespace
    assert state["annotations"]["io.kubernetes.cri.sandbox-uid"] == uid

    groups = [line.split(":", 2)[2] for line in (tmp_path / "cgroup").read_text().splitlines()]
    leaf = f"{kubelet.cgroup.path}/kubepods/besteffort/pod{uid}/{container_id}"
    assert leaf in groups, "the container's own cgroup is there, and the process in it"
    assert "runc init" in (tmp_path / "cmdline").read_text(), "the program is not"
    assert float((tmp_path / "uptime").read_text()) <= float(pods.log("hooked", "main"))


def test_failing_hook_keeps_the_container_from_starting(kubelet: Node, pods: Pods, new_plugin: NewPlugin):
    async def edits(ids: Sequence[str]) -> dict:
        return {"hooks": [hook("echo no limit, no start >&2; exit 1")]}

    plugin = new_plugin(kubelet, 8, edits)
    pods.create(pod("refused", [container("main", "echo started", {plugin.resource: 1})]), kubelet)
    event = pods.wait_event("refused", lambda event: "no limit, no start" in event["message"], "with the hook's error")
    assert event["type"] == "Warning"
    status = container_status(pods.get("refused"), "main")
    assert "running" not in status["state"]
    assert "started" not in pods.apiserver.kubectl("-n", pods.namespace, "logs", "refused", check=False)
