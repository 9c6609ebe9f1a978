"""How often chance is given: `make soak` tries everything that is drawn at random `SHOAL_SOAK` times as often."""

import os
from typing import Final

SOAK: Final = int(os.environ.get("SHOAL_SOAK", "1"))


def times(count: int) -> int:
    """So many examples in an ordinary run."""
    return count * SOAK
