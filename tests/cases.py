"""Tables of cases in YAML, read by the parser in C: thousands of tests are made of them before the first one runs."""

from pathlib import Path
from typing import Any

import yaml


def read_cases(path: Path) -> Any:
    """What a file holds."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
