"""A node with cards: what its containers see of them, and the order in which NVIDIA's stand-ins make that so."""

import json
from collections.abc import Iterator, Mapping

import pytest

from tests.gpu.conftest import nvml_library  # noqa: F401 - fixture
from tests.testbed import hardware, images
from tests.testbed.apiserver import ApiServer
from tests.testbed.hardware import Hardware
from tests.testbed.node import Node
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

VERSION = "580.95.05"


@pytest.fixture(scope="module")
def cards(testbed_run: Run, nvml_library) -> Hardware:  # noqa: F811
    return Hardware(testbed_run, "hardware-cards", nvml_library, "2xT4")


@pytest.fixture(scope="module")
def node(testbed_run: Run, apiserver: ApiServer, cards: Hardware) -> Iterator[Node]:
    node = Node(testbed_run, apiserver, "hardware-node", cards)
    node.start()
    node.make_images(cards.driver_image(VERSION), cards.driver_image("0.0.1", fails=True), cards.toolkit_image())
    try:
        yield node
    finally:
        node.stop()
        apiserver.try_request("DELETE", f"/api/v1/nodes/{node.name}")


def run_pod(
    api: ApiServer,
    namespace: str,
    node: Node,
    name: str,
    image: str,
    *command: str,
    paths: Mapping[str, str] | None = None,
    runtime: str | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    folders = {f"v{number}": pair for number, pair in enumerate((paths or {}).items())}
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "securityContext": {"privileged": bool(paths)},
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "volumeMounts": [{"name": key, "mountPath": inside} for key, (inside, _) in folders.items()],
    }
    if command:
        container["command"] = list(command)
    spec = {
        "nodeName": node.name,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [
            {"name": key, "hostPath": {"path": outside, "type": "DirectoryOrCreate"}}
            for key, (_, outside) in folders.items()
        ],
        **({"runtimeClassName": runtime} if runtime else {}),
    }
    api.request("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec})


def test_cards_come_to_containers_in_nvidias_order(
    apiserver: ApiServer, namespace: str, node: Node, cards: Hardware
) -> None:
    apiserver.kubectl("apply", "-f", "-", input=json.dumps(RUNTIME_CLASS))
    sleep = ("sleep", "1000000")
    run_pod(apiserver, namespace, node, "plain", images.BUSYBOX, *sleep)
    asks = {"NVIDIA_VISIBLE_DEVICES": "all"}
    run_pod(apiserver, namespace, node, "asks", images.BUSYBOX, *sleep, runtime="nvidia", env=asks)
    run = {"/run/nvidia": "/run/nvidia"}
    run_pod(apiserver, namespace, node, "broken", f"{hardware.DRIVER_IMAGE}:0.0.1", paths=run)
    run_pod(apiserver, namespace, node, "driver", f"{hardware.DRIVER_IMAGE}:{VERSION}", paths=run)
    toolkit = f"{hardware.TOOLKIT_IMAGE}:{hardware.TOOLKIT_VERSION}"
    installs = {**run, "/usr/local/nvidia": "/usr/local/nvidia"}
    run_pod(apiserver, namespace, node, "toolkit", toolkit, paths=installs)

    def pod(name: str) -> dict:
        return dict(apiserver.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}"))

    def running(name: str) -> bool:
        return bool(pod(name)["status"]["phase"] == "Running")

    def said(name: str, *command: str) -> list[str]:
        return apiserver.kubectl("exec", "-n", namespace, name, "--", *command).split()

    wait_for(lambda: all(map(running, ("plain", "driver", "toolkit"))), "three that run")
    wait_for((cards.modules / "nvidia" / "refcnt").exists, "a driver that is loaded")
    assert said("plain", "cat", "/sys/module/nvidia/refcnt") == ["1"]
    assert said("plain", "ls", "/sys/bus/pci/devices") == ["0000:01:00.0", "0000:02:00.0"]
    assert said("plain", "cat", "/sys/bus/pci/devices/0000:01:00.0/vendor") == ["0x10de"]
    assert not [one for one in said("plain", "ls", "/dev") if one.startswith("nvidia")]

    def failed() -> bool:
        statuses = pod("broken")["status"].get("containerStatuses", [])
        return any(one.get("restartCount") for one in statuses)

    wait_for(failed, "a driver that fails")
    assert not running("asks"), "nothing has installed the runtime yet"
    assert not list(cards.nvidia.iterdir())
    libraries = node.run(["find", "/run/nvidia/driver", "-name", "libnvidia-ml.so.1"]).split()
    assert len(libraries) == 1
    write = "mkdir -p /run/nvidia/validations; echo NVIDIA_DRIVER_ROOT=/run/nvidia/driver > $1.new; mv $1.new $1"
    node.run(["sh", "-c", write, "sh", "/run/nvidia/validations/driver-ready"])
    wait_for(lambda: running("asks"), "a container with cards")
    devices = [one for one in said("asks", "ls", "/dev") if one.startswith("nvidia")]
    assert devices == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
    assert f"driver {VERSION}" in apiserver.kubectl(
        "exec", "-n", namespace, "asks", "--", "cat", "/usr/local/nvidia/lib64/nvml.txt"
    )
    apiserver.kubectl("delete", "pod", "-n", namespace, "driver")
    assert not node.run(["find", "/run/nvidia/driver", "-name", "libnvidia-ml.so.1"]), "it goes with its driver"
    assert not (cards.modules / "nvidia").exists()
    apiserver.kubectl("delete", "runtimeclass", "nvidia")


RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def test_a_driver_on_the_node_itself(node: Node, cards: Hardware) -> None:
    path = node.run(["sh", "-c", "echo /usr/lib/*-linux-gnu/libnvidia-ml.so.1"]).strip()
    assert node.run(["sh", "-c", f"test -e {path} || echo none"]).strip() == "none"
    cards.install_driver()
    assert node.run(["sh", "-c", f"test -e {path} && echo there"]).strip() == "there"
    cards.remove_driver()
    assert node.run(["sh", "-c", f"test -e {path} || echo none"]).strip() == "none"
