"""Asks kubelet's PodResources who has which devices: a second witness beside kubelet's record on disk.

Calls that come while one is on its way share the next one: kubelet serves a hundred a second and refuses the rest. An
answer serves everybody who asks about devices that were given before it was asked for, so it can be had ahead of time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from shoal.kubelet import constants
from shoal.kubelet.api import podresources_pb2 as api
from shoal.kubelet.api import podresources_pb2_grpc as rpc
from shoal.kubelet.errors import PodResourcesError

log = logging.getLogger(__name__)

#: Well below the time kubelet waits for PreStartContainer.
_SECONDS: Final = 10.0
_PAUSE: Final = 0.05
_ATTEMPTS: Final = 40
#: After this time a plugin registers, whatever kubelet says.
_LET_GO_SECONDS: Final = 5.0
#: kubelet lists every device of every pod.
_OPTIONS: Final = (*constants.CHANNEL_OPTIONS, ("grpc.max_receive_message_length", -1))

Pod = tuple[str, str]


class PodResourcesClient:
    """The service of one node's kubelet. Use it in `async with`."""

    def __init__(self, socket: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._socket = socket
        self._clock = clock
        #: The newest answer, and when it was asked for.
        self._answer = api.ListPodResourcesResponse()
        self._asked = -math.inf
        self._channel: grpc.aio.Channel | None = None
        self._running: asyncio.Task[api.ListPodResourcesResponse] | None = None
        self._next: asyncio.Task[api.ListPodResourcesResponse] | None = None

    async def __aenter__(self) -> PodResourcesClient:
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._running, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    async def pods_with(self, resource: str, ids: frozenset[str], *, since: float) -> set[Pod]:
        """The pods, by namespace and name, that have any of these devices. Ordinary init containers are not listed.

        `since` is when the devices were known to be given.
        """
        answer = self._answer if self._asked > since else await self._fresh()
        return {
            (pod.namespace, pod.name)
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
            if devices.resource_name == resource and not ids.isdisjoint(devices.device_ids)
        }

    async def wait_let_go(self, resource: str) -> None:
        """Return when kubelet counts no device of a resource: it has noticed that the resource's plugin has ended.

        Returns too if kubelet does not say, or goes on counting: another plugin of the same resource may be there.
        """
        try:
            async with asyncio.timeout(_LET_GO_SECONDS):
                while resource in await self._allocatable():  # noqa: ASYNC110 - kubelet tells nobody
                    await asyncio.sleep(_PAUSE)
        except (grpc.aio.AioRpcError, TimeoutError, PodResourcesError) as error:
            log.debug("%s is registered without knowing what kubelet counts: %s", resource, error)

    async def _allocatable(self) -> set[str]:
        """The resources of which kubelet counts healthy devices."""
        if self._channel is None:
            raise PodResourcesError("PodResources is not open")
        stub = rpc.PodResourcesListerStub(self._channel)
        answer: api.AllocatableResourcesResponse = await stub.GetAllocatableResources(api.AllocatableResourcesRequest())
        return {one.resource_name for one in answer.devices if one.device_ids}

    async def ask_ahead(self) -> None:
        """Have an answer for all that is known now."""
        await self._fresh()

    async def _fresh(self) -> api.ListPodResourcesResponse:
        """An answer to a call that began after this moment."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[api.ListPodResourcesResponse] | None) -> api.ListPodResourcesResponse:
        if before is not None:
            await asyncio.wait({before})
        self._running, self._next = self._next, None
        return await self._list()

    async def _list(self) -> api.ListPodResourcesResponse:
        if self._channel is None:
            raise PodResourcesError("PodResources is not open")
        stub = rpc.PodResourcesListerStub(self._channel)
        for _ in range(_ATTEMPTS):
            asked = self._clock()
            try:
                answer: api.ListPodResourcesResponse = await stub.List(
                    api.ListPodResourcesRequest(), timeout=_SECONDS, wait_for_ready=True
                )
                self._answer, self._asked = answer, asked
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise PodResourcesError(f"kubelet's PodResources does not answer: {error.details()}") from error
            await asyncio.sleep(_PAUSE)
        raise PodResourcesError("kubelet's PodResources refuses calls by its rate limit: it will ask again")
