"""Who sees what of a collector, and what callers can use of it."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.http.server import Bounds
from shoal.kube import reviews
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import LEASES
from shoal.metrics import history_server
from shoal.metrics import history_wire as wire
from shoal.metrics.history import HistoryWriter
from shoal.metrics.history_points import NAMES, points
from shoal.metrics.history_server import HistoryServer, HistorySettings
from shoal.metrics.history_wire import Announcement, ExporterStatus
from shoal.metrics.snapshot import LatestSnapshot
from tests.kube.waiting import until
from tests.metrics.history_site import HistorySite, apply, served, token_of
from tests.metrics.snapshots import GIB, card, container, snapshot

MINE = container("a", 2 * GIB, requested=3 * GIB)
OTHERS = container("b", GIB, namespace="other", requested=GIB)
NOW = snapshot([card(0, [MINE, OTHERS], unattributed=GIB), card(1, unattributed=None)])
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(tmp_path / "embedded") as api:
        yield api


@pytest.fixture
async def client(api: EmbeddedApi) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client:
        for name in ("metrics/history.yaml", "rbac/namespace-viewer.yaml"):
            await apply(client, name)
        yield client


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """Ten minutes of snapshots before 1e6."""
    folder = tmp_path / "ring"
    with contextlib.closing(HistoryWriter(folder)) as writer:
        for number in range(120):
            time = 1e6 - 600 + 5 * number
            writer.write(time, points(replace(NOW, time=time)))
    return folder


@pytest.fixture
async def site(client: Client, ring: Path) -> AsyncIterator[HistorySite]:
    async with served(client, ring, NOW) as site:
        yield site


def pods(answer: dict[str, Any]) -> list[str]:
    return [f"{one['namespace']}/{one['pod']}" for card in answer["cards"] for one in card.get("containers", ())]


# Rights


async def test_the_documented_viewer_sees_everything(client: Client, site: HistorySite) -> None:
    status, answer = await site.ask(wire.PATH_SNAPSHOT, await token_of(client, wire.NAMESPACE))
    assert status == 200
    assert pods(answer) == ["team/a", "other/b"]
    first, second = answer["cards"]
    assert (first["usedBytes"], first["unattributedBytes"], first["totalBytes"]) == (4 * GIB, GIB, 16 * GIB)
    assert (first["utilisation"], first["temperatureCelsius"], first["powerWatts"]) == (40, 55, 70.5)
    assert first["containers"][0]["requestedBytes"] == 3 * GIB
    assert second == {"uuid": "GPU-n1-1", "index": 1, "model": "Tesla T4", "totalBytes": 16 * GIB}, (
        "not known: not there"
    )
    assert answer["load"]["cpuUsedMilli"] == 1500
    assert answer["seesCards"]
    assert answer["seesAllPods"]


async def test_a_namespace_s_viewer_sees_its_own_pods_alone(client: Client, site: HistorySite) -> None:
    token = await token_of(client, "team")
    status, answer = await site.ask(wire.PATH_SNAPSHOT, token)
    assert status == 200
    assert pods(answer) == ["team/a"]
    assert set(answer["cards"][0]) == {"uuid", "index", "containers"}
    assert "load" not in answer
    assert "other" not in str(answer)
    status, answer = await site.ask(wire.PATH_HISTORY, token)
    assert status == 200
    assert {(one["namespace"], one["pod"]) for one in answer["series"]} == {("team", "a")}
    status, answer = await site.ask(wire.PATH_HISTORY, token, namespace="other")
    assert status == 403


async def test_cards_without_the_pods_of_others(client: Client, site: HistorySite) -> None:
    """Totals stay, others' pods are not there."""
    rule = {"apiGroups": ["shoal.dev"], "resources": ["cardmetrics"], "verbs": ["get"]}
    subject = {"kind": "ServiceAccount", "name": wire.VIEWER_ACCOUNT, "namespace": "team"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cards"}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    meta = {"metadata": {"name": "cards"}}
    await client.request("POST", f"{rbac}/clusterroles", body={**meta, "rules": [rule]})
    await client.request("POST", f"{rbac}/clusterrolebindings", body={**meta, "roleRef": role, "subjects": [subject]})
    _, answer = await site.ask(wire.PATH_SNAPSHOT, await token_of(client, "team"))
    assert pods(answer) == ["team/a"]
    assert answer["cards"][0]["usedBytes"] == 4 * GIB
    assert not answer.get("seesAllPods", False)
    _, answer = await site.ask(wire.PATH_HISTORY, await token_of(client, "team"))
    assert {one.get("pod", "") for one in answer["series"]} == {"", "a"}


async def test_both_headers_are_checked_alike(client: Client, site: HistorySite) -> None:
    token = await token_of(client, wire.NAMESPACE)
    assert (await site.ask(wire.PATH_SNAPSHOT, token, header=wire.TOKEN_HEADER))[0] == 200
    assert (await site.ask(wire.PATH_SNAPSHOT, token + "x", header=wire.TOKEN_HEADER))[0] == 401
    assert (await site.ask(wire.PATH_SNAPSHOT, token + "x"))[0] == 401


async def test_other_tokens_are_not_taken(api: EmbeddedApi, client: Client, site: HistorySite) -> None:
    """A token for the API server is worth more than history, and must not be shown to nodes."""
    for token in (
        api.token,
        await token_of(client, wire.NAMESPACE, ""),
        await token_of(client, "team", "elsewhere"),
        "",
    ):
        status, words = await site.ask(wire.PATH_SNAPSHOT, token)
        assert status == 401
        assert "--audience shoal-metrics" in words
        assert token == "" or token not in words


async def test_an_account_without_rights_sees_nothing(client: Client, site: HistorySite) -> None:
    account = {"metadata": {"name": wire.VIEWER_ACCOUNT}}
    await client.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=account)
    for path in (wire.PATH_SNAPSHOT, wire.PATH_HISTORY):
        status, words = await site.ask(path, await token_of(client, "default"))
        assert status == 403
        assert "cardmetrics" in words


async def test_a_revoked_token_and_a_revoked_right_end_within_a_minute(client: Client, site: HistorySite) -> None:
    token, teams = await token_of(client, wire.NAMESPACE), await token_of(client, "team")
    assert (await site.ask(wire.PATH_SNAPSHOT, token))[0] == 200
    assert pods((await site.ask(wire.PATH_SNAPSHOT, teams))[1]) == ["team/a"]
    await client.request("DELETE", f"/api/v1/namespaces/{wire.NAMESPACE}/serviceaccounts/{wire.VIEWER_ACCOUNT}")
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings"
    await client.request("DELETE", f"{rbac}/{wire.VIEWER_ACCOUNT}")
    site.clock.now += reviews.REMEMBERED_SECONDS - 1
    assert (await site.ask(wire.PATH_SNAPSHOT, token))[0] == 200, "remembered, for less than a minute"
    site.clock.now += 1
    assert (await site.ask(wire.PATH_SNAPSHOT, token))[0] == 401
    assert (await site.ask(wire.PATH_SNAPSHOT, teams))[0] == 403


async def test_nobody_is_let_in_while_the_api_server_is_away(
    client: Client, api: EmbeddedApi, site: HistorySite
) -> None:
    known, new = await token_of(client, wire.NAMESPACE), await token_of(client, wire.NAMESPACE)
    assert (await site.ask(wire.PATH_SNAPSHOT, known))[0] == 200
    await api.__aexit__(None, None, None)
    assert (await site.ask(wire.PATH_SNAPSHOT, known))[0] == 200
    status, words = await site.ask(wire.PATH_SNAPSHOT, new)
    assert (status, words) == (503, "the API server does not tell who you are and what you may: try again\n")


# The past


async def test_history_by_steps(client: Client, site: HistorySite) -> None:
    token = await token_of(client, wire.NAMESPACE)
    since, until_ = str(1e6 - 600), str(1e6)
    _, answer = await site.ask(wire.PATH_HISTORY, token, since=since, until=until_, step="20", series="used_bytes")
    used = {(one["card"], one.get("pod", "")): one["values"] for one in answer["series"]}
    assert used == {
        ("GPU-n1-0", ""): [4 * GIB] * 30,
        ("GPU-n1-0", "a"): [2 * GIB] * 30,
        ("GPU-n1-0", "b"): [GIB] * 30,
    }
    assert (answer["since"], answer["step"]) == (1e6 - 600, 20)
    _, same = await site.ask(wire.PATH_HISTORY, token, last="600", step="20", series="used_bytes")
    assert same == answer
    for of, names in (("cards", {""}), ("pods", {"a", "b"}), ("node", {""})):
        _, some = await site.ask(wire.PATH_HISTORY, token, last="600", step="20", of=of)
        assert {one.get("pod", "") for one in some["series"]} == names
        assert {bool(one.get("card")) for one in some["series"]} == {of != "node"}
    _, answer = await site.ask(wire.PATH_HISTORY, token, since=since, until=until_, step="60", pod="a")
    assert [one["values"] for one in answer["series"]] == [[2 * GIB] * 9 + [None], [30] * 9 + [None]], (
        "the last is not over"
    )


async def test_history_comes_in_pages(client: Client, site: HistorySite) -> None:
    token = await token_of(client, wire.NAMESPACE)
    _, whole = await site.ask(wire.PATH_HISTORY, token)
    pages: list[dict[str, Any]] = []
    more: dict[str, str] = {}
    while not pages or more:
        _, page = await site.ask(wire.PATH_HISTORY, token, limit="2", **more)
        assert len(page["series"]) <= 2
        pages += page["series"]
        more = {"continue": page["continue"]} if "continue" in page else {}
    assert pages == whole["series"]
    assert {one["name"] for one in pages} == set(NAMES)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"step": "0.1"}, "less than a second"),
        ({"since": "0", "step": "1"}, "more than 2000"),
        ({"since": "1e400"}, "no number"),
        ({"since": "nan"}, "no number"),
        ({"since": "5", "until": "4"}, "not before"),
        ({"series": "secrets"}, "not known"),
        ({"shell": "x"}, "not known"),
        ({"of": "secrets"}, "not known"),
        ({"continue": "%%%"}, "earlier answer"),
        ({"limit": "many"}, "no number"),
    ],
)
async def test_bad_questions_are_told(query: dict[str, str], words: str, client: Client, site: HistorySite) -> None:
    status, said = await site.ask(wire.PATH_HISTORY, await token_of(client, wire.NAMESPACE), **query)
    assert status == 400
    assert words in said


async def test_other_paths_and_nothing_measured_yet(client: Client, ring: Path) -> None:
    async with served(client, ring, None) as site:
        token = await token_of(client, wire.NAMESPACE)
        assert (await site.ask("/metrics", token))[0] == 404
        status, words = await site.ask(wire.PATH_SNAPSHOT, token)
        assert (status, words) == (503, "nothing is measured yet: try again in some seconds\n")


# What callers can use


async def test_reviews_of_unknown_tokens_are_bounded(client: Client, site: HistorySite) -> None:
    good = await token_of(client, wire.NAMESPACE)
    assert (await site.ask(wire.PATH_SNAPSHOT, good))[0] == 200
    asked = CountedCalls(client)
    answers = [await site.ask(wire.PATH_SNAPSHOT, f"forged.{number}") for number in range(100)]
    burst = int(reviews.ONE_ADDRESS.burst)
    assert [status for status, _ in answers] == [401] * (burst - 1) + [429] * (101 - burst)
    assert asked.count == burst - 1
    assert (await site.ask(wire.PATH_SNAPSHOT, good))[0] == 200, "who is known is answered meanwhile"
    site.clock.now += 1
    assert (await site.ask(wire.PATH_SNAPSHOT, "forged.again"))[0] == 401
    assert len(site.server._access._reviews._tokens) <= 1024


class CountedCalls:
    """Counts the TokenReviews that leave a client."""

    def __init__(self, client: Client) -> None:
        self.count = 0
        send = client._transport.request

        async def request(call: Any) -> bytes:
            self.count += call.path == REVIEWS
            return await send(call)

        client._transport.request = request  # type: ignore[method-assign]


async def test_callers_with_one_token_are_reviewed_once(client: Client, site: HistorySite) -> None:
    token = await token_of(client, wire.NAMESPACE)
    asked = CountedCalls(client)
    answers = await asyncio.gather(*(site.ask(wire.PATH_SNAPSHOT, token) for _ in range(4)))
    assert [status for status, _ in answers] == [200] * 4
    assert asked.count == 1


@pytest.mark.parametrize("header", ["Authorization", wire.TOKEN_HEADER, "X-Anything"])
async def test_huge_headers_are_refused(header: str, site: HistorySite) -> None:
    status, _ = await site.ask(wire.PATH_SNAPSHOT, "x" * 100_000, header=header)
    assert status == 400
    assert (await site.ask(wire.PATH_SNAPSHOT, "x" * 4050))[0] == 401


async def test_many_headers_are_refused(site: HistorySite) -> None:
    headers = {f"X-{number}": "x" for number in range(1000)}
    async with site.session.get(
        site.url + wire.PATH_SNAPSHOT, headers=headers, ssl=site.tls, server_hostname=wire.SERVER_NAME
    ) as answer:
        assert answer.status == 400


async def connected(site: HistorySite) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = site.announcement.host, site.announcement.port
    return await asyncio.open_connection(host, port, ssl=site.tls, server_hostname=wire.SERVER_NAME, limit=1 << 12)


#: Bounds in numbers alone, for tests on machines that may be slow.
PATIENT = Bounds(connections=16, per_peer=16, body=0, bodies=0, seconds=600, handshake_seconds=600)


@contextlib.asynccontextmanager
async def slow_readers() -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Connections that end with the test, whatever happens."""
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        yield streams
    finally:
        for _, writer in streams:
            writer.transport.abort()


async def test_a_slow_reader_is_cut_off_and_holds_up_nobody(
    client: Client, ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_server, "_SEND_SECONDS", 600.0)
    many = [container(f"pod-{number}", 1 << 20) for number in range(4000)]
    big = snapshot([card(number, many) for number in range(8)])
    async with served(client, ring, big, bounds=PATIENT) as site, slow_readers() as streams:
        token = await token_of(client, wire.NAMESPACE)
        request = f"GET {wire.PATH_SNAPSHOT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        for _ in range(4):
            streams.append(await connected(site))
            streams[-1][1].write(request)
        await until(lambda: site.server._answering.total() == 4, "being answered")
        status, _ = await site.ask(wire.PATH_SNAPSHOT, token)
        assert status == 503, "as many at once as one caller may have"
        assert (await site.ask(wire.PATH_SNAPSHOT, await token_of(client, wire.NAMESPACE)))[0] == 200
        for _, writer in streams:
            writer.transport.abort()
        await until(lambda: site.server._answering.total() == 0, "rid of them")
        monkeypatch.setattr(history_server, "_SEND_SECONDS", 1.0)
        streams.append(await connected(site))
        streams[-1][1].write(request)
        await until(lambda: site.server._answering.total() == 1, "being answered")
        await until(lambda: site.server._answering.total() == 0, "cut off")


async def test_who_says_nothing_holds_a_connection_and_no_more(client: Client, ring: Path) -> None:
    few = replace(PATIENT, connections=8, per_peer=4)
    async with served(client, ring, NOW, bounds=few) as site, slow_readers() as silent:
        host, port = site.announcement.host, site.announcement.port
        for _ in range(4):
            silent.append(await asyncio.open_connection(host, port))
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await site.ask(wire.PATH_SNAPSHOT, "x")
        for _, writer in silent:
            writer.transport.abort()
        token = await token_of(client, wire.NAMESPACE)

        async def answered() -> bool:
            try:
                return (await site.ask(wire.PATH_SNAPSHOT, token))[0] == 200
            except aiohttp.ClientError:
                return False

        while not await answered():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_who_says_nothing_for_too_long_is_given_up(client: Client, ring: Path) -> None:
    short = replace(PATIENT, handshake_seconds=0.2)
    async with served(client, ring, NOW, bounds=short) as site, slow_readers() as open_:
        open_.append(await asyncio.open_connection(site.announcement.host, site.announcement.port))
        assert await open_[0][0].read() == b"", "its handshake is given up"
    async with served(client, ring, NOW, bounds=replace(PATIENT, seconds=0.2)) as site, slow_readers() as open_:
        open_.append(await connected(site))
        open_[0][1].write(b"GET / HT")
        assert await open_[0][0].read() == b"", "its request is given up"


async def test_the_certificate_is_the_announced_one(site: HistorySite) -> None:
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await site.session.get(site.url, ssl=ssl.create_default_context(), server_hostname=wire.SERVER_NAME)


# The port for Prometheus, in the Lease


async def test_the_lease_tells_how_the_port_for_prometheus_stands(client: Client, tmp_path: Path) -> None:
    status: list[ExporterStatus | None] = [None]
    settings = HistorySettings(folder=str(tmp_path), host="127.0.0.1", port=0)
    server = HistoryServer(settings, client, "n1", exporter=lambda: status[0], look_seconds=0.01)

    async def told() -> ExporterStatus | None:
        lease = await client.get(LEASES, "n1", namespace=wire.NAMESPACE)
        return msgspec.json.decode(lease.metadata.annotations[wire.ANNOTATION], type=Announcement).exporter

    task = asyncio.create_task(server.run(LatestSnapshot()))
    try:
        await until(lambda: server.announced or task.done(), "announced")
        assert await told() is None
        for scraped in (None, False, True):
            status[0] = ExporterStatus(port=9400, pod_labels="auto", scraped=scraped)
            async with asyncio.timeout(300):
                while await told() != status[0]:  # noqa: ASYNC110 - nobody signals it
                    await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.wait({task})
