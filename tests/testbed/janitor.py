"""Removes what a run leaves in the system, however the run ended.

Started by `processes.Run` as a process of its own that outlives the tests. It waits until the pipe on its standard
input closes (at the run's clean end, or because the kernel closed it for a killed process), then kills what is left in
the run's cgroups and removes them and the run's folder. What nobody could clean (the janitor was killed too), the next
run sweeps.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

#: In a run's folder: locked as long as the run lives.
LOCK = "lock"
#: In a run's folder: the cgroups the run has made, one path a line.
CGROUPS = "cgroups"
PREFIX = "shoal-testbed-"
#: Set to keep the folders of runs, logs and all.
KEEP = "SHOAL_TESTBED_KEEP"


def clean(folder: Path) -> None:
    """Remove a dead run: processes in its cgroups, the cgroups, its folder."""
    registry = folder / CGROUPS
    if registry.exists():
        for line in registry.read_text().splitlines():
            remove_cgroup(Path(line))
    if os.environ.get(KEEP):
        (folder / LOCK).unlink(missing_ok=True)  # no later run takes it for one to sweep
        return
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)  # a dying program may still have been writing


def remove_cgroup(top: Path, deadline: float = 120) -> None:
    """Kill all processes of a cgroup tree and remove it bottom up."""
    end = time.monotonic() + deadline
    while top.exists():
        for group in sorted((path for path in [top, *top.rglob("*")] if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                group.rmdir()
        if time.monotonic() > end:
            return
        if top.exists():
            time.sleep(0.05)


def sweep(parent: Path) -> None:
    """Remove the folders of runs that nobody lives in any more."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / LOCK).open() as lock:
            if time.time() - folder.stat().st_mtime < 60:
                continue  # perhaps just being set up, its lock not taken yet
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            clean(folder)


def main() -> None:
    """Wait for the run to end, then clean up after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
