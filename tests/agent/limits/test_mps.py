"""The MPS daemon under the agent's care. Its control program is the stand-in of the test bed."""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from shoal.agent.errors import RefusedError
from shoal.agent.limits.mps import SERVER, Mps, MpsClient, client_of, not_roots, server_of, set_exclusive, set_open
from shoal.agent.limits.tiers import ContainerLimits
from shoal.gpu import mps as control
from shoal.gpu.describe import parse_cards
from shoal.gpu.errors import MpsError
from shoal.gpu.mps import MpsDaemon, MpsHealth, MpsNamespace
from shoal.gpu.protocol import ComputeMode
from shoal.gpu.simulated import SimulatedNvml
from tests.testbed.mps.daemons import ended_with_us, kill, mps_daemon, pid_of, stopped, told
from tests.testbed.nvidia import SERIES, parts_or_skip
from tests.testbed.waiting import wait_for

CARD = "GPU-1"
ONE = frozenset({CARD})
SHARE = ContainerLimits({CARD: 3072}, 25)
ON_CARD = server_of(ONE)


def client(name: str, limits: ContainerLimits = SHARE, gpus: frozenset[str] = ONE) -> MpsClient:
    return MpsClient(name, gpus, limits)


def named(uid: str, limits: ContainerLimits = SHARE) -> MpsClient:
    return client_of(uid, "main", ONE, limits)


class Cared:
    """A daemon, and the task that looks after it."""

    def __init__(self, pipe: Path, protocol: Literal[2, 3], look_seconds: float, *, exclusive: bool) -> None:
        self.changes = asyncio.Event()
        daemon = mps_daemon(pipe, protocol, multi_user=protocol == 3)
        self.mps = Mps(daemon, changed=self.changes.set, exclusive=exclusive, look_seconds=look_seconds)
        self.task = asyncio.create_task(self.mps.run())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changes.clear()
            await self.changes.wait()

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


Care = Callable[..., Cared]


@pytest.fixture
async def care() -> AsyncIterator[Care]:
    made: list[Cared] = []
    folder = Path(tempfile.mkdtemp(prefix="mps-"))

    def make(protocol: Literal[2, 3] = 3, look_seconds: float = 600, *, exclusive: bool = False) -> Cared:
        made.append(Cared(folder / f"p{protocol}", protocol, look_seconds, exclusive=exclusive))
        return made[-1]

    yield make
    for each in made:
        await each.leave()
        (each.mps.daemon.pipe_directory / "refuse").unlink(missing_ok=True)
        await each.mps.daemon.quit()
    shutil.rmtree(folder)


async def namespaces(mps: Mps) -> dict[str, tuple[str, str]]:
    """The namespaces of all servers, by name, with their limits."""
    found: list[MpsNamespace] = []
    for server in await servers(mps):
        found += control.parse_namespaces(await mps.daemon.tell(control.list_namespaces(server)))
    return {one.name: (one.memory_limit, one.threads) for one in found if one.name != control.DEFAULT_NAMESPACE}


async def servers(mps: Mps) -> list[str]:
    return [one.name for one in control.parse_servers(await mps.daemon.tell(control.list_servers()))]


def limited(mps: Mps) -> int:
    """How often limits were set."""
    return sum(line.startswith("namespace set") for line in told(mps.daemon))


async def test_each_container_has_a_namespace_with_its_limits(care: Care) -> None:
    mps = care().mps
    mine = named("uid-1")
    name = mine.name
    await mps.prepare(mine)
    await mps.prepare(mine)
    (limits,) = (await namespaces(mps)).values()
    assert limits[1].startswith("25")
    assert f"namespace set {name} --server={ON_CARD} --pinned-memory-limit=3072M --active-thread-percentage=25" in told(
        mps.daemon
    )
    edits = mps.edits(mine)
    place = str(mps.daemon.pipe_directory / ON_CARD / name)
    assert edits.env == (f"CUDA_MPS_PIPE_DIRECTORY={place}",)
    assert [(mount.host_path, mount.container_path) for mount in edits.mounts] == [
        ("tmpfs", str(mps.daemon.pipe_directory)),
        (place, place),
    ], "and no other"


async def test_limits_by_environment(care: Care) -> None:
    mps = care(2).mps
    await mps.prepare(client("unused"))
    pipe = str(mps.daemon.pipe_directory)
    edits = mps.edits(client("unused"))
    assert edits.environment({}) == {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    assert [mount.host_path for mount in edits.mounts] == [pipe]


async def test_daemon_that_dies_is_started_again_with_all_namespaces(care: Care) -> None:
    cared = care(look_seconds=0.1)
    names = [named(f"uid-{number}") for number in range(3)]
    for one in names:
        await cared.mps.prepare(one)
    kill(cared.mps.daemon)
    await asyncio.to_thread(wait_for, lambda: limited(cared.mps) == 6, "with all namespaces again")
    assert set(await namespaces(cared.mps)) == {one.name for one in names}


async def test_daemon_outlives_the_agent_with_its_namespaces(care: Care) -> None:
    first = care()
    mine = named("uid")
    await first.mps.prepare(mine)
    pid = pid_of(first.mps.daemon)
    await first.leave()
    second = care()
    await second.mps.keep_only([mine])
    await second.until(lambda: not second.mps.fault)
    assert set(await namespaces(second.mps)) == {mine.name}
    assert pid_of(second.mps.daemon) == pid
    assert sum(line.startswith("namespace create") for line in told(second.mps.daemon)) == 1


async def test_namespaces_of_containers_that_are_gone_go(care: Care) -> None:
    mps = care().mps
    names = [named(f"uid-{number}") for number in range(3)]
    for one in names:
        await mps.prepare(one)
    await mps.keep_only([names[1]])
    assert set(await namespaces(mps)) == {names[1].name}


async def test_namespace_with_clients_goes_later_and_holds_up_no_other(care: Care) -> None:
    mps = care(look_seconds=0.1).mps
    made = [named(f"uid-{number}") for number in range(3)]
    names = sorted(one.name for one in made)
    for one in made:
        await mps.prepare(one)
    clients = mps.daemon.pipe_directory / "clients"
    clients.write_text(f"4711 {ON_CARD} {names[0]} program\n")
    await mps.keep_only([])
    assert set(await namespaces(mps)) == {names[0]}
    clients.unlink()
    delete = f"namespace delete {names[0]} --server={ON_CARD}"
    refused = told(mps.daemon).count(delete)
    await asyncio.to_thread(wait_for, lambda: told(mps.daemon).count(delete) > refused, "tried again")
    async with mps._lock:  # a look is at it
        assert await namespaces(mps) == {}


async def test_death_is_noticed_when_a_container_comes(care: Care) -> None:
    """Looks are an hour apart here: the refused container is what leads to one."""
    cared = care(look_seconds=3600)
    await cared.mps.prepare(client("n_1"))
    kill(cared.mps.daemon)
    with pytest.raises(RefusedError, match="could not be made"):
        await cared.mps.prepare(client("n_2"))
    await asyncio.to_thread(wait_for, lambda: limited(cared.mps) == 3, "with both namespaces")


async def test_containers_that_give_way(care: Care) -> None:
    mps = care().mps
    await mps.prepare(client("n_1", replace(SHARE, yields=True)))
    await mps.prepare(client("n_2", ContainerLimits(yields=True)))
    assert [line for line in told(mps.daemon) if line.startswith("namespace set")] == [
        f"namespace set n_1 --server={ON_CARD} --pinned-memory-limit=3072M --active-thread-percentage=25 "
        "--client-priority=1",
        f"namespace set n_2 --server={ON_CARD} --client-priority=1",
    ]


async def test_daemon_of_somebody_else(care: Care, tmp_path: Path) -> None:
    """It is not started here, and used once it runs. What it shares with clients is for all users."""
    daemon, changed, shared = care(3).mps.daemon, asyncio.Event(), tmp_path / "deep" / "shm"
    elsewhere = mps_daemon(daemon.pipe_directory.parent / "other", 3, multi_user=True)
    mps = Mps(elsewhere, changed=changed.set, starts=False, shared_memory=shared, look_seconds=0.1)
    task = asyncio.create_task(mps.run())
    await changed.wait()
    assert "--mps-only" in mps.fault
    with pytest.raises(RefusedError, match="not started here"):
        await mps.prepare(client("n_1"))
    changed.clear()
    assert await elsewhere.start()
    await changed.wait()
    await mps.prepare(client("n_1"))
    assert set(await namespaces(mps)) == {"n_1"}
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    assert [mount.host_path for mount in mps.edits(client("n_1")).mounts if mount.container_path == "/dev/shm"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await elsewhere.quit()


async def test_silent_daemon_is_told_and_not_killed(care: Care) -> None:
    cared = care(look_seconds=0.1)
    await cared.until(lambda: not cared.mps.fault)
    cared.mps.daemon._patience = 0.5
    with stopped(cared.mps.daemon):
        pid = pid_of(cared.mps.daemon)
        await cared.until(lambda: cared.mps.failing)
        assert "drain the node" in cared.mps.fault
        os.kill(pid, 0)
        with pytest.raises(RefusedError, match="does not answer"):
            await cared.mps.prepare(client("n_1"))
    cared.mps.daemon._patience = 60
    await cared.until(lambda: not cared.mps.fault)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("refuse", "Insufficient privileges"),
        ("ignore", "the memory limit of MPS namespace n_1 is .-., not 3072M"),
    ],
)
async def test_namespace_without_its_limits_is_not_left(care: Care, how: str, reason: str) -> None:
    """Whether the daemon refuses the limits in words or in silence."""
    cared = care()
    await cared.until(lambda: not cared.mps.fault)
    refuse = cared.mps.daemon.pipe_directory / how
    refuse.write_text("namespace set\n")
    with pytest.raises(RefusedError, match=f"could not be made: .*{reason}"):
        await cared.mps.prepare(client("n_1"))
    async with cared.mps._lock:  # a look tries again
        assert await namespaces(cared.mps) == {}
    assert not cared.mps.fault, "the others are served"
    refuse.unlink()
    await cared.mps.prepare(client("n_1"))
    assert len(await namespaces(cared.mps)) == 1
    assert sum(line.startswith("namespace create n_1") for line in told(cared.mps.daemon)) >= 2


async def test_namespace_that_is_not_made_keeps_a_container_from_starting(care: Care) -> None:
    cared = care()
    await cared.until(lambda: not cared.mps.fault)
    (cared.mps.daemon.pipe_directory / "ignore").write_text("namespace create\nnamespace set\nnamespace delete\n")
    with pytest.raises(RefusedError, match="told to make it and has none"):
        await cared.mps.prepare(client("n_1"))


async def test_limits_that_somebody_changed_keep_a_container_from_starting(care: Care) -> None:
    cared = care()
    await cared.mps.prepare(client("n_1"))
    await cared.mps.daemon.tell(control.set_namespace("n_1", server=ON_CARD, memory_mib=4096))
    with pytest.raises(RefusedError, match=r"is .4G., not 3072M"):
        await cared.mps.prepare(client("n_1"))
    await cared.mps.daemon.tell(control.set_namespace("n_1", server=ON_CARD, memory_mib=3072, threads=100))
    with pytest.raises(RefusedError, match=r"has .100. percent of the threads, not 25"):
        await cared.mps.prepare(client("n_1"))


@pytest.mark.kube
@pytest.mark.parametrize("series", SERIES)
async def test_no_container_starts_on_a_daemon_without_namespaces(series: str) -> None:
    """NVIDIA's own of an older driver runs already, and takes commands of protocol 3 without a word."""
    parts = parts_or_skip(series)
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        pipe = Path(folder) / "p"
        with ended_with_us(pipe, parts):
            await mps_daemon(pipe, 2, parts=parts).start()
            mps = Mps(mps_daemon(pipe, 3, parts=parts, multi_user=True))
            task = asyncio.create_task(mps.run())
            with pytest.raises(RefusedError, match="told to make it and has none"):
                await mps.prepare(client("n_1"))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_control_program_that_is_not_there(care: Care, tmp_path: Path) -> None:
    pipe = care(2).mps.daemon.pipe_directory.parent / "none"
    daemon = MpsDaemon(pipe_directory=pipe, log_directory=tmp_path, environment={}, program=str(tmp_path / "nothing"))
    changed = asyncio.Event()
    mps = Mps(daemon, changed=changed.set)
    task = asyncio.create_task(mps.run())
    await changed.wait()
    assert "comes with NVIDIA's driver" in mps.fault
    assert mps.failing
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_exclusive_mode_is_set_and_put_back() -> None:
    nvml = SimulatedNvml(parse_cards("2xA30"), clock=lambda: 0.0)
    first, second = nvml.uuids()
    nvml.lose(second)
    set_exclusive(nvml, [first, second])
    assert nvml.compute_mode(first) is ComputeMode.EXCLUSIVE_PROCESS
    set_open(nvml, [first, second])
    assert nvml.compute_mode(first) is ComputeMode.DEFAULT


def test_names_tell_containers_and_limits_apart() -> None:
    names = {
        client_of(uid, container, ONE, limits).name
        for uid in ("a", "b")
        for container in ("x", "y")
        for limits in (SHARE, ContainerLimits({CARD: 1}, 25), ContainerLimits({CARD: 3072}, 26))
    }
    assert len(names) == 12
    assert all(len(name) == 18 for name in names)
    both = frozenset({"GPU-1", "GPU-2"})
    assert len({server_of(ONE), server_of({"GPU-2"}), server_of(both)}) == 3
    assert server_of(["GPU-2", "GPU-1"]) == server_of(both)


SECOND, BOTH = frozenset({"GPU-2"}), frozenset({CARD, "GPU-2"})
CORES = ContainerLimits(threads=25)


async def test_each_gpu_has_a_server_and_several_have_one_that_spans_them(care: Care) -> None:
    mps = care().mps
    for name, gpus in (("n_1", ONE), ("n_2", ONE), ("n_3", SECOND), ("n_4", BOTH)):
        await mps.prepare(client(name, CORES, gpus))
    assert set(await servers(mps)) == {server_of(ONE), server_of(SECOND), server_of(BOTH)}
    made = {line for line in told(mps.daemon) if line.startswith("server create")}
    assert made == {
        f"server create {server_of(ONE)} --allowed-devices=GPU-1",
        f"server create {server_of(SECOND)} --allowed-devices=GPU-2",
        f"server create {server_of(BOTH)} --allowed-devices=GPU-1,GPU-2",
    }
    place = mps.daemon.pipe_directory / server_of(BOTH) / "n_4"
    assert f"CUDA_MPS_PIPE_DIRECTORY={place}" in mps.edits(client("n_4", CORES, BOTH)).env


async def test_exclusive_gpus_share_one_server(care: Care) -> None:
    """A GPU in exclusive mode takes one server, and containers with one and with several GPUs may meet on it."""
    mps = care(exclusive=True).mps
    for name, gpus in (("n_1", ONE), ("n_2", BOTH)):
        await mps.prepare(client(name, CORES, gpus))
    assert await servers(mps) == [SERVER]
    assert f"server create {SERVER}" in told(mps.daemon), "on all GPUs"
    await mps.keep_only([])
    assert await servers(mps) == [SERVER]


async def test_servers_are_found_again_and_go_with_their_last_container(care: Care) -> None:
    first = care()
    await first.mps.prepare(client("n_1", CORES, ONE))
    await first.mps.prepare(client("n_2", CORES, SECOND))
    await first.leave()
    second = care()
    await second.mps.keep_only([client("n_1", CORES, ONE)])
    await second.until(lambda: not second.mps.fault)
    assert await servers(second.mps) == [server_of(ONE)]
    assert sum(line.startswith("server create") for line in told(second.mps.daemon)) == 2


async def test_server_that_ends_at_once_keeps_its_container_from_starting(care: Care) -> None:
    """The daemon takes a server on an unknown GPU, and the server ends."""
    cared = care()
    await cared.until(lambda: not cared.mps.fault)
    (cared.mps.daemon.pipe_directory / "unknown").write_text("GPU-2\n")
    with pytest.raises(RefusedError, match=r"server of GPU-2 is not there.*told to make it and has none"):
        await cared.mps.prepare(client("n_2", CORES, SECOND))
    await cared.mps.prepare(client("n_1", CORES, ONE))
    assert not cared.mps.fault, "other GPUs are served"


async def test_fault_of_a_server_is_told_and_stops_no_other_gpu(care: Care) -> None:
    cared = care(look_seconds=0.1)
    await cared.mps.prepare(client("n_1", CORES, ONE))
    faulted = cared.mps.daemon.pipe_directory / "faulted"
    faulted.write_text(f"{server_of(ONE)}\n")
    await cared.until(lambda: set(cared.mps.faulted) == {ONE})
    with pytest.raises(RefusedError, match=r"server of GPU-1 is in status FAULT.*until all that it has have ended"):
        await cared.mps.prepare(client("n_2", CORES, ONE))
    await cared.mps.prepare(client("n_3", CORES, SECOND))
    assert not cared.mps.failing
    faulted.unlink()
    await cared.until(lambda: not cared.mps.faulted)
    await cared.mps.prepare(client("n_2", CORES, ONE))


async def test_fault_of_the_server_of_protocol_2(care: Care) -> None:
    cared = care(2, look_seconds=0.1)
    await cared.mps.prepare(client("n_1"))
    clients, faulted = (cared.mps.daemon.pipe_directory / name for name in ("clients", "faulted"))
    clients.write_text("4711 4000 - program\n")
    faulted.write_text("4000\n")
    await cared.until(lambda: set(cared.mps.faulted) == {frozenset()})
    with pytest.raises(RefusedError, match="server process 4000 is in status FAULT"):
        await cared.mps.prepare(client("n_2"))
    clients.unlink()
    await cared.until(lambda: not cared.mps.faulted)


@pytest.mark.parametrize("place", ["pipe", "server", "namespace"])
async def test_no_container_is_led_elsewhere_by_a_link(care: Care, tmp_path: Path, place: str) -> None:
    """A client of protocol 2 that ran as root may have left links where servers and namespaces will be."""
    cared = care()
    pipe = cared.mps.daemon.pipe_directory
    if place != "pipe":
        await cared.until(lambda: not cared.mps.fault)
        target = pipe / ON_CARD / ("n_1" if place == "namespace" else "")
        target.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "n_1").mkdir()
        target.symlink_to(tmp_path)
        with pytest.raises(RefusedError, match=f"{target} is not a folder of the MPS daemon"):
            await cared.mps.prepare(client("n_1"))
        return
    await cared.until(lambda: not cared.mps.fault)
    moved = pipe.rename(pipe.with_name("moved"))
    pipe.symlink_to(moved)
    with pytest.raises(MpsError, match="is not a folder of the MPS daemon"):
        await cared.mps._look()


def test_folders_of_others_are_not_the_daemons(tmp_path: Path) -> None:
    assert not_roots(tmp_path) == ""
    assert not_roots(tmp_path / "gone", absent=True) == ""
    assert "is not there" in not_roots(tmp_path, "gone")
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 65534, 65534)
        assert "belongs to user 65534" in not_roots(tmp_path, "theirs")


async def test_daemon_that_somebody_else_started_again_is_noticed(care: Care) -> None:
    mps = care().mps
    await mps.prepare(client("n_1"))
    assert mps.started == 1
    await mps._look()
    assert mps.started == 1
    kill(mps.daemon)
    while await mps.daemon.health() is not MpsHealth.ABSENT:
        pass
    await mps.daemon.start()
    await mps._look()
    assert mps.started == 2
    assert set(await namespaces(mps)) == {"n_1"}
