"""The machine's load from recorded /proc files and on this machine; pods' loads from answers of kubelet."""

import asyncio
import contextlib
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.errors import ConfigError
from shoal.metrics.errors import PodLoadError
from shoal.metrics.node_load import HostLoad, KubeletSettings, PodLoads, PodLoadWatch, loads_of
from shoal.metrics.snapshot import NodeLoad, PodLoad
from tests.metrics.exporter.patience import until
from tests.testbed.pki import Authority
from tests.testbed.waiting import wait_for

STAT = """\
cpu  {user} 100 300 {idle} 200 0 50 1000 40 0
cpu0 500 50 150 2000 100 0 25 500 20 0
cpu1 500 50 150 2000 100 0 25 500 20 0
cpu2 500 50 150 2000 100 0 25 500 20 0
cpu3 500 50 150 2000 100 0 25 500 20 0
intr 123456 0 0 0
ctxt 12345
"""
MEMINFO = """\
MemTotal:       24684100 kB
MemFree:         7771584 kB
MemAvailable:   20684100 kB
HugePages_Total:       0
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 9999999 375 0 0 0 0 0 0 9999999 375 0 0 0 0 0 0
  eth0: 1000 187 0 0 0 0 0 0 100 141 0 0 0 0 0 0
enp3s0f1:2000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
 bond0: 3000 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0
eth0.100: 55 1 0 0 0 0 0 0 55 1 0 0 0 0 0 0
cali123: 77 1 0 0 0 0 0 0 77 1 0 0 0 0 0 0
vethab12: 88 1 0 0 0 0 0 0 88 1 0 0 0 0 0 0
  cni0: 99 1 0 0 0 0 0 0 99 1 0 0 0 0 0 0
"""  # noqa: E501


def host(folder: Path, *, stat: str = "", meminfo: str = MEMINFO, net: str = NET) -> HostLoad:
    """A host whose files are these."""
    (folder / "proc" / "1" / "net").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "stat").write_text(stat or STAT.format(user=1000, idle=8000))
    (folder / "proc" / "meminfo").write_text(meminfo)
    (folder / "proc" / "1" / "net" / "dev").write_text(net)
    return HostLoad(folder / "proc", folder)


def test_recorded_files(tmp_path: Path) -> None:
    load = host(tmp_path)
    disk = os.statvfs(tmp_path)
    first = load.read()
    assert (first.cpu_total_milli, first.cpu_used_milli) == (4000, None)
    assert (first.memory_total_bytes, first.memory_used_bytes) == (24684100 * 1024, 4_000_000 * 1024)
    assert first.storage_total_bytes == disk.f_blocks * disk.f_frsize
    assert (first.network_received_bytes, first.network_sent_bytes) == (3000, 300)
    host(tmp_path, stat=STAT.format(user=1300, idle=8700))
    assert load.read().cpu_used_milli == 4000 * 300 // 1000
    host(tmp_path, stat=STAT.format(user=1300, idle=8700))
    assert load.read().cpu_used_milli is None, "no time has passed"
    host(tmp_path)
    assert load.read().cpu_used_milli is None, "the counters went back"


def test_interfaces_with_a_device_behind_them(tmp_path: Path) -> None:
    load = host(tmp_path)
    for name in ("eth0", "cali123"):
        (tmp_path / "sys" / "class" / "net" / name).mkdir(parents=True)
    (tmp_path / "sys" / "class" / "net" / "eth0" / "device").mkdir()
    assert (load.read().network_received_bytes, load.read().network_sent_bytes) == (1000, 100)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert HostLoad(tmp_path / "proc", tmp_path / "none").read() == NodeLoad()


@given(stat=st.text(max_size=300), meminfo=st.text(max_size=100), net=st.text(max_size=300))
def test_whatever_the_files_say(tmp_path_factory: pytest.TempPathFactory, stat: str, meminfo: str, net: str) -> None:
    folder = tmp_path_factory.mktemp("host")
    (folder / "proc" / "1" / "net").mkdir(parents=True)
    for name, content in (("stat", f"cpu {stat}"), ("meminfo", f"MemTotal: {meminfo}"), ("1/net/dev", f"eth0:{net}")):
        (folder / "proc" / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    load = HostLoad(folder / "proc", folder)
    assert [
        number for number in (load.read().memory_used_bytes, load.read().cpu_used_milli) if number is not None
    ] == []


def test_this_machine() -> None:
    load = HostLoad(Path("/proc"), Path("/"))
    first = load.read()
    assert first.cpu_total_milli == 1000 * (os.cpu_count() or 0)
    assert first.memory_total_bytes is not None
    assert first.memory_used_bytes is not None
    assert 0 < first.memory_used_bytes < first.memory_total_bytes
    assert 0 < (first.storage_used_bytes or 0) <= (first.storage_total_bytes or 0)

    def busy() -> bool:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            pass
        return bool(load.read().cpu_used_milli)

    wait_for(busy, "seen to be busy")


# Pods

SUMMARY: dict[str, Any] = {
    "node": {"nodeName": "one", "cpu": {"usageNanoCores": 1}},
    "pods": [
        {
            "podRef": {"name": "train", "namespace": "ml", "uid": "u-1"},
            "startTime": "2026-01-01T00:00:00Z",
            "containers": [{"name": "main"}],
            "cpu": {"time": "2026-01-01T00:00:00Z", "usageNanoCores": 1_500_000_000, "usageCoreNanoSeconds": 7},
            "memory": {"usageBytes": 9000, "workingSetBytes": 4096},
            "network": {"name": "eth0", "rxBytes": 11, "txBytes": 12, "interfaces": []},
            "ephemeral-storage": {"availableBytes": 5, "usedBytes": 77},
        },
        {"podRef": {"name": "fresh", "namespace": "ml", "uid": "u-0"}},
    ],
}
LOADS = (PodLoad("ml", "fresh", "u-0"), PodLoad("ml", "train", "u-1", 1500, 4096, 77, 11, 12))


def test_a_summary() -> None:
    assert loads_of(json.dumps(SUMMARY).encode()) == LOADS


@pytest.mark.parametrize(
    "pod",
    [
        *({}, [], 1, "x", {"podRef": {}}, {"podRef": {"name": 1, "namespace": "", "uid": ""}}),
        *({**SUMMARY["pods"][0], "cpu": {"usageNanoCores": wrong}} for wrong in ("1", 1.5, True)),
    ],
)
def test_a_pod_that_cannot_be_read_costs_itself(pod: object) -> None:
    assert loads_of(json.dumps({"pods": [pod, *SUMMARY["pods"]]}).encode()) == LOADS


def test_numbers_that_cannot_be() -> None:
    pod = {**SUMMARY["pods"][0], "cpu": {"usageNanoCores": -1}, "memory": None, "network": {"rxBytes": 2**63 - 1}}
    assert loads_of(json.dumps({"pods": [pod]}).encode()) == (
        PodLoad("ml", "train", "u-1", None, None, 77, 2**63 - 1, None),
    )


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b'{"pods": 1}', b'{"pods": {}}', b"\xff\xfe", b"{" * 9999]
)
def test_answers_that_are_no_summary(body: bytes) -> None:
    with pytest.raises(PodLoadError, match="not a summary"):
        loads_of(body)


@given(st.binary(max_size=200))
def test_any_answer_is_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(PodLoadError):
        assert loads_of(b'{"pods": [' + body + b"]}") == ()


def test_more_pods_than_a_node_has() -> None:
    pods = [{"podRef": {"name": f"p{number}", "namespace": "n", "uid": "u"}} for number in range(3000)]
    assert len(loads_of(json.dumps({"pods": pods}).encode())) == 2000


class Kubelet:
    """A server with a certificate, which answers as it is told."""

    def __init__(self, port: int, ca: Path, token: Path) -> None:
        self.port = port
        self.ca = ca
        self.token = token
        self.status = 200
        self.body: bytes = json.dumps(SUMMARY).encode()
        self.headers: list[str] = []

    def loads(self, **options: Any) -> PodLoads:
        return PodLoads("127.0.0.1", self.token, **{"ca": self.ca, "port": self.port, **options})


@pytest.fixture
async def kubelet(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Kubelet]:
    """Stands for kubelet where it fails; what it really answers is asked of a real one."""
    authority = Authority(tmp_path)
    certificate = authority.server("kubelet", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    there = Kubelet(unused_tcp_port_factory(), authority.certificate, token)

    async def answer(request: web.Request) -> web.Response:
        there.headers.append(request.headers.get("Authorization", ""))
        return web.Response(status=there.status, body=there.body)

    app = web.Application()
    app.router.add_get("/stats/summary", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", there.port, ssl_context=context).start()
    yield there
    await runner.cleanup()


async def test_kubelet_is_asked_with_the_token_of_now(kubelet: Kubelet) -> None:
    loads = kubelet.loads()
    assert await loads.read() == LOADS
    kubelet.token.write_text("fresh")
    kubelet.status = 401
    with pytest.raises(PodLoadError, match="401: the token is not known"):
        await loads.read()
    kubelet.status = 200
    assert await loads.read() == LOADS
    assert kubelet.headers == ["Bearer s3cret", "Bearer s3cret", "Bearer fresh"]


async def test_nobody_else_gets_the_token(kubelet: Kubelet, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    for loads in (kubelet.loads(ca=other.certificate), kubelet.loads(server_name="another")):
        with pytest.raises(PodLoadError, match="certificate") as refused:
            await loads.read()
        assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be checked"):
        kubelet.loads(ca=None)
    assert kubelet.headers == []
    assert await kubelet.loads(ca=None, insecure=True).read() == LOADS


@pytest.mark.parametrize(("status", "words"), [(403, "get on nodes/stats is needed"), (500, "500"), (302, "302")])
async def test_refusals(kubelet: Kubelet, status: int, words: str) -> None:
    kubelet.status = status
    with pytest.raises(PodLoadError, match=words):
        await kubelet.loads().read()


async def test_an_endless_answer_is_not_read(kubelet: Kubelet) -> None:
    kubelet.body = b" " * (17 << 20)
    with pytest.raises(PodLoadError, match="larger than 16 MiB"):
        await kubelet.loads().read()


def test_settings_that_give_the_token_to_anybody_are_refused() -> None:
    text = b'{"address": "10.0.0.1"}'
    with pytest.raises(msgspec.ValidationError, match="cannot be checked: give the CA"):
        msgspec.json.decode(text, type=KubeletSettings)
    assert msgspec.json.decode(b'{"address": "10.0.0.1", "insecure": true}', type=KubeletSettings).port == 10250


async def test_what_was_told_long_ago_is_not_shown(kubelet: Kubelet, caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    settings = KubeletSettings(
        address="127.0.0.1",
        port=kubelet.port,
        token_file=str(kubelet.token),
        ca_file=str(kubelet.ca),
        interval_seconds=0.05,
    )
    watch = PodLoadWatch(settings, clock=lambda: now[0])
    assert watch.current() == ()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watch.run())
        await until(lambda: watch.current() == LOADS)
        kubelet.status = 500
        asked = len(kubelet.headers)
        await until(lambda: len(kubelet.headers) > asked + 3)
        assert watch.current() == LOADS
        now[0] += 60
        assert watch.current() == ()
        kubelet.status = 200
        await until(lambda: watch.current() == LOADS)
        running.cancel()
    assert [record.message for record in caplog.records if "500" in record.message] == [
        f"what pods use of the machine is not known: https://127.0.0.1:{kubelet.port}/stats/summary answered 500"
    ]


async def test_nobody_answers(kubelet: Kubelet, unused_tcp_port_factory: Callable[[], int]) -> None:
    with pytest.raises(PodLoadError, match="cannot be asked"):
        await kubelet.loads(port=unused_tcp_port_factory()).read()
