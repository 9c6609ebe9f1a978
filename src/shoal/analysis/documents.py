"""YAML that others wrote, and JSON, which YAML nearly contains.

What JSON has beyond it is a character written as two escapes, `"\\ud83d\\ude00"`. YAML's reader takes each for itself
and makes text of them that cannot be written anywhere.
"""

from __future__ import annotations

from typing import Any

import yaml


class _JoiningLoader(yaml.SafeLoader):
    """YAML's safe loader, with surrogates joined."""

    def construct_scalar(self, node: Any) -> Any:
        return joined(super().construct_scalar(node))


def documents(text: str | bytes) -> list[Any]:
    """All documents of a text. Raises ValueError for what is no YAML."""
    try:
        return list(yaml.load_all(text, Loader=_JoiningLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error


def joined(text: str) -> str:
    """The text with each pair of surrogates as the character it stands for; one alone is U+FFFD, as Go reads it."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
