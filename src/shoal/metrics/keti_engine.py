"""KETI's analysis engine: `score.MetricGRPC` on :9322, one for a cluster.

It asks the collectors for GetMultiMetric when somebody asks it, at most once in a while, all at the same time and each
for a bounded time. A collector that failed is asked again and not waited for, so that a dead one delays one answer at
most; its node's scores are told until they are too old, and then the node is not in the answer. Plain text, as KETI's
clients call it: off unless it is started.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio

from shoal.http.grpc_front import serving_grpc
from shoal.metrics.api import metric_pb2 as metric
from shoal.metrics.api import metric_pb2_grpc as metric_rpc
from shoal.metrics.api import score_pb2 as score
from shoal.metrics.keti_scores import scores
from shoal.metrics.keti_settings import KetiScoresSettings
from shoal.model.contract import keti
from shoal.model.errors import shown

log = logging.getLogger(__name__)

#: Collectors at most, calls at once, and how often names are looked up anew.
MOST_COLLECTORS: Final = 10_000
_AT_ONCE: Final = 64
_LOOK_UP_SECONDS: Final = 10.0
#: What a collector may answer: bytes, cards, the length of names.
_LONGEST_ANSWER: Final = 4 << 20
_MOST_CARDS: Final = 64
_LONGEST_NODE: Final = 253
_LONGEST_UUID: Final = 128
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _LONGEST_ANSWER),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class _CollectorCalls:
    """One collector: its connection, and its last answer."""

    def __init__(self, target: str, settings: KetiScoresSettings, room: asyncio.Semaphore) -> None:
        self._target = target
        self._timeout = settings.timeout_seconds
        self._room = room
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._call: asyncio.Task[None] | None = None
        self.answer: metric.MultiMetric | None = None
        self.answered = 0.0
        #: Why the last call failed; empty when it did not.
        self.trouble = ""

    def ask(self, now: Callable[[], float]) -> asyncio.Task[None]:
        """The call that is on its way, or a new one. It never fails."""
        if self._call is None or self._call.done():
            self._call = asyncio.create_task(self._ask(now), name=f"collector {self._target}")
        return self._call

    async def _ask(self, now: Callable[[], float]) -> None:
        async with self._room:
            try:
                stub = metric_rpc.MetricCollectorStub(self._channel)
                answer: metric.MultiMetric = await stub.GetMultiMetric(metric.Request(), timeout=self._timeout)
            except grpc.aio.AioRpcError as error:
                self._fail(f"{error.code().name}: {error.details()}")
                return
        if fault := _fault(answer):
            self._fail(fault)
            return
        # Thousands of these are kept: no more than is scored.
        answer.ClearField("pod_metrics")
        answer.ClearField("nvlink_info")
        if self.trouble:
            log.info("collector %s answers again", self._target)
        self.answer, self.answered, self.trouble = answer, now(), ""

    def _fail(self, reason: str) -> None:
        if not self.trouble:
            log.warning("collector %s is left out until it answers: %s", self._target, shown(reason))
        self.trouble = reason

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait([self._call])
        await self._channel.close()


def _fault(answer: metric.MultiMetric) -> str:
    """What makes an answer one that cannot be told on, in words."""
    if not answer.node_name or len(answer.node_name) > _LONGEST_NODE or not answer.node_name.isprintable():
        return "it names no node"
    if len(answer.gpu_metrics) > _MOST_CARDS:
        return f"it has {len(answer.gpu_metrics)} cards, more than {_MOST_CARDS}"
    if any(len(uuid) > _LONGEST_UUID or not uuid.isprintable() for uuid in answer.gpu_metrics):
        return "it has a card whose UUID is none"
    return ""


class ScoreEngine:
    """Scores of a cluster. `run` until it is cancelled."""

    def __init__(
        self,
        settings: KetiScoresSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        serving_at: Callable[[int], None] = lambda port: None,
    ) -> None:
        """`serving_at` is told the port."""
        self._settings = settings
        self._clock = clock
        self._serving_at = serving_at
        self._room = asyncio.Semaphore(_AT_ONCE)
        #: By address, in the order they became known.
        self._collectors: dict[str, _CollectorCalls] = {}
        self._refreshed = -settings.refresh_seconds
        self._refreshing: asyncio.Task[None] | None = None
        self._answer = b""
        self._unresolved: set[str] = set()
        self._doubled: set[str] = set()

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError when the port is taken."""
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._get_score, request_deserializer=score.Request.FromString, response_serializer=None
        )
        handlers = [grpc.method_handlers_generic_handler(keti.SERVICE_SCORE, {"GetScore": handler})]
        try:
            await self._look_up()
            async with serving_grpc(handlers, self._settings.host, [self._settings.port]) as (port,):
                self._serving_at(port)
                while True:
                    await asyncio.sleep(_LOOK_UP_SECONDS)
                    await self._look_up()
        finally:
            if self._refreshing is not None:
                self._refreshing.cancel()
                await asyncio.wait([self._refreshing])
            await asyncio.gather(*(each.close() for each in self._collectors.values()))

    async def _get_score(self, request: score.Request, context: object) -> bytes:
        del request, context
        if self._clock() - self._refreshed >= self._settings.refresh_seconds:
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.create_task(self._refresh(), name="scores")
            await asyncio.shield(self._refreshing)
        return self._answer

    async def _refresh(self) -> None:
        """Ask everybody; wait, for a bounded time, for those who answered the last time."""
        well = [each.trouble == "" for each in self._collectors.values()]
        calls = [each.ask(self._clock) for each in self._collectors.values()]
        awaited = [call for call, healthy in zip(calls, well, strict=True) if healthy]
        if awaited:
            await asyncio.wait(awaited, timeout=self._settings.timeout_seconds)
        now = self._clock()
        self._answer = scores(self._known(now)).SerializeToString()
        self._refreshed = now

    def _known(self, now: float) -> dict[str, metric.MultiMetric]:
        """The nodes whose answers are young enough. Of two collectors that name one node the older acquaintance wins"""
        nodes: dict[str, metric.MultiMetric] = {}
        for address, collector in self._collectors.items():
            answer = collector.answer
            if answer is None or now - collector.answered > self._settings.ttl_seconds:
                continue
            if answer.node_name in nodes:
                if address not in self._doubled:
                    self._doubled.add(address)
                    log.warning("collector %s names a node that another has: %s", address, shown(answer.node_name))
                continue
            nodes[answer.node_name] = answer
        return nodes

    async def _look_up(self) -> None:
        """Learn the collectors' addresses. A name that cannot be looked up keeps those it had."""
        found: dict[str, None] = {}
        failed = False
        for name in self._settings.collectors:
            host, _, port = name.rpartition(":")
            try:
                known = await asyncio.get_running_loop().getaddrinfo(
                    host.strip("[]"), int(port), type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
                )
            except OSError as error:
                failed = True
                if name not in self._unresolved:
                    self._unresolved.add(name)
                    log.warning("collectors %s cannot be looked up: %s", name, error.strerror)
                continue
            self._unresolved.discard(name)
            found.update(dict.fromkeys(_targets(known)))
        gone = [] if failed else [address for address in self._collectors if address not in found]
        for address in gone:
            self._doubled.discard(address)
            await self._collectors.pop(address).close()
        for address in found:
            if address not in self._collectors and len(self._collectors) < MOST_COLLECTORS:
                self._collectors[address] = _CollectorCalls(address, self._settings, self._room)


def _targets(known: Iterable[tuple[Any, ...]]) -> list[str]:
    """As gRPC writes addresses."""
    made = []
    for family, _, _, _, address in known:
        host, port = address[0], address[1]
        made.append(f"ipv6:[{host}]:{port}" if family == socket.AF_INET6 else f"ipv4:{host}:{port}")
    return made
