"""A real node: kubelet and containerd in namespaces and a cgroup of their own, on the machine the tests run on.

It looks like a machine from inside: its own processes, network and file system, of which /var/lib/kubelet,
/var/lib/containerd and /var/run/cdi are folders of the run, so that a test can reach them, and a reboot keeps them.
It has no scheduler and no controllers: a pod comes with its `nodeName` set, or by a Binding.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.testbed import binaries, images, node_config
from tests.testbed.apiserver import ApiServer
from tests.testbed.cgroups import NodeCgroup
from tests.testbed.hardware import Hardware
from tests.testbed.namespaces import ENVIRONMENT, Namespaces, NodeProgram
from tests.testbed.network import NodeNetwork
from tests.testbed.processes import Run, TestbedError, tail


class Node:
    """One node. Start, stop and reboot it from the main thread: its programs die with the thread that started them."""

    def __init__(
        self,
        run: Run,
        apiserver: ApiServer,
        name: str,
        hardware: Hardware | None = None,
        *,
        gates: Mapping[str, bool] | None = None,
    ) -> None:
        """`gates` are kubelet's feature gates where they are not those of the API server."""
        self.name = name
        self._gates = apiserver.features.gates if gates is None else gates
        self._hardware = hardware
        self._apiserver = apiserver
        self._folder = run.folder(name)
        self._logs = run.folder("logs")
        self._disks = {
            node_config.KUBELET_ROOT: run.folder(name, "kubelet"),
            node_config.CONTAINERD_ROOT: run.folder(name, "containerd"),
            node_config.CDI: run.folder(name, "cdi"),
        }
        self._cgroup = NodeCgroup(run, name)
        self.network = NodeNetwork(run, name, apiserver.port, self._folder)
        self._namespaces = Namespaces(
            run,
            name,
            self._folder / "init-ready",
            self._disks | (hardware.binds if hardware else {}),
            covers=hardware.covers if hardware else None,
            devices=hardware.devices if hardware else None,
        )
        self.containerd = self._program(run, "containerd", self._containerd_command(run), self._containerd_answers)
        self.kubelet = self._program(run, "kubelet", self._kubelet_command(), self._kubelet_healthy)

    @property
    def address(self) -> str:
        """Its InternalIP, reachable from this machine."""
        return self.network.address

    @property
    def device_plugins(self) -> Path:
        """The folder of the plugins' sockets. What is there the node sees in /var/lib/kubelet/device-plugins."""
        return self._disks[node_config.KUBELET_ROOT] / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The socket of the PodResources API."""
        return self._disks[node_config.KUBELET_ROOT] / "pod-resources" / "kubelet.sock"

    @property
    def cdi(self) -> Path:
        """The folder the node sees as /var/run/cdi."""
        return self._disks[node_config.CDI]

    @property
    def cgroup(self) -> NodeCgroup:
        """The cgroup above all pods of the node."""
        return self._cgroup

    def start(self) -> None:
        """Start the node and wait until it is Ready."""
        if self._hardware:
            self._hardware.boot()
        self._cgroup.make()
        self._namespaces.start()
        self.network.start(self._namespaces)
        self.containerd.start()
        self.make_images(*images.STANDARD)
        before = self._heartbeat()
        self.kubelet.start()
        self.kubelet.wait_until(lambda: self._heartbeat() not in ("", before), "a Ready node")

    def stop(self) -> None:
        """End the node as if its power went, and remove what it had in the system. Its folders go with the run."""
        self._namespaces.kill()
        self.kubelet.release()
        self.containerd.release()
        self.network.stop()
        self._cgroup.remove()

    def reboot(self) -> None:
        """Processes, mounts, cgroups, network and tmpfs go; the disks stay. Returns when the node is Ready again."""
        self.stop()
        self.start()

    def run(self, argv: Sequence[str | Path], check: bool = True) -> str:
        """What a command prints when run in the node."""
        return self._namespaces.run(argv, check)

    def import_images(self, archive: Path) -> None:
        """Give containerd the images of an archive."""
        done = self._ctr("-n", "k8s.io", "images", "import", "--local", str(archive))
        if done.returncode:
            raise TestbedError(f"images could not be imported: {done.stdout}{done.stderr}\n{self.containerd.tail()}")

    def make_images(self, *wanted: images.Image) -> None:
        """Give containerd images made on the spot."""
        archive = self._folder / "images.tar"
        images.write_archive(archive, wanted)
        self.import_images(archive)
        archive.unlink()

    def name_image(self, old: str, new: str) -> None:
        """Give an image one more name."""
        done = self._ctr("-n", "k8s.io", "images", "tag", old, new)
        if done.returncode:
            raise TestbedError(f"{old} could not be named {new}: {done.stderr}")

    def status(self) -> dict:
        """The node's status, as the API server has it."""
        status: dict = self._apiserver.request("GET", f"/api/v1/nodes/{self.name}")["status"]
        return status

    def checkpoint(self) -> dict:
        """kubelet's own record of devices: the content of kubelet_internal_checkpoint."""
        data: dict = json.loads((self.device_plugins / "kubelet_internal_checkpoint").read_text())["Data"]
        return data

    def logs(self, lines: int = 60) -> str:
        """The end of what the programs of this node wrote: kubelet, containerd, an agent if a test has started one."""
        found = sorted(self._logs.glob(f"{self.name}-*.log"))
        return "\n".join(f"--- {path.stem}\n{tail(path, lines)}" for path in found)

    def _program(self, run: Run, name: str, command: Sequence[str | Path], ready: Callable[[], bool]) -> NodeProgram:
        environment = {**ENVIRONMENT, "PATH": f"{binaries.find('containerd').parent}:{ENVIRONMENT['PATH']}"}
        process = run.process(f"{self.name}-{name}", [], environment)
        return NodeProgram(self._namespaces, process, command, ready)

    def _containerd_command(self, run: Run) -> list[str | Path]:
        network = run.folder(self.name, "cni")
        (network / "10-pods.conflist").write_text(self.network.cni())
        configuration = self._folder / "containerd.toml"
        configuration.write_text(node_config.containerd(network, self._hardware.runtime if self._hardware else None))
        return [binaries.find("containerd"), "--config", configuration]

    def _kubelet_command(self) -> list[str | Path]:
        serving = self._apiserver.authority.server(f"kubelet-{self.name}", [self.address, self.name])
        settings = node_config.KubeletSettings(
            self.address, self._cgroup.path, self._apiserver.ca, serving, self._gates
        )
        configuration = self._folder / "kubelet.yaml"
        configuration.write_text(node_config.kubelet(settings))
        return [
            binaries.find("kubelet"),
            f"--config={configuration}",
            f"--kubeconfig={self._apiserver.kubeconfig(f'system:node:{self.name}', ('system:nodes',))}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--root-dir={node_config.KUBELET_ROOT}",
            "--v=2",
        ]

    def _containerd_answers(self) -> bool:
        return self._ctr("version").returncode == 0

    def _kubelet_healthy(self) -> bool:
        answer = self.run(["busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:10248/healthz"], check=False)
        return answer == "ok"

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self._namespaces.enter(binaries.find("ctr"), "-a", node_config.CONTAINERD_SOCKET, *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)

    def _heartbeat(self) -> str:
        """When kubelet told the API server that the node is Ready; empty as long as it has not.

        Nobody takes back what kubelet said last, so a node whose kubelet is dead still looks Ready.
        """
        code, node = self._apiserver.try_request("GET", f"/api/v1/nodes/{self.name}")
        conditions = node["status"].get("conditions", []) if code == 200 else []
        told = [one for one in conditions if one["type"] == "Ready" and one["status"] == "True"]
        return str(told[0]["lastHeartbeatTime"]) if told else ""
