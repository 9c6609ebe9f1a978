"""A DRA driver as small as can be, and claims for it: it writes down all that kubelet asks.

Nobody schedules: a test allocates a claim, reserves it and puts its pod on the node.
"""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from shoal.kubelet.dra import ClaimRef, DeviceHealth, DraDriver, Prepared, PreparedDevice
from shoal.kubelet.host_paths import HostPaths
from tests.kubelet.device_plugin import PluginLoop
from tests.kubelet.pods import FOREVER, Pods, container
from tests.testbed.node import Node
from tests.testbed.waiting import wait_for

RESOURCES = "/apis/resource.k8s.io/v1"
CDI_KIND = "shoal.test/claim"
#: Prints what the driver has given to it.
TELL = f"echo $GIVEN; {FOREVER}"


class ClaimDriver:
    """One driver on one node. Each request of a claim is a device that gives containers the variable GIVEN."""

    def __init__(self, loop: PluginLoop, node: Node, name: str) -> None:
        self.name = name
        #: The claims of each call, by name, in the order of kubelet's calls.
        self.prepared: list[list[str]] = []
        self.taken_back: list[list[str]] = []
        #: By claim, its requests; what a claim is refused with, if anything; what is said of the devices.
        self.requests: dict[str, list[str]] = {}
        self.failure = ""
        self.fault = ""
        self._loop = loop
        self._node = node
        self._task: asyncio.Task[None] | None = None
        root = node.device_plugins.parent
        paths = HostPaths(
            plugins_registry=root / "plugins_registry", plugins=root / "plugins", host_plugins=root / "plugins"
        )
        self.sockets = paths.driver(name)
        self.server = DraDriver(
            name, self.sockets, prepare=self._prepare, unprepare=self._unprepare, health=self._health
        )

    def start(self) -> None:
        """Serve, and wait until kubelet knows the driver."""

        async def begin() -> None:
            self._task = asyncio.create_task(self.server.run())

        self._loop.run(begin())
        wait_for(self.server.registered.is_set, "registered")

    def stop(self) -> None:
        """Serve no longer."""

        async def end() -> None:
            if self._task is not None:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
            self._task = None

        self._loop.run(end())

    def fail(self, fault: str) -> None:
        """Tell kubelet that all devices have this fault; none if it is empty."""

        async def tell() -> None:
            self.fault = fault
            self.server.tell_health()

        self._loop.run(tell())

    async def _prepare(self, claims: Sequence[ClaimRef], seconds: float) -> dict[str, Prepared]:
        self.prepared.append(sorted(claim.name for claim in claims))
        if self.failure:
            return {claim.uid: Prepared(error=self.failure) for claim in claims}
        return {claim.uid: Prepared(tuple(self._device(claim, one) for one in self._of(claim))) for claim in claims}

    def _of(self, claim: ClaimRef) -> list[str]:
        return self.requests.get(claim.name, ["gpu"])

    def _device(self, claim: ClaimRef, request: str) -> PreparedDevice:
        device = f"{claim.uid}-{request}"
        edits = {"env": [f"GIVEN={claim.name}/{request}"]}
        spec = {"cdiVersion": "0.6.0", "kind": CDI_KIND, "devices": [{"name": device, "containerEdits": edits}]}
        draft = self._node.cdi / f".{device}"
        draft.write_text(json.dumps(spec))
        draft.rename(self._path(claim, request))
        return PreparedDevice((request,), self._node.name, f"device-{request}", (f"{CDI_KIND}={device}",))

    def _path(self, claim: ClaimRef, request: str) -> Path:
        return Path(self._node.cdi / f"{CDI_KIND.replace('/', '-')}-{claim.uid}-{request}.json")

    async def _unprepare(self, claims: Sequence[ClaimRef]) -> dict[str, str]:
        self.taken_back.append(sorted(claim.name for claim in claims))
        for claim in claims:
            for one in self._of(claim):
                self._path(claim, one).unlink(missing_ok=True)
        return {}

    def _health(self) -> list[DeviceHealth]:
        devices = {f"device-{one}" for requests in [["gpu"], *self.requests.values()] for one in requests}
        return [DeviceHealth(self._node.name, one, not self.fault, self.fault) for one in sorted(devices)]


class Claims:
    """The claims of one namespace."""

    def __init__(self, pods: Pods, node: Node) -> None:
        self._pods = pods
        self._node = node
        self._path = f"{RESOURCES}/namespaces/{pods.namespace}/resourceclaims"

    def create(self, name: str, *requests: str) -> str:
        """A claim with these requests, of which nothing is allocated; its UID."""
        wanted = [{"name": one, "exactly": {"deviceClassName": "any"}} for one in requests or ("gpu",)]
        spec = {"devices": {"requests": wanted}}
        made = self._pods.apiserver.request("POST", self._path, {"metadata": {"name": name}, "spec": spec})
        return str(made["metadata"]["uid"])

    def allocate(self, name: str, driver: str, *pods: str) -> None:
        """Allocate a claim on the node, and reserve it for pods."""
        found = self._pods.apiserver.request("GET", f"{self._path}/{name}")
        results = [
            {"request": one["name"], "driver": driver, "pool": self._node.name, "device": f"device-{one['name']}"}
            for one in found["spec"]["devices"]["requests"]
        ]
        users = [{"resource": "pods", "name": pod, "uid": self._pods.get(pod)["metadata"]["uid"]} for pod in pods]
        found["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        self._pods.apiserver.request("PUT", f"{self._path}/{name}/status", found)

    def bind(self, pod: str) -> None:
        """Put a pod on the node."""
        path = f"/api/v1/namespaces/{self._pods.namespace}/pods/{pod}/binding"
        target = {"kind": "Node", "name": self._node.name}
        self._pods.apiserver.request("POST", path, {"metadata": {"name": pod}, "target": target})

    def run(self, manifest: dict, driver: str) -> None:
        """Create a pod, allocate and reserve all claims that it names, and put it on the node."""
        name = manifest["metadata"]["name"]
        self.wait_for_node(manifest)
        for entry in manifest["spec"]["resourceClaims"]:
            self.allocate(entry["resourceClaimName"], driver, name)
        self.bind(name)

    def wait_for_node(self, manifest: dict) -> None:
        """Create a pod that waits for a node."""
        spec = {**manifest["spec"], "schedulerName": "nobody", "tolerations": [{"operator": "Exists"}]}
        path = f"/api/v1/namespaces/{self._pods.namespace}/pods"
        self._pods.apiserver.request("POST", path, {**manifest, "spec": spec})


def claim_pod(name: str, *claims: str, containers: Sequence[dict] = ()) -> dict:
    """A pod that names claims; unless told otherwise its one container uses all of them."""
    main = {**container("main", TELL), "resources": {"claims": [{"name": one} for one in claims]}}
    spec = {
        "resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims],
        "containers": list(containers) or [main],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
    }
    return {"metadata": {"name": name}, "spec": spec}
