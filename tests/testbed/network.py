"""The network of a test node: a veth pair to the machine, a subnet for its pods, and the API server.

Kubelet reaches that on loopback, by the port it has outside, so that one kubeconfig serves both; pods reach it by the
address of its Service, which stands on the node itself since no kube-proxy runs there.
"""

import ipaddress
import json
import random
import subprocess
import sys
from pathlib import Path

from tests.testbed import relay
from tests.testbed.namespaces import Namespaces
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

# 198.18.0.0/15 is set aside for benchmarks of networks, so no real network has it.
_NODES = ipaddress.ip_network("198.18.0.0/15")
_PODS = ipaddress.ip_network("10.128.0.0/9")
_COUNT = 2**15
#: The address of the Service `kubernetes`, as the API server of a test has it.
_SERVICE = "10.96.0.1"


def take_addresses(run: Run) -> tuple[str, str, str]:
    """For a veth pair of a test's own: the name of its end on the machine, and the addresses of that and the other."""
    return _addresses(_take(run))


def _take(run: Run) -> int:
    return run.reservations.take("subnet", random.sample(range(_COUNT), 1000))


def _addresses(number: int) -> tuple[str, str, str]:
    base = _NODES.network_address + 4 * number
    return f"shoal{number}", str(base + 1), str(base + 2)


class NodeNetwork:
    """Addresses of one node, the same across its reboots, different from those of every other node on the machine."""

    def __init__(self, run: Run, name: str, port: int, folder: Path) -> None:
        number = _take(run)
        self.interface, self._gateway, self.address = _addresses(number)
        self.pods = f"{_PODS.network_address + 256 * number}/24"
        self._port = port
        self._ready = folder / "relay-ready"
        self._relay = run.process(f"{name}-relay", [])

    def start(self, namespaces: Namespaces) -> None:
        """Connect the node."""
        self._wait_until_gone()
        pair = ["ip", "link", "add", self.interface, "type", "veth", "peer", "name", "eth0"]
        _run(*pair, "netns", str(namespaces.pid))
        _run("ip", "address", "add", f"{self._gateway}/30", "dev", self.interface)
        _run("ip", "link", "set", self.interface, "up")
        namespaces.run(["ip", "address", "add", f"{self.address}/30", "dev", "eth0"])
        namespaces.run(["ip", "link", "set", "eth0", "up"])
        namespaces.run(["ip", "route", "add", "default", "via", self._gateway])
        namespaces.run(["ip", "address", "add", f"{_SERVICE}/32", "dev", "lo"])
        self._ready.unlink(missing_ok=True)
        addresses = [f"127.0.0.1:{self._port}", f"{_SERVICE}:443"]
        arguments = [f"/proc/{namespaces.pid}/ns/net", str(self._port), str(self._ready), *addresses]
        self._relay.argv = [sys.executable, "-I", relay.__file__, *arguments]
        self._relay.start()
        self._relay.wait_until(self._ready.exists, "listening")

    def stop(self) -> None:
        """Let go of the node's network namespace and wait until the kernel has taken the interface down with it."""
        self._relay.kill()
        self._wait_until_gone()

    def cni(self) -> str:
        """The CNI configuration that gives pods an address of the node's subnet."""
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni-addresses",
                "ranges": [[{"subnet": self.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})

    def _wait_until_gone(self) -> None:
        link = Path("/sys/class/net") / self.interface
        wait_for(lambda: not link.exists(), f"rid of interface {self.interface}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
