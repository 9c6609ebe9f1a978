"""Waiting for a condition that no program of the run stands for; `Process.wait_until` waits for one that does."""

import time
from collections.abc import Callable

from tests.testbed.processes import TestbedError


def wait_for(ready: Callable[[], bool], what: str, patience: float = 300) -> None:
    """Wait for a condition; `what` completes the message "not … after 300 s"."""
    end = time.monotonic() + patience
    while not ready():
        if time.monotonic() > end:
            raise TestbedError(f"not {what} after {patience:.0f} s")
        time.sleep(0.05)
