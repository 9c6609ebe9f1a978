"""Collectors that cannot be trusted: what a node answers costs its own numbers, within bounds, and gains it nothing."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from shoal.analysis.collectors import Collectors, WayIn
from shoal.analysis.errors import NotMeasuredError
from shoal.embedded.app import EmbeddedApi
from shoal.http.server import Bounds, in_pieces, serving
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import LEASES
from shoal.metrics import history_wire as wire
from shoal.metrics.history_lease import announce
from shoal.metrics.history_tls import OwnHistoryTls
from shoal.metrics.history_wire import Announcement
from tests.kube.waiting import until
from tests.logs import own_records
from tests.metrics.history_site import apply, served
from tests.metrics.snapshots import GIB, card, container, snapshot

NOW = snapshot([card(0, [container("a", GIB)])])


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(tmp_path / "embedded") as api:
        yield api


@pytest.fixture
async def client(api: EmbeddedApi) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client:
        await apply(client, "metrics/history.yaml")
        yield client


class Hostile:
    """A server that answers as it is told."""

    def __init__(self) -> None:
        self.answer = b"{}"
        self.tokens: list[str] = []
        self.lines: list[tuple[socket.socket, asyncio.Transport]] = []
        self.at_once = self.most_at_once = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        self.lines.append((request.transport.get_extra_info("socket"), request.transport))
        self.tokens.append(request.headers["Authorization"].removeprefix("Bearer "))
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self.go_on.wait()
            if self.answer == b"endless":
                return await in_pieces(request, self.endless())
            return web.Response(body=self.answer, content_type="application/json")
        finally:
            self.at_once -= 1

    async def closed(self) -> None:
        """Cut all connections, and wait until that is done."""
        for _, line in self.lines:
            line.abort()
        await until(lambda: all(one.fileno() < 0 for one, _ in self.lines), "closed")

    def endless(self) -> Iterator[bytes]:
        while True:
            yield b" " * 100_000


@contextlib.asynccontextmanager
async def hostile(client: Client, *nodes: str, authority: str = "") -> AsyncIterator[Hostile]:
    """One such server, announced as the collector of these nodes."""
    made, tls = Hostile(), OwnHistoryTls(now)
    async with serving(made.handle, "127.0.0.1", 0, Bounds(per_peer=512, body=0, bodies=0), tls.context) as port:
        for node in nodes:
            told = Announcement(node=node, host="127.0.0.1", port=port, authority=authority or tls.authority)
            await announce(client, told, namespace=wire.NAMESPACE)
        yield made
        await made.closed()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"endless", "larger than"),
        (b"not json", "cannot be read"),
        (b"{}", "cannot be read"),
        (b'{"node":"n9","time":1,"ageSeconds":0,"intervalSeconds":5}', "another node"),
        (b'{"node":"bad","time":1,"ageSeconds":999,"intervalSeconds":5}', "999 s old"),
        (
            b'{"node":"bad","time":1,"ageSeconds":0,"intervalSeconds":5,"cards":[{"uuid":"x","index":-1}]}',
            "cannot be read",
        ),
        (
            b'{"node":"bad","time":1,"ageSeconds":0,"intervalSeconds":5,'
            b'"cards":[{"uuid":"x","index":0,"usedBytes":' + b"9" * 400 + b"}]}",
            "cannot be read",
        ),
    ],
)
async def test_a_bad_answer_costs_its_own_node(client: Client, tmp_path: Path, answer: bytes, words: str) -> None:
    fresh = replace(NOW, monotonic=1000.0)
    async with served(client, tmp_path, fresh), hostile(client, "bad") as bad:
        bad.answer = answer
        measured = await Collectors(client).snapshots(["n1", "bad"])
    assert words in measured.silent["bad"]
    assert list(measured.nodes) == ["n1"]


async def test_a_node_that_hangs_is_given_up(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    async with hostile(client, "bad") as bad:
        bad.go_on.clear()
        measured = await Collectors(client, deadline=0.5).snapshots(["bad"])
        bad.go_on.set()
    assert measured.silent == {"bad": "no answer within 0.5 s"}
    assert not own_records(caplog), "nor does the server log who leaves"


async def test_another_certificate_gets_no_token(client: Client) -> None:
    async with hostile(client, "bad", authority=OwnHistoryTls(now).authority) as bad:
        measured = await Collectors(client).snapshots(["bad"])
        assert "it does not answer" in measured.silent["bad"]
        assert bad.tokens == []


async def test_the_token_is_good_for_collectors_alone(api: EmbeddedApi, client: Client) -> None:
    async with hostile(client, "bad") as bad:
        asked = Collectors(client)
        await asked.snapshots(["bad"])
        await asked.snapshots(["bad"])
        (token,) = set(bad.tokens)
        assert token != api.token
        assert api.gate.tokens.user(token) is None, "not a token for the API server"
        assert api.gate.tokens.user(token, [wire.AUDIENCE]) is not None


async def test_so_many_are_asked_at_once(client: Client) -> None:
    nodes = [f"bad-{number}" for number in range(80)]
    async with hostile(client, *nodes) as bad:
        measured = await Collectors(client).snapshots(nodes)
    assert len(measured.silent) == 80
    assert len(bad.tokens) == 80
    assert 1 <= bad.most_at_once <= 32


async def test_leases_that_lie_are_not_believed(client: Client) -> None:
    """In another's name, of another namespace, or no announcement at all."""
    async with hostile(client, "n1") as bad:
        lease = await client.get(LEASES, "n1", namespace=wire.NAMESPACE)
        told = lease.metadata.annotations[wire.ANNOTATION]
        await client.delete(LEASES, "n1", namespace=wire.NAMESPACE)
        for namespace, name, text in (
            (wire.NAMESPACE, "n2", told),
            ("default", "n1", told),
            (wire.NAMESPACE, "n1", "{"),
        ):
            meta = {"name": name, "namespace": namespace, "annotations": {wire.ANNOTATION: text}}
            await client.create(LEASES.raw, {"metadata": meta, "spec": {"holderIdentity": name}})
        with pytest.raises(NotMeasuredError, match="no collector has said where it answers"):
            await Collectors(client).snapshots(["n1"])
        assert bad.tokens == []


async def test_without_the_account_it_is_said(client: Client) -> None:
    async with hostile(client, "n1"):
        with pytest.raises(NotMeasuredError, match="there is no account team/nobody"):
            await Collectors(client, account="team/nobody", way=WayIn.DIRECT).snapshots(["n1"])
