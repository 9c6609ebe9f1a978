"""Nodes whose agent can build walls around shares: what it needs for that, and how to see what it did."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.limits import cgroup
from shoal.model.contract import gpushare, keti, nvidia, shoal
from tests.agent.hook import build
from tests.agent.lab import CLIENTS, MEMORY, TELL, WHOLE
from tests.agent.real.conftest import NewLab, RealLab
from tests.kubelet.pods import container, container_status
from tests.testbed.cgroups import hierarchies
from tests.testbed.mps.daemons import STAND_IN as CONTROL
from tests.testbed.waiting import wait_for

#: Where a pod mounts the host's directory of MPS, and prints what it finds there.
PIPE = keti.MPS_DIRECTORY

Walled = Callable[..., RealLab]


@pytest.fixture(scope="session")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hook's program."""
    return build(tmp_path_factory.mktemp("hook") / cgroup.PROGRAM)


@pytest.fixture
def walled(new_lab: NewLab, hook: Path) -> Walled:
    """Nodes whose agent can limit cgroups."""

    def make(cards: object = "2xA30", **settings: Any) -> RealLab:
        lab = inside(new_lab(cards, start=False))
        lab.start(limitHook=str(hook), **settings)
        return lab

    return make


@pytest.fixture
def with_mps(new_lab: NewLab) -> Iterator[Walled]:
    """Nodes whose agent has an MPS control program and no other means, with a directory of MPS of their own."""
    made: list[RealLab] = []
    point = Path(PIPE)
    point.mkdir(exist_ok=True)

    def make(isolation: str, **settings: Any) -> RealLab:
        lab = inside(new_lab("2xA30", start=False))
        made.append(lab)
        lab.node.run(["mount", "-t", "tmpfs", "tmpfs", point])
        lab.environment["MPS_STAND_IN_OF"] = str(os.getpid())
        lab.start(isolation=isolation, mpsProgram=str(CONTROL), resources=[MEMORY, CLIENTS, WHOLE], **settings)
        return lab

    yield make
    for lab in made:
        lab.stop()
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(daemon_pid(lab), signal.SIGKILL)
    with suppress(OSError):
        point.rmdir()


def inside(lab: object) -> RealLab:
    """Let the agent see the node's folders as a DaemonSet on the host does, and cgroups of version 2 alone."""
    assert isinstance(lab, RealLab)
    (unified,) = [folder for folder in hierarchies() if (folder / "cgroup.controllers").exists()]
    script = 'mount -t proc proc /proc && mount --bind "$0" /sys/fs/cgroup && exec "$@"'
    namespace = f"--mount=/proc/{lab.node.kubelet.pid}/ns/mnt"
    lab.within = ["nsenter", namespace, "--", "unshare", "--mount", "sh", "-c", script, unified]
    return lab


def on_node(lab: RealLab, path: str) -> Path:
    """A path of the node."""
    return Path(f"/proc/{lab.node.kubelet.pid}/root{path}")


def own_id(found: dict, name: str = "main") -> str:
    """The ID that the runtime has given a container."""
    return str(container_status(found, name)["containerID"]).rpartition("/")[2]


def wait_marked(lab: RealLab, pod: str, tier: str) -> None:
    """Wait until a pod says what keeps it to its share; that comes together with gpushare's mark."""

    def marked() -> bool:
        annotations = lab.pods.get(pod)["metadata"]["annotations"]
        assigned = annotations.get(gpushare.ANNOTATION_ASSIGNED)
        assert (assigned == "true") is (shoal.ANNOTATION_ISOLATION in annotations) or assigned is None
        return bool(annotations.get(shoal.ANNOTATION_ISOLATION) == tier)

    wait_for(marked, f"marked as {tier}")


# Cgroups


def watching(lab: RealLab, manifest: dict) -> dict:
    """The pod, with containers whose first act is to print what the driver has been told so far."""
    for one in manifest["spec"]["containers"]:
        one["command"][-1] = f"cat /machine/nvml.told; {one['command'][-1]}"
        one["volumeMounts"] = [{"name": "machine", "mountPath": "/machine"}]
    volumes = [{"name": "machine", "hostPath": {"path": str(lab.shim.directory)}}]
    return {**manifest, "spec": {**manifest["spec"], "volumes": volumes}}


def seen_limits(lab: RealLab, pod: str, name: str, container_id: str) -> list[tuple[int, int]]:
    """Card and bytes of the limits that a container's own cgroup had before the container's first act."""
    words = [line.split() for line in lab.told(pod, name).splitlines() if line.startswith("memory_limit ")]
    return [(int(card), int(hard)) for _, card, soft, hard, path in words if path.endswith(f"/{container_id}")]


# MPS


def client(name: str, units: int, compute: int = 0) -> dict:
    """A container that asks for memory, and prints all that it sees of MPS."""
    limits = {MEMORY: units, **({gpushare.RESOURCE_COMPUTE: compute} if compute else {})}
    return container(name, f"find {PIPE} | sed s/^/seen=/; {TELL}", limits)


def mounting(manifest: dict) -> dict:
    """The pod, with the host's directory of MPS mounted, as KETI's manifests have it."""
    for one in manifest["spec"]["containers"]:
        one["volumeMounts"] = [{"name": "mps", "mountPath": PIPE}]
    volumes = [{"name": "mps", "hostPath": {"path": PIPE}}]
    return {**manifest, "spec": {**manifest["spec"], "volumes": volumes, "hostIPC": True}}


def own_namespace(lab: RealLab, pod: str, name: str) -> str:
    """A container's MPS namespace, and that it sees no other."""
    place = lab.env(pod, name)[nvidia.ENV_MPS_PIPE_DIRECTORY]
    seen = [line.removeprefix("seen=") for line in lab.told(pod, name).splitlines() if line.startswith("seen=")]
    assert seen == [PIPE, str(Path(place).parent), place]
    return Path(place).name


def told(lab: RealLab) -> list[str]:
    """What the MPS daemon was told."""
    return [" ".join(json.loads(line)) for line in on_node(lab, f"{PIPE}/told").read_text().splitlines()]


def daemon_pid(lab: RealLab) -> int:
    """The PID of the MPS daemon."""
    return int(on_node(lab, f"{PIPE}/nvidia-cuda-mps-control.pid").read_text())
