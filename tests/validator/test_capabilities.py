"""Capabilities that a process gives up, for itself and for what it starts."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import subprocess, sys
from shoal.validator.capabilities import SYS_CHROOT, keep_only
keep_only(SYS_CHROOT)
for text in (open("/proc/self/status").read(), subprocess.check_output(["cat", "/proc/self/status"], text=True)):
    fields = dict(line.split(":\\t", 1) for line in text.splitlines() if ":\\t" in line)
    others = [int(fields[name], 16) & ~(1 << SYS_CHROOT) for name in ("CapEff", "CapPrm", "CapInh")]
    print(*others, fields["NoNewPrivs"])
"""


def test_one_is_kept_and_no_other_comes_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["0 0 0 1", "0 0 0 1"]
    assert done.stderr == ""
