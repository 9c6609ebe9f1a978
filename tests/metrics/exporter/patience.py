"""Waiting for what only a question tells."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(ready: Callable[[], bool | Awaitable[bool]], patience: float = 300) -> None:
    """Wait for a condition, which may have to be asked for."""
    async with asyncio.timeout(patience):
        while True:
            found = ready()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.05)
