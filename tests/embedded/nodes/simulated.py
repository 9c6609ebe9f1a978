"""A simulated cluster behind what the tests of the real kubelet use, so that the same tests run on both.

All of it lives on the event loop of the device plugins; the tests are plain functions that wait.
"""

import http.client
import json
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import NodeDescription
from shoal.embedded.nodes.kubelet import Kubelet
from shoal.embedded.nodes.pods.states import Timing
from shoal.kubelet import constants
from tests.kubelet.device_plugin import PluginLoop
from tests.testbed.processes import TestbedError

#: As the test bed sets up the real kubelet, where that can be set; its retries are faster.
TIMING = Timing(retry=1.0, report=1.0)


class SimulatedServer:
    """The embedded API server in this process."""

    def __init__(self, loop: PluginLoop, directory: Path) -> None:
        self.loop = loop
        self.directory = directory
        self.api = loop.run(self._start(directory))
        self._tls = ssl.create_default_context(cafile=str(self.api.ca))

    async def _start(self, directory: Path) -> EmbeddedApi:
        return await EmbeddedApi(directory / "api").__aenter__()

    def stop(self) -> None:
        """End it."""
        self.loop.run(self.api.__aexit__(None, None, None))

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> dict:
        """One request; an answer that is an error is one."""
        status, answer = self.try_request(method, path, body, content_type)
        if status >= 400:
            raise TestbedError(f"{method} {path}: {status} {answer.get('message', answer)}")
        return answer

    def try_request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, dict]:
        """As `request`, with the status instead of an exception."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.api.port, context=self._tls, timeout=60)
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {self.api.token}"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            try:
                return response.status, json.loads(text)
            except ValueError:
                return response.status, {"message": text.decode(errors="replace")}
        finally:
            connection.close()

    @contextmanager
    def following(self, namespace: str, name: str, container: str) -> Iterator[http.client.HTTPResponse]:
        """A container's log from now on. Its headers have come, so the server is at it."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.api.port, context=self._tls, timeout=60)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}&follow=true"
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.api.token}"})
            yield connection.getresponse()
        finally:
            connection.close()

    def create_namespace(self, name: str) -> None:
        """A namespace in which pods can be made at once."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def kubectl(self, *arguments: str, **_: object) -> str:
        """Just `-n NAMESPACE logs`, so that no kubectl is needed."""
        space, namespace, logs, *rest = arguments
        if (space, logs) != ("-n", "logs"):
            raise TestbedError(f"not played here: kubectl {' '.join(arguments)}")
        if rest[0] == "-l":
            selector = quote(rest[1])
            pods = self.request("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
            return "".join(
                f"[pod/{pod['metadata']['name']}/{one['name']}] {line}\n"
                for pod in pods
                for one in pod["spec"]["containers"]
                for line in self.log(namespace, pod["metadata"]["name"], one["name"]).splitlines()
            )
        return self.log(namespace, rest[0], rest[2])

    def log(self, namespace: str, pod: str, container: str, options: str = "") -> str:
        """What a container wrote."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}{options}"
        connection = http.client.HTTPSConnection("127.0.0.1", self.api.port, context=self._tls, timeout=60)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.api.token}"})
            response = connection.getresponse()
            text = response.read().decode()
            if response.status != 200:
                raise TestbedError(f"GET {path}: {response.status} {text}")
            return text
        finally:
            connection.close()


class _Program:
    """The kubelet of a simulated node, to be ended and started."""

    def __init__(self, loop: PluginLoop, kubelet: Kubelet) -> None:
        self._loop = loop
        self._kubelet = kubelet
        self._said = _Said()

    def start(self) -> None:
        """Start it again."""
        self._loop.run(self._kubelet.start())

    def stop(self) -> None:
        """End it."""
        self._loop.run(self._kubelet.stop())

    kill = stop

    def restart(self) -> None:
        """Both."""
        self._loop.run(self._kubelet.restart())

    def tail(self, _: int = 0) -> str:
        """What it has logged."""
        return "\n".join(self._said.lines)


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("shoal.embedded.nodes").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class SimulatedNode:
    """One node, behind what `tests.testbed.node.Node` offers."""

    def __init__(self, server: SimulatedServer, nodes: Nodes, spec: NodeDescription) -> None:
        self.name = spec.name
        self.inner = server.loop.run(nodes.add(spec))
        self.kubelet = _Program(server.loop, self.inner)
        self.address = self.inner.host.address
        self.device_plugins = self.inner.host.folders.device_plugins
        self.pod_resources = self.inner.host.folders.pod_resources
        self.cdi = self.inner.host.folders.cdi[1]
        self._server = server
        self._nodes = nodes

    def status(self) -> dict:
        """The node's status, as the API server has it."""
        status: dict = self._server.request("GET", f"/api/v1/nodes/{self.name}")["status"]
        return status

    def checkpoint(self) -> dict:
        """The content of the checkpoint."""
        data: dict = json.loads((self.device_plugins / constants.CHECKPOINT).read_text())["Data"]
        return data

    def end_container(self, pod: dict, container: str, code: int) -> None:
        """Have a container end."""

        async def end() -> None:
            self.inner.end_container(pod["metadata"]["uid"], container, code)

        self._server.loop.run(end())

    def reboot(self) -> None:
        """Restart the machine."""
        self._server.loop.run(self.inner.reboot())

    def stop(self) -> None:
        """End it for good."""
        self._server.loop.run(self._nodes.remove(self.name))
        self._server.try_request("DELETE", f"/api/v1/nodes/{self.name}")
