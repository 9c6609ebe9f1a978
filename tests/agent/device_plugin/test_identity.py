"""kubelet's PodResources as a second witness: how often it is asked. The server here is a real one that counts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from shoal.agent.node.checkpoint import KubeletCheckpoint, decode
from shoal.kubelet.api import podresources_pb2 as api
from shoal.kubelet.api import podresources_pb2_grpc as rpc
from shoal.kubelet.pod_resources import PodResourcesClient
from tests.agent.device_plugin.test_calls import REAL

R = "example.com/unit"


class Kubelet(rpc.PodResourcesListerServicer):
    """Lists one pod with one device."""

    def __init__(self) -> None:
        self.asked = 0

    async def List(self, request: api.ListPodResourcesRequest, context: object) -> api.ListPodResourcesResponse:  # noqa: N802
        self.asked += 1
        await asyncio.sleep(0.05)
        devices = [api.ContainerDevices(resource_name=R, device_ids=["d1"])]
        container = api.ContainerResources(name="main", devices=devices)
        return api.ListPodResourcesResponse(
            pod_resources=[api.PodResources(name="p", namespace="n", containers=[container])]
        )


@asynccontextmanager
async def served(socket: Path) -> AsyncIterator[tuple[Kubelet, PodResourcesClient, list[float]]]:
    """The service, who asks it, and a clock to be set."""
    kubelet, now = Kubelet(), [10.0]
    server = grpc.aio.server()
    rpc.add_PodResourcesListerServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        async with PodResourcesClient(socket, clock=lambda: now[0]) as witness:
            yield kubelet, witness, now
    finally:
        await server.stop(None)


def test_answer_serves_those_whose_devices_were_given_before_it_was_asked_for(tmp_path: Path):
    async def go() -> None:
        async with served(tmp_path / "s") as (kubelet, witness, now):
            ids = frozenset({"d1"})
            assert await witness.pods_with(R, ids, since=9.0) == {("n", "p")}
            now[0] = 20.0
            assert await witness.pods_with(R, ids, since=9.9) == {("n", "p")}
            assert await witness.pods_with(R, frozenset({"d2"}), since=9.9) == set()
            assert kubelet.asked == 1
            await witness.pods_with(R, ids, since=10.0)
            assert kubelet.asked == 2, "given as it was asked for, or later: another answer is needed"
            now[0] = 30.0
            await witness.ask_ahead()
            await witness.pods_with(R, ids, since=29.0)
            assert kubelet.asked == 3

    asyncio.run(go())


def test_many_who_ask_at_once_share_an_answer(tmp_path: Path):
    async def go() -> None:
        async with served(tmp_path / "s") as (kubelet, witness, now):
            now[0] = 50.0
            asking = [witness.pods_with(R, frozenset({"d1"}), since=60.0) for _ in range(20)]
            assert await asyncio.gather(*asking) == [{("n", "p")}] * 20
            assert kubelet.asked <= 2

    asyncio.run(go())


def test_record_is_known_since_it_was_seen_first(tmp_path: Path):
    now = [1.0]
    path = tmp_path / "checkpoint"
    checkpoint = KubeletCheckpoint(path, clock=lambda: now[0])
    path.write_bytes(REAL)
    (record,) = checkpoint.records()
    now[0] = 2.0
    draft = tmp_path / "draft"
    draft.write_bytes(REAL + b"\n")
    draft.replace(path)
    assert [checkpoint.since(one) for one in checkpoint.records()] == [1.0], "kubelet has written it again"
    draft.write_text('{"Data": {"PodDeviceEntries": null}, "Checksum": 1}')
    draft.replace(path)
    assert checkpoint.records() == ()
    with pytest.raises(KeyError):
        checkpoint.since(record)
    now[0] = 3.0
    path.write_bytes(REAL)
    assert [checkpoint.since(one) for one in checkpoint.records()] == [3.0]
    assert decode(REAL) == checkpoint.records()
