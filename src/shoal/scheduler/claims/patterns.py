"""The regular expressions of selectors: RE2, as in Kubernetes, so that matching takes time linear in the text.

Each is compiled once, within a bound on its length and memory. What a match costs is known before it runs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

from shoal.model.errors import shown
from shoal.scheduler.claims.errors import SelectorError

MAX_LENGTH: Final = 256
#: Memory of one compiled pattern in bytes; RE2 refuses what does not fit.
_MEMORY: Final = 128 * 1024
#: Patterns kept compiled.
_KEPT: Final = 512
#: Units that every match costs.
_CALL_COST: Final = 10
#: Instructions times characters that cost one unit.
_STEPS_PER_UNIT: Final = 32


def size(pattern: str) -> int:
    """Instructions of the compiled pattern. Raises SelectorError when it is not a regular expression of RE2."""
    return int(_compiled(pattern).programsize)


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found anywhere in the text. Raises SelectorError."""
    return _compiled(pattern).search(text) is not None


def cost(text: str, pattern: str) -> int:
    """Units of a match at worst. Raises SelectorError."""
    return _CALL_COST + size(pattern) * len(text) // _STEPS_PER_UNIT


@lru_cache(maxsize=_KEPT)
def _compiled(pattern: str) -> Any:
    if len(pattern) > MAX_LENGTH:
        raise SelectorError(f"uses matches() with a pattern of more than {MAX_LENGTH} characters: {shown(pattern)}")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise SelectorError(f"uses matches() with the pattern {shown(pattern)}, which RE2 refuses: {why}") from None
