"""Uninstalling on a real node, with the image: agent and collector have served pods there, and leave no file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.operator import uninstall
from tests.agent.real.conftest import describe_machine
from tests.deploy.test_installed_kube import CARDS, PLAYER, ROOT, SYSTEM, Installed, is_ready
from tests.testbed import images
from tests.testbed.control_plane import own_control_plane
from tests.testbed.node import Node
from tests.testbed.nvml.shim import Shim, build
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

MAIN = "from shoal.cli.main import main; main()"
#: Without those of MPS: the node has the machine's /tmp, and other tests may be using it.
FOLDERS = ("/run/shoal", "/var/lib/shoal", "/run/cdi", "/etc/cdi", "/run/nvidia", "/var/log/nvidia-mps")
#: Folders that are others' too, though nobody else may have needed them yet.
SHARED = {"/run/cdi", "/etc/cdi"}


@pytest.fixture
def cluster(
    testbed_run: Run, shoal_image: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """A node on which nothing of Shoal has ever been but its image."""
    folder = tmp_path_factory.mktemp("uninstalled")
    with own_control_plane(testbed_run, "uninstalled") as plane:
        plane.start_scheduler()
        node = Node(testbed_run, plane.api, f"{plane.name}-node")
        node.start()
        try:
            node.import_images(shoal_image[0])
            node.name_image(images.PAUSE, PLAYER)
            shim = Shim(build(testbed_run.folder("uninstalled-build")), testbed_run.folder("uninstalled-nvml"))
            shim.write(describe_machine(CARDS))
            yield Installed(plane, node, shim, folder)
        finally:
            node.stop()


def files(cluster: Installed) -> set[str]:
    """What is in the folders that Shoal writes to, and kubelet's sockets."""
    script = "find " + " ".join(FOLDERS) + " 2>/dev/null; find /var/lib/kubelet/device-plugins -type s; true"
    return set(cluster.node.run(["sh", "-c", script]).splitlines())


def test_nothing_is_left_on_the_node_and_pods_go_on(cluster: Installed) -> None:
    name = cluster.node.name
    before = files(cluster)
    known = json.loads(cluster.kubectl("get", "node", name, "-o", "json"))["metadata"]
    cluster.kubectl("label", "node", name, f"{gpushare.LABEL_NODE}=true")
    for part in ("admission", "scheduler"):
        cluster.apply(part)
    cluster.apply("agent", daemon="agent")
    cluster.apply("metrics", daemon="metrics")
    for part in ("scheduler", "agent", "metrics"):
        cluster.wait_ready(part)
    wait_for(lambda: cluster.node.status()["allocatable"].get(gpushare.RESOURCE_MEMORY) == "30", "cards counted")
    example = yaml.safe_load((ROOT / "examples" / "01-binpack.yaml").read_text())
    example["spec"]["template"]["spec"]["schedulerName"] = keti.SCHEDULER_NAME
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(example))

    def running() -> set[str]:
        return {pod["metadata"]["uid"] for pod in cluster.pods("app=binpack-1", "default") if is_ready(pod)}

    wait_for(lambda: len(running()) == 3, "three pods that run")
    pods = running()
    served = files(cluster)
    assert sum(path.startswith("/run/cdi/shoal.dev-share-") for path in served) == 3
    assert sum(path.startswith("/run/shoal/given/") for path in served) == 3
    assert any(path.endswith(".history") for path in served)
    assert f"/var/lib/kubelet/device-plugins/{nvidia.DEVICE_PLUGIN_SOCKET}" in served
    # Somebody else's, in a folder of ours and beside them.
    cluster.node.run(["sh", "-c", "echo {} > /run/cdi/other.json; echo x > /var/lib/shoal/notes"])

    command = [sys.executable, "-c", MAIN, "uninstall", f"--kubeconfig={cluster.plane.api.kubeconfig()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 pods with cards" in done.stderr

    assert files(cluster) - SHARED == (before - SHARED) | {
        *("/run/cdi/other.json", "/var/lib/shoal", "/var/lib/shoal/notes")
    }
    node = json.loads(cluster.kubectl("get", "node", name, "-o", "json"))["metadata"]
    assert node["labels"] == {**known["labels"], gpushare.LABEL_NODE: "true"}
    assert not set(node["annotations"]) & set(uninstall.NODE_ANNOTATIONS)
    assert not any(key.startswith("shoal.dev/") for key in node["annotations"])
    assert cluster.pods("app.kubernetes.io/part-of=shoal") == [] or wait_gone(cluster)
    assert running() == pods, "they go on"
    for pod in cluster.pods("app=binpack-1", "default"):
        assert shoal.ANNOTATION_ALLOCATION in pod["metadata"]["annotations"]
        assert all(one["restartCount"] == 0 for one in pod["status"]["containerStatuses"])
    cluster.node.run(["rm", "/run/cdi/other.json", "/var/lib/shoal/notes"])
    left = cluster.node.run(["sh", "-c", "ls -A /run/cdi; ls -d /run/shoal || true"])
    assert left == ""


def wait_gone(cluster: Installed) -> bool:
    """Pods of the clean-up end after it."""
    wait_for(lambda: not cluster.pods("app.kubernetes.io/part-of=shoal"), f"gone from {SYSTEM}")
    return True
