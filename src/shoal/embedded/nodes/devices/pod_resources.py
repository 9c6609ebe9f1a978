"""kubelet's PodResources service, v1: which container has which devices, as monitors and agents ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import grpc
import grpc.aio

from shoal.embedded.nodes.claims.checkpoint import ClaimInfo
from shoal.embedded.nodes.claims.manager import ClaimManager
from shoal.embedded.nodes.devices.accounting import Accounts
from shoal.embedded.nodes.devices.checkpoint import NO_NUMA, Entry
from shoal.embedded.nodes.devices.plugins import socket_address
from shoal.embedded.nodes.pods.states import containers_of
from shoal.embedded.rules.claims import has_claims
from shoal.embedded.store import Object
from shoal.kubelet.api import podresources_pb2 as api
from shoal.kubelet.api import podresources_pb2_grpc as rpc
from shoal.model.request import ContainerKind

#: By container and resource.
_Holdings = dict[str, Mapping[str, Entry]]


class PodResources(rpc.PodResourcesListerServicer):
    """The service of one node. `pods` gives the pods that are active on it."""

    def __init__(
        self,
        socket: Path,
        accounts: Callable[[], Accounts],
        claims: Callable[[], ClaimManager],
        pods: Callable[[], Iterable[Object]],
    ) -> None:
        self._socket = socket
        self._accounts = accounts
        self._claims = claims
        self._pods = pods
        self._server: grpc.aio.Server | None = None
        #: By pod, what its containers have, and the same as a message.
        self._told: dict[str, tuple[_Holdings, api.PodResources]] = {}

    async def start(self) -> None:
        """Serve."""
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        # A node can have more devices than fit into a message of the usual size.
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(socket_address(self._socket))
        await self._server.start()

    async def stop(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def List(  # noqa: N802 - the wire's name
        self, request: api.ListPodResourcesRequest, context: object
    ) -> api.ListPodResourcesResponse:
        """All active pods."""
        pods = list(self._pods())
        answer = api.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])
        if len(self._told) > len(pods):
            active = {pod["metadata"]["uid"] for pod in pods}
            self._told = {uid: told for uid, told in self._told.items() if uid in active}
        return answer

    async def Get(  # noqa: N802 - the wire's name
        self,
        request: api.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[api.GetPodResourcesRequest, api.GetPodResourcesResponse],
    ) -> api.GetPodResourcesResponse:
        """One pod."""
        key = (request.pod_namespace, request.pod_name)
        found = [pod for pod in self._pods() if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == key]
        if not found:
            why = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, why)
        return api.GetPodResourcesResponse(pod_resources=self._pod(found[0]))

    async def GetAllocatableResources(  # noqa: N802 - the wire's name
        self, request: api.AllocatableResourcesRequest, context: object
    ) -> api.AllocatableResourcesResponse:
        """All healthy devices."""
        accounts = self._accounts()
        answer = api.AllocatableResourcesResponse()
        for resource, ids in accounts.healthy.items():
            for one in sorted(ids):
                # In place: there may be hundreds of thousands.
                entry = answer.devices.add(resource_name=resource, device_ids=[one])
                for numa in accounts.devices[resource][one].numa:
                    entry.topology.nodes.add(ID=numa)
        return answer

    def _pod(self, pod: Object) -> api.PodResources:
        """A pod that uses claims is put together anew each time: few do, and few devices are in them."""
        if not has_claims(pod):
            return self._with_devices(pod)
        message = api.PodResources()
        message.CopyFrom(self._with_devices(pod))
        specs = {one["name"]: one for _, one in containers_of(pod["spec"])}
        for container in message.containers:
            for info in self._claims().of_container(pod, specs[container.name]):
                container.dynamic_resources.append(_dynamic(info))
        return message

    def _with_devices(self, pod: Object) -> api.PodResources:
        meta, accounts = pod["metadata"], self._accounts()
        holdings = {
            # Ordinary init containers are not listed.
            one["name"]: accounts.held_by(meta["uid"], one["name"])
            for kind, one in containers_of(pod["spec"])
            if kind is not ContainerKind.INIT
        }
        told = self._told.get(meta["uid"])
        if told is None or told[0] != holdings:
            containers = [api.ContainerResources(name=name, devices=_devices(held)) for name, held in holdings.items()]
            message = api.PodResources(name=meta["name"], namespace=meta["namespace"], containers=containers)
            told = self._told[meta["uid"]] = ({name: dict(held) for name, held in holdings.items()}, message)
        return told[1]


def _dynamic(info: ClaimInfo) -> api.DynamicResource:
    """A claim as kubelet lists it: with each device go the CDI devices of those before it, too."""
    message = api.DynamicResource(claim_name=info.name, claim_namespace=info.namespace)
    for driver, devices in info.drivers.items():
        names: list[api.CDIDevice] = []
        for one in devices:
            names += [api.CDIDevice(name=name) for name in one.cdi]
            message.claim_resources.add(
                cdi_devices=names,
                driver_name=driver,
                pool_name=one.pool,
                device_name=one.device,
                share_id=one.share,
            )
    return message


def _devices(held: Mapping[str, Entry]) -> list[api.ContainerDevices]:
    """An entry for each device, as kubelet lists them."""
    return [
        api.ContainerDevices(
            resource_name=resource,
            device_ids=[one],
            topology=None if numa == NO_NUMA else api.TopologyInfo(nodes=[api.NUMANode(ID=numa)]),
        )
        for resource, entry in held.items()
        for numa, ids in entry.devices.items()
        for one in ids
    ]
