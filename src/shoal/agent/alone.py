"""One agent to a node: a second one would take the plugins' sockets away from the first, and that one from it.

The folder in which kubelet's plugins meet is locked; the kernel gives the lock back however its holder ends. So a new
agent takes over when the old one is gone, and only waits where somebody runs two of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5


@asynccontextmanager
async def alone_in(folder: Path, waiting: Callable[[str], None]) -> AsyncIterator[None]:
    """Be the only agent that serves in this folder while the block lasts; `waiting` is told why not yet, and when."""
    descriptor = _opened(folder)
    try:
        told = False
        while not _locked(descriptor):
            if not told:
                told = True
                words = f"another agent serves in {folder}: end it, or wait until it has ended"
                log.warning("waiting: %s", words)
                waiting(words)
            await asyncio.sleep(_LOOK_SECONDS)
        waiting("")
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
