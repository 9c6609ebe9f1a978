"""An MPS daemon's life and answers: the stand-in of the test bed, and NVIDIA's own daemons, which have protocol 2."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from shoal.gpu import mps as control
from shoal.gpu.errors import MpsError, NoMpsDaemonError
from shoal.gpu.mps import MpsDaemon, MpsHealth
from tests.testbed.mps.daemons import STAND_IN, ended_with_us, kill, mps_daemon, stopped
from tests.testbed.nvidia import SERIES, parts_or_skip
from tests.testbed.waiting import wait_for

Make = Callable[..., MpsDaemon]
LIST = {2: ("get_server_list",), 3: control.list_servers()}
#: NVIDIA's series, or none for the stand-in, and the protocol.
Which = tuple[str | None, Literal[2, 3]]
OLDER = [
    pytest.param((None, 2), id="stand-in-2"),
    *(pytest.param((series, 2), id=f"nvidia-{series}", marks=pytest.mark.kube) for series in SERIES),
]
ALL = [*OLDER, pytest.param((None, 3), id="stand-in-3")]


@pytest.fixture
async def daemon() -> AsyncIterator[Make]:
    """Makes daemons, not started yet; ends them after the test. Paths of sockets are short, so the folder's is too."""
    made: list[MpsDaemon] = []
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    with ExitStack() as stack:

        def make(which: Which = (None, 2), *, multi_user: bool = False, patience: float = 60) -> MpsDaemon:
            series, protocol = which
            pipe = folder / f"p{protocol}"
            parts = None if series is None else parts_or_skip(series)
            if parts is not None:
                stack.enter_context(ended_with_us(pipe, parts))
            else:
                made.append(mps_daemon(pipe, protocol))
            return mps_daemon(pipe, protocol, parts=parts, multi_user=multi_user, patience=patience)

        yield make
        for each in made:
            (each.pipe_directory / "refuse").unlink(missing_ok=True)
            await each.quit()
    shutil.rmtree(folder)


def children() -> str:
    """The PIDs of the programs that this process has started and that run."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


@pytest.mark.parametrize("which", ALL)
async def test_start_and_quit(daemon: Make, which: Which) -> None:
    mps = daemon(which)
    assert await mps.health() is MpsHealth.ABSENT
    assert await mps.start()
    assert await mps.health() is MpsHealth.RUNNING
    assert not await mps.start()
    await mps.quit()
    assert await mps.health() is MpsHealth.ABSENT
    await mps.quit()
    assert await mps.start()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_flags(daemon: Make, protocol: Literal[2, 3]) -> None:
    mps = daemon((None, protocol), multi_user=protocol == 3)
    await mps.start()
    started = json.loads((mps.pipe_directory / "started").read_text())
    assert started == {"protocol": protocol, "multi_user": protocol == 3}


@pytest.mark.parametrize("which", ALL)
async def test_a_killed_daemon_is_absent_and_can_be_started_again(daemon: Make, which: Which) -> None:
    mps = daemon(which)
    await mps.start()
    kill(mps)
    while await mps.health() is not MpsHealth.ABSENT:
        pass
    with pytest.raises(NoMpsDaemonError, match="start it"):
        await mps.tell(LIST[mps.protocol])
    assert (mps.pipe_directory / "control").exists()
    assert await mps.start()


#: Commands of protocol 2 in this order, and the answers of NVIDIA's daemons of R535 and R550, all with exit status 0.
ANSWERS = [
    ("get_server_list", ""),
    ("get_default_active_thread_percentage", "100.0"),
    ("set_default_active_thread_percentage 30", "30.0"),
    ("set_default_active_thread_percentage 0", "30.0"),  # refused in silence: the answer is what holds
    ("set_default_active_thread_percentage 101", "30.0"),
    ("set_default_active_thread_percentage junk", "30.0"),
    ("set_default_active_thread_percentage 12.5", "12.5"),
    ("get_default_active_thread_percentage", "12.5"),
    ("get_default_device_pinned_mem_limit 0", ""),
    ("set_default_device_pinned_mem_limit 0 512M", ""),
    ("get_default_device_pinned_mem_limit 0", "512M"),
    ("set_default_device_pinned_mem_limit 0 3072M", ""),
    ("get_default_device_pinned_mem_limit 0", "3G"),
    ("set_default_device_pinned_mem_limit 0 3000M", ""),
    ("get_default_device_pinned_mem_limit 0", "2G"),  # whole GiB are all it writes
    ("set_default_device_pinned_mem_limit 0 3K", ""),
    ("get_default_device_pinned_mem_limit 0", "3M"),
    ("set_default_device_pinned_mem_limit 0 junk", ""),
    ("get_default_device_pinned_mem_limit 0", ""),  # the limit is gone
    ("get_default_client_priority", "0"),
    ("set_default_client_priority 1", ""),
    ("get_default_client_priority", "1"),
    ("set_default_client_priority x", ""),
    ("get_default_client_priority", "0"),
    ("start_server -uid 0", ""),  # without a card no server lives
]
REFUSALS = [
    ("get_client_list 1", "Server 1 not found"),
    ("get_client_list", "Server 0 not found"),
    ("shutdown_server 7", "Server 7 not found"),
    ("terminate_client 1 2", "Server 1 not found"),
    ("ps", "Server not found"),
    ("set_default_client_priority 7", "Invalid priority value - must be 0 or 1!"),
    ("start_server", "A user id (UID) is required to start a new server"),
    ("start_server -uid x", "A user id (UID) is required to start a new server"),
    ("bogus", 'Unknown command "bogus"'),
    ("server list", 'Unknown command "server"'),
]


@pytest.mark.parametrize("which", OLDER)
async def test_answers_of_protocol_2(daemon: Make, which: Which) -> None:
    mps = daemon(which)
    await mps.start()
    for command, answer in ANSWERS:
        assert (await mps.tell(tuple(command.split()))).strip() == answer, command


@pytest.mark.parametrize("which", OLDER)
async def test_refusals_of_protocol_2(daemon: Make, which: Which) -> None:
    mps = daemon(which)
    await mps.start()
    for command, words in REFUSALS:
        with pytest.raises(MpsError, match="refused") as refused:
            await mps.tell(tuple(command.split()))
        assert words in str(refused.value).replace("\\", "")
    assert await mps.health() is MpsHealth.RUNNING


@pytest.mark.parametrize("which", OLDER)
async def test_servers_without_a_fault(daemon: Make, which: Which) -> None:
    """R550 answers for a server, R535 does not know the command: neither is taken for a fault."""
    mps = daemon(which)
    await mps.start()
    assert await control.faulted_servers(mps) == ()
    words = "Unknown command" if which[0] == "535" else "Server 1 not found"
    with pytest.raises(MpsError, match=words):
        await mps.tell(("get_server_status", "1"))


@pytest.mark.kube
@pytest.mark.parametrize("series", SERIES)
async def test_protocol_3_on_a_daemon_that_has_none(daemon: Make, series: str) -> None:
    """It does not start. One that runs in protocol 2 answers every command with nothing, as if it had obeyed."""
    newer = daemon((series, 3), multi_user=True)
    with pytest.raises(MpsError, match="did not start"):
        await newer.start()
    older = daemon((series, 2))
    await older.start()
    newer = mps_daemon(older.pipe_directory, 3, parts=parts_or_skip(series), multi_user=True)
    assert await newer.tell(control.create_namespace("n", server="s")) == ""
    assert control.parse_namespaces(await newer.tell(control.list_namespaces("s"))) == ()


async def test_namespaces_of_protocol_3(daemon: Make) -> None:
    mps = daemon((None, 3), multi_user=True)
    await mps.start()
    await mps.tell(control.create_server("s"))
    await mps.tell(control.create_namespace("c1", server="s"))
    await mps.tell(control.set_namespace("c1", server="s", memory_mib=3072, threads=25))
    assert [one.name for one in control.parse_servers(await mps.tell(control.list_servers()))] == ["s"]
    default, mine = control.parse_namespaces(await mps.tell(control.list_namespaces("s")))
    assert (default.name, default.threads) == (control.DEFAULT_NAMESPACE, "100")
    assert (mine.name, mine.memory_limit, mine.threads) == ("c1", "3G", "25")
    (mps.pipe_directory / "clients").write_text("100 s c1 python -c a,b\n")
    with pytest.raises(MpsError, match="active clients"):
        await mps.tell(control.set_namespace("c1", server="s", threads=50))
    with pytest.raises(MpsError, match="active clients"):
        await mps.tell(control.delete_namespace("c1", server="s"))
    (mps.pipe_directory / "clients").unlink()
    await mps.tell(control.delete_namespace("c1", server="s"))
    assert len(control.parse_namespaces(await mps.tell(control.list_namespaces("s")))) == 1


async def test_many_commands_at_once(daemon: Make) -> None:
    mps = daemon((None, 3))
    await mps.start()
    await mps.tell(control.create_server("s"))
    await asyncio.gather(*(mps.tell(control.create_namespace(f"n{number}", server="s")) for number in range(12)))
    spaces = control.parse_namespaces(await mps.tell(control.list_namespaces("s")))
    assert sorted(space.name for space in spaces) == sorted(["default", *(f"n{number}" for number in range(12))])


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_refused_command_names_the_reason(daemon: Make, protocol: Literal[2, 3]) -> None:
    mps = daemon((None, protocol))
    await mps.start()
    command = ("start_server", "-uid", "0") if protocol == 2 else control.create_server("s")
    (mps.pipe_directory / "refuse").write_text(command[0] + "\n")
    with pytest.raises(MpsError, match="Insufficient privileges"):
        await mps.tell(command)


async def test_a_daemon_that_dies_of_a_command(daemon: Make) -> None:
    mps = daemon((None, 3))
    await mps.start()
    (mps.pipe_directory / "die").touch()
    with pytest.raises(NoMpsDaemonError, match="start it"):
        await mps.tell(control.create_server("s"))
    (mps.pipe_directory / "die").unlink()
    assert await mps.start()
    assert control.parse_servers(await mps.tell(control.list_servers())) == ()


@pytest.mark.parametrize("which", ALL)
async def test_a_cancelled_command_leaves_no_process(daemon: Make, which: Which) -> None:
    mps = daemon(which)
    await mps.start()
    with stopped(mps):
        before = children()
        telling = asyncio.create_task(mps.tell(LIST[mps.protocol]))
        await asyncio.to_thread(wait_for, lambda: children() != before, "started")
        telling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await telling
        assert children() == before


@pytest.mark.parametrize("which", ALL)
async def test_a_silent_daemon(daemon: Make, which: Which) -> None:
    """It holds the socket and does not answer: not absent, so it must not simply be started over."""
    mps = daemon(which)
    await mps.start()
    hasty = daemon(which, patience=0.3)
    with stopped(mps):
        with pytest.raises(MpsError, match="does not answer"):
            await hasty.tell(LIST[mps.protocol])
        assert await hasty.health() is MpsHealth.SILENT
    assert await mps.health() is MpsHealth.RUNNING


async def test_the_program_is_missing(tmp_path: Path) -> None:
    mps = MpsDaemon(
        pipe_directory=tmp_path / "p", log_directory=tmp_path / "l", environment={}, program=str(tmp_path / "none")
    )
    assert await mps.health() is MpsHealth.ABSENT
    with pytest.raises(MpsError, match="comes with NVIDIA's driver"):
        await mps.start()


async def test_a_daemon_that_fails_to_start_says_why(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho no such card >&2\nexit 3\n")
    program.chmod(0o755)
    mps = MpsDaemon(pipe_directory=tmp_path / "p", log_directory=tmp_path / "l", environment={}, program=str(program))
    with pytest.raises(MpsError, match=r"exit status 3.*no such card"):
        await mps.start()


async def test_a_daemon_that_ends_makes_room_for_the_next(daemon: Make, tmp_path: Path) -> None:
    """NVIDIA's holds its lock for a moment after its socket is gone, and the next one does not start then."""
    mps, program, tried = daemon(), tmp_path / "control", tmp_path / "tried"
    program.write_text(
        f"#!/bin/sh\nif [ $# = 1 ] && [ ! -e {tried} ]; then\n    touch {tried}\n"
        f"    echo An instance of this daemon is already running\n    exit 1\nfi\nexec {STAND_IN} $@\n"
    )
    program.chmod(0o755)
    mps._program = str(program)
    assert await mps.start()
    assert tried.exists()


def test_paths_and_modes_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(MpsError, match="too long"):
        MpsDaemon(pipe_directory=tmp_path / ("x" * 100), log_directory=tmp_path, environment={})
    with pytest.raises(MpsError, match="use protocol 3"):
        MpsDaemon(pipe_directory=Path("/run/m"), log_directory=tmp_path, environment={}, multi_user=True)


async def test_words_that_would_be_two_commands(daemon: Make) -> None:
    with pytest.raises(MpsError, match="cannot be part"):
        await daemon().tell(("quit\nget_server_list",))
