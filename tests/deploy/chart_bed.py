"""A cluster with one real node that has cards, on which users' commands of helm and kubectl are run.

Nothing of Shoal is there but its image. NVIDIA's images and hardware are played at their border (`tests/testbed/
hardware.py`).
"""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed import hardware, images
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.hardware import Hardware
from tests.testbed.helm import run_helm
from tests.testbed.node import Node
from tests.testbed.nvml.shim import build
from tests.testbed.processes import Run, TestbedError
from tests.testbed.waiting import wait_for

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "shoal"
NAMESPACE = "gpu-operator"
POLICY = "clusterpolicies.shoal.dev"
CARDS = "2xT4"
DRIVER = "580.95.05"
NEWER_DRIVER = "580.105.08"
BROKEN_DRIVER = "0.0.1"
#: The image of the examples cannot be had here; one that sleeps has its name.
PLAYER = "docker.io/cheyang/gpu-player:v2"
#: NVIDIA's images, as somebody with a registry of his own would name them; the stand-in is up sooner than a driver.
WITH_DRIVER = (
    "driver.enabled=true",
    "driver.repository=shoal.test",
    f"driver.version={DRIVER}",
    "driver.manager.repository=shoal.test",
    "driver.startupProbe.initialDelaySeconds=1",
    "driver.startupProbe.periodSeconds=1",
)
WITH_TOOLKIT = ("toolkit.enabled=true", "toolkit.repository=shoal.test", f"toolkit.version={hardware.TOOLKIT_VERSION}")


@dataclass
class ChartBed:
    """The cluster."""

    plane: ControlPlane
    node: Node
    cards: Hardware
    namespace: str = NAMESPACE

    def helm(self, *arguments: str, check: bool = True) -> str:
        """What helm prints."""
        return run_helm(self.plane.api.kubeconfig(), *arguments, home=self.plane.api.directory, check=check)

    def kubectl(self, *arguments: str, **more: Any) -> str:
        """What kubectl prints."""
        return self.plane.api.kubectl(*arguments, **more)

    def install(self, *values: str) -> str:
        """As users are told to."""
        given = [word for value in values for word in ("--set", value)]
        return self.helm(
            "upgrade", "--install", "shoal", str(CHART), "-n", self.namespace, "--create-namespace", *given
        )

    def change(self, *values: str) -> str:
        """Change some values, and keep the others."""
        given = [word for value in values for word in ("--set", value)]
        return self.helm("upgrade", "shoal", str(CHART), "-n", self.namespace, "--reuse-values", *given)

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list of them."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def names(self, *arguments: str) -> set[str]:
        """Names of the objects there are."""
        return {item["metadata"]["name"] for item in self.get(*arguments)["items"]}

    def status(self, name: str = "cluster-policy") -> dict[str, Any]:
        """The status of a ClusterPolicy; empty as long as there is none."""
        found: dict[str, Any] = self.get(POLICY, name).get("status", {})
        return found

    def node_object(self) -> dict[str, Any]:
        """The node."""
        return self.get("node", self.node.name)

    def pods(self, *arguments: str) -> list[dict[str, Any]]:
        """Pods of the chart's namespace."""
        items: list[dict[str, Any]] = self.get("pods", "-n", self.namespace, *arguments)["items"]
        return items

    def wait(self, ready: Any, what: str, patience: float = 300) -> None:
        """Wait for a condition; fail with what a person would look at."""
        try:
            wait_for(ready, what, patience)
        except TestbedError as error:
            raise TestbedError(f"{error}\n{self.told()}") from None

    def wait_ready(self, ready: str = "1/1") -> None:
        """Until the policy says that the node serves, and speaks of the present generation of the policy."""

        def done() -> bool:
            policy = self.get(POLICY, "cluster-policy")
            status = policy.get("status", {})
            current = status.get("observedGeneration") == policy["metadata"]["generation"]
            return bool(current and status.get("state") == "ready" and status.get("ready") == ready)

        self.wait(done, "ready")

    def wait_clean(self, before: dict[str, set[str]]) -> None:
        """Until nothing is there that was not there before."""
        left: dict[str, set[str]] = {}

        def clean() -> bool:
            left.clear()
            left.update(left_behind(before, snapshot(self)))
            return not left and not self.pods()

        try:
            wait_for(clean, "clean", 120)
        except TestbedError as error:
            raise TestbedError(f"{error}: {left}\n{self.told()}") from None

    def told(self) -> str:
        """What a person would look at."""
        questions = (
            ("get", POLICY, "-o", "jsonpath={.items[*].status}"),
            ("get", "events", "-n", self.namespace, "--field-selector=type!=Normal"),
            ("get", "pods", "-A", "-o", "wide"),
            *(("logs", "-n", self.namespace, "-l", f"app.kubernetes.io/name=shoal-{one}", *_LAST) for one in _LOGS),
        )
        return "\n".join(f"$ kubectl {' '.join(one)}\n{self.kubectl(*one, check=False)[-6000:]}" for one in questions)


#: The parts whose logs tell why a node does not serve.
_LOGS = ("operator", "driver", "toolkit", "validator", "mps", "agent")
_LAST = ("--tail=25", "--all-containers", "--prefix")


@contextlib.contextmanager
def chart_bed(run: Run, what: str, image: Path) -> Iterator[ChartBed]:
    """The cluster, with the images imported."""
    cards = Hardware(run, f"{what}-cards", build(run.folder(f"{what}-nvml")), CARDS)
    with own_control_plane(run, what) as plane:
        plane.start_scheduler()
        node = Node(run, plane.api, f"{plane.name}-node", cards)
        node.start()
        try:
            node.import_images(image)
            node.make_images(
                *(cards.driver_image(version) for version in (DRIVER, NEWER_DRIVER)),
                cards.driver_image(BROKEN_DRIVER, fails=True),
                cards.toolkit_image(),
                cards.manager_image(),
            )
            node.name_image(images.PAUSE, PLAYER)
            yield ChartBed(plane, node, cards)
        finally:
            node.stop()


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod is ready."""
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


#: Objects that Kubernetes itself makes and changes.
_PASSING = ("events", "endpoints", "leases", "pods", "controllerrevisions", "componentstatuses", "podmetrics")


def snapshot(bed: ChartBed) -> dict[str, set[str]]:
    """What could be left behind: objects, what is on the node's object, and files of the node."""
    kinds = bed.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    wanted = ",".join(kind for kind in kinds if not kind.startswith(_PASSING))
    columns = "-o=custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name"
    lines = bed.kubectl("get", wanted, "-A", "--no-headers", columns).splitlines()
    ours = {" ".join(line.split()) for line in lines}
    node = bed.node_object()
    meta, spec, status = node["metadata"], node["spec"], node["status"]
    return {
        "objects": {line for line in ours if not _is_of_namespace(line, bed.namespace)},
        "labels": {f"{key}={value}" for key, value in meta["labels"].items()},
        "annotations": set(meta["annotations"]),
        "finalizers": set(meta.get("finalizers", ())),
        "taints": {json.dumps(taint, sort_keys=True) for taint in spec.get("taints", ())},
        "unschedulable": {str(spec.get("unschedulable", False))},
        # Of capacity kubelet takes a plugin's resources away five minutes after it has gone.
        "resources": {key for key, amount in status["allocatable"].items() if amount != "0"},
        "files": files(bed.node),
    }


def _is_of_namespace(line: str, namespace: str) -> bool:
    """What comes with a namespace, and stays with it: helm does not remove one that it has made."""
    return line in {
        f"Namespace <none> {namespace}",
        f"ServiceAccount {namespace} default",
        f"ConfigMap {namespace} kube-root-ca.crt",
    }


#: Folders of a node on which somebody else writes all the time.
_ELSEWHERE = (
    *("/run/containerd", "/run/netns", "/run/runc", "/run/cni-addresses", "/run/lock", "/run/machine-dev"),
    *("/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/var/lib/containerd", "/var/lib/cni"),
    *("/var/log/pods", "/var/log/containers", "/usr/local/nvidia"),
)


def files(node: Node) -> set[str]:
    """Files of the node where Shoal and NVIDIA's parts write."""
    skipped = [word for folder in _ELSEWHERE for word in ("-path", folder, "-prune", "-o")]
    folders = ["/run", "/var/lib", "/var/log", "/etc/cdi", "/etc/containerd", "/var/run/cdi/"]
    found = node.run(["find", *folders, *skipped, "(", "-type", "f", "-o", "-type", "s", ")", "-print"], check=False)
    own = ("kubelet_internal_checkpoint", "kubelet.sock", "_pods_state")  # kubelet's
    return {line for line in found.splitlines() if not line.endswith(own)}


def left_behind(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is there now and was not before."""
    return {kind: more for kind, there in after.items() if (more := there - before[kind])}


def run_share(bed: ChartBed, name: str, limits: dict[str, int], **more: Any) -> None:
    """A pod that sleeps on a share of a card."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": images.BUSYBOX,
                    "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", "sleep 1000000"],
                    "resources": {"limits": {resource: str(amount) for resource, amount in limits.items()}},
                }
            ],
            **more,
        },
    }
    bed.kubectl("apply", "-f", "-", input=json.dumps(pod))


def environment_of(bed: ChartBed, pod: str) -> dict[str, str]:
    """The environment that a pod's container was started with."""
    said = bed.kubectl("exec", pod, "--", "env")
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


def seconds_until(ready: Any, patience: float = 600) -> float:
    """How long it takes until something holds."""
    start = time.monotonic()
    wait_for(ready, "so far", patience)
    return time.monotonic() - start
