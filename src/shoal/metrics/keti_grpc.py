"""KETI's collectors over gRPC: `metric.MetricCollector` on :9323, and the older `v1.user.User` on :9000.

Plain text and without a password, as KETI's clients call it: whoever reaches the port reads the names of all pods of
the node. So it is off unless the settings have it. Answers come from the last snapshot; one that is too old is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from shoal.http.grpc_front import serving_grpc
from shoal.metrics import keti_messages
from shoal.metrics.api import metric_pb2 as metric
from shoal.metrics.api import user_pb2 as user
from shoal.metrics.keti_settings import KetiGrpcSettings
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from shoal.model.contract import keti

#: A snapshot this many intervals old is told no more.
STALE_INTERVALS: Final = 3
#: What is not waited for: the machine was asleep, or busy.
_LEAST_STALE_SECONDS: Final = 15.0

_Handler = Callable[[Any, Any], Awaitable[bytes]]


class KetiCollector:
    """Answers KETI's clients from the last snapshot. `run` until it is cancelled."""

    def __init__(
        self,
        settings: KetiGrpcSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        serving_at: Callable[[Sequence[int]], None] = lambda ports: None,
    ) -> None:
        """`serving_at` is told the ports."""
        self._settings = settings
        self._clock = clock
        self._serving_at = serving_at
        self._latest = LatestSnapshot()
        #: The answer that all get of one snapshot.
        self._encoded: tuple[Snapshot, bytes] | None = None

    async def run(self, latest: LatestSnapshot) -> None:
        """Serve until cancelled. Raises OSError when a port is taken."""
        self._latest = latest
        ports = [port for port in (self._settings.port, self._settings.v1_port) if port is not None]
        async with serving_grpc(self._handlers(), self._settings.host, ports) as bound:
            self._serving_at(bound)
            await asyncio.Event().wait()

    def _handlers(self) -> list[grpc.GenericRpcHandler]:
        """Both services on both ports: a port that is not wanted is not opened."""
        collector = {"GetMultiMetric": _method(self._multi_metric, metric.Request)}
        older = {
            "GetNode": _method(self._node, user.GetNodeRequest),
            "GetGPU": _method(self._gpu, user.GetGPURequest),
            "GetInitData": _method(self._init, user.InitRequest),
        }
        return [
            grpc.method_handlers_generic_handler(keti.SERVICE_COLLECTOR, collector),
            grpc.method_handlers_generic_handler(keti.SERVICE_COLLECTOR_V1, older),
        ]

    async def _current(self, context: grpc.aio.ServicerContext[Any, Any]) -> Snapshot:
        snapshot = self._latest.current
        if snapshot is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the cards have not been read yet: ask again")
            raise AssertionError  # abort raises
        age = self._clock() - snapshot.monotonic
        if age > max(STALE_INTERVALS * snapshot.interval, _LEAST_STALE_SECONDS):
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the cards were read {age:.0f} s ago: see the log there")
        return snapshot

    async def _multi_metric(self, request: metric.Request, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        del request
        snapshot = await self._current(context)
        if self._encoded is None or self._encoded[0] is not snapshot:
            self._encoded = snapshot, keti_messages.multi_metric(snapshot).SerializeToString()
        return self._encoded[1]

    async def _node(self, request: user.GetNodeRequest, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        del request
        snapshot = await self._current(context)
        return user.GetNodeResponse(node_message=keti_messages.node_message(snapshot)).SerializeToString()

    async def _gpu(self, request: user.GetGPURequest, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        snapshot = await self._current(context)
        found = [card for card in snapshot.cards if card.card.uuid == request.gpu_uuid]
        # KETI answers nothing of a card that is not there.
        message = keti_messages.gpu_message(found[0]) if found else None
        return user.GetGPUResponse(gpu_message=message).SerializeToString()

    async def _init(self, request: user.InitRequest, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        del request
        return keti_messages.init_message(await self._current(context)).SerializeToString()


def _method(answer: _Handler, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    """A method whose answer is encoded already."""
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=None
    )
    return handler
