"""A network namespace for a manager, from which clusters are reached over a veth pair that can be cut, in one direction
or both, for each cluster by itself.

API servers of the test bed listen on loopback; relays on the machine's end of the pair lead to them. All of it goes
with the processes that hold it.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import yaml

from tests.testbed import relay
from tests.testbed.apiserver import ApiServer
from tests.testbed.namespaces import child_of
from tests.testbed.network import take_addresses
from tests.testbed.processes import Process, Run


class Cut(Enum):
    """What does not pass."""

    #: What the manager sends.
    THERE = "there"
    #: What it is answered.
    BACK = "back"
    BOTH = "both"


class CutNetwork:
    """The namespace, with a way to each of these API servers by name."""

    def __init__(self, run: Run, name: str, servers: Mapping[str, ApiServer]) -> None:
        self._servers = dict(servers)
        self._folder = run.folder(name)
        self._interface, self._gateway, self._address = take_addresses(run)
        self._holder = run.process(
            f"{name}-network", ["unshare", "--net", "--fork", "--kill-child", "sleep", "infinity"]
        )
        self._relays = {place: run.process(f"{name}-relay-{place}", []) for place in servers}
        self._pid = 0

    def __enter__(self) -> "CutNetwork":
        self._holder.start()
        self._pid = child_of(self._holder)
        # Until it has entered its namespace, it is still in ours.
        ours = Path("/proc/self/ns/net").readlink()
        its = Path(f"/proc/{self._pid}/ns/net")
        self._holder.wait_until(lambda: its.readlink() != ours, "in a namespace of its own")
        _run("ip", "link", "add", self._interface, "type", "veth", "peer", "name", "eth0", "netns", str(self._pid))
        _run("ip", "address", "add", f"{self._gateway}/30", "dev", self._interface)
        _run("ip", "link", "set", self._interface, "up")
        self._inside("ip", "link", "set", "lo", "up")
        self._inside("ip", "address", "add", f"{self._address}/30", "dev", "eth0")
        self._inside("ip", "link", "set", "eth0", "up")
        for place, server in self._servers.items():
            ready = self._folder / f"{place}-ready"
            listening = [f"/proc/{os.getpid()}/ns/net", str(server.port), str(ready), f"{self._gateway}:{server.port}"]
            self._relays[place].argv = [sys.executable, "-I", relay.__file__, *listening]
            self._relays[place].start()
            self._relays[place].wait_until(ready.exists, "listening")
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._relays.values(), self._holder):
            process.kill()

    def kubeconfig(self, place: str) -> Path:
        """As an administrator of a cluster, by its address in here."""
        server = self._servers[place]
        config = yaml.safe_load(server.kubeconfig().read_text())
        way = {"server": f"https://{self._gateway}:{server.port}", "tls-server-name": "127.0.0.1"}
        config["clusters"][0]["cluster"].update(way)
        path = self._folder / f"{place}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def enter(self, process: Process) -> Process:
        """Have a program run in here that is not started yet."""
        process.argv = ["nsenter", "-t", str(self._pid), "-n", "--", *process.argv]
        return process

    def cut(self, place: str, what: Cut) -> None:
        """Drop packets to or from a cluster, or both, until `heal`."""
        port = str(self._servers[place].port)
        if what is not Cut.BACK:
            self._inside("iptables", "-w", "-A", "OUTPUT", "-p", "tcp", "--dport", port, "-j", "DROP")
        if what is not Cut.THERE:
            self._inside("iptables", "-w", "-A", "INPUT", "-p", "tcp", "--sport", port, "-j", "DROP")

    def heal(self) -> None:
        """All passes again."""
        self._inside("iptables", "-w", "-F")

    def _inside(self, *command: str) -> None:
        _run("nsenter", "-t", str(self._pid), "-n", "--", *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
