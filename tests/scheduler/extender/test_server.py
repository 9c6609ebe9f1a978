"""The HTTP side, on a socket, with binds on the embedded API server."""

import asyncio
import contextlib
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.certificates import make_pki
from shoal.http.errors import TlsError
from shoal.http.server import Bounds
from shoal.http.tls import FileTls, TlsFiles
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import NODES, PODS
from shoal.kube.store import Change, ChangeType
from shoal.scheduler import health
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.metrics import LedgerSource
from tests.observe.text import parse
from tests.scheduler.extender.requests import args, binding, pod, preemption
from tests.scheduler.extender.scene import Scene
from tests.testbed.fake_nodes import node as node_object

PREFIX = "/gpushare-scheduler"


@dataclass
class Ready:
    """Why the process is not ready."""

    reason: str = ""


class Served:
    """An extender on a port of its own, and a client of it."""

    def __init__(self, scene: Scene, session: aiohttp.ClientSession, port: int, ready: Ready) -> None:
        self.scene = scene
        self.session = session
        self.port = port
        self.ready = ready

    async def post(self, verb: str, body: bytes) -> Any:
        """The answer to a request whose pod the watch has shown."""
        self.scene.shown(body)
        return await self.ask(verb, body)

    async def ask(self, verb: str, body: bytes) -> Any:
        """The answer to a request as it is."""
        async with self.session.post(f"{PREFIX}/{verb}", data=body) as answer:
            assert answer.status == 200
            assert answer.content_type == "application/json"
            return json.loads(await answer.read())

    async def status(self, verb: str, body: bytes) -> int:
        async with self.session.post(f"{PREFIX}/{verb}", data=body) as answer:
            return answer.status

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(path) as answer:
            return answer.status, await answer.text()


@contextlib.asynccontextmanager
async def serving(scene: Scene, bounds: Bounds | None = None, **options: Any) -> AsyncIterator[Served]:
    ready = Ready()
    async with (
        extender_of(scene, ready).serve(Address("127.0.0.1", 0, bounds=bounds or Bounds(), **options)) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield Served(scene, session, port, ready)


def extender_of(scene: Scene, ready: Ready) -> Extender:
    clock = asyncio.get_running_loop().time
    return Extender(scene.verbs, scene.state, metrics=scene.metrics, not_ready=lambda: ready.reason, clock=clock)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    scene = Scene()
    scene.add_node("a", 2)
    scene.add_node("b", 1)
    async with serving(scene) as served:
        yield served


async def test_the_routes_gpushare_has(served: Served) -> None:
    assert await served.get("/version") == (200, "0.1.0")
    assert (await served.post("filter", args(pod(), ["a"])))["NodeNames"] == ["a"]
    for gone in ("/healthz", "/readyz", "/metrics"):
        assert (await served.get(gone))[0] == 404
    assert (await served.get("/debug/pprof/"))[0] == 404
    assert (await served.get(f"{PREFIX}/filter"))[0] == 405


async def test_verbs(served: Served) -> None:
    assert await served.post("prioritize", args(pod(), ["a", "b"])) == [
        {"Host": "a", "Score": 10},
        {"Host": "b", "Score": 8},
    ]
    served.scene.bind(pod("low", mem="16"), "b", 0, 16)
    assert await served.post("preempt", preemption(pod(priority=1), {"b": ["uid-low"]})) == {
        "NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}
    }


async def test_what_cannot_be_read_is_answered_as_each_verb_can(served: Served) -> None:
    assert "cannot be read" in (await served.post("filter", b"\xff"))["Error"]
    assert "cannot be read" in (await served.post("bind", b"\xff"))["Error"]
    assert await served.status("prioritize", b"{}") == 400
    assert await served.status("preempt", b"[]") == 400


async def test_nothing_is_decided_while_not_ready(served: Served) -> None:
    served.ready.reason = "the pods are not listed yet"
    assert (await served.post("filter", args(pod(), ["a"])))["Error"] == "the pods are not listed yet"
    assert (await served.post("bind", binding(pod(), "a")))["Error"] == "the pods are not listed yet"
    assert await served.status("prioritize", args(pod(), ["a"])) == 503
    assert len(served.scene.verbs.holds) == 0
    served.ready.reason = ""
    assert await served.status("prioritize", args(pod(), ["a"])) == 200


async def test_bodies_are_bounded() -> None:
    async with serving(Scene(), Bounds(body=1000)) as served:
        assert await served.status("filter", b"x" * 1001) == 413
        assert await served.status("filter", b"{}") == 200


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with serving(Scene(), Bounds(seconds=0.05)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"POST {PREFIX}/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode())
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_inspect_is_for_callers_with_a_certificate_unless_switched_on(served: Served) -> None:
    for path in ("inspect", "inspect/a"):
        status, text = await served.get(f"{PREFIX}/{path}")
        assert (status, "openInspect" in text) == (403, True)


async def test_inspect_is_ordered_and_tells_what_it_does_not_know() -> None:
    scene = Scene()
    scene.add_node("a", 2)
    scene.add_node("b", 1)
    async with serving(scene, open_inspect=True) as served:
        await inspected(served)


async def inspected(served: Served) -> None:
    scene = served.scene
    scene.add_node("0", 1)
    scene.add_node("bare", 0)
    scene.bind(pod("y", mem="3"), "a", 1, 3)
    scene.bind(pod("x", mem="2"), "a", 1, 2)
    document = json.loads((await served.get(f"{PREFIX}/inspect"))[1])
    assert [node["name"] for node in document["nodes"]] == ["0", "a", "b"]
    assert "error" not in document
    one = json.loads((await served.get(f"{PREFIX}/inspect/a"))[1])
    assert one == {
        "nodes": [
            {
                "name": "a",
                "totalGPU": 32,
                "usedGPU": 5,
                "devs": [
                    {"id": 0, "totalGPU": 16, "usedGPU": 0, "pods": []},
                    {
                        "id": 1,
                        "totalGPU": 16,
                        "usedGPU": 5,
                        "pods": [
                            {"name": "x", "namespace": "default", "usedGPU": 2},
                            {"name": "y", "namespace": "default", "usedGPU": 3},
                        ],
                    },
                ],
            }
        ]
    }
    status, text = await served.get(f"{PREFIX}/inspect/nobody")
    assert (status, json.loads(text)["nodes"]) == (200, [])
    assert "nobody" in json.loads(text)["error"]


@contextlib.asynccontextmanager
async def health_of(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    """The other port."""
    options = {"metrics": served.scene.metrics, "not_ready": lambda: served.ready.reason, "clock": lambda: 0.0}
    async with (
        health.serve("127.0.0.1", 0, **options) as port,  # type: ignore[arg-type]
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield session


async def test_health_has_a_port_of_its_own(served: Served) -> None:
    async def get(path: str) -> tuple[int, str]:
        async with session.get(path) as answer:
            return answer.status, await answer.text()

    async with health_of(served) as session:
        assert await get("/readyz") == (200, "ok")
        served.ready.reason = "the pods are not listed yet"
        assert await get("/readyz") == (503, "the pods are not listed yet")
        assert await get("/healthz") == (200, "ok")
        assert await get("/version") == (200, "0.1.0")
        assert (await get(f"{PREFIX}/inspect"))[0] == 404
        async with session.post(f"{PREFIX}/filter", data=b"{}") as answer:
            assert answer.status == 404


async def test_metrics_can_be_read(served: Served) -> None:
    served.scene.metrics.registry.add(LedgerSource(served.scene.state.engine.ledger))
    await served.post("filter", args(pod(mem="20"), ["a", "b"]))
    await served.status("prioritize", b"")
    async with health_of(served) as session, session.get("/metrics") as answer:
        assert answer.status == 200
        text = await answer.text()
    _, samples = parse(text)
    assert samples["shoal_scheduler_http_requests_total", (("route", f"{PREFIX}/filter"), ("status", "200"))] == 1
    assert samples["shoal_scheduler_http_requests_total", (("route", f"{PREFIX}/prioritize"), ("status", "400"))] == 1
    assert samples["shoal_scheduler_decisions_total", (("by", "extender"), ("outcome", "refused"))] == 1
    reason = "Insufficient GPU Memory in one device"
    assert samples["shoal_scheduler_refusals_total", (("reason", reason),)] == 2


async def test_a_connection_that_breaks_off_leaves_the_server_well(served: Served) -> None:
    for garbage in (
        b"POST /gpushare-scheduler/filter HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
        b"\x16\x03\x01",
        b"\r\n",
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(garbage)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert await served.get("/version") == (200, "0.1.0")


# TLS


def test_tls_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    pki = make_pki(tmp_path, now=datetime.now(UTC))
    with pytest.raises(TlsError, match="cannot be used"):
        TlsFiles(pki.certificate, pki.certificate).context()
    with pytest.raises(TlsError, match="absent"):
        TlsFiles(tmp_path / "absent", pki.key).context()


async def test_tls_and_renewed_certificates(tmp_path: Path) -> None:
    old = make_pki(tmp_path / "old", now=datetime.now(UTC))
    new = make_pki(tmp_path / "new", now=datetime.now(UTC))
    tls = FileTls(TlsFiles(old.certificate, old.key))
    async with extender_of(Scene(), Ready()).serve(Address("127.0.0.1", 0, tls=tls)) as port:
        trusted = old.authority
        assert await _version(port, trusted) == "0.1.0"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await _version(port, new.authority)
        shutil.copy(new.certificate, old.certificate)
        tls.renew()  # half renewed: certificate and key do not belong together
        assert await _version(port, trusted) == "0.1.0"
        shutil.copy(new.key, old.key)
        tls.renew()
        assert await _version(port, new.authority) == "0.1.0"


async def test_with_a_client_authority_strangers_get_no_further_than_the_handshake(tmp_path: Path) -> None:
    pki = make_pki(tmp_path, now=datetime.now(UTC))
    trust = ssl.create_default_context(cafile=str(pki.authority))
    tls = FileTls(TlsFiles(pki.certificate, pki.key, client_ca=pki.authority))
    scene = Scene()
    async with (
        extender_of(scene, Ready()).serve(Address("127.0.0.1", 0, tls=tls)) as port,
        aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=aiohttp.TCPConnector(ssl=trust)) as session,
    ):
        for path in ("/version", f"{PREFIX}/inspect"):
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await session.get(path)
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await session.post(f"{PREFIX}/filter", data=b"{}")
    assert "http_requests_total{" not in scene.metrics.registry.text(), "nothing was read"


async def _version(port: int, authority: Path) -> str:
    trust = ssl.create_default_context(cafile=str(authority))
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{port}/version", ssl=trust) as answer,
    ):
        return await answer.text()


# Bind, on an API server


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Served]:
    """Two nodes and a waiting pod on an API server, known to the scheduler."""
    async with EmbeddedApi(tmp_path / "api") as api:
        access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
        async with Client(access) as client:
            scene = Scene(client=client)
            for name in ("a", "b"):
                await client.create(NODES, node_object(name, 1))
                scene.add_node(name, 1)
            async with serving(scene) as served:
                yield served


async def made(served: Served, name: str, mem: str = "4") -> dict[str, Any]:
    """A pod on the API server, and in the state as the watch would show it."""
    created = await served.scene.client.create(PODS, pod(name, mem=mem), namespace="default")
    served.scene.state.on_pod(Change(ChangeType.ADDED, None, created))
    manifest = pod(name, mem=mem)
    manifest["metadata"]["uid"] = created.metadata.uid
    return manifest


async def test_bind_writes_the_cards_that_were_scored(cluster: Served) -> None:
    manifest = await made(cluster, "p")
    ranked = await cluster.post("prioritize", args(manifest, ["a", "b"]))
    best = max(ranked, key=lambda entry: entry["Score"])["Host"]
    held = cluster.scene.verbs.holds.of(manifest["metadata"]["uid"])
    assert held is not None
    assert await cluster.post("bind", binding(manifest, best)) == {"Error": ""}
    bound = await cluster.scene.client.get(PODS, "p", namespace="default")
    assert bound.spec.node_name == best
    record = json.loads(bound.metadata.annotations["shoal.dev/allocation"])
    assert record["containers"][0]["cards"][0]["uuid"] == held.allocation.containers[0].cards[0].uuid
    assert bound.metadata.annotations["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert len(cluster.scene.verbs.holds) == 0
    assert cluster.scene.free(best) == [12]
    assert await cluster.post("bind", binding(manifest, best)) != {"Error": ""}, "the watch has not shown it yet"


async def test_another_node_than_the_best_is_decided_at_bind(cluster: Served) -> None:
    manifest = await made(cluster, "p")
    ranked = await cluster.post("prioritize", args(manifest, ["a", "b"]))
    other = min(ranked, key=lambda entry: entry["Score"])["Host"]
    assert await cluster.post("bind", binding(manifest, other)) == {"Error": ""}
    assert (cluster.scene.free("a"), cluster.scene.free("b")) == (([16], [12]) if other == "b" else ([12], [16]))


async def test_bind_tells_why_it_cannot(cluster: Served) -> None:
    one, two = await made(cluster, "one", mem="10"), await made(cluster, "two", mem="10")
    assert await cluster.post("bind", binding(one, "a")) == {"Error": ""}
    error = (await cluster.post("bind", binding(two, "a")))["Error"]
    assert error.startswith("Insufficient GPU Memory in one device: a (")
    assert "has not shown such a pod" in (await cluster.post("bind", binding(pod("stranger"), "a")))["Error"]
    await cluster.scene.client.delete(PODS, "two", namespace="default", grace_seconds=0)
    error = (await cluster.post("bind", binding(two, "b")))["Error"]
    assert "not found" in error
    assert cluster.scene.free("b") == [16], "a refused Binding frees the cards"


async def test_a_pod_the_watch_shows_a_moment_later_is_decided_on_then(cluster: Served) -> None:
    created = await cluster.scene.client.create(PODS, pod("early"), namespace="default")
    manifest = pod("early")
    manifest["metadata"]["uid"] = created.metadata.uid
    asked = asyncio.create_task(cluster.ask("filter", args(manifest, ["a"])))
    await asyncio.sleep(0.1)
    assert not asked.done()
    change = Change(ChangeType.ADDED, None, created)
    cluster.scene.state.on_pod(change)
    cluster.scene.verbs.pods.on_pod(change)
    assert (await asked)["NodeNames"] == ["a"]
    assert await cluster.post("bind", binding(manifest, "a")) == {"Error": ""}


async def test_filter_waits_for_a_bind_on_its_way(cluster: Served) -> None:
    manifest = await made(cluster, "p")
    assert await cluster.post("bind", binding(manifest, "a")) == {"Error": ""}
    answer = await cluster.post("filter", args(manifest, ["b"]))
    assert "being bound to a already" in answer["Error"]
    assert cluster.scene.free("a") == [12]
