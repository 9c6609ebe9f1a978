"""Numbers that runs side by side must not share: TCP ports, subnets.

Whoever holds the abstract unix socket of a number owns it. The kernel frees it when the holder dies, so that a killed
run blocks nothing, and there is no file to leave behind.
"""

import random
import socket
from collections.abc import Iterable
from pathlib import Path


class Reservations:
    """What one run has taken, until `release` or the end of the process."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, kind: str, numbers: Iterable[int]) -> int:
        """The first of these numbers that nobody holds."""
        for number in numbers:
            holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                holder.bind(f"\0shoal-testbed-{kind}-{number}")
            except OSError:
                holder.close()
                continue
            self._held.append(holder)
            return number
        raise RuntimeError(f"no {kind} number is left: too many runs of the test bed at once")

    def port(self) -> int:
        """A TCP port of 127.0.0.1 that stays free for this run: below the range the kernel gives to connections."""
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        free = (port for port in random.sample(range(10240, min(first_ephemeral, 32768)), 2000) if _is_free(port))
        return self.take("port", free)

    def release(self) -> None:
        """Give everything back."""
        for holder in self._held:
            holder.close()
        self._held.clear()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
