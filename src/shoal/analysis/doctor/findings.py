"""What a check found: how grave it is, about what, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from shoal.analysis.words import listed

_MOST_NAMES: Final = 5


class Level(StrEnum):
    """How grave a finding is."""

    OK = "ok"
    #: Nothing is wrong; somebody may want to know.
    NOTE = "note"
    WARNING = "warning"
    FAILED = "failed"
    #: It could not be looked at.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check."""

    check: str
    level: Level
    says: str
    fix: str = ""

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {key: str(value) for key, value in asdict(self).items() if value}


def ok(check: str, says: str) -> Finding:
    return Finding(check, Level.OK, says)


def note(check: str, says: str, fix: str = "") -> Finding:
    return Finding(check, Level.NOTE, says, fix)


def warning(check: str, says: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, says, fix)


def failed(check: str, says: str, fix: str) -> Finding:
    return Finding(check, Level.FAILED, says, fix)


def unknown(check: str, says: str) -> Finding:
    return Finding(check, Level.UNKNOWN, says, "grant the rights of deploy/rbac/viewer.yaml to see it")


def some(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    return listed(names, most=_MOST_NAMES)
