"""Programs of the test bed: started, watched, stopped, and gone when the tests are, however those end.

Every program dies with the process that started it (the kernel sends SIGKILL: `setpriv --pdeathsig`). That holds for
the thread that started it, so start programs from the main thread only. Cgroups and files are the janitor's.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.testbed import janitor, machine
from tests.testbed.reservations import Reservations


class TestbedError(Exception):
    """A part of the test bed did not do what it should; the message holds the end of its log."""

    __test__ = False


class Run:
    """One run of the test bed: its folder, its reserved numbers, its programs."""

    def __init__(self) -> None:
        machine.raise_inotify_limit()
        parent = Path(tempfile.gettempdir())
        janitor.sweep(parent)
        self.directory = Path(tempfile.mkdtemp(prefix=janitor.PREFIX, dir=parent))
        self.directory.chmod(0o755)
        self._lock = (self.directory / janitor.LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.reservations = Reservations()
        self._processes: list[Process] = []
        self._janitor = subprocess.Popen(
            [sys.executable, janitor.__file__, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def folder(self, *names: str) -> Path:
        """A folder of the run, made if need be."""
        path = self.directory.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def register_cgroup(self, path: Path) -> None:
        """Have the janitor remove this cgroup tree. Call it before making the cgroup."""
        with (self.directory / janitor.CGROUPS).open("a") as registry:
            registry.write(f"{path}\n")

    def process(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> "Process":
        """A program of this run, not started yet. Its log is `logs/NAME.log`."""
        process = Process(name, argv, self.folder("logs") / f"{name}.log", env)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Stop all programs, last first, and let the janitor remove the rest."""
        for process in reversed(self._processes):
            process.kill()
        self._lock.close()
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait(300)
        self.reservations.release()


class Process:
    """A program that can be started, killed and started again; its log grows across restarts."""

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.argv = [str(word) for word in argv]
        self.log = log
        self._env = dict(env) if env is not None else None
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The PID of the running program."""
        if self._popen is None:
            raise TestbedError(f"{self.name} has not been started")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start the program; it dies with this process."""
        if self.alive:
            raise TestbedError(f"{self.name} is running already")
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.kill()
            self._popen.wait()

    def stop(self, patience: float = 20) -> None:
        """SIGTERM; SIGKILL when it does not listen."""
        if self._popen is None or not self.alive:
            return
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_until(self, ready: Callable[[], bool], what: str, patience: float = 300) -> None:
        """Wait for a condition; fail with the end of the log when the program dies or patience ends."""
        end = time.monotonic() + patience
        while not ready():
            if not self.alive:
                raise TestbedError(f"{self.name} ended before it was {what}:\n{self.tail()}")
            if time.monotonic() > end:
                raise TestbedError(f"{self.name} was not {what} after {patience:.0f} s:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 40) -> str:
        """The end of the log."""
        return tail(self.log, lines)


def tail(path: Path, lines: int) -> str:
    """The last lines of a log."""
    if not path.exists():
        return f"({path} is not there)"
    with path.open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - 64 * 1024))
        return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
