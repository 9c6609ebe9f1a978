"""Writes files with tokens, keys or other data that only their owner may read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

_OWNER_ONLY: Final = 0o700


def write_secret(path: Path, content: bytes) -> None:
    """Put a file that only its owner can read into place, whole or not at all. OSError leaves what was there.

    The file is new: permissions of an earlier file do not stay, and a symbolic link is replaced, not followed.
    """
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(draft).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise


def make_secret_folder(path: Path) -> None:
    """Make a folder that only its owner can enter. An existing folder keeps its permissions."""
    path.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
