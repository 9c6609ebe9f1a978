"""What the commands that run a service have in common."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine


async def until_ended(work: Coroutine[None, None, None]) -> None:
    """Run until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
