"""MPS control daemons for tests: the stand-in of this folder, and NVIDIA's own where `make kube` has fetched it."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from shoal.gpu.mps import MpsDaemon
from tests.testbed.nvidia import NvidiaParts

STAND_IN = Path(__file__).with_name("nvidia-cuda-mps-control")
#: The stand-in is run by the Python at hand, not by what else is called python3 here.
_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
_CREDENTIALS = struct.Struct("3i")


def mps_daemon(
    pipe: Path,
    protocol: Literal[2, 3],
    *,
    parts: NvidiaParts | None = None,
    multi_user: bool = False,
    patience: float = 60,
) -> MpsDaemon:
    """A daemon, not started yet: NVIDIA's own if its `parts` are given, else the stand-in."""
    environment: Mapping[str, str] = {**os.environ, "CUDA_MPS_PROTOCOL_VERSION": "7"}
    if parts is None:
        environment = {**environment, "PATH": _PATH, "MPS_STAND_IN_OF": str(os.getpid())}
    else:
        environment = parts.environment(environment)
    return MpsDaemon(
        pipe_directory=pipe,
        log_directory=pipe.parent / "log",
        environment=environment,
        protocol=protocol,
        multi_user=multi_user,
        program=str(STAND_IN if parts is None else parts.control),
        patience=patience,
    )


@contextmanager
def ended_with_us(pipe: Path, parts: NvidiaParts) -> Iterator[None]:
    """See to it that NVIDIA's daemon of a pipe directory ends after this, and with this process if it is killed."""
    environment = {**parts.environment(os.environ), "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    # The watcher waits for the end of its standard input, which comes when nobody holds the other end.
    script = 'read -r _; echo quit | "$0" >/dev/null 2>&1'
    watcher = subprocess.Popen(["sh", "-c", script, parts.control], stdin=subprocess.PIPE, env=environment)
    try:
        yield
    finally:
        watcher.communicate()


def told(daemon: MpsDaemon) -> list[str]:
    """What a stand-in was told."""
    lines = (daemon.pipe_directory / "told").read_text().splitlines()
    return [" ".join(json.loads(line)) for line in lines]


def pid_of(daemon: MpsDaemon) -> int:
    """The PID of the process that listens on a daemon's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.connect(str(daemon.pipe_directory / "control"))
        pid, _, _ = _CREDENTIALS.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def kill(daemon: MpsDaemon) -> None:
    """What a crash of the daemon is: its socket stays behind."""
    os.kill(pid_of(daemon), signal.SIGKILL)


@contextmanager
def stopped(daemon: MpsDaemon) -> Iterator[None]:
    """A daemon that holds its socket and does not answer."""
    pid = pid_of(daemon)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
