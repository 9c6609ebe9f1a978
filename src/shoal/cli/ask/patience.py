"""What a command says while it works for long: a line on the terminal, taken back in the end."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Final

import click

#: What takes longer than so many seconds says that it is at work.
_PATIENCE: Final = 1.0


@contextlib.contextmanager
def saying(words: str) -> Iterator[None]:
    """Say what goes on once it takes long. Only a terminal is told: elsewhere nobody waits."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    said = threading.Event()

    def say() -> None:
        said.set()
        click.echo(words, nl=False, err=True)

    timer = threading.Timer(_PATIENCE, say)
    timer.name, timer.daemon = "patience", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if said.is_set():
            click.echo("\r\x1b[K", nl=False, err=True)
