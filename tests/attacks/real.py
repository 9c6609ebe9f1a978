"""A real API server with controllers, `shoal scheduler` and `shoal agent` with the rights they are deployed with, and a
real kubelet as an arena. Cards are those of the stand-in for NVIDIA's library.

What containers have is read from their processes, so it is known as well when nobody has an object of them any more.
"""

import asyncio
import json
import os
import re
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from click.testing import CliRunner

from shoal.agent.limits import cgroup
from shoal.cli.main import main
from shoal.model.contract import nvidia
from tests.agent.hook import build
from tests.agent.real.conftest import RealLab, describe_machine
from tests.agent.real.test_deploy import documents, kubeconfig_of
from tests.agent.real.walls import inside
from tests.attacks.arena import Given, Object, Tenant, booked_of
from tests.kubelet.pods import FOREVER, Pods, container
from tests.suites.connection import Connection
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import service_account, standalone_options
from tests.testbed.control_plane import ControlPlane
from tests.testbed.node import Node
from tests.testbed.nvml.shim import Shim
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

POLICIES = Path(__file__).parents[2] / "deploy" / "admission"
CARDS = "2xA30"
#: What a container is called, in its own environment.
NAME = "CONTAINER"
_CGROUP = re.compile(r"/pod([0-9a-f-]{36})/([0-9a-f]{64})")
_FIRST = re.compile(r"^NSpid:.*\t1$", re.MULTILINE)
_STUBBORN = "trap '' TERM; while true; do sleep 1; done"


class RealArena:
    """One node with two cards of 24 GiB each."""

    watches = False

    def __init__(self, run: Run, nvml_library: Path, folder: Path) -> None:
        self.plane = ControlPlane(run, f"attacked-{uuid.uuid4().hex[:6]}")
        server = self.plane.api
        self.api = Connection(server.kubeconfig())
        self._node = Node(run, server, f"{self.plane.name}-node")
        self._node.start()
        self.here = self._node.name
        self.nodes: Sequence[str] = [self.here]
        server.create_namespace("own")
        for document in documents():
            if document["kind"] != "DaemonSet":
                server.kubectl("apply", "-f", "-", input=json.dumps(document))
        shim = Shim(nvml_library, folder)
        shim.write(describe_machine(CARDS))
        self.lab = inside(RealLab(self._node, Pods(server, "own"), run, shim, {}))
        wait_for(lambda: self._account("shoal-agent"), "there: the agent's account")
        self.lab.kubeconfig = kubeconfig_of(self.lab, folder)
        self._hook = build(folder / cgroup.PROGRAM)
        self.lab.start(limitHook=str(self._hook))
        rights = asyncio.run(service_account(server))
        self.scheduler = SchedulerProcess(run, "attacked-scheduler", rights, standalone_options())
        self.scheduler.start()
        self._probe = Tenant(self.api, "probe")
        self._on = False
        #: Namespace and name of pods by UID, once they were seen.
        self._names: dict[str, tuple[str, str]] = {}

    def _account(self, name: str) -> bool:
        return self.api.request("GET", f"/api/v1/namespaces/kube-system/serviceaccounts/{name}").status == 200

    def stop(self) -> None:
        """End it."""
        self.scheduler.stop()
        self.lab.stop()
        self._node.stop()
        self.plane.stop()

    def container(self, name: str, *, stubborn: bool = False) -> Object:
        made = container(name, _STUBBORN if stubborn else FOREVER)
        return {key: made[key] for key in ("name", "image", "imagePullPolicy", "command")} | {
            "env": [{"name": NAME, "value": name}]
        }

    def policies(self, *, on: bool) -> None:
        if on is self._on:
            return
        if on:
            self.plane.api.kubectl("apply", "-k", str(POLICIES))
        else:
            self.plane.api.kubectl("delete", "-k", str(POLICIES), "--ignore-not-found")
        # The API server looks at its policies now and then, and takes them over one by one.
        wait_for(lambda: self._refuses() == {on}, f"{'in force' if on else 'gone'}: the policies")
        self._on = on

    def _refuses(self) -> set[bool]:
        """Whether pods and templates that ask for two kinds of GPU, have a record or choose their cards are refused."""
        plain = self.container("main")
        greedy = plain | {"resources": {"limits": {"aliyun.com/gpu-mem": "1", "nvidia.com/gpu": "1"}}}
        choosing = plain | {"env": [{"name": nvidia.ENV_VISIBLE_DEVICES, "value": "all"}]}
        deployments = f"/apis/apps/v1/namespaces/{self._probe.namespace}/deployments"
        found = set()
        for container_, annotations in ((greedy, {}), (plain, {"UUID": "x"}), (choosing, {})):
            pod = {"metadata": {"name": "probe", "annotations": annotations}, "spec": {"containers": [container_]}}
            template = {**pod, "metadata": {"labels": {"app": "probe"}, "annotations": annotations}}
            spec = {"selector": {"matchLabels": {"app": "probe"}}, "template": template}
            for path, manifest in (("pods", pod), (deployments, {"metadata": {"name": "probe"}, "spec": spec})):
                answer = self._probe.send("POST", f"{path}?dryRun=All", manifest)
                assert answer.status in (201, 403, 422), answer
                found.add(answer.status != 201)
        return found

    def given(self) -> list[Given]:
        found = []
        for pid, uid, container_id in containers(self._node.cgroup.path):
            env = environment(pid)
            listed = [uuid for uuid in env.get(nvidia.ENV_VISIBLE_DEVICES, "").split(",") if uuid.startswith("GPU-")]
            if listed and NAME in env:
                namespace, pod = self._name_of(uid)
                limits = {uuid: self._limit(uuid, container_id) for uuid in listed}
                found.append(Given(self.here, namespace, pod, uid, env[NAME], limits))
        return found

    def _name_of(self, uid: str) -> tuple[str, str]:
        if uid not in self._names:
            for pod in self.api.request("GET", "/api/v1/pods").body["items"]:
                self._names[pod["metadata"]["uid"]] = pod["metadata"]["namespace"], pod["metadata"]["name"]
        return self._names.get(uid, ("?", uid))

    def _limit(self, uuid: str, container_id: str) -> int | None:
        index = next(gpu.index for gpu in self.lab.gpus if gpu.uuid == uuid)
        limits = [line.split() for line in self.lab.shim.told() if line.startswith(f"memory_limit {index} ")]
        own = [int(hard) for _, _, _, hard, path in limits if path.endswith(f"/{container_id}")]
        return own[-1] // 2**20 if own else None

    def first_processes(self, uid: str, container: str) -> list[int]:
        """The first process of a container, if it runs."""
        found = [pid for pid, pod, _ in containers(self._node.cgroup.path) if pod == uid]
        return [pid for pid in found if environment(pid).get(NAME) == container]

    def crash(self, namespace: str, pod: str) -> None:
        for pid, uid, _ in containers(self._node.cgroup.path):
            if self._name_of(uid) == (namespace, pod) and environment(pid).get(NAME) == "main":
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError(f"{namespace}/{pod} does not run")

    def restart_agents(self) -> None:
        self.lab.kill()
        self.lab.start(**self.lab.settings)

    def booked(self) -> dict[tuple[str, int], int]:
        return booked_of(self.scheduler.metrics())

    def inspect(self) -> Object:
        asked = ["inspect", "-o", "json", "--kubeconfig", str(self.plane.api.kubeconfig())]
        result = CliRunner().invoke(main, asked)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))


def containers(above: str) -> Iterator[tuple[int, str, str]]:
    """The first process of every container below a cgroup, with the pod's UID and the container's ID.

    It is number 1 of its PID namespace; outside it may have a higher number than those it started.
    """
    for path in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        with suppress(OSError):
            groups = (path / "cgroup").read_text()
            match = _CGROUP.search(groups)
            if match is not None and f":{above}/" in groups and _FIRST.search((path / "status").read_text()):
                yield int(path.name), match[1], match[2]


def environment(pid: int) -> dict[str, str]:
    """The environment that a process began with."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(word.split("=", 1) for word in words if "=" in word)
    return {}
