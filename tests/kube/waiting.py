"""Waiting for a condition, with a deadline that only a broken run meets."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], what: str, *, seconds: float = 300.0) -> None:
    """Return when the condition holds."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the conditions are plain state, nobody signals them
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None
