"""How far the runs are, on stderr: a bar on a terminal, else a line per run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shoal.simulate.runs import Listener, Progress

_BAR = 30


@contextmanager
def listening(*, quiet: bool) -> Iterator[Listener]:
    """A listener for the runs inside."""
    if quiet:
        yield _silence
    elif sys.stderr.isatty():
        try:
            yield _draw
        finally:
            click.echo("\r\x1b[K", nl=False, err=True)
    else:
        yield _line


def _silence(progress: Progress) -> None:
    pass


def _line(progress: Progress) -> None:
    click.echo(f"{progress.done}/{progress.total} {progress.name}: {progress.seconds:.1f} s", err=True)


def _draw(progress: Progress) -> None:
    filled = _BAR * progress.done // progress.total
    bar = "█" * filled + "░" * (_BAR - filled)
    click.echo(f"\r\x1b[K{bar} {progress.done}/{progress.total}  {progress.name}", nl=False, err=True)
