"""What the commands that run a service have in common."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from pathlib import Path

import click

#: Where a pod finds the namespace it runs in.
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


async def until_ended(work: Coroutine[None, None, None]) -> None:
    """Run until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def own_namespace() -> str:
    """The namespace of this pod."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError as error:
        raise click.ClickException("this is no pod, which has a namespace: give --namespace") from error
