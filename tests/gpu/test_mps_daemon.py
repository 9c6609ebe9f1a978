"""An MPS daemon's life. The control program is the stand-in of the test bed."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import pytest

from shoal.gpu.errors import MpsError, NoMpsDaemonError
from shoal.gpu.mps import v2, v3
from shoal.gpu.mps.daemon import Health, MpsDaemon
from tests.testbed.waiting import wait_for

PROGRAM = Path(__file__).parents[1] / "testbed" / "mps" / "nvidia-cuda-mps-control"
#: The stand-in is run by the Python at hand, not by what else is called python3 here.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
Make = Callable[..., MpsDaemon]


def the_daemon(pipe: Path, protocol: Literal[2, 3], *, multi_user: bool = False, patience: float = 60) -> MpsDaemon:
    return MpsDaemon(
        pipe_directory=pipe,
        log_directory=pipe.parent / "log",
        environment={**os.environ, "PATH": PATH, "MPS_STAND_IN_OF": str(os.getpid()), "CUDA_MPS_PROTOCOL_VERSION": "7"},
        protocol=protocol,
        multi_user=multi_user,
        program=str(PROGRAM),
        patience=patience,
    )


@pytest.fixture
async def daemon() -> AsyncIterator[Make]:
    """Makes daemons, not started yet; ends them after the test. Paths of sockets are short, so the folder's is too."""
    made: list[MpsDaemon] = []
    folder = Path(tempfile.mkdtemp(prefix="mps-"))

    def make(protocol: Literal[2, 3] = 2, *, multi_user: bool = False) -> MpsDaemon:
        made.append(the_daemon(folder / f"p{protocol}", protocol, multi_user=multi_user))
        return made[-1]

    yield make
    for each in made:
        (each.pipe_directory / "mute").unlink(missing_ok=True)
        (each.pipe_directory / "refuse").unlink(missing_ok=True)
        await each.quit()
    shutil.rmtree(folder)


def told(daemon: MpsDaemon) -> list[str]:
    lines = (daemon.pipe_directory / "told").read_text().splitlines()
    return [" ".join(json.loads(line)) for line in lines]


def kill(daemon: MpsDaemon) -> None:
    """What a crash of the daemon is: its socket stays behind."""
    pid = int((daemon.pipe_directory / "nvidia-cuda-mps-control.pid").read_text())
    os.kill(pid, signal.SIGKILL)


def children() -> str:
    """The PIDs of the programs that this process has started and that run."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_start_and_quit(daemon: Make, protocol: Literal[2, 3]) -> None:
    mps = daemon(protocol)
    assert await mps.health() is Health.ABSENT
    assert await mps.start()
    assert await mps.health() is Health.RUNNING
    assert not await mps.start()
    started = json.loads((mps.pipe_directory / "started").read_text())
    assert started == {"protocol": protocol, "multi_user": False}
    await mps.quit()
    assert await mps.health() is Health.ABSENT
    await mps.quit()
    assert await mps.start()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_killed_daemon_is_absent_and_can_be_started_again(daemon: Make, protocol: Literal[2, 3]) -> None:
    mps = daemon(protocol)
    await mps.start()
    kill(mps)
    while await mps.health() is not Health.ABSENT:
        pass
    with pytest.raises(NoMpsDaemonError, match="start it"):
        await mps.tell(v2.LIST_SERVERS if protocol == 2 else v3.list_servers())
    assert (mps.pipe_directory / "control").exists()
    assert await mps.start()


async def test_limits_of_protocol_2(daemon: Make) -> None:
    mps = daemon(2)
    await mps.start()
    await mps.tell(v2.set_default_memory_limit(0, 3072))
    await mps.tell(v2.set_default_threads(30))
    (mps.pipe_directory / "clients").write_text("100 55 - python\n101 55 - python\n")
    assert v2.parse_pids(await mps.tell(v2.LIST_SERVERS)) == (55,)
    assert v2.parse_pids(await mps.tell(v2.list_clients(55))) == (100, 101)
    assert told(mps)[-4:-2] == [
        "set_default_device_pinned_mem_limit 0 3072M",
        "set_default_active_thread_percentage 30",
    ]


async def test_namespaces_of_protocol_3(daemon: Make) -> None:
    mps = daemon(3, multi_user=True)
    await mps.start()
    assert json.loads((mps.pipe_directory / "started").read_text())["multi_user"]
    await mps.tell(v3.create_server("card_0", devices=["GPU-1", "GPU-2"]))
    await mps.tell(v3.create_namespace("c1", server="card_0"))
    await mps.tell(v3.set_namespace("c1", server="card_0", memory_mib=3072, threads=25))
    (server,) = v3.parse_servers(await mps.tell(v3.list_servers()))
    assert (server.name, server.pid, server.pipe_directory) == ("card_0", 4000, mps.pipe_directory / "card_0")
    default, mine = v3.parse_namespaces(await mps.tell(v3.list_namespaces("card_0")))
    assert (default.name, default.threads) == (v3.DEFAULT_NAMESPACE, "100")
    assert (mine.name, mine.memory_limit, mine.threads) == ("c1", "3072M", "25")
    assert mine.pipe_directory == mps.pipe_directory / "card_0" / "c1"
    (mps.pipe_directory / "clients").write_text("100 card_0 c1 python -c a,b\n")
    assert [(c.pid, c.namespace) for c in v3.parse_clients(await mps.tell(v3.list_clients()))] == [(100, "c1")]
    with pytest.raises(MpsError, match="active clients"):
        await mps.tell(v3.set_namespace("c1", server="card_0", threads=50))
    with pytest.raises(MpsError, match="active clients"):
        await mps.tell(v3.delete_namespace("c1", server="card_0"))
    await mps.tell(v3.terminate_client(100))
    await mps.tell(v3.delete_namespace("c1", server="card_0"))
    assert len(v3.parse_namespaces(await mps.tell(v3.list_namespaces("card_0")))) == 1


async def test_many_commands_at_once(daemon: Make) -> None:
    mps = daemon(3)
    await mps.start()
    await mps.tell(v3.create_server("s"))
    await asyncio.gather(*(mps.tell(v3.create_namespace(f"n{number}", server="s")) for number in range(12)))
    spaces = v3.parse_namespaces(await mps.tell(v3.list_namespaces("s")))
    assert sorted(space.name for space in spaces) == sorted(["default", *(f"n{number}" for number in range(12))])


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_refused_command_names_the_reason(daemon: Make, protocol: Literal[2, 3]) -> None:
    mps = daemon(protocol)
    await mps.start()
    command = v2.set_default_threads(5) if protocol == 2 else v3.create_server("s")
    (mps.pipe_directory / "refuse").write_text(command[0] + "\n")
    with pytest.raises(MpsError, match="not now"):
        await mps.tell(command)


async def test_a_daemon_that_dies_of_a_command(daemon: Make) -> None:
    mps = daemon(3)
    await mps.start()
    (mps.pipe_directory / "die").touch()
    with pytest.raises(NoMpsDaemonError, match="start it"):
        await mps.tell(v3.create_server("s"))
    (mps.pipe_directory / "die").unlink()
    assert await mps.start()
    assert v3.parse_servers(await mps.tell(v3.list_servers())) == ()


async def test_a_cancelled_command_leaves_no_process(daemon: Make) -> None:
    mps = daemon(3)
    await mps.start()
    (mps.pipe_directory / "mute").touch()
    before = children()
    telling = asyncio.create_task(mps.tell(v3.list_servers()))
    await asyncio.to_thread(wait_for, lambda: children() != before, "started")
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    assert children() == before


async def test_a_silent_daemon(daemon: Make) -> None:
    """It holds the socket and does not answer: not absent, so it must not simply be started over."""
    mps = daemon(3)
    await mps.start()
    (mps.pipe_directory / "mute").touch()
    with pytest.raises(MpsError, match="does not answer"):
        await mps.tell(v3.list_servers(), patience=0.3)
    hasty = the_daemon(mps.pipe_directory, 3, patience=0.3)
    assert await hasty.health() is Health.SILENT


async def test_the_program_is_missing(tmp_path: Path) -> None:
    mps = MpsDaemon(
        pipe_directory=tmp_path / "p", log_directory=tmp_path / "l", environment={}, program=str(tmp_path / "none")
    )
    assert await mps.health() is Health.ABSENT
    with pytest.raises(MpsError, match="comes with NVIDIA's driver"):
        await mps.start()


async def test_a_daemon_that_fails_to_start_says_why(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho no such card >&2\nexit 3\n")
    program.chmod(0o755)
    mps = MpsDaemon(pipe_directory=tmp_path / "p", log_directory=tmp_path / "l", environment={}, program=str(program))
    with pytest.raises(MpsError, match=r"exit status 3.*no such card"):
        await mps.start()


def test_paths_and_modes_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(MpsError, match="too long"):
        MpsDaemon(pipe_directory=tmp_path / ("x" * 100), log_directory=tmp_path, environment={})
    with pytest.raises(MpsError, match="use protocol 3"):
        MpsDaemon(pipe_directory=Path("/run/m"), log_directory=tmp_path, environment={}, multi_user=True)


async def test_words_that_would_be_two_commands(daemon: Make) -> None:
    with pytest.raises(MpsError, match="cannot be part"):
        await daemon(2).tell(("quit\nget_server_list",))
