"""Answers in the form that was asked for, words and tables for people, JSON and YAML for programs; and the line on the
terminal while a command works for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def output(*forms: str) -> Callable[[Command], Command]:
    """The option `-o`; the command gets `form`, None for the one people read. JSON and YAML are always there."""
    return click.option(
        "-o", "--output", "form", type=click.Choice(["json", "yaml", *forms]), help="The form; else for people to read."
    )


def emit(document: object, form: str) -> None:
    """Print a document as JSON or YAML."""
    if form == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    import yaml

    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)


def may_colour() -> bool:
    """Whether terminals get colour. As no-color.org has it, any NO_COLOR that is not empty says no."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def quiet_grpc() -> None:
    """Keep gRPC's own log, which tells of connections that end, from standard error.

    gRPC reads the variable when it is imported: call this before anything that imports it.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def styled(text: str, colour: str, *, bold: bool = False) -> str:
    """Coloured text where terminals get some. Where the output is no terminal, click takes the colour out."""
    return click.style(text, fg=colour, bold=bold) if may_colour() else text


def aligned(rows: Sequence[Sequence[str]], *, gap: int = 3) -> str:
    """A table as kubectl prints it: columns padded to their widest cell, no spaces at the end of a line."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ((" " * gap).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


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
