"""KETI's services, asked by real gRPC clients that read the bytes as KETI's own .proto files say."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

from shoal.gpu.protocol import Sample
from shoal.http import grpc_front
from shoal.metrics.keti_grpc import KetiCollector
from shoal.metrics.keti_messages import multi_metric
from shoal.metrics.keti_settings import KetiGrpcSettings
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from tests.metrics.keti_wire import KETI
from tests.metrics.measured import LOAD, MIB, MeasuredNode

SECONDS = 300
FLOOD = 1500


@asynccontextmanager
async def collector(
    snapshot: Snapshot | None, now: float | None = None
) -> AsyncIterator[tuple[LatestSnapshot, int, int]]:
    """KETI's ports of a node, on free numbers."""
    latest = LatestSnapshot()
    if snapshot is not None:
        latest.put(snapshot)
    ports: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
    settings = KetiGrpcSettings(host="127.0.0.1", port=0, v1_port=0)

    def clock() -> float:
        assert latest.current is not None
        return latest.current.monotonic if now is None else now

    task = asyncio.create_task(KetiCollector(settings, clock=clock, serving_at=ports.set_result).run(latest))
    try:
        port, older = await ports
        yield latest, port, older
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def ask(port: int, method: str, answer: str, request: bytes = b"") -> Any:
    """Call a method as KETI's client does: a connection of its own, in plain text."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(method, response_deserializer=KETI[answer].FromString)
        return await call(request, timeout=SECONDS)


def busy_node(cards: str = "2xA100-40G") -> MeasuredNode:
    node = MeasuredNode(cards)
    node.run(0, "train", mib=3000, percent=40)
    node.run(0, "serve", mib=500, percent=10)
    node.run(1, "train", mib=7000, percent=90)
    node.run(1, None, mib=250)
    return node


async def test_the_numbers_are_those_of_the_cards() -> None:
    snapshot = busy_node().snapshot()
    async with collector(snapshot) as (_, port, _older):
        answer = await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
    assert (answer.node_name, answer.gpu_count) == ("node-1", 2)
    load = answer.node_metric
    assert (load.milli_cpu_total, load.milli_cpu_usage) == (16_000, 4_000)
    assert (load.storage_total, load.storage_usage) == (1000 << 30, 500 << 30)
    assert (load.network_rx, load.network_tx) == (LOAD.network_received_bytes, LOAD.network_sent_bytes)
    for card in snapshot.cards:
        shown, sample = answer.gpu_metrics[card.card.uuid], card.sample
        assert sample is not None
        assert (shown.index, shown.gpu_name, shown.architecture) == (card.card.index, card.card.model, "AMPERE")
        assert (shown.max_clock, shown.cudacore, shown.flops) == (1410, 6912, 1410 * 6912 * 2 // 1000)
        assert shown.bandwidth == pytest.approx(1.555, rel=1e-3)
        assert shown.memory_used == card.used_bytes
        assert (shown.memory_total, shown.power_used) == (sample.memory_total_bytes, sample.power_mw)
        assert (shown.temperature, shown.utilization) == (sample.temperature_c, sample.utilisation)
        assert sample.pcie_sent is not None
        assert shown.pci_tx == sample.pcie_sent // 1000
        assert shown.energy_consumption == sample.energy_mj
        assert (shown.max_operative_temp, shown.slowdown_temp, shown.shutdown_temp) == (
            card.card.limits.max_c,
            card.card.limits.slowdown_c,
            card.card.limits.shutdown_c,
        )
    first, second = (card.card.uuid for card in snapshot.cards)
    assert (answer.gpu_metrics[first].pod_count, answer.gpu_metrics[second].pod_count) == (2, 1)
    train = answer.pod_metrics["train"]
    assert train.is_gpu_pod
    assert train.cpu_usage == 1501
    used = {entry.gpu_uuid: entry.gpu_memory_used for entry in train.pod_gpu_metrics.values()}
    assert used == {first: 3000 * MIB, second: 7000 * MIB}
    assert set(train.pod_gpu_metrics) == {"id-userpod-train", f"id-userpod-train/{second}"}
    assert all(entry.gpu_process_id == "" for entry in train.pod_gpu_metrics.values())


async def test_each_card_has_its_own_fixed_numbers() -> None:
    node = MeasuredNode("1xA100-40G,1xT4")
    async with collector(node.snapshot()) as (_, port, _older):
        answer = await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
    kinds = {shown.gpu_name: (shown.architecture, shown.cudacore) for shown in answer.gpu_metrics.values()}
    assert kinds == {"NVIDIA A100-SXM4-40GB": ("AMPERE", 6912), "Tesla T4": ("TURING", 2560)}


async def test_links_stand_once() -> None:
    node = MeasuredNode([{"model": "A100-40G", "count": 4, "nvlink": 4}])
    snapshot = node.snapshot()
    async with collector(snapshot) as (_, port, older):
        answer = await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
        first = await ask(older, "/v1.user.User/GetInitData", "v1.user.InitMessage")
    pairs = {frozenset((link.gpu1uuid, link.gpu2uuid)) for link in answer.nvlink_info}
    assert len(pairs) == len(answer.nvlink_info) == 6
    lanes = {link.lanes for card in snapshot.cards for link in card.card.links}
    assert {link.lanecount for link in answer.nvlink_info} == lanes
    node_message = first.InitNode
    assert {frozenset(pair) for pair in zip(node_message.gpu1index, node_message.gpu2index, strict=True)} == pairs


async def test_the_older_generation_gets_the_same_numbers() -> None:
    snapshot = busy_node().snapshot()
    card = snapshot.cards[1]
    sample = card.sample
    assert sample is not None
    async with collector(snapshot) as (_, _port, older):
        first = await ask(older, "/v1.user.User/GetInitData", "v1.user.InitMessage")
        node = (await ask(older, "/v1.user.User/GetNode", "v1.user.GetNodeResponse")).node_message
        request = KETI["v1.user.GetGPURequest"](gpu_uuid=card.card.uuid).SerializeToString()
        gpu = (await ask(older, "/v1.user.User/GetGPU", "v1.user.GetGPUResponse", request)).gpu_message
        stranger = KETI["v1.user.GetGPURequest"](gpu_uuid="GPU-no").SerializeToString()
        nobody = await ask(older, "/v1.user.User/GetGPU", "v1.user.GetGPUResponse", stranger)
    assert node == first.InitNode
    assert gpu == first.InitGPU[1]
    assert not nobody.HasField("gpu_message")
    assert (node.node_name, node.gpu_count, node.node_totalcpu, node.node_cpu) == ("node-1", 2, 16_000, 4_000)
    assert node.node_totalmemory == 64 << 30
    assert node.gpu_uuid.split() == [each.card.uuid for each in snapshot.cards]
    assert node.max_gpu_memory == sample.memory_total_bytes
    assert (gpu.gpu_used, gpu.gpu_free) == (7250 * MIB, sample.memory_free_bytes)
    assert (gpu.gpu_temp, gpu.gpu_power, gpu.gpu_util) == (sample.temperature_c, sample.power_mw, 90)
    assert (gpu.mps_count, gpu.gpu_arch, gpu.gpu_tpower) == (1, 7, 400_000)


async def test_pods_of_one_name_are_told_apart() -> None:
    node = MeasuredNode()
    node.run(0, "train", mib=100, namespace="a")
    node.run(0, "train", mib=200, namespace="b")
    node.run(0, "serve", mib=300, namespace="b")
    async with collector(node.snapshot()) as (_, port, _older):
        answer = await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
    used = {
        name: [entry.gpu_memory_used // MIB for entry in pod.pod_gpu_metrics.values()]
        for name, pod in answer.pod_metrics.items()
    }
    assert used == {"a/train": [100], "b/train": [200], "serve": [300]}


def test_what_is_not_known_is_not_sent() -> None:
    node = MeasuredNode("1xA30")
    node.load = None
    snapshot = node.snapshot()
    card = replace(snapshot.cards[0], sample=Sample(), used_bytes=None)
    made = multi_metric(replace(snapshot, cards=(card,)))
    assert not made.node_metric.ListFields()
    shown = made.gpu_metrics[card.card.uuid]
    assert not {"temperature", "power_used", "utilization", "memory_used", "fan_speed"} & {
        field.name for field, _ in shown.ListFields()
    }


async def test_a_lost_card_is_counted_and_not_described() -> None:
    node = busy_node()
    node.snapshot()
    node.nvml.lose(node.cards[0].uuid)
    async with collector(node.snapshot()) as (_, port, older):
        answer = await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
        first = await ask(older, "/v1.user.User/GetInitData", "v1.user.InitMessage")
    assert answer.gpu_count == first.InitNode.gpu_count == 2
    assert set(answer.gpu_metrics) == {node.cards[1].uuid} == {gpu.gpu_uuid for gpu in first.InitGPU}


@pytest.mark.parametrize("age", [None, 1000.0])
async def test_without_a_young_snapshot_there_is_no_answer(age: float | None) -> None:
    snapshot = None if age is None else busy_node().snapshot()
    now = None if snapshot is None or age is None else snapshot.monotonic + age
    async with collector(snapshot, now) as (_, port, _older):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_method_that_is_not_served_is_told_so() -> None:
    async with collector(busy_node().snapshot()) as (_, _port, older):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(older, "/v1.user.User/SendDegradation", "v1.user.InitMessage")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_huge_request_is_refused() -> None:
    async with collector(busy_node().snapshot()) as (_, port, older):
        request = KETI["v1.user.GetGPURequest"](gpu_uuid="x" * (32 << 20)).SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(older, "/v1.user.User/GetGPU", "v1.user.GetGPUResponse", request)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
        assert answer.gpu_count == 2


async def closed(connection: socket.socket) -> bool:
    """Whether the server ends a connection on which it has nothing to say."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(connection, 4096):
            pass
    except ConnectionError:
        pass
    return True


async def test_many_connections_cost_little_and_others_are_served() -> None:
    """A caller holds so many connections; what it opens beyond that is closed, and others get theirs."""
    async with collector(busy_node().snapshot()) as (_, port, _older):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        held: list[socket.socket] = []
        try:
            for _ in range(FLOOD):
                connection = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(200))
                held.append(connection)
                await asyncio.sleep(0)
            async with asyncio.timeout(SECONDS):
                waiting = {asyncio.ensure_future(closed(connection)) for connection in held}
                while len(waiting) > grpc_front.PER_PEER:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                answer = await ask(port, "/metric.MetricCollector/GetMultiMetric", "metric.MultiMetric")
                for one in waiting:
                    one.cancel()
        finally:
            for connection in held:
                connection.close()
    assert answer.gpu_count == 2
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"{grown} KiB more"


async def test_a_connection_on_which_nothing_moves_is_cut_off() -> None:
    async with grpc_front.serving_grpc([], "127.0.0.1", [0], idle_seconds=0.05) as (port,):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            async with asyncio.timeout(SECONDS):
                assert await closed(connection)


async def test_too_many_calls_at_once_are_refused() -> None:
    """As many as the bounds allow are answered, and the others refused at once."""
    node = MeasuredNode("8xA100-40G")
    for number in range(200):
        node.run(number % 8, f"pod-{number}-{'x' * 150}", mib=10)
    async with collector(node.snapshot()) as (_, port, _older):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        method = "/metric.MetricCollector/GetMultiMetric"
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 0)]
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(8)]
        try:
            methods: list[Any] = [channel.unary_unary(method) for channel in channels]
            calls = [call(b"", timeout=SECONDS) for call in methods for _ in range(200)]
            done = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))
        answered = [one for one in done if isinstance(one, bytes)]
        assert answered
        refusals = {one.code() for one in done if isinstance(one, grpc.aio.AioRpcError)}
        assert refusals <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
        assert (await ask(port, method, "metric.MultiMetric")).gpu_count == 8
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10, f"{grown} KiB more"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"port": None, "v1Port": None}, "neither port nor v1Port"),
        ({"port": 9000}, "give them two numbers"),
        ({"port": 70000}, "<= 65535"),
        ({"tls": True}, "unknown field `tls`"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(settings, KetiGrpcSettings)
    assert words in str(refused.value)
