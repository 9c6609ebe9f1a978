"""Waits for files of readiness: the first container of everything that needs the driver or the runtime."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from shoal.validator.files import ValidationFiles

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
#: What is waited for is said so often, unless it is another file than before.
TELL_SECONDS: Final = 60.0


async def wait_for(
    files: ValidationFiles, names: Sequence[str], *, clock: Callable[[], float] = time.monotonic
) -> None:
    """Return when all of these files count."""
    began, told, last = clock(), None, 0.0
    while missing := next((first for name in names if (first := files.missing(name)) is not None), None):
        now = clock()
        if missing != told or now - last >= TELL_SECONDS:
            told, last = missing, now
            log.info("waiting for %s, %.0f s until now: %s", files.folder / missing, now - began, said_of(missing))
        await asyncio.sleep(LOOK_SECONDS)
    log.info("%s there after %.0f s", ", ".join(names), clock() - began)


def said_of(name: str) -> str:
    """Who writes a file, for those who wait for it."""
    match name:
        case ".driver-ctr-ready":
            return "the driver container of this node writes it when the driver is loaded"
        case "driver-ready" | "plugin-ready":
            return "shoal-validator of this node writes it; its log and the node's shoal.dev/validation say why not yet"
        case "toolkit-ready" | "cuda-ready":
            return (
                "shoal-validator-runtime of this node writes it; its log and the node's shoal.dev/validation say why "
                "not yet"
            )
    return "another program writes it"
