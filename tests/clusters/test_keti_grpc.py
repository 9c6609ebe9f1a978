"""KETI's cluster manager, called by clients that grpcio generates from KETI's contract under both of its names."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import shoal.clusters.api
from shoal.clusters.asking import AskingChoice
from shoal.clusters.keti_grpc import LONGEST_REQUEST, MAX_NODES, KetiClusters, KetiClusterSettings
from shoal.clusters.member import Member
from shoal.clusters.offers import OfferClient
from shoal.embedded.certificates import make_pki
from shoal.model.contract import keti
from tests.clusters.peer import Peer
from tests.clusters.table import Table
from tests.logs import own_records

SECONDS = 300
PLAIN = KetiClusterSettings(host="127.0.0.1", port=0, plaintext=True)
NO_SHOAL = (404, b'{"kind": "Status", "reason": "NotFound", "code": 404}')


@dataclass(frozen=True)
class Generated:
    """The modules of one package: messages, and the stub."""

    messages: Any
    stubs: Any


@pytest.fixture(scope="module", params=keti.SERVICES_CLUSTER)
def generated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    """A client under one of the names, as anybody makes it from the contract."""
    package = request.param.rpartition(".")[0]
    if package == "cluster":  # that of the tree; a process has each name once
        stubs = importlib.import_module("shoal.clusters.api.cluster_pb2_grpc")
        yield Generated(importlib.import_module("shoal.clusters.api.cluster_pb2"), stubs)
        return
    folder = tmp_path_factory.mktemp("client")
    contract = (Path(shoal.clusters.api.__file__).parent / "cluster.proto").read_text()
    (folder / "keti_client.proto").write_text(contract.replace("package cluster;", f"package {package};"))
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", *outputs, "keti_client.proto"], check=True
    )
    sys.path.insert(0, str(folder))
    try:
        yield Generated(importlib.import_module("keti_client_pb2"), importlib.import_module("keti_client_pb2_grpc"))
    finally:
        sys.path.remove(str(folder))


@dataclass
class Scene:
    """Clusters, and a manager that serves."""

    peers: dict[str, Peer]
    table: Table
    port: int
    generated: Generated

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            yield self.generated.stubs.ClusterStub(channel)

    async def call(self, method: str, **fields: Any) -> Any:
        message = getattr(self.generated.messages, f"{method.removeprefix('Request')}Request")
        async with self.stub() as stub:
            return await getattr(stub, method)(message(**fields), timeout=SECONDS)

    async def request(self, gpus: int, *filtered: str) -> tuple[str, bool]:
        fields = {"gpu_count": gpus, "filtered_cluster": filtered}
        answer = await self.call("RequestClusterScheduling", **fields)
        return answer.cluster_name, answer.success

    def node(self, name: str, score: int, gpus: int) -> Any:
        return self.generated.messages.RequestMessage(node_name=name, node_score=score, gpu_count=gpus)

    async def refused(self, method: str, **fields: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.call(method, **fields)
        return error.value.code()


@contextlib.asynccontextmanager
async def serving(
    settings: KetiClusterSettings, table: Table, choice: AskingChoice, *, fresh_seconds: float = 0
) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    service = KetiClusters(settings, table, choice.look, serving_at=port.set_result, fresh_seconds=fresh_seconds)
    task = asyncio.create_task(service.run())
    try:
        yield await port
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
async def scene(generated: Generated, tmp_path: Path) -> AsyncIterator[Scene]:
    peers = {"one": Peer(5, score=0.5), "two": Peer(5, score=0.4)}
    async with AsyncExitStack() as stack:
        members: list[Member] = [
            await stack.enter_async_context(peer.member(tmp_path, name, own=name == "one"))
            for name, peer in peers.items()
        ]
        offers = await stack.enter_async_context(OfferClient(seconds=30))
        table = Table(*members, problems={"dead": "no connection"})
        choice = AskingChoice(offers, problems=lambda: table.problems, fresh_seconds=0)
        port = await stack.enter_async_context(serving(PLAIN, table, choice))
        yield Scene(peers, table, port, generated)


async def test_the_best_cluster_by_what_members_say(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="shoal.clusters.keti_grpc"):
        assert await scene.request(1) == ("one", True)
    assert [record.getMessage() for record in own_records(caplog)] == [
        "#Request Cluster Scheduling Called",
        "-pod requested gpu : 1",
        "--Cluster Name:  one",
        "---clusterScore: 90",
        "--Cluster Name:  two",
        "---clusterScore: 80",
        "#Best Cluster Is:  {one 90}",
    ]
    limits = scene.peers["two"].seen[0].pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"keti.com/mpsgpu": "1"}
    assert not scene.peers["one"].held


async def test_filtered_clusters_are_left_out(scene: Scene) -> None:
    assert await scene.request(1, "one", "nobody") == ("two", True)
    assert await scene.request(1, "one", "two") == ("", False)


async def test_none_has_room(scene: Scene) -> None:
    for peer in scene.peers.values():
        peer.room = 0
    assert await scene.request(8) == ("", False)


async def test_what_is_pushed_never_counts_against_what_members_say(scene: Scene) -> None:
    forged = [scene.node("n", 10**9, 1000)]
    pushed = await scene.call("InitOtherCluster", cluster_name="two", request_message=forged)
    assert pushed.success
    assert await scene.request(1) == ("one", True)
    scene.peers["one"].room = scene.peers["two"].room = 0
    assert await scene.request(1) == ("", False)


async def test_between_clusters_without_shoal_pushed_nodes_decide(scene: Scene) -> None:
    for peer in scene.peers.values():
        peer.says = NO_SHOAL
    assert await scene.request(1) == ("one", True)  # nobody said anything: its own
    small, large = [scene.node("n1", 90, 1)], [scene.node("n1", 10, 4), scene.node("n2", 70, 1)]
    await scene.call("InitMyCluster", request_message=small)
    await scene.call("InitOtherCluster", cluster_name="two", request_message=large)
    assert await scene.request(1) == ("one", True)
    assert await scene.request(4) == ("two", True)
    assert await scene.request(8) == ("", False)
    update = {"cluster_name": "two", "request_message": scene.node("n1", 200, 0)}
    assert (await scene.call("UpdateOtherCluster", **update)).success
    assert await scene.request(1) == ("two", True)
    mine = {"request_message": scene.node("n1", 300, 0)}
    assert (await scene.call("UpdateMyCluster", **mine)).success
    assert await scene.request(1) == ("one", True)


async def test_bad_input_is_a_status_and_the_next_call_is_answered(scene: Scene) -> None:
    node, code = scene.node("n", 1, 1), grpc.StatusCode
    nodes = {"negative": [scene.node("n", 1, -1)], "nameless": [scene.node("", 1, 1)], "many": [node] * (MAX_NODES + 1)}
    expected: list[tuple[str, dict[str, Any], grpc.StatusCode]] = [
        ("InitOtherCluster", {"cluster_name": "nobody"}, code.NOT_FOUND),
        ("InitOtherCluster", {"cluster_name": ""}, code.NOT_FOUND),
        ("UpdateOtherCluster", {"cluster_name": "nobody"}, code.NOT_FOUND),
        ("UpdateOtherCluster", {"cluster_name": "two", "request_message": node}, code.NOT_FOUND),
        ("UpdateMyCluster", {"request_message": node}, code.NOT_FOUND),
        ("UpdateMyCluster", {}, code.INVALID_ARGUMENT),
        ("InitMyCluster", {"request_message": nodes["negative"]}, code.INVALID_ARGUMENT),
        ("InitMyCluster", {"request_message": nodes["nameless"]}, code.INVALID_ARGUMENT),
        ("InitMyCluster", {"request_message": nodes["many"]}, code.RESOURCE_EXHAUSTED),
        ("RequestClusterScheduling", {"gpu_count": -1}, code.INVALID_ARGUMENT),
        ("RequestClusterScheduling", {"gpu_count": 2**62}, code.INVALID_ARGUMENT),
        ("RequestClusterScheduling", {"filtered_cluster": ["x"] * 101}, code.INVALID_ARGUMENT),
        ("RequestClusterScheduling", {"filtered_cluster": ["x" * (4 << 20)]}, code.RESOURCE_EXHAUSTED),
    ]
    for method, fields, status in expected:
        assert await scene.refused(method, **fields) is status, method
    async with grpc.aio.insecure_channel(f"127.0.0.1:{scene.port}") as channel:
        for name in keti.SERVICES_CLUSTER:
            garbled: Any = channel.unary_unary(f"/{name}/RequestClusterScheduling")
            with pytest.raises(grpc.aio.AioRpcError):
                await garbled(b"\xff" * 100, timeout=SECONDS)
    assert await scene.request(1) == ("one", True)


async def test_a_flood_of_questions_reaches_members_within_bounds(scene: Scene) -> None:
    """Whoever reaches the port asks with no token; members answer the manager's, and share their time with pods."""
    codes: Counter[grpc.StatusCode] = Counter()
    async with scene.stub() as stub:
        for number in range(300):
            question = scene.generated.messages.ClusterSchedulingRequest(gpu_count=1 + number % 256)
            try:
                await stub.RequestClusterScheduling(question, timeout=SECONDS)
                codes[grpc.StatusCode.OK] += 1
            except grpc.aio.AioRpcError as error:
                codes[error.code()] += 1
    assert codes.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    for peer in scene.peers.values():
        # What a caller may ask at once, and what was added while the flood lasted.
        assert peer.asked["ask"] == codes[grpc.StatusCode.OK]
    assert codes[grpc.StatusCode.RESOURCE_EXHAUSTED]


async def test_the_same_question_is_asked_once(scene: Scene, tmp_path: Path) -> None:
    """KETI's schedulers ask for one pod after the other: that is no flood."""
    async with OfferClient(seconds=30) as offers:
        choice = AskingChoice(offers, problems=lambda: scene.table.problems, fresh_seconds=0)
        async with serving(PLAIN, scene.table, choice, fresh_seconds=SECONDS) as port:
            again = Scene(scene.peers, scene.table, port, scene.generated)
            answers = {await again.request(1, "dead", f"unknown-{number}") for number in range(100)}
    assert answers == {("one", True)}
    assert scene.peers["one"].asked["ask"] == 1


async def test_pushed_nodes_go_with_their_cluster(scene: Scene) -> None:
    for peer in scene.peers.values():
        peer.says = NO_SHOAL
    nodes = [scene.node("n", 1, 4)]
    await scene.call("InitOtherCluster", cluster_name="two", request_message=nodes)
    members = list(scene.table.members.values())
    scene.table.set(members[0])
    assert (await scene.request(4))[0] == "one"
    scene.table.set(*members)
    update = {"cluster_name": "two", "request_message": scene.node("n", 2, 4)}
    assert await scene.refused("UpdateOtherCluster", **update) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "fields",
    [{}, {"certificate": "/c"}, {"key": "/k"}, {"plaintext": True, "certificate": "/c", "key": "/k"}],
)
def test_plain_text_only_when_asked_for(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="plaintext: true"):
        KetiClusterSettings(**fields)


async def test_with_a_certificate(generated: Generated, tmp_path: Path) -> None:
    pki = make_pki(tmp_path / "pki", now=datetime.now(UTC))
    settings = KetiClusterSettings(host="127.0.0.1", port=0, certificate=str(pki.certificate), key=str(pki.key))
    peer = Peer(1)
    request = generated.messages.ClusterSchedulingRequest(gpu_count=1)
    async with (
        peer.member(tmp_path, "one") as member,
        OfferClient(seconds=30) as offers,
        serving(settings, Table(member), AskingChoice(offers)) as port,
    ):
        credentials = grpc.ssl_channel_credentials(pki.authority.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            answer = await generated.stubs.ClusterStub(channel).RequestClusterScheduling(request, timeout=SECONDS)
        assert answer.cluster_name == "one"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as plain:
            with pytest.raises(grpc.aio.AioRpcError):
                await generated.stubs.ClusterStub(plain).RequestClusterScheduling(request, timeout=SECONDS)


def test_the_bound_is_below_four_mebibytes() -> None:
    assert LONGEST_REQUEST <= 4 << 20
