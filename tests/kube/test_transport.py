"""Retries, bounds and rotation. A scripted server stands in where the real one cannot be made to misbehave."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from shoal.embedded.certificates import make_pki
from shoal.kube.access.credentials import Access, FileContent, Inline, StoredCredential
from shoal.kube.access.kubeconfig import in_cluster
from shoal.kube.client import Client
from shoal.kube.errors import (
    AnswerError,
    ConfigError,
    ForbiddenError,
    KubeError,
    SilentError,
    TooManyRequestsError,
    UnavailableError,
    UnreachableError,
)
from shoal.kube.resources import CONFIG_MAPS, PODS
from shoal.kube.transport import Call, Transport, TransportLimits
from shoal.model.backoff import Backoff
from tests.kube.conftest import access_of
from tests.kube.objects import config_map
from tests.testbed.apiserver import ApiServer

LIMITS = TransportLimits(backoff=Backoff(0.01, 60.0), request_seconds=30)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client of a server that gives these answers in turn, the last for ever; and the verbs it was asked."""
    asked: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        return await answers[min(len(asked), len(answers)) - 1](request)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        async with Client(
            Access(server=f"http://127.0.0.1:{port}", credentials=StoredCredential()), limits=LIMITS
        ) as client:
            yield client, asked
    finally:
        await runner.cleanup()


def says(status: int, body: str = "{}", **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(
            status=status, text=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


FOUND = says(200, '{"metadata":{"name":"a"}}')


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_asked_to_come_back(status: int, verb: str) -> None:
    async with scripted(says(status, Retry_After="0"), FOUND) as (client, asked):
        if verb == "GET":
            await client.get(CONFIG_MAPS, "a", namespace="n")
        else:
            await client.create(CONFIG_MAPS, config_map("a", "n"))
    assert asked == [verb, verb]


async def test_it_does_not_ask_for_ever() -> None:
    async with scripted(says(429, Retry_After="0")) as (client, asked):
        with pytest.raises(TooManyRequestsError):
            await client.get(CONFIG_MAPS, "a", namespace="n")
    assert len(asked) == LIMITS.attempts


async def test_a_long_wait_is_left_to_the_caller() -> None:
    async with scripted(says(429, Retry_After="3600")) as (client, asked):
        with pytest.raises(TooManyRequestsError) as caught:
            await client.get(CONFIG_MAPS, "a", namespace="n")
    assert caught.value.retry_after == 3600
    assert asked == ["GET"]


async def test_a_write_cut_off_is_not_repeated() -> None:
    """It may have been done: only the caller can tell."""
    async with scripted(cut) as (client, asked):
        with pytest.raises(UnreachableError, match="the connection broke"):
            await client.create(CONFIG_MAPS, config_map("a", "n"))
        assert asked == ["POST"]
        with pytest.raises(UnreachableError):
            await client.patch(CONFIG_MAPS, "a", [], namespace="n", kind="json")
        with pytest.raises(UnreachableError):
            await client.delete(CONFIG_MAPS, "a", namespace="n")
    assert asked == ["POST", "PATCH", "DELETE"]


async def test_a_read_cut_off_is() -> None:
    async with scripted(cut, cut, FOUND) as (client, asked):
        assert (await client.get(CONFIG_MAPS, "a", namespace="n")).metadata.name == "a"
    assert asked[0] == "GET"
    assert len(asked) >= 3


async def test_a_503_without_a_word_repeats_reads_only() -> None:
    async with scripted(says(503), FOUND) as (client, asked):
        await client.get(CONFIG_MAPS, "a", namespace="n")
        assert asked == ["GET", "GET"]
    async with scripted(says(503)) as (client, asked):
        with pytest.raises(UnavailableError):
            await client.create(CONFIG_MAPS, config_map("a", "n"))
    assert asked == ["POST"]


async def test_nobody_there(unused_port: int) -> None:
    access = Access(server=f"http://127.0.0.1:{unused_port}", credentials=StoredCredential())
    async with Client(access, limits=LIMITS) as client:
        with pytest.raises(UnreachableError, match=r"no connection: .*refused.*check that the server runs"):
            await client.create(CONFIG_MAPS, config_map("a", "n"))


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def test_slow_answers_end() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    async with scripted(slow) as (client, asked):
        transport = client._transport
        with pytest.raises(UnreachableError, match="no answer in time"):
            await transport.request(Call("GET", "/x", seconds=0.3, repeatable=True))
    assert asked == ["GET"]


async def test_large_answers_end() -> None:
    async with scripted(says(200, "x" * 5000)) as (client, _):
        with pytest.raises(AnswerError, match="larger than 4096 bytes"):
            await client._transport.request(Call("GET", "/x", max_bytes=4096))


@pytest.mark.parametrize("body", ["", "<html>no</html>", '{"kind":"Status"', "\x00\x1b[31m", "[]", '{"kind":7}'])
async def test_refusals_in_any_form(body: str) -> None:
    async with scripted(says(403, body)) as (client, _):
        with pytest.raises(ForbiddenError, match="GET /api/v1/pods: 403") as caught:
            await client.list(PODS)
    assert str(caught.value).isprintable()


async def test_redirects_are_not_followed() -> None:
    async with scripted(says(302, Location="http://elsewhere.example/")) as (client, asked):
        with pytest.raises(KubeError, match="302"):
            await client.list(PODS)
    assert asked == ["GET"]


async def test_a_watch_in_pieces_and_cut_in_a_line() -> None:
    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        lines = b"".join(
            b'{"type":"ADDED","object":{"metadata":{"name":"%d","resourceVersion":"%d"}}}\n' % (n, n) for n in range(20)
        )
        for start in range(0, len(lines), 7):
            await response.write(lines[start : start + 7])
        await response.write(b'{"type":"ADDED","obj')
        return response

    async with scripted(watch) as (client, _):
        names = [e.object.metadata.name async for e in client.watch(CONFIG_MAPS, resource_version="1")]
    assert names == [str(n) for n in range(20)]


async def test_a_silent_watch_is_cut() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(3600)
        return response

    async with scripted(silent) as (client, _):
        with pytest.raises(SilentError, match=r"nothing was told for 0\.3 s"):
            async for _event in client.watch(CONFIG_MAPS, resource_version="1", silence=0.3):
                pass


def test_a_request_that_is_given_up_leaves_no_connection(tmp_path: Path) -> None:
    """Its TLS connection waits for a goodbye that never comes, and the event loop ends at once."""
    pki = make_pki(tmp_path, now=datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.certificate, pki.key)
    accepted: list[ssl.SSLSocket] = []
    asked = threading.Event()

    def serve() -> None:
        accepted.append(context.wrap_socket(listening.accept()[0], server_side=True))
        accepted[0].recv(1 << 16)
        asked.set()

    async def give_up() -> None:
        credentials = StoredCredential()
        access = Access(server=server, credentials=credentials, authority=Inline(pki.authority.read_bytes()))
        async with Client(access) as client:
            request = asyncio.create_task(client.version())
            await asyncio.to_thread(asked.wait)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = f"https://127.0.0.1:{listening.getsockname()[1]}"
        serving = threading.Thread(target=serve)
        serving.start()
        asyncio.run(give_up())
        serving.join()
        with accepted[0] as peer:
            peer.settimeout(30)  # only ends what would hang
            assert peer.recv(1) == b"", "the client has closed it"
            raw = socket.socket(fileno=peer.detach())
            with raw:
                raw.settimeout(30)
                assert raw.recv(1) == b""


async def test_a_client_that_is_not_open() -> None:
    client = Client(Access(server="http://127.0.0.1:1", credentials=StoredCredential()))
    with pytest.raises(KubeError, match="async with"):
        await client.version()


def test_files_are_read_again_after_a_minute_or_when_told(tmp_path: Path) -> None:
    clock = [0.0]
    path = tmp_path / "token"
    path.write_text("one")
    content = FileContent(path, what="token", clock=lambda: clock[0])
    assert content.read() == b"one"
    path.write_text("two")
    clock[0] = 59
    assert content.read() == b"one"
    clock[0] = 61
    assert content.read() == b"two"
    path.write_text("three")
    content.expire()
    assert content.read() == b"three"
    path.unlink()
    content.expire()
    assert content.read() == b"three"
    path.write_text(" \n")
    content.expire()
    assert content.read() == b"three"


@pytest.mark.parametrize("token", ["two\nlines", "ümlaut", ""])
async def test_tokens_that_are_none(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    with pytest.raises(ConfigError):
        await StoredCredential(token=FileContent(tmp_path / "token", what="token")).current()


async def test_a_rotated_account_goes_on(apiserver: ApiServer, client: Client, namespace: str, tmp_path: Path) -> None:
    """The token in a pod's folder is replaced: a 401 makes us read it again, at once and once."""
    (tmp_path / "token").write_text("stale")
    (tmp_path / "ca.crt").write_bytes(apiserver.ca.read_bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(apiserver.port)}
    access = in_cluster(environ, tmp_path)
    assert (await access.credentials.current()).token == "stale"
    (tmp_path / "token").write_text((await client.token("default", namespace=namespace)).token)
    async with Client(access) as user:
        with pytest.raises(ForbiddenError, match=f"serviceaccount:{namespace}:default"):
            await user.list(PODS, namespace=namespace)


async def test_a_rotated_authority_goes_on(apiserver: ApiServer, tmp_path: Path) -> None:
    """The authority on disk was another's when we started and is the right one now."""
    stranger = await _stranger(tmp_path)
    path = tmp_path / "ca.crt"
    path.write_bytes(stranger)
    authority = FileContent(path, what="ca")
    authority.read()
    access = replace(access_of(apiserver.kubeconfig()), authority=authority)
    async with Client(access) as client:
        with pytest.raises(UnreachableError, match="certificate-authority"):
            await client.version()
        path.write_bytes(apiserver.ca.read_bytes())
        assert (await client.version()).major == "1"


async def _stranger(folder: Path) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", str(folder / "key"), "-out", str(folder / "stranger"), "-subj", "/CN=stranger", "-days", "1"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    return (folder / "stranger").read_bytes()


async def test_half_written_certificates_do_not_replace_good_ones(apiserver: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(apiserver.ca.read_bytes())
    authority = FileContent(path, what="ca")
    access = replace(access_of(apiserver.kubeconfig()), authority=authority)
    async with Client(access) as client:
        await client.version()
        path.write_bytes(apiserver.ca.read_bytes()[:200])
        authority.expire()
        assert (await client.version()).major == "1"
    async with Client(replace(access, authority=Inline(b"no certificate"))) as client:
        with pytest.raises(ConfigError, match="in PEM"):
            await client.version()


async def test_no_descriptors_are_left(apiserver: ApiServer) -> None:
    """Keys go through files in memory that are closed at once."""
    transport = Transport(access_of(apiserver.kubeconfig()))
    credential = await transport.access.credentials.current()
    before = _descriptors()
    for _ in range(5):
        transport._tls = None
        transport._context(credential.pair)
    assert _descriptors() == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
