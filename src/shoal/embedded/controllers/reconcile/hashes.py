"""Short names for templates: a hash in the letters that Kubernetes allows itself, which spell no words."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_OFFSET: Final = 2166136261
_PRIME: Final = 16777619


def hash_of(value: Any, collisions: int | None = None) -> str:
    """The hash of a value, another one for each number of collisions. Not the number the real cluster comes to."""
    number = _OFFSET
    for byte in msgspec.json.encode([value, collisions], order="deterministic"):
        number = ((number ^ byte) * _PRIME) & 0xFFFFFFFF
    return "".join(_LETTERS[ord(digit) % len(_LETTERS)] for digit in str(number))
