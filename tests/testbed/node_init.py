"""PID 1 of a test node: lays out the node's file system, then reaps its orphans until it is killed.

Runs as a plain script inside fresh PID, mount, network and UTS namespaces. When it dies the kernel kills every process
of the node and drops its mounts and interfaces, so there is nothing here to undo.
"""

import json
import os
import signal
import socket
import stat
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
#: Where MPS daemons and their clients meet.
_MPS = "/tmp/nvidia-mps"


def main() -> None:
    """Set up, say so, reap."""
    settings = json.loads(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _mount_all(settings["covers"], settings["binds"])
    _make_devices(settings["devices"])
    # As under systemd; pods may ask that what they mount is seen outside. Where it is not, kubelet mounts its folder
    # over itself while it makes the PodResources socket in there, and now and then the two meet: kubelet exits.
    _run("mount", "--make-rshared", "/")
    socket.sethostname(settings["hostname"])
    _run("ip", "link", "set", "lo", "up")
    Path(settings["ready"]).touch()
    while True:
        signal.sigwait({signal.SIGCHLD})
        _reap()


def _mount_all(covers: dict[str, str], binds: dict[str, str]) -> None:
    _run("mount", "--make-rprivate", "/")
    for target, source in covers.items():
        _run("mount", "-t", "overlay", "-o", f"lowerdir={source}:{target}", "overlay", target)
    _run("mount", "-t", "proc", "proc", "/proc")
    for folder in ("/run", "/var/lib", "/var/log"):
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    # Of the machine's /tmp only this is the node's own: what one node removes there is nobody else's.
    Path(_MPS).mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", "mode=777", "tmpfs", _MPS)
    if not Path("/var/run").is_symlink():
        _run("mount", "--bind", "/run", "/var/run")
    for target, source in binds.items():
        Path(target).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", source, target)
    for name, value in _SYSCTLS.items():
        shown = Path("/run/sysctl") / name
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        _run("mount", "--bind", str(shown), f"/proc/sys/{name}")


def _make_devices(devices: dict[str, list[int]]) -> None:
    """A /dev of the node's own, with what the machine has and these; as it is where there are none."""
    if not devices:
        return
    old, new = Path("/run/machine-dev"), Path("/dev")
    old.mkdir()
    _run("mount", "--rbind", "/dev", str(old))
    _run("mount", "-t", "tmpfs", "-o", "mode=755,dev", "tmpfs", "/dev")
    for entry in old.iterdir():
        if entry.is_symlink():
            (new / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            (new / entry.name).mkdir()
            _run("mount", "--rbind", str(entry), str(new / entry.name))
        elif not entry.name.startswith("nvidia"):
            found = entry.stat()
            os.mknod(new / entry.name, found.st_mode, found.st_rdev)
            (new / entry.name).chmod(stat.S_IMODE(found.st_mode))
    for name, (major, minor) in devices.items():
        os.mknod(new / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        (new / name).chmod(0o666)


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
