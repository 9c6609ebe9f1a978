"""PID 1 of a test node: lays out the node's file system, then reaps its orphans until it is killed.

Runs as a plain script inside fresh PID, mount, network and UTS namespaces. When it dies the kernel kills every process
of the node and drops its mounts and interfaces, so there is nothing here to undo.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# What kubelet wants the kernel to be set to. It would set it for the whole machine, so it is shown files that say so.
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


def main() -> None:
    """Set up, say so, reap."""
    settings = json.loads(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _mount_all(settings["binds"])
    socket.sethostname(settings["hostname"])
    _run("ip", "link", "set", "lo", "up")
    Path(settings["ready"]).touch()
    while True:
        signal.sigwait({signal.SIGCHLD})
        _reap()


def _mount_all(binds: dict[str, str]) -> None:
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    for folder in ("/run", "/var/lib", "/var/log"):
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    if not Path("/var/run").is_symlink():
        _run("mount", "--bind", "/run", "/var/run")
    for target, source in binds.items():
        Path(target).mkdir(parents=True)
        _run("mount", "--bind", source, target)
        # As under systemd. Where it is not, kubelet mounts its folder over itself while it makes the PodResources
        # socket in there, and now and then the two meet: kubelet exits.
        _run("mount", "--make-shared", target)
    for name, value in _SYSCTLS.items():
        shown = Path("/run/sysctl") / name
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        _run("mount", "--bind", str(shown), f"/proc/sys/{name}")


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # nobody left: the usual case


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
