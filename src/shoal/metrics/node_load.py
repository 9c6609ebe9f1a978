"""What the machine and its pods use besides cards: CPU, memory, disk, network.

`HostLoad` reads the host's /proc and file system where they are mounted, `PodLoads` asks the node's kubelet. A part
that cannot be read is None, and costs no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import aiohttp
import msgspec

from shoal.kube.access.credentials import FileContent
from shoal.kube.errors import ConfigError
from shoal.metrics.errors import PodLoadError
from shoal.metrics.snapshot import NodeLoad, PodLoad
from shoal.model.errors import shown

log = logging.getLogger(__name__)

_MILLI: Final = 1000
_KIBIBYTE: Final = 1024
#: The lines of interest come first; what follows grows with the machine's interrupts.
_MOST_PROC_BYTES: Final = 1 << 20
#: Fields of a CPU's line in /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Guests are in user.
_CPU_FIELDS: Final = 8
_IDLE: Final = (3, 4)
#: Another machine had these, and neither this one's programs nor its idle loop.
_STEAL: Final = 7
#: Interfaces that carry what others carry too, where the host's /sys does not tell.
_MADE_UP: Final = re.compile(
    r"lo|.*[.@:].*|(veth|cni|cali|cilium|lxc|docker|br|virbr|vmbr|flannel|vxlan|tunl|gre|sit|ip6|kube|nodelocaldns|ovs"
    r"|genev|weave|dummy|ifb|tap|tun|wg|bond|team|macvlan|ipvlan|vnet).*"
)


# The machine


class _Cpu(NamedTuple):
    cores: int
    total: int
    used: int


class HostLoad:
    """Reads the machine. `proc` is the host's /proc, `root` its file system, both where they are mounted here."""

    def __init__(self, proc: Path, root: Path) -> None:
        self._proc = proc
        self._root = root
        self._before: _Cpu | None = None

    def read(self) -> NodeLoad:
        """Now; the CPU since the call before. Blocks for a moment."""
        cpu = self._cpu()
        total, used = self._memory()
        size, taken = self._storage()
        received, sent = self._network()
        load = NodeLoad(
            cpu_total_milli=None if cpu is None else _MILLI * cpu.cores,
            cpu_used_milli=_used_milli(self._before, cpu),
            memory_total_bytes=total,
            memory_used_bytes=used,
            storage_total_bytes=size,
            storage_used_bytes=taken,
            network_received_bytes=received,
            network_sent_bytes=sent,
        )
        self._before = cpu
        return load

    def _cpu(self) -> _Cpu | None:
        cores, total, used = 0, 0, 0
        for line in _lines(self._proc / "stat"):
            name, *numbers = line.split()
            if not name.startswith("cpu"):
                break
            if name != "cpu":
                cores += 1
                continue
            times = [int(number) for number in numbers[:_CPU_FIELDS] if number.isdigit()]
            if len(times) != _CPU_FIELDS:
                return None
            total = sum(times)
            used = total - sum(times[place] for place in (*_IDLE, _STEAL))
        return _Cpu(cores, total, used) if cores and total else None

    def _memory(self) -> tuple[int | None, int | None]:
        found: dict[str, int] = {}
        for line in _lines(self._proc / "meminfo"):
            match line.split():
                case [("MemTotal:" | "MemAvailable:") as name, number, "kB"] if number.isdigit():
                    found[name] = int(number) * _KIBIBYTE
        total, available = found.get("MemTotal:"), found.get("MemAvailable:")
        return total, None if total is None or available is None else max(0, total - available)

    def _storage(self) -> tuple[int | None, int | None]:
        try:
            disk = os.statvfs(self._root)
        except OSError:
            return None, None
        return disk.f_blocks * disk.f_frsize, (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def _network(self) -> tuple[int | None, int | None]:
        """All machines' interfaces together: those with a device behind them, or by their names where /sys is not seen.

        Init's view: a pod has a network of its own.
        """
        counted: dict[str, tuple[int, int]] = {}
        for line in _lines(self._proc / "1" / "net" / "dev"):
            name, _, rest = line.partition(":")
            numbers = rest.split()
            if len(numbers) >= 9 and numbers[0].isdigit() and numbers[8].isdigit():
                counted[name.strip()] = int(numbers[0]), int(numbers[8])
        devices = self._root / "sys" / "class" / "net"
        chosen = [name for name in counted if "/" not in name and (devices / name / "device").exists()]
        chosen = chosen or [name for name in counted if not _MADE_UP.fullmatch(name)]
        if not chosen:
            return None, None
        return sum(counted[name][0] for name in chosen), sum(counted[name][1] for name in chosen)


def _used_milli(before: _Cpu | None, now: _Cpu | None) -> int | None:
    """None without two readings, and where the counters went back."""
    if before is None or now is None or now.total <= before.total or now.used < before.used:
        return None
    return round(_MILLI * now.cores * min(1.0, (now.used - before.used) / (now.total - before.total)))


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file that are not empty; none when it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        yield from filter(str.strip, file.read(_MOST_PROC_BYTES).decode("ascii", "replace").splitlines())


# Its pods

KUBELET_PORT: Final = 10250
_PATH: Final = "/stats/summary"
#: A pod takes about 2 kB, one with many volumes ten times that.
_MOST_BYTES: Final = 16 << 20
_MOST_PODS: Final = 2000
_TIMEOUT: Final = 10.0
_FRESH_INTERVALS: Final = 4
_UNCHECKED: Final = (
    "kubelet's certificate cannot be checked: give the CA that signed it, or for one that kubelet signed itself "
    "/var/lib/kubelet/pki/kubelet.crt of the node, or say that it is not to be checked"
)


class _PodRef(msgspec.Struct):
    name: str
    namespace: str
    uid: str


class _CpuStats(msgspec.Struct, rename="camel"):
    usage_nano_cores: int | None = None


class _MemoryStats(msgspec.Struct, rename="camel"):
    working_set_bytes: int | None = None


class _NetworkStats(msgspec.Struct, rename="camel"):
    rx_bytes: int | None = None
    tx_bytes: int | None = None


class _DiskStats(msgspec.Struct, rename="camel"):
    used_bytes: int | None = None


class _PodStats(msgspec.Struct, rename={"pod_ref": "podRef", "ephemeral_storage": "ephemeral-storage"}):
    pod_ref: _PodRef
    cpu: _CpuStats | None = None
    memory: _MemoryStats | None = None
    network: _NetworkStats | None = None
    ephemeral_storage: _DiskStats | None = None


class _Summary(msgspec.Struct):
    pods: list[msgspec.Raw]


_summary: Final = msgspec.json.Decoder(_Summary)
_pod: Final = msgspec.json.Decoder(_PodStats)


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How the node's kubelet is asked."""

    #: The node's address.
    address: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = KUBELET_PORT
    token_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    #: What kubelet's certificate is checked with, and the name in it where that is not the address.
    ca_file: str | None = None
    server_name: str = ""
    #: Whether anybody who answers may have the token.
    insecure: bool = False
    #: kubelet measures every 10 to 15 s.
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 15.0

    def __post_init__(self) -> None:
        """Refuse to give the token to anybody, unless that is wanted."""
        if self.ca_file is None and not self.insecure:
            raise ValueError(_UNCHECKED)


class PodLoadWatch:
    """Asks kubelet now and then. `current` is what it told last, and nothing once that is old."""

    def __init__(self, settings: KubeletSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._loads = PodLoads(
            settings.address,
            Path(settings.token_file),
            ca=None if settings.ca_file is None else Path(settings.ca_file),
            insecure=settings.insecure,
            server_name=settings.server_name,
            port=settings.port,
        )
        self._interval = settings.interval_seconds
        self._clock = clock
        self._last: tuple[float, tuple[PodLoad, ...]] = (-math.inf, ())

    def current(self) -> tuple[PodLoad, ...]:
        """What the pods use, as last told; empty when that was more than a few intervals ago."""
        told, loads = self._last
        return loads if self._clock() - told <= _FRESH_INTERVALS * self._interval + _TIMEOUT else ()

    async def run(self) -> None:
        """Until cancelled. What goes wrong is told once for as long as it lasts."""
        trouble = ""
        while True:
            try:
                self._last = self._clock(), await self._loads.read()
                trouble = ""
            except (PodLoadError, ConfigError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("what pods use of the machine is not known: %s", error)
            await asyncio.sleep(self._interval)


class PodLoads:
    """Asks the node's kubelet what its pods use. Needs `get` on `nodes/stats`."""

    def __init__(
        self,
        address: str,
        token: Path,
        *,
        ca: Path | None,
        insecure: bool = False,
        server_name: str = "",
        port: int = KUBELET_PORT,
    ) -> None:
        """`ca` is what kubelet's certificate is checked with, for `server_name` where that is not the address.

        Whoever answers gets the token. So without a `ca` nobody is asked, unless `insecure` says that this is wanted.
        """
        if ca is None and not insecure:
            raise ConfigError(_UNCHECKED)
        host = f"[{address}]" if ":" in address else address
        self._url = f"https://{host}:{port}{_PATH}"
        self._token = FileContent(token, what="the token for kubelet")
        self._ca = None if ca is None else FileContent(ca, what="the CA of kubelet's certificate")
        self._server_name = server_name or None
        self._trusted: tuple[bytes, ssl.SSLContext] | None = None

    async def read(self) -> tuple[PodLoad, ...]:
        """All pods that kubelet knows, by namespace and name. PodLoadError, or ConfigError for files."""
        headers = {"Authorization": f"Bearer {self._token.read().decode('ascii', 'replace').strip()}"}
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
                session.get(
                    self._url,
                    headers=headers,
                    ssl=self._context(),
                    server_hostname=self._server_name,
                    allow_redirects=False,
                ) as answer,
            ):
                if answer.status != 200:
                    raise PodLoadError(self._refused(answer.status))
                body = await _bounded(answer.content)
        except TimeoutError as error:
            raise PodLoadError(f"{self._url} did not answer within {_TIMEOUT:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise PodLoadError(
                f"{self._url} is not asked: its certificate is not signed by the CA given, or is for another name"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PodLoadError(f"{self._url} cannot be asked: {shown(str(error))}") from error
        return loads_of(body)

    def _refused(self, status: int) -> str:
        if status == 401:
            self._token.expire()
        rights = {401: ": the token is not known to it", 403: ": get on nodes/stats is needed"}
        return f"{self._url} answered {status}{rights.get(status, '')}"

    def _context(self) -> ssl.SSLContext | bool:
        if self._ca is None:
            return False
        content = self._ca.read()
        if self._trusted is None or self._trusted[0] != content:
            try:
                context = ssl.create_default_context(cadata=content.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                raise ConfigError("the CA of kubelet's certificate is no PEM: point to the right file") from error
            # A certificate that kubelet signed itself is its own end of the chain.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self._trusted = content, context
        return self._trusted[1]


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > _MOST_BYTES:
            raise PodLoadError(f"kubelet's answer is larger than {_MOST_BYTES >> 20} MiB: it is not read")
    return bytes(body)


def loads_of(body: bytes) -> tuple[PodLoad, ...]:
    """The pods of kubelet's answer. One that cannot be read is left out, PodLoadError when that is all of it."""
    try:
        listed = _summary.decode(body).pods
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PodLoadError(f"kubelet's answer is not a summary: {shown(str(error))}") from error
    found = []
    for raw in listed[:_MOST_PODS]:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found.append(_load(_pod.decode(raw)))
    return tuple(sorted(found, key=lambda load: (load.namespace, load.pod, load.uid)))


def _load(pod: _PodStats) -> PodLoad:
    cpu = _count(None if pod.cpu is None else pod.cpu.usage_nano_cores)
    disk, network = pod.ephemeral_storage, pod.network
    return PodLoad(
        namespace=pod.pod_ref.namespace,
        pod=pod.pod_ref.name,
        uid=pod.pod_ref.uid,
        cpu_milli=None if cpu is None else round(cpu / 10**6),
        memory_bytes=_count(None if pod.memory is None else pod.memory.working_set_bytes),
        storage_bytes=_count(None if disk is None else disk.used_bytes),
        network_received_bytes=_count(None if network is None else network.rx_bytes),
        network_sent_bytes=_count(None if network is None else network.tx_bytes),
    )


def _count(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < 2**64 else None
