"""What users install runs from the image: manifests of `deploy/` on a real node, and the first example's pods there.

The scheduler, the agents and the collectors are pods under the rights they are deployed with. Only NVIDIA's library is
a stand-in, mounted where NVIDIA's runtime would put the real one.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.model.contract import gpushare, keti, shoal
from tests.agent.real.conftest import describe_machine
from tests.metrics.real.conftest import described
from tests.testbed import images
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.node import Node
from tests.testbed.nvml.shim import Shim, build
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

ROOT = Path(__file__).parents[2]
SYSTEM = "kube-system"
GIB = 2**30
CARDS = "2xT4"
#: The image of the examples cannot be had here; one that sleeps has its name.
PLAYER = "docker.io/cheyang/gpu-player:v2"


@dataclass
class Installed:
    """A cluster with one node, on which nothing of Shoal runs but its image."""

    plane: ControlPlane
    node: Node
    shim: Shim
    folder: Path

    def kubectl(self, *arguments: str, **more: Any) -> str:
        return self.plane.api.kubectl(*arguments, **more)

    def apply(self, name: str, *, daemon: str = "") -> None:
        """A folder of `deploy/`; `daemon` names the container that finds NVIDIA's library in a mounted folder."""
        overlay = self.folder / f"overlay-{name}"
        overlay.mkdir()
        (overlay / "base").symlink_to(ROOT / "deploy" / name)
        kustomization: dict[str, Any] = {"resources": ["base"]}
        if daemon:
            spec = {
                "containers": [
                    {
                        "name": daemon,
                        "env": [{"name": "LD_LIBRARY_PATH", "value": "/nvml"}],
                        "volumeMounts": [{"name": "nvml", "mountPath": "/nvml", "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "nvml", "hostPath": {"path": str(self.shim.directory)}}],
            }
            metadata = {"name": f"shoal-{daemon}", "namespace": SYSTEM}
            about = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata}
            patch = {**about, "spec": {"template": {"spec": spec}}}
            kustomization["patches"] = [{"patch": yaml.safe_dump(patch)}]
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        built = self.kubectl("kustomize", "--load-restrictor=LoadRestrictionsNone", str(overlay))
        self.kubectl("apply", "-f", "-", input=built)

    def pods(self, selector: str, namespace: str = SYSTEM) -> list[dict[str, Any]]:
        found = json.loads(self.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))
        items: list[dict[str, Any]] = found["items"]
        return items

    def wait_ready(self, name: str, count: int = 1) -> None:
        """Until so many pods of a part are ready."""

        def ready() -> bool:
            pods = self.pods(f"app.kubernetes.io/name=shoal-{name}")
            return sum(map(is_ready, pods)) >= count

        wait_for(ready, f"a ready {name}:\n{self.kubectl('get', 'events', '-n', SYSTEM)}", 300)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@pytest.fixture(scope="module")
def installed(
    testbed_run: Run, shoal_image: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("installed")
    with own_control_plane(testbed_run, "installed") as plane:
        plane.start_scheduler()
        node = Node(testbed_run, plane.api, f"{plane.name}-node")
        node.start()
        try:
            node.import_images(shoal_image[0])
            node.name_image(images.PAUSE, PLAYER)
            shim = Shim(build(testbed_run.folder("installed-build")), testbed_run.folder("installed-nvml"))
            shim.write(describe_machine(CARDS))
            cluster = Installed(plane, node, shim, folder)
            cluster.kubectl("label", "node", node.name, f"{gpushare.LABEL_NODE}=true")
            for name in ("admission", "scheduler"):
                cluster.apply(name)
            cluster.apply("agent", daemon="agent")
            cluster.apply("metrics", daemon="metrics")
            cluster.wait_ready("scheduler")
            cluster.wait_ready("agent")
            cluster.wait_ready("metrics")
            yield cluster
        finally:
            node.stop()


def test_the_first_example_runs_on_a_shared_card(installed: Installed) -> None:
    wait_for(lambda: installed.node.status()["allocatable"].get(gpushare.RESOURCE_MEMORY) == "30", "cards counted")
    example = yaml.safe_load((ROOT / "examples" / "01-binpack.yaml").read_text())
    example["spec"]["template"]["spec"]["schedulerName"] = keti.SCHEDULER_NAME
    installed.kubectl("apply", "-f", "-", input=yaml.safe_dump(example))

    def running() -> list[dict[str, Any]]:
        return [pod for pod in installed.pods("app=binpack-1", "default") if is_ready(pod)]

    wait_for(lambda: len(running()) == 3, "three pods that run", 300)
    cards = set()
    for pod in running():
        text = pod["metadata"]["annotations"][shoal.ANNOTATION_ALLOCATION]
        ((card,),) = [one.cards for one in shoal.decode_allocation(text).containers]
        cards.add(card.uuid)
        said = installed.kubectl("exec", pod["metadata"]["name"], "--", "env")
        environment = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        assert environment[gpushare.NAME_INDEX] == str(card.index)
        assert environment[gpushare.ENV_CONTAINER] == "3"
    assert len(cards) == 1, "they share one"


def test_the_collector_tells_whose_a_process_is(installed: Installed) -> None:
    """Under the rights it is deployed with: not root, without capabilities, with the host's /proc read-only."""
    worker = {
        "metadata": {"name": "worker"},
        "spec": {
            "schedulerName": keti.SCHEDULER_NAME,
            "containers": [
                {
                    "name": "main",
                    "image": images.BUSYBOX,
                    "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", ": a-worker; while true; do sleep 1; done"],
                    "resources": {"limits": {gpushare.RESOURCE_MEMORY: "4"}},
                }
            ],
        },
    }
    installed.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Pod", **worker}))
    installed.kubectl("wait", "--for=condition=Ready", "pod/worker", "--timeout=300s")
    found = json.loads(installed.kubectl("get", "pod", "worker", "-o", "json"))
    allocation = shoal.decode_allocation(found["metadata"]["annotations"][shoal.ANNOTATION_ALLOCATION])
    ((card,),) = [one.cards for one in allocation.containers]
    pid = int(installed.node.run(["pgrep", "-f", ": [a]-worker"]))
    installed.shim.write(described(CARDS, {(card.index, pid): 3 * GIB, (card.index, 1): 2 * GIB}))
    (pod,) = installed.pods("app.kubernetes.io/name=shoal-metrics")
    url = f"http://{pod['status']['podIP']}:9400/metrics"
    gpu = f'gpu="{card.index}"'

    def shown() -> set[str]:
        lines = installed.node.run(["busybox", "wget", "-q", "-O", "-", url]).splitlines()
        return {
            f"{line.partition('{')[0]} {line.rpartition(' ')[2]}"
            for line in lines
            if gpu in line and ('pod="worker"' in line or line.startswith("shoal_card_memory_unattributed_bytes"))
        }

    wanted = {
        f"shoal_container_memory_used_bytes {3 * GIB}",
        f"shoal_container_memory_requested_bytes {4 * GIB}",
        f"shoal_card_memory_unattributed_bytes {2 * GIB}",
    }
    wait_for(lambda: wanted <= shown(), f"measured: {pod['metadata']['name']}", 120)
    assert installed.node.run(["sh", "-c", "ls /var/lib/shoal/history | wc -l"]).strip() != "0"


def test_services_run_as_the_image_says(installed: Installed) -> None:
    for name, user in (("scheduler", "65532"), ("agent", "0"), ("metrics", "65532")):
        (pod, *_) = [pod for pod in installed.pods(f"app.kubernetes.io/name=shoal-{name}") if is_ready(pod)]
        (status,) = pod["status"]["containerStatuses"]
        assert status["restartCount"] == 0
        pid = installed.node.run(["sh", "-c", "pgrep -f '/opt/shoal/run.py " + name + "' | head -1"]).strip()
        owner = installed.node.run(["stat", "-c", "%u", f"/proc/{pid}"]).strip()
        assert owner == user
