"""Points for InfluxDB: the line protocol, a buffer that is bounded in bytes, and what becomes of an answer.

While the server is away points wait; when there are too many the oldest go, and are counted. What the server never
takes (a bad point) is told once for each cause, and holds up no other. No HTTP here.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

log = logging.getLogger(__name__)

FieldValue = bool | int | float | str

#: A batch: as many points as InfluxDB's documentation advises at most, and far below the bytes it takes.
BATCH_POINTS: Final = 5000
BATCH_BYTES: Final = 1 << 20
#: Points that wait while the server is away.
BUFFER_BYTES: Final = 32 << 20
#: The longest value of a tag. Names of Kubernetes have 253 characters at most.
_LONGEST_TAG: Final = 1024
#: Names and values that are remembered with their escapes: those of a node with some hundred containers.
_ESCAPED: Final = 2048
#: The longest text of a field, and the longest answer that is told.
_LONGEST_TEXT: Final = 16 << 10
_LONGEST_CAUSE: Final = 200
#: Causes that are remembered as told.
_CAUSES: Final = 64
_LEAST, _MOST = -(2**63), 2**63 - 1

_IN_MEASUREMENT: Final = re.compile(r"([, ])")
_IN_TAG: Final = re.compile(r"([,= ])")
_LINE_ENDS: Final = re.compile(r"[\r\n]+")
#: Backslashes that would take the sign behind them along. Servers differ in how they read two of them.
_TAKES_ALONG: Final = re.compile(r"\\+(?=[,= ]|$)")
_DIGITS: Final = re.compile(r"\d+")
_DROPPED: Final = re.compile(r"partial write: .* dropped=(\d{1,9})\b")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


@dataclass(frozen=True, slots=True)
class InfluxPoint:
    """Values of one moment. Tags say whose they are; `time` is in seconds since 1970."""

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, FieldValue]
    time: float


def line(point: InfluxPoint) -> bytes:
    """The point as the line protocol has it, in nanoseconds; empty when no field can be written.

    What the protocol cannot hold is left out or changed: empty tags, numbers that are none, ends of lines.
    """
    fields = [f"{_tag(name)}={text}" for name, value in point.fields.items() if (text := _value(value)) and name]
    if not fields:
        return b""
    tags = [f",{_tag(name)}={text}" for name, value in sorted(point.tags.items()) if name and (text := _tag(value))]
    measurement = _IN_MEASUREMENT.sub(r"\\\1", _plain(point.measurement))
    return f"{measurement}{''.join(tags)} {','.join(fields)} {round(point.time * 1e9)}\n".encode(errors="replace")


def _value(value: FieldValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}i" if _LEAST <= value <= _MOST else ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    text = value[:_LONGEST_TEXT].replace("\\", "\\\\").replace('"', '\\"').replace("\0", "")
    return f'"{text}"'


def _tag(value: str) -> str:
    return _escaped(value[:_LONGEST_TAG])


@functools.lru_cache(maxsize=_ESCAPED)
def _escaped(value: str) -> str:
    """The same few names stand in all points of a node."""
    return _IN_TAG.sub(r"\\\1", _plain(value))


def _plain(value: str) -> str:
    """One line without backslashes that would be read as more than themselves."""
    return _TAKES_ALONG.sub("", _LINE_ENDS.sub(" ", value).replace("\0", ""))


class InfluxVerdict(Enum):
    """What becomes of a batch."""

    DONE = "written"
    #: Kept, and tried again later.
    LATER = "later"
    #: Sent again in halves, since some of it may be good.
    SPLIT = "split"
    #: Given up: the server took what it could, or will never take it.
    REFUSED = "refused"
    #: There is no such database: it is to be made first.
    NO_DATABASE = "no database"


def verdict(status: int, answer: str, *, points: int) -> InfluxVerdict:
    """What an HTTP answer means for a batch of so many points."""
    if 200 <= status < 300:
        return InfluxVerdict.DONE
    if status == 404 and "database not found" in answer:
        return InfluxVerdict.NO_DATABASE
    if status in (400, 422):
        # A partial write has taken what was good. Otherwise nothing was taken, and one bad point may be the cause.
        return InfluxVerdict.REFUSED if points == 1 or "partial write" in answer else InfluxVerdict.SPLIT
    if status == 413:
        return InfluxVerdict.SPLIT if points > 1 else InfluxVerdict.REFUSED
    return InfluxVerdict.LATER


@dataclass(slots=True)
class InfluxBuffer:
    """Lines that wait for the server, the oldest first. Counts say what became of all that came."""

    most_bytes: int = BUFFER_BYTES
    waiting_bytes: int = 0
    dropped: int = 0
    refused: int = 0
    written: int = 0
    _lines: deque[bytes] = field(default_factory=deque)
    _told: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, point: InfluxPoint) -> None:
        """Let a point wait. When there is no room the oldest go."""
        text = line(point)
        if not text:
            return
        self._lines.append(text)
        self.waiting_bytes += len(text)
        self._make_room()

    def batch(self) -> list[bytes]:
        """The oldest lines, as many as are sent together. They are out of the buffer until `give_back`."""
        taken: list[bytes] = []
        size = 0
        while self._lines and len(taken) < BATCH_POINTS and (not taken or size + len(self._lines[0]) <= BATCH_BYTES):
            size += len(self._lines[0])
            taken.append(self._lines.popleft())
        self.waiting_bytes -= size
        return taken

    def give_back(self, lines: list[bytes]) -> None:
        """Lines that could not be sent wait again, before all others; the oldest go when there is no room."""
        self._lines.extendleft(reversed(lines))
        self.waiting_bytes += sum(map(len, lines))
        self._make_room()

    def _make_room(self) -> None:
        while self.waiting_bytes > self.most_bytes:
            self.waiting_bytes -= len(self._lines.popleft())
            self.dropped += 1

    def count(self, verdict: InfluxVerdict, lines: list[bytes], answer: str = "") -> None:
        """A batch came to its end. Of a partial write those count as refused that the server says it dropped: it says
        0 of a line that it cannot read, and names one cause of several, so they are at least so many."""
        refused = 0 if verdict is InfluxVerdict.DONE else len(lines)
        if refused and (dropped := _DROPPED.search(answer)):
            refused = min(max(1, int(dropped[1])), refused)
        self.written += len(lines) - refused
        self.refused += refused
        if not refused:
            return
        cause = cause_of(answer)
        if cause not in self._told:
            if len(self._told) >= _CAUSES:
                self._told.clear()
            self._told.add(cause)
            told = "".join(char if char.isprintable() else " " for char in answer[:_LONGEST_CAUSE])
            log.warning("InfluxDB does not take %d of %d points, told once: %s", refused, len(lines), told)


def cause_of(answer: str) -> str:
    """An answer without what differs from point to point."""
    return _DIGITS.sub("#", _QUOTED.sub("…", answer[:_LONGEST_CAUSE]))
