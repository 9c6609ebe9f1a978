"""Tasks that must not hold up each other: one that fails is told, and started again after a while."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from shoal.model.backoff import Backoff

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first=1.0, longest=60.0)


async def supervised(name: str, part: Callable[[], Awaitable[None]], *, backoff: Backoff = _BACKOFF) -> None:
    """Run a part until cancelled. When it fails, or ends by itself, it is started again after a pause.

    The pauses grow while it fails soon after its start.
    """
    rng = random.Random()
    failures = 0
    while True:
        started = time.monotonic()
        try:
            await part()
            log.error("%s ended, which it should not: it is started again", name)
        except Exception:  # whatever it is, the other parts go on
            log.exception("%s failed: it is started again", name)
        if time.monotonic() - started > 2 * backoff.longest:
            failures = 0  # it went well for long enough
        failures += 1
        await asyncio.sleep(backoff.jittered(failures, rng))
