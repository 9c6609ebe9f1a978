"""Files that other programs of the node read: each is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Put a file into place, in the place of an earlier one; its folder is made. OSError leaves what was there.

    The draft has a name that no reader of the folder takes for a file of its own, and no other process uses.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        if mode is not None:
            draft.chmod(mode)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # the folder itself may be what is wrong
            draft.unlink()
        raise
