"""Pods for the tests of kubelet: made on a node by name, watched until they are what the test waits for."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tests.testbed.apiserver import ApiServer
from tests.testbed.images import BUSYBOX
from tests.testbed.processes import TestbedError

#: Runs until it is told to end.
FOREVER = "trap 'exit 0' TERM; while true; do sleep 1; done"


def container(name: str, script: str = FOREVER, limits: Mapping[str, int] | None = None, **more: object) -> dict:
    """A container that runs a shell script and has these extended resources."""
    resources = {"limits": {resource: str(count) for resource, count in (limits or {}).items()}}
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": resources,
        **more,
    }


def pod(name: str, containers: Sequence[dict], init: Sequence[dict] = (), restart: str = "Never") -> dict:
    """A pod of these containers, with no node yet."""
    spec = {"containers": list(containers), "restartPolicy": restart, "terminationGracePeriodSeconds": 1}
    if init:
        spec["initContainers"] = list(init)
    return {"metadata": {"name": name}, "spec": spec}


class Named(Protocol):
    """A node, real or simulated: all that is needed of it here is its name."""

    name: str


class Pods:
    """The pods of one namespace."""

    def __init__(self, apiserver: ApiServer, namespace: str) -> None:
        self.apiserver = apiserver
        self.namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, manifest: dict, node: Named) -> None:
        """Create a pod on a node."""
        spec = {**manifest["spec"], "nodeName": node.name}
        self.apiserver.request("POST", self._path, {**manifest, "spec": spec})

    def get(self, name: str) -> dict:
        """The pod."""
        return self.apiserver.request("GET", f"{self._path}/{name}")

    def all(self) -> list[dict]:
        """All pods of the namespace."""
        items: list[dict] = self.apiserver.request("GET", self._path)["items"]
        return items

    def delete(self, name: str) -> None:
        """Delete a pod and wait until kubelet has let it go."""
        self.apiserver.request("DELETE", f"{self._path}/{name}")
        end = time.monotonic() + 300
        while self.apiserver.try_request("GET", f"{self._path}/{name}")[0] != 404:
            if time.monotonic() > end:
                raise TestbedError(f"pod {name} does not go:\n{self.describe(name)}")
            time.sleep(0.1)

    def delete_all(self) -> None:
        """Forget all pods at once; kubelet ends them when it notices."""
        self.apiserver.request("DELETE", f"{self._path}?gracePeriodSeconds=0")

    def wait(self, name: str, condition: Callable[[dict], bool], what: str, patience: float = 300) -> dict:
        """The pod once it fulfils a condition."""
        end = time.monotonic() + patience
        while not condition(found := self.get(name)):
            if time.monotonic() > end:
                raise TestbedError(f"pod {name} was not {what} after {patience:.0f} s:\n{self.describe(name)}")
            time.sleep(0.1)
        return found

    def wait_running(self, name: str, patience: float = 300) -> dict:
        """The pod once all of its containers run and are ready."""
        return self.wait(name, is_ready, "running", patience)

    def wait_phase(self, name: str, phase: str) -> dict:
        """The pod once it is in this phase."""
        return self.wait(name, lambda found: found["status"].get("phase") == phase, phase)

    def wait_event(self, name: str, condition: Callable[[dict], bool], what: str, patience: float = 300) -> dict:
        """An event of the pod that fulfils a condition."""
        end = time.monotonic() + patience
        while not (found := [event for event in self.events(name) if condition(event)]):
            if time.monotonic() > end:
                raise TestbedError(f"pod {name} had no event {what} after {patience:.0f} s:\n{self.describe(name)}")
            time.sleep(0.2)
        return found[0]

    def events(self, name: str) -> list[dict]:
        """The events of a pod."""
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name%3D{name}"
        items: list[dict] = self.apiserver.request("GET", path)["items"]
        return items

    def log(self, name: str, container_name: str, *options: str) -> str:
        """What a container wrote, read by kubectl through kubelet."""
        return self.apiserver.kubectl("-n", self.namespace, "logs", name, "-c", container_name, *options)

    def describe(self, name: str) -> str:
        """What an error message should say about a pod."""
        lines = [f"{event.get('reason')}: {event.get('message')}" for event in self.events(name)]
        return "\n".join([*lines, json.dumps(self.get(name)["status"])])


def is_ready(found: dict) -> bool:
    """Whether the pod's condition Ready is true."""
    conditions = found["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def container_status(found: dict, name: str) -> dict:
    """The status of one container, empty as long as there is none."""
    status = found["status"]
    known = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    return next((one for one in known if one["name"] == name), {})
