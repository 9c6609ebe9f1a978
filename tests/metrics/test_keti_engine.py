"""The aggregator over real collectors: dead, slow, lying and returning ones."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest

from shoal.http.grpc_front import serving_grpc
from shoal.metrics.keti_engine import ScoreEngine
from shoal.metrics.keti_grpc import KetiCollector
from shoal.metrics.keti_messages import multi_metric
from shoal.metrics.keti_scores import scores
from shoal.metrics.keti_settings import KetiGrpcSettings, KetiScoresSettings
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from tests.logs import own_records
from tests.metrics.keti_wire import KETI
from tests.metrics.measured import MeasuredNode

SECONDS = 300


@asynccontextmanager
async def running(work: Callable[[Callable[[Any], None]], Any]) -> AsyncIterator[Any]:
    """Something that serves, while the block runs; gives what it says of its ports."""
    at: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(work(at.set_result))
    try:
        yield await at
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def collector(snapshot: Snapshot, port: int = 0) -> AsyncIterator[int]:
    latest = LatestSnapshot()
    latest.put(snapshot)
    settings = KetiGrpcSettings(host="127.0.0.1", port=port, v1_port=None)

    def work(told: Callable[[Sequence[int]], None]) -> Any:
        return KetiCollector(settings, clock=lambda: snapshot.monotonic, serving_at=told).run(latest)

    async with running(work) as ports:
        yield ports[0]


@asynccontextmanager
async def answering(answer: Callable[[], Any]) -> AsyncIterator[int]:
    """A collector that answers whatever it is told to."""

    async def method(request: bytes, context: object) -> bytes:
        return bytes(await answer())

    handler: Any = grpc.unary_unary_rpc_method_handler(method)
    handlers = [grpc.method_handlers_generic_handler("metric.MetricCollector", {"GetMultiMetric": handler})]
    async with serving_grpc(handlers, "127.0.0.1", [0]) as (port,):
        yield port


@asynccontextmanager
async def engine(
    *ports: int, clock: Callable[[], float] | None = None, **more: Any
) -> AsyncIterator[Callable[[], Any]]:
    """The engine over some ports; gives how to ask it as KETI's scheduler does."""
    settings = msgspec.convert(
        {"collectors": [f"127.0.0.1:{port}" for port in ports], "host": "127.0.0.1", "port": 0, **more},
        KetiScoresSettings,
    )

    def work(told: Callable[[int], None]) -> Any:
        return ScoreEngine(settings, serving_at=told, **({"clock": clock} if clock else {})).run()

    async with running(work) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(
            "/score.MetricGRPC/GetScore", response_deserializer=KETI["score.AnalysisScore"].FromString
        )
        yield lambda: call(b"", timeout=SECONDS)


def busy(name: str) -> Snapshot:
    node = MeasuredNode(name=name)
    node.run(0, "train", mib=3000, percent=80)
    return node.snapshot()


async def unused_port() -> int:
    async with serving_grpc([], "127.0.0.1", [0]) as (port,):
        return port


async def test_the_scores_of_all_nodes() -> None:
    snapshots = [busy(f"node-{number}") for number in range(3)]
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(collector(snapshot)) for snapshot in snapshots]
        ask = await stack.enter_async_context(engine(*ports))
        answer = await ask()
    expected = scores({snapshot.node: multi_metric(snapshot) for snapshot in snapshots})
    assert answer.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    assert set(answer.scores) == {"node-0", "node-1", "node-2"}
    first = answer.scores["node-0"]
    used, idle = (first.gpu_scores[card.card.uuid] for card in snapshots[0].cards)
    assert used.gpu_score < idle.gpu_score
    assert used.pod_count == 1


async def test_a_dead_collector_does_not_stop_the_answer() -> None:
    async with collector(busy("node-1")) as port, engine(await unused_port(), port) as ask:
        assert set((await ask()).scores) == {"node-1"}


async def test_a_collector_that_hangs_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    hanging = 0

    async def hang() -> bytes:
        nonlocal hanging
        hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            hanging -= 1
        return b""

    async with (
        answering(hang) as slow,
        collector(busy("node-1")) as port,
        engine(slow, port, refreshSeconds=0.05, timeoutSeconds=2.0) as ask,
    ):
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(SECONDS):
                while not own_records(caplog):
                    assert set((await ask()).scores) == {"node-1"}
                # Answers come while the call that hangs is on its way.
                while not hanging:
                    await asyncio.sleep(0.06)
                    assert set((await ask()).scores) == {"node-1"}
    assert len(own_records(caplog)) == 1


async def test_a_node_whose_collector_died_is_told_for_a_while() -> None:
    now = 0.0
    async with AsyncExitStack() as stack:
        steady = await stack.enter_async_context(collector(busy("node-1")))
        async with AsyncExitStack() as short:
            dying = await short.enter_async_context(collector(busy("node-2")))
            ask = await stack.enter_async_context(engine(steady, dying, clock=lambda: now))
            assert set((await ask()).scores) == {"node-1", "node-2"}
        now = 30.0
        assert set((await ask()).scores) == {"node-1", "node-2"}
        now = 61.0
        assert set((await ask()).scores) == {"node-1"}
        await stack.enter_async_context(collector(busy("node-2"), port=dying))
        async with asyncio.timeout(SECONDS):
            while "node-2" not in (await ask()).scores:
                now += 5.0
                await asyncio.sleep(0.05)


async def test_answers_are_kept_for_a_while() -> None:
    asked = 0
    encoded = multi_metric(busy("node-1")).SerializeToString()

    async def count() -> bytes:
        nonlocal asked
        asked += 1
        return encoded

    now = 0.0
    async with answering(count) as port, engine(port, clock=lambda: now) as ask:
        await asyncio.gather(*(ask() for _ in range(16)))
        await ask()
        assert asked == 1
        now = 6.0
        await ask()
        assert asked == 2


@pytest.mark.parametrize(
    "lie",
    [
        KETI["metric.MultiMetric"](),
        KETI["metric.MultiMetric"](node_name="x" * 300),
        KETI["metric.MultiMetric"](node_name="two\nlines"),
        KETI["metric.MultiMetric"](
            node_name="many", gpu_metrics={str(number): KETI["metric.GPUMetric"]() for number in range(100)}
        ),
        KETI["metric.MultiMetric"](node_name="long", gpu_metrics={"u" * 1000: KETI["metric.GPUMetric"]()}),
        KETI["metric.MultiMetric"](node_name="huge", pod_metrics={"p" * (5 << 20): KETI["metric.PodMetric"]()}),
    ],
)
async def test_a_collector_that_lies_costs_its_own_answer(lie: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def answer() -> bytes:
        return bytes(lie.SerializeToString())

    with caplog.at_level(logging.WARNING):
        async with answering(answer) as liar, collector(busy("node-1")) as port, engine(liar, port) as ask:
            assert set((await ask()).scores) == {"node-1"}
    assert all("\n" not in message for message in caplog.messages)


async def test_a_node_keeps_the_collector_it_was_first_known_by(caplog: pytest.LogCaptureFixture) -> None:
    own, other = busy("node-1"), MeasuredNode("1xT4", name="node-1").snapshot()
    with caplog.at_level(logging.WARNING):
        async with collector(own) as first, collector(other) as second, engine(first, second) as ask:
            answer = await ask()
    assert set(answer.scores["node-1"].gpu_scores) == {card.card.uuid for card in own.cards}
    assert "names a node that another has" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"collectors": []}, "name at least one"),
        ({"collectors": ["gpu-1"]}, "write host:port"),
        ({"collectors": ["gpu-1:0"]}, "write host:port"),
        ({"collectors": ["a b:9323"]}, "write host:port"),
        ({"collectors": ["gpu-1:9323"], "tls": True}, "unknown field `tls`"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(settings, KetiScoresSettings)
    assert words in str(refused.value)
