"""A real scheduler process under callers who want its memory; and killed while it makes its certificates.

20 unfinished bodies of 60 MB come in every run, with mutual TLS. `SHOAL_FUZZ` asks for the rest: the plain port, 600
filters with UIDs of 1 MB, a caller who never reads, and the kills.
"""

import contextlib
import datetime
import http.client
import os
import random
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from shoal.scheduler import certificates
from tests.scheduler.extender.requests import args, pod
from tests.suites.connection import Connection
from tests.suites.embedded import EmbeddedServer
from tests.suites.scheduling.process import SchedulerProcess
from tests.testbed.processes import Run

FULL = bool(os.environ.get("SHOAL_FUZZ"))
FILTERS, BODIES, KILLS = 600, 20, 6
soak = pytest.mark.skipif(not FULL, reason="a minute or more: SHOAL_FUZZ asks for it")
MEGABYTE, BODY = 1_000_000, 60 << 20
SECRET = "shoal-scheduler-tls"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
FILTER = "/gpushare-scheduler/filter"
#: All bodies together may take 128 MiB; what is beside them in the buffers of 20 connections is less than this.
ROOM_MIB = 128 + 72
#: Until who is too slow is cut off.
SECONDS = 3.0


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with Run() as run:
        yield run


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path_factory.mktemp("flooded"))
    yield server
    server.stop()


def scheduler_of(run: Run, api: EmbeddedServer, name: str, folder: Path, *, tls: bool) -> SchedulerProcess:
    """A scheduler that is not started yet."""
    config = {
        "election": {"enabled": False},
        "limits": {"seconds": SECONDS},
        **({"tls": {"secret": SECRET}} if tls else {}),
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return SchedulerProcess(run, name, api.kubeconfig(), ["--config", str(path)])


@pytest.fixture(scope="module", params=["mutual TLS", *(["plain"] if FULL else [])])
def flooded(
    request: pytest.FixtureRequest, run: Run, api: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SchedulerProcess]:
    """A scheduler that runs, as its deployment has it or without TLS."""
    tls = request.param != "plain"
    folder = tmp_path_factory.mktemp("scheduler")
    scheduler = scheduler_of(run, api, f"flooded-{'tls' if tls else 'plain'}", folder, tls=tls)
    scheduler.start()
    if tls:
        scheduler.tls = caller(bundle(api), folder)
    yield scheduler
    scheduler.stop()


def bundle(api: EmbeddedServer) -> certificates.Bundle:
    """What the Secret holds; CertificateError's kin if that is none."""
    return certificates.decode(Connection(api.kubeconfig()).request("GET", f"{SECRETS}/{SECRET}").body["data"])


def caller(known: certificates.Bundle, folder: Path) -> ssl.SSLContext:
    """What kube-scheduler shows and trusts."""
    pair, authority = folder / "client.pem", folder / "ca.pem"
    pair.write_bytes(known.client.certificate + known.client.key)
    authority.write_bytes(known.authority.certificate)
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(pair)
    return context


def connected(scheduler: SchedulerProcess, context: ssl.SSLContext | None = None) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", scheduler.port), timeout=60)
    context = context or scheduler.tls
    return plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")


def memory_mib(scheduler: SchedulerProcess, what: str) -> int:
    """What the process holds (VmRSS), or has held at most (VmHWM)."""
    lines = Path(f"/proc/{scheduler.pid}/status").read_text().splitlines()
    (held,) = [int(line.split()[1]) for line in lines if line.startswith(f"{what}:")]
    return held // 1024


def answers(scheduler: SchedulerProcess) -> bool:
    """Whether it still does for others what it is there for."""
    body = args(pod("ghost"), ["a"])
    with contextlib.closing(connected(scheduler)) as caller_socket:
        head = f"POST {FILTER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        caller_socket.sendall(head.encode() + body)
        return caller_socket.recv(64).startswith(b"HTTP/1.1 ")


@soak
def test_uids_of_a_megabyte_are_not_kept(flooded: SchedulerProcess) -> None:
    def ask(number: int) -> None:
        body = pod("p")
        body["metadata"]["uid"] = f"{number}-" + "x" * MEGABYTE
        sent = args(body, ["a", "b"])
        connection = http.client.HTTPConnection("127.0.0.1", flooded.port, timeout=60)
        with contextlib.closing(connection):
            connection.sock = connected(flooded)
            connection.request("POST", FILTER, sent)
            connection.getresponse().read()

    # An answer takes a second: the pod might be one that the watch shows late.
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(ask, range(40)))
        before = memory_mib(flooded, "VmRSS")
        list(pool.map(ask, range(FILTERS)))
    assert memory_mib(flooded, "VmRSS") < before + 60, "more than half of them would be as much"


def test_unfinished_bodies_fill_no_more_than_their_room(flooded: SchedulerProcess) -> None:
    head = f"POST {FILTER} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n".encode()
    chunk = b" " * (1 << 20)
    before = memory_mib(flooded, "VmRSS")
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(contextlib.closing(connected(flooded))) for _ in range(BODIES)]
        for one in callers:
            one.sendall(head)
            one.settimeout(0.3)  # who is not read from is as good as refused
        for _ in range((BODY >> 20) - 1):
            for one in list(callers):
                try:
                    one.sendall(chunk)
                except OSError:  # refused, or too slow
                    callers.remove(one)
        assert memory_mib(flooded, "VmHWM") < before + ROOM_MIB
        assert answers(flooded)


def test_bodies_before_the_certificate_are_not_read(flooded: SchedulerProcess) -> None:
    """Who has no certificate gets no further than the handshake, however much is sent."""
    if flooded.tls is None:
        pytest.skip("the plain port asks for none")
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    before = memory_mib(flooded, "VmRSS")
    for _ in range(BODIES):
        with contextlib.suppress(OSError), contextlib.closing(connected(flooded, stranger)) as one:
            one.settimeout(1.0)
            one.sendall(f"POST {FILTER} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n".encode())
            for _ in range(BODY >> 20):
                one.sendall(b" " * (1 << 20))
    assert memory_mib(flooded, "VmRSS") < before + 30
    assert answers(flooded)


@soak
def test_who_never_reads_is_cut_off(flooded: SchedulerProcess) -> None:
    request = b"GET /gpushare-scheduler/inspect HTTP/1.1\r\nHost: x\r\n\r\n"
    with contextlib.closing(connected(flooded)) as deaf:
        deaf.settimeout(1.0)
        end = time.monotonic() + 60
        while (alive := _takes(deaf, request * 500)) and time.monotonic() < end:
            pass
    assert not alive
    assert answers(flooded)


def _takes(deaf: socket.socket, data: bytes) -> bool:
    """Whether a connection is still there."""
    try:
        deaf.sendall(data)
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


@soak
def test_killed_while_it_makes_its_certificates(run: Run, tmp_path: Path) -> None:
    """At any moment: the next start ends with one bundle, which a caller can use and no later start changes."""
    directory = tmp_path / "api"
    directory.mkdir()
    api = EmbeddedServer(directory)
    connection = Connection(api.kubeconfig())
    scheduler = scheduler_of(run, api, "killed", tmp_path, tls=True)
    rng = random.Random(4)
    try:
        began = time.monotonic()
        scheduler.start()
        usual = time.monotonic() - began
        for _ in range(KILLS):
            scheduler.kill()
            assert connection.request("DELETE", f"{SECRETS}/{SECRET}").status == 200
            scheduler.launch()
            written = began = time.monotonic()
            until = began + rng.uniform(0.5, 1.0) * usual
            while written < until and connection.request("GET", f"{SECRETS}/{SECRET}").status != 200:
                time.sleep(0.005)
                written = time.monotonic()
            time.sleep(rng.choice([0.0, 0.01, 0.1]))
            scheduler.kill()
            scheduler.start()
            known = bundle(api)
            now = datetime.datetime.now(datetime.UTC)
            assert known.renewed(now) == known
            scheduler.tls = caller(known, tmp_path)
            assert answers(scheduler)
            scheduler.kill()
            scheduler.start()
            assert bundle(api) == known
            assert answers(scheduler)
    finally:
        scheduler.kill()
        api.stop()
