"""The namespaces of a test node, and programs that run inside them.

One PID 1 (`node_init`) holds them. Programs come in with nsenter, which stays outside as their parent: what is killed
and waited for here is the program itself, not that parent.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.testbed import node_init
from tests.testbed.processes import Process, Run, TestbedError

#: All that programs of a node see of the environment.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


class Namespaces:
    """PID, mount, network and UTS namespace of one node."""

    def __init__(
        self,
        run: Run,
        name: str,
        ready: Path,
        binds: Mapping[str, Path],
        *,
        covers: Mapping[str, Path] | None = None,
        devices: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """`binds` says which folders of the run the node sees, by their path in the node.

        `covers` are folders laid over folders of the machine, which shine through; `devices` are character devices
        that the node has beside the machine's, by name.
        """
        self._ready = ready
        settings = {
            "hostname": name,
            "ready": str(ready),
            "binds": {target: str(source) for target, source in binds.items()},
            "covers": {target: str(source) for target, source in (covers or {}).items()},
            "devices": dict(devices or {}),
        }
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", "--uts"]
        command += [sys.executable, "-I", node_init.__file__, json.dumps(settings)]
        self._process = run.process(f"{name}-init", command, ENVIRONMENT)
        self.pid = 0

    def start(self) -> None:
        """Make the namespaces and wait until the node's file system is laid out."""
        self._ready.unlink(missing_ok=True)
        self._process.start()
        self.pid = child_of(self._process)
        self._process.wait_until(self._ready.exists, "ready")

    def kill(self) -> None:
        """Kill everything in the node at once, as when its power goes. Returns when all of it is gone."""
        if self._process.alive:
            kill_and_wait(self.pid)  # it ends after all others: the kernel sees to that
        self._process.kill()

    def enter(self, *argv: str | Path) -> list[str]:
        """The command line that runs a command in the node."""
        return ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "--", *(str(word) for word in argv)]

    def run(self, argv: Sequence[str | Path], check: bool = True) -> str:
        """What a command prints in the node; its error as an exception."""
        done = subprocess.run(self.enter(*argv), capture_output=True, text=True, check=False, env=ENVIRONMENT)
        if check and done.returncode:
            raise TestbedError(f"{' '.join(map(str, argv))} in the node: {done.stdout}{done.stderr}".strip())
        return done.stdout


class NodeProgram:
    """A long-running program of a node: kubelet or containerd."""

    def __init__(self, namespaces: Namespaces, process: Process, argv: Sequence[str | Path], ready: Callable[[], bool]):
        self._namespaces = namespaces
        self._process = process
        self._argv = list(argv)
        self._ready = ready

    @property
    def pid(self) -> int:
        """Its PID, as seen from outside the node."""
        return child_of(self._process)

    @property
    def log(self) -> Path:
        """Its log, which grows across restarts."""
        return self._process.log

    def start(self, wait: bool = True) -> None:
        """Start it and, unless told otherwise, wait until it answers."""
        self._process.argv = self._namespaces.enter(*self._argv)
        self._process.start()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until it answers."""
        self.wait_until(self._ready, "ready")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; fail with the end of the log when the program dies or patience ends."""
        self._process.wait_until(condition, what)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; returns when it is gone."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop it in the friendly way and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; nsenter, its parent, has stopped itself with it."""
        for pid in (self._process.pid, self.pid):
            os.kill(pid, signal.SIGCONT)

    def release(self) -> None:
        """End the parent outside, once the node's end has taken the program itself."""
        self._process.kill()

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return self._process.tail(lines)

    def _end(self, number: signal.Signals) -> None:
        if self._process.alive:
            kill_and_wait(self.pid, number)
        self._process.kill()


def child_of(process: Process) -> int:
    """The one child of a running program, which may just be about to be born."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found: list[str] = []

    def born() -> bool:
        found[:] = children.read_text().split() if children.exists() else []
        return bool(found)

    process.wait_until(born, "running")
    return int(found[0])


def kill_and_wait(pid: int, number: signal.Signals = signal.SIGKILL, patience: float = 60) -> None:
    """Send a signal and wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, number)
        if not select.select([descriptor], [], [], patience)[0]:
            raise TestbedError(f"process {pid} does not end after {number.name}")
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
