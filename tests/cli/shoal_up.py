"""`shoal up` as a process, for the tests of commands that ask a cluster."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and what it said until it was ready."""
    command = [sys.executable, "-c", "from shoal.cli.main import main; main()", "up", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    try:
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, process.communicate()
            said += line
        yield process, said
    finally:
        process.kill()
        process.communicate()
