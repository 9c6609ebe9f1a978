"""A node with an agent on it, real or simulated, and pods that are bound to it with a choice of cards."""

import base64
import contextlib
import http.client
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.decisions import encode_decision
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import ContainerKind, Share
from tests.kubelet.pods import FOREVER, Pods, container
from tests.testbed.processes import TestbedError
from tests.testbed.waiting import wait_for

MEMORY = gpushare.RESOURCE_MEMORY
CLIENTS = keti.RESOURCE_MPS
WHOLE = nvidia.RESOURCE_GPU
#: Prints its environment and a last word, and ends.
SAY = "env; echo told=all"
#: The same, and stays.
TELL = f"{SAY}; {FOREVER}"
GIB = 1024


class Running(Protocol):
    """An agent, in this process or in one of its own."""

    port: int

    def stop(self) -> None:
        """End it as SIGTERM does."""

    def kill(self) -> None:
        """End it at once."""

    def reload(self, **settings: object) -> None:
        """Give it other settings."""


class Lab:
    """A node, its agent, and the pods of a test."""

    node: Any
    pods: Any

    def __init__(self, node: object, pods: Pods) -> None:
        self.node = node
        self.pods = pods
        self.settings: dict[str, Any] = {}
        self._agent: Running | None = None

    # The agent

    def launch(self, settings: Mapping[str, object]) -> Running:
        """Start an agent."""
        raise NotImplementedError

    def clean(self) -> None:
        """Run the agent's clean-up."""
        raise NotImplementedError

    def start(self, *, wait: bool = True, **settings: Any) -> None:
        """Start the agent, and wait until kubelet counts what it serves."""
        self.settings = settings
        self._agent = self.launch({"nodeName": self.node.name, **settings})
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the agent serves and kubelet has told the API server of it."""
        wait_for(lambda: self.asked("readyz")[0] == 200, "ready", 120)
        wait_for(lambda: self.gpus != (), "publishing cards")
        served = [name for name in (MEMORY, CLIENTS, WHOLE) if name in self.settings.get("resources", (MEMORY, WHOLE))]
        wait_for(lambda: all(self.allocatable(name) for name in served), "counted by kubelet", 120)

    def stop(self) -> None:
        """End the agent."""
        if self._agent is not None:
            self._agent.stop()
        self._agent = None

    def kill(self) -> None:
        """Kill the agent."""
        assert self._agent is not None
        self._agent.kill()
        self._agent = None

    def reload(self, **settings: object) -> None:
        """Give the agent other settings."""
        assert self._agent is not None
        self.settings = settings
        self._agent.reload(nodeName=self.node.name, **settings)

    def asked(self, path: str) -> tuple[int, str]:
        """What the agent answers over HTTP."""
        assert self._agent is not None
        connection = http.client.HTTPConnection("127.0.0.1", self._agent.port, timeout=60)
        try:
            connection.request("GET", f"/{path}")
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError as error:
            return 0, str(error)
        finally:
            connection.close()

    # The node

    @property
    def unit(self) -> MemoryUnit:
        """What the agent counts memory in."""
        return MemoryUnit(str(self.settings.get("memoryUnit", "GiB")))

    @property
    def object(self) -> dict:
        """The Node."""
        found: dict = self.pods.apiserver.request("GET", f"/api/v1/nodes/{self.node.name}")
        return found

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The cards the node publishes."""
        published = self.object["metadata"].get("annotations", {}).get(shoal.ANNOTATION_GPUS)
        return () if published is None else shoal.decode_gpus(published)

    def card(self, index: int) -> Gpu:
        """The card with an index."""
        return next(gpu for gpu in self.gpus if gpu.index == index)

    def allocatable(self, resource: str) -> int:
        """How many units kubelet counts; 0 for none."""
        return int(self.object["status"].get("allocatable", {}).get(resource, "0"))

    def specs(self) -> list[str]:
        """The agent's CDI files, drafts too."""
        return sorted(path.name for path in self.node.cdi.iterdir() if "shoal" in path.name)

    # Pods

    def allocation(self, cards: Mapping[str, Sequence[int]], shares: Mapping[str, Share], **kinds: str) -> Allocation:
        """Containers on cards by index."""
        return Allocation(
            self.node.name,
            tuple(
                ContainerAllocation(
                    name,
                    tuple(CardShare(self.card(index).uuid, index, shares[name]) for index in indices),
                    ContainerKind(kinds.get(name, "app")),
                )
                for name, indices in cards.items()
            ),
        )

    def annotations(self, manifest: dict, allocation: Allocation, assume_time_ns: int = 1) -> dict[str, str]:
        """A decision as the scheduler writes it."""
        names = [one["name"] for one in manifest["spec"]["containers"]]
        node = NodeGpus(self.node.name, self.gpus)
        return encode_decision(allocation, app_names=names, node=node, unit=self.unit, now_ns=assume_time_ns)

    def bind(self, manifest: dict, annotations: Mapping[str, str] | None = None) -> None:
        """Create a pod and bind it, with annotations in the same write, as the scheduler does."""
        name = manifest["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.pods.namespace}/pods"
        spec = {**manifest["spec"], "schedulerName": "nobody", "tolerations": [{"operator": "Exists"}]}
        self.pods.apiserver.request("POST", path, {**manifest, "spec": spec})
        binding = {
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "target": {"kind": "Node", "name": self.node.name},
        }
        self.pods.apiserver.request("POST", f"{path}/{name}/binding", binding)

    def place(self, manifest: dict, allocation: Allocation) -> None:
        """Bind a pod with an allocation."""
        self.bind(manifest, self.annotations(manifest, allocation))

    def env(self, pod: str, container_name: str = "main") -> dict[str, str]:
        """The environment a container printed."""
        return dict(line.split("=", 1) for line in self.told(pod, container_name).splitlines() if "=" in line)

    def told(self, pod: str, container_name: str = "main") -> str:
        """All that a container prints up to its last word: it runs a moment before it has said it.

        A kubelet that was just started again does not find a container's log for a moment.
        """
        read = ""

        def said_all() -> bool:
            nonlocal read
            with contextlib.suppress(TestbedError):
                read = str(self.pods.log(pod, container_name))
            return "told=all" in read

        wait_for(said_all, f"told all by {container_name} of {pod}")
        return read

    def visible(self, pod: str, container_name: str = "main") -> list[int]:
        """The cards a container sees, by index."""
        by_uuid = {gpu.uuid: gpu.index for gpu in self.gpus}
        listed = self.env(pod, container_name).get(nvidia.ENV_VISIBLE_DEVICES, "")
        return [by_uuid[uuid] for uuid in listed.split(",") if uuid]

    def given(self, pod: str) -> list[int]:
        """The cards that kubelet recorded for the one container of a pod, from an answer without CDI, by index."""
        uid = self.pods.get(pod)["metadata"]["uid"]
        (entry,) = [one for one in self.node.checkpoint()["PodDeviceEntries"] if one["PodUID"] == uid]
        response = api.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
        listed = response.envs[nvidia.ENV_VISIBLE_DEVICES].split(",")
        if response.mounts:
            assert listed == [nvidia.VISIBLE_DEVICES_DIRECTORY]
            listed = [mount.container_path.rpartition("/")[2] for mount in response.mounts]
        return [gpu.index for uuid in listed for gpu in self.gpus if gpu.uuid == uuid]

    def written(self, pod: str) -> list[int]:
        """The cards a pod's annotation names, by index."""
        found = shoal.decode_allocation(self.pods.get(pod)["metadata"]["annotations"][shoal.ANNOTATION_ALLOCATION])
        return [card.index for container in found.containers for card in container.cards]


def memory_pod(name: str, units: int, script: str = TELL, restart: str = "Never") -> dict:
    """A pod of one container that asks for memory."""
    spec = {
        "containers": [container("main", script, {MEMORY: units})],
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 1,
    }
    return {"metadata": {"name": name}, "spec": spec}
