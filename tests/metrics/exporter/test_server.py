"""The port for Prometheus over real sockets: answers, caching, age, TLS and passwords."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from shoal.embedded.certificates import Pki, make_pki
from shoal.http.errors import TlsError
from shoal.kube.certificates import fingerprint
from shoal.metrics.attribution import UseSource
from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.metrics.exporter.passwords import BasicUsers, bcrypt
from shoal.metrics.exporter.server import Exporter, InfluxSource
from shoal.metrics.exporter.settings import ExporterSettings, PodLabels, SharedSeries
from shoal.metrics.exporter.web_config import WebAccess, parse
from shoal.metrics.influx import InfluxBuffer, InfluxPoint
from shoal.metrics.snapshot import ContainerName, ContainerSnapshot, LatestSnapshot
from shoal.observe.prometheus import CONTENT_TYPE, MetricSource
from tests.metrics.exporter.patience import until
from tests.metrics.exporter.snapshots import GIB, busy_node, card_snapshot, container_of, snapshot_of
from tests.metrics.exporter.text_format import Family, read

#: "test", from Prometheus's own documentation, and "secret" at the lowest cost.
TEST_HASH = "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay"
SALT = "$2b$04$abcdefghijklmnopqrstuu"


@dataclass
class Clock:
    """A clock that tests set."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Served:
    """A running exporter."""

    exporter: Exporter
    latest: LatestSnapshot
    url: str
    session: aiohttp.ClientSession
    trust: ssl.SSLContext | bool = True
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str = "/metrics", **headers: str) -> tuple[int, str, dict[str, str]]:
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.session.get(self.url + path, headers=sent, ssl=self.trust) as answer:
            return answer.status, await answer.text(), dict(answer.headers)

    async def families(self) -> dict[str, Family]:
        status, text, _ = await self.get()
        assert status == 200
        return read(text)

    async def refuses(self, file: str) -> bool:
        return not (await self.families())["shoal_exporter_config_ok"].by("file")[(file,)]

    async def shows(self, name: str) -> bool:
        return name in await self.families()


@contextlib.asynccontextmanager
async def served(
    settings: ExporterSettings | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sources: Sequence[MetricSource] = (),
    scheme: str = "http",
    trust: ssl.SSLContext | bool = True,
) -> AsyncIterator[Served]:
    ports: asyncio.Queue[int] = asyncio.Queue()
    settings = settings or ExporterSettings()
    local = ExporterSettings(
        **{name: getattr(settings, name) for name in settings.__struct_fields__ if name != "listen"},
        listen="127.0.0.1:0",
    )
    exporter = Exporter(local, sources=sources, clock=clock, serving_at=ports.put_nowait, look_seconds=0.05)
    latest = LatestSnapshot()
    task = asyncio.create_task(exporter.run(latest))
    waiting = asyncio.create_task(ports.get())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
        async with aiohttp.ClientSession(auto_decompress=True) as session:
            yield Served(exporter, latest, f"{scheme}://localhost:{waiting.result()}", session, trust)
    finally:
        waiting.cancel()
        task.cancel()
        await asyncio.wait({task})


async def test_the_last_snapshot_is_shown_and_rendered_once_however_many_ask() -> None:
    async with served() as at:
        at.latest.put(snapshot_of([card_snapshot(0, [container_of(1, GIB)])]))
        answers = await asyncio.gather(*(at.get(Accept_Encoding="identity") for _ in range(10)))
        assert at.exporter.rendered == 1
        assert {status for status, _, _ in answers} == {200}
        assert answers[0][2]["Content-Type"] == CONTENT_TYPE
        assert read(answers[0][1])["DCGM_FI_DEV_GPU_TEMP"].by("gpu") == {("0",): 60}
        at.latest.put(snapshot_of([card_snapshot(1)], number=2))
        assert (await at.families())["DCGM_FI_DEV_GPU_TEMP"].by("gpu") == {("1",): 61}
        assert at.exporter.rendered == 2


async def test_gzip_when_asked_and_the_same_text() -> None:
    clock = Clock()
    async with served(clock=clock) as at:
        at.latest.put(replace(busy_node(), monotonic=clock.now))
        _, plain, headers = await at.get(Accept_Encoding="identity")
        assert "Content-Encoding" not in headers
        for _ in range(2):
            _, text, headers = await at.get(Accept_Encoding="deflate, gzip;q=0.5")
            assert headers["Content-Encoding"] == "gzip"
            assert int(headers["Content-Length"]) < len(plain) / 5
            assert text == plain
        assert at.exporter.rendered == 1
        _, _, headers = await at.get(Accept_Encoding="gzip;q=0")
        assert "Content-Encoding" not in headers


async def test_an_old_snapshot_is_shown_no_more_and_its_age_is() -> None:
    clock = Clock()
    async with served(clock=clock) as at:
        assert (await at.get("/readyz"))[:2] == (503, "the cards were not read yet")
        assert (await at.get("/healthz"))[0] == 200
        assert (await at.families()).keys() == {"shoal_exporter_config_ok", "shoal_exporter_names_pods"}
        at.latest.put(snapshot_of([card_snapshot(0)], interval=5.0, monotonic=clock.now))
        clock.now += 15.0
        for path in ("/health", "/healthz", "/readyz"):
            assert (await at.get(path))[:2] == (200, "OK")
        assert "DCGM_FI_DEV_GPU_TEMP" in await at.families()
        clock.now += 0.5
        for path in ("/health", "/healthz", "/readyz"):
            status, words, _ = await at.get(path)
            assert (status, words) == (503, "the cards were last read 16 s ago, and every 5 s was meant: see the log")
        families = await at.families()
        ever = {"shoal_sample_age_seconds", "shoal_exporter_config_ok", "shoal_exporter_names_pods"}
        assert families.keys() == ever
        assert list(families["shoal_sample_age_seconds"].series.values()) == [15.5]
        at.latest.put(snapshot_of([card_snapshot(0)], number=2, monotonic=clock.now))
        assert "DCGM_FI_DEV_GPU_TEMP" in await at.families()
        assert (await at.get("/healthz"))[0] == 200


#: Names of `PRIVATE`, which no stranger may read.
SECRETS = ("secret-team", "secret-pod", "secret-container", "secret-uid")
PRIVATE = snapshot_of(
    [
        card_snapshot(0, [ContainerSnapshot(ContainerName(*SECRETS), GIB, GIB, GIB, 5, UseSource.PROCESS)]),
        card_snapshot(1, [container_of(1, GIB), container_of(2, GIB)]),
    ]
)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shared_series": SharedSeries.DCGM, "pod_uid": True},
        {"old_labels": True},
        {"pod_labels": PodLabels.NEVER, "network_policy": True},
    ],
)
async def test_whoever_reaches_an_open_port_reads_cards_and_no_pod(settings: dict[str, object]) -> None:
    async with served(ExporterSettings(**settings)) as at:  # type: ignore[arg-type]
        at.latest.put(replace(PRIVATE, monotonic=time.monotonic()))
        text = (await at.get())[1]
        assert not [name for name in (*SECRETS, "team-a", "train-1") if name in text]
        found = read(text)
        assert len(found["DCGM_FI_DEV_POWER_USAGE"].series) == 2
        assert found["shoal_card_memory_used_bytes"].series
        assert not [name for name in found if name.startswith("shoal_container")]
        assert list(found["shoal_exporter_names_pods"].series.values()) == [0]
        status = at.exporter.status()
        assert status is not None
        assert not status.names_pods


@pytest.mark.parametrize("settings", [{"network_policy": True}, {"pod_labels": PodLabels.ALWAYS}])
async def test_pods_are_named_behind_a_network_policy_or_at_the_administrators_word(
    settings: dict[str, object],
) -> None:
    async with served(ExporterSettings(**settings)) as at:  # type: ignore[arg-type]
        at.latest.put(replace(PRIVATE, monotonic=time.monotonic()))
        found = await at.families()
        assert ("secret-pod",) in found["DCGM_FI_DEV_POWER_USAGE"].by("pod")
        assert ("secret-team",) in found["shoal_container_memory_used_bytes"].by("namespace")
        assert list(found["shoal_exporter_names_pods"].series.values()) == [1]


async def test_pods_are_named_while_clients_are_asked_for_a_password(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(f"basic_auth_users: {{alice: '{bcrypt(b'secret', SALT)}'}}\n")
    async with served(ExporterSettings(web_config_file=str(path))) as at:
        at.latest.put(replace(PRIVATE, monotonic=time.monotonic()))
        at.headers["Authorization"] = basic("alice", "secret")
        assert ("secret-pod",) in (await at.families())["DCGM_FI_DEV_POWER_USAGE"].by("pod")
        # The password is taken away while it runs: the names go in the same moment.
        path.write_text("basic_auth_users: {}\n")
        at.headers.clear()

        async def is_open() -> bool:
            return (await at.get())[0] == 200

        await until(is_open)
        assert "secret-pod" not in (await at.get())[1]


async def test_names_need_a_client_certificate_and_not_only_tls(tmp_path: Path, pki: Pki) -> None:
    required = f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {pki.authority}\n"
    for clients, names_pods in (("", False), (required, True)):
        path = web_file(tmp_path / "web.yaml", pki, clients)
        async with served(ExporterSettings(web_config_file=str(path)), scheme="https") as at:
            status = at.exporter.status()
            assert status is not None
            assert status.names_pods is names_pods


async def test_a_port_that_nobody_scrapes_is_known_after_ten_minutes() -> None:
    clock = Clock()
    async with served(clock=clock) as at:

        def scraped() -> bool | None:
            status = at.exporter.status()
            assert status is not None
            return status.scraped

        assert scraped() is None
        clock.now += 601
        await at.get("/healthz")
        assert scraped() is False
        await at.get()
        assert scraped() is True
        clock.now += 601
        assert scraped() is False


async def test_other_paths_and_methods_are_refused() -> None:
    async with served() as at:
        assert (await at.get("/debug/pprof"))[0] == 404
        async with at.session.post(at.url + "/metrics") as answer:
            assert answer.status == 405


async def test_what_waits_for_influxdb_is_told() -> None:
    buffer = InfluxBuffer(most_bytes=100)
    for number in range(10):
        buffer.add(InfluxPoint("m", {}, {"value": number}, 1.0))
    async with served(sources=[InfluxSource(buffer)]) as at:
        families = await at.families()
        assert list(families["shoal_influx_buffered_points"].series.values()) == [len(buffer)]
        assert list(families["shoal_influx_dropped_points"].series.values()) == [buffer.dropped]
        assert buffer.dropped


async def test_a_list_of_fields_that_changes_counts_from_the_next_scrape_on(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
    async with served(ExporterSettings(counters_file=str(path))) as at:
        at.latest.put(snapshot_of([card_snapshot(0)], interval=300.0))
        assert [name for name in await at.families() if name.startswith("DCGM")] == ["DCGM_FI_DEV_GPU_TEMP"]
        path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge\n")
        await until(lambda: at.refuses("counters"))
        assert "DCGM_FI_DEV_GPU_TEMP" in await at.families()
        path.write_text("DCGM_FI_DEV_SM_CLOCK, gauge, x\n")
        await until(lambda: at.shows("DCGM_FI_DEV_SM_CLOCK"))


# TLS and passwords


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_bcrypt_is_that_of_prometheus() -> None:
    assert bcrypt(b"test", TEST_HASH) == TEST_HASH
    assert bcrypt(b"tesu", TEST_HASH) != TEST_HASH
    assert bcrypt(b"a\0b", TEST_HASH) == ""
    assert bcrypt(b"x" * 73, TEST_HASH) == ""


async def test_metrics_need_a_password_and_probes_do_not(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(f"basic_auth_users:\n  prometheus: {bcrypt(b'secret', SALT)}\n")
    async with served(ExporterSettings(web_config_file=str(path))) as at:
        at.latest.put(snapshot_of([card_snapshot(0)]))
        status, words, headers = await at.get()
        assert (status, words, headers["WWW-Authenticate"]) == (401, "give user and password", "Basic")
        for wrong in (
            basic("prometheus", "Secret"),
            basic("nobody", "secret"),
            basic("prometheus", "s" * 5000)[:3000],
            "Basic !!!",
            "Basic " + base64.b64encode(b"nocolon").decode(),
            "Bearer secret",
        ):
            assert (await at.get(Authorization=wrong))[0] == 401, wrong
        for _ in range(3):
            assert (await at.get(Authorization=basic("prometheus", "secret")))[0] == 200
        for probe in ("/health", "/healthz", "/readyz"):
            assert (await at.get(probe))[0] == 200


async def test_a_right_password_is_checked_once_and_guesses_wait_for_each_other() -> None:
    users = BasicUsers({"a": bcrypt(b"secret", SALT)}, pause_seconds=0.05)
    right, wrong = basic("a", "secret"), basic("a", "guess")
    assert await users.admits(right)
    begun = time.monotonic()
    guesses = [asyncio.create_task(users.admits(wrong)) for _ in range(6)]
    await asyncio.sleep(0)
    assert await users.admits(right)  # known by now: it waits for nobody
    assert not any(await asyncio.gather(*guesses))
    assert time.monotonic() - begun >= 6 * 0.05
    crowd = await asyncio.gather(*(users.admits(wrong) for _ in range(100)))
    assert not any(crowd)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return make_pki(tmp_path / "pki", now=datetime.now(UTC))


def web_file(path: Path, pki: Pki, more: str = "", users: str = "") -> Path:
    # Paths count from the file's folder.
    path.write_text(
        f"tls_server_config:\n  cert_file: pki/{pki.certificate.name}\n  key_file: {pki.key}\n{more}"
        f"http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n{users}"
    )
    return path


async def test_tls_by_the_files_of_the_web_configuration_renewed_while_it_runs(tmp_path: Path, pki: Pki) -> None:
    path = web_file(tmp_path / "web.yaml", pki)
    trust = ssl.create_default_context(cafile=str(pki.authority))
    async with served(ExporterSettings(web_config_file=str(path)), scheme="https", trust=trust) as at:
        at.latest.put(snapshot_of([card_snapshot(0)], interval=300.0))
        status, _, headers = await at.get()
        assert (status, headers["X-Frame-Options"]) == (200, "deny")
        with pytest.raises(aiohttp.ClientError):
            async with at.session.get(at.url.replace("https", "http")) as answer:
                await answer.read()
        pki.certificate.write_text("half of a certif")
        await until(lambda: at.refuses("web"))
        renewed = make_pki(tmp_path / "pki", now=datetime.now(UTC))
        port = int(at.url.rpartition(":")[2])
        wanted = fingerprint(renewed.certificate.read_bytes())

        async def renewed_now() -> bool:
            found = await asyncio.to_thread(ssl.get_server_certificate, ("localhost", port))
            return fingerprint(found.encode()) == wanted

        await until(renewed_now)


async def test_a_client_without_a_certificate_gets_nowhere_when_one_is_required(tmp_path: Path, pki: Pki) -> None:
    more = f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {pki.authority}\n  min_version: TLS13\n"
    path = web_file(tmp_path / "web.yaml", pki, more)
    trust = ssl.create_default_context(cafile=str(pki.authority))
    async with served(ExporterSettings(web_config_file=str(path)), scheme="https", trust=trust) as at:
        with pytest.raises(aiohttp.ClientError):
            await at.get()


def test_passwords_and_headers_change_while_it_runs_and_tls_does_not(tmp_path: Path, pki: Pki) -> None:
    path = tmp_path / "web.yaml"
    path.write_text("")
    access = WebAccess(path)
    assert len(access.users) == 0
    path.write_text(f"basic_auth_users:\n  a: {TEST_HASH}\n")
    access.look()
    assert len(access.users) == 1
    web_file(path, pki)
    access.look()
    assert "TLS is switched on or off by a restart only" in access.refused
    assert len(access.users) == 1
    path.write_text(f"basic_auth_users:\n  a: {TEST_HASH}\n  b: {TEST_HASH}\n")
    access.look()
    assert not access.refused
    assert len(access.users) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("basic_auth_users:\n  a: secret\n", "the password of user 'a' is no bcrypt hash: write what `htpasswd"),
        (f"basic_auth_users:\n  a: {TEST_HASH.replace('12', '31', 1)}\n", "cost 31: use 4 to 14"),
        ("basic_auth_users: [\n", "it is no YAML at line 2"),
        ("basic_auth: {}\n", "unknown field `basic_auth`"),
        ("tls_server_config: {cert_file: a}\n", "key_file"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}\n", "cannot be done"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}\n", "go together"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}\n", "TLS10"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}\n", "exchange them"),
        ("tls_server_config: {cert_file: a, key_file: b, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}\n", "not spoken"),
        ("http_server_config: {headers: {Set-Cookie: a}}\n", "header 'Set-Cookie' cannot be set"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nb"}}\n', "matching regex"),
        ("[" * 100_000, "it is no YAML"),
    ],
)
def test_a_web_configuration_that_cannot_be_heeded_is_refused(text: str, words: str) -> None:
    with pytest.raises(ExporterConfigError, match=words) as refusal:
        parse(text, Path("/etc"))
    assert "secret" not in str(refusal.value)


async def test_a_server_that_should_be_closed_does_not_open(tmp_path: Path, pki: Pki) -> None:
    for settings, error in (
        (ExporterSettings(web_config_file=str(tmp_path / "none.yaml")), ExporterConfigError),
        (
            ExporterSettings(web_config_file=str(web_file(tmp_path / "web.yaml", replace(pki, key=pki.authority)))),
            TlsError,
        ),
    ):
        with pytest.raises(error):
            async with served(settings):
                pass


async def test_nothing_listens_when_it_is_switched_off() -> None:
    task = asyncio.create_task(Exporter(ExporterSettings(listen="")).run(LatestSnapshot()))
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
