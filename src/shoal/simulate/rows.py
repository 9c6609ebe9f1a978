"""Read a CSV file row by row, with errors that name the file, the line and the value.

Knows nothing of nodes and pods; `shoal.simulate.trace` does.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from shoal.simulate.errors import TraceError


class Row:
    """One line of a file. Columns that the file may leave out read as empty."""

    __slots__ = ("_values", "line", "path")

    def __init__(self, path: Path, line: int, values: Mapping[str, str]) -> None:
        self.path = path
        self.line = line
        self._values = values

    def text(self, column: str) -> str:
        return self._values.get(column, "")

    def name(self, column: str) -> str:
        """A text that must be there."""
        value = self.text(column)
        if not value:
            raise self.wrong(column, "is empty", "give every line a name")
        return value

    def count(self, column: str) -> int:
        """A whole number, at least 0."""
        value = self.text(column)
        try:
            number = int(value)
        except ValueError:
            number = self._from_float(column, value)
        if number < 0:
            raise self.wrong(column, "is negative", "write 0 or more")
        return number

    def _from_float(self, column: str, value: str) -> int:
        """Whole numbers that a spreadsheet wrote as `12.0`."""
        try:
            return _exact(float(value))
        except (ValueError, OverflowError):
            raise self.wrong(column, "is not a whole number", "write digits only, such as 12000") from None

    def seconds(self, column: str) -> float | None:
        """A moment or a duration; None when it is left out."""
        value = self.text(column)
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not abs(number) < float("inf"):
            raise self.wrong(column, "is not a number", "write seconds, such as 427061, or leave it empty")
        return number

    def wrong(self, column: str, what: str, fix: str) -> TraceError:
        return TraceError(f"{self.path}, line {self.line}: {column} {self.text(column)!r} {what}: {fix}")


def _exact(value: float) -> int:
    if value != int(value):
        raise ValueError(value)
    return int(value)


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """The rows of a file that has at least the columns `needed`, and at least one row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            yield from _rows(path, lines, needed)
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}): check the path and the permissions") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text: give a CSV file with the columns {_listed(needed)}") from error
    except csv.Error as error:
        raise TraceError(f"{path} is not a CSV file ({error}): give one with the columns {_listed(needed)}") from error


def _rows(path: Path, lines: TextIO, needed: Sequence[str]) -> Iterator[Row]:
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    if not any(header):
        raise TraceError(f"{path} is empty: its first line must name the columns {_listed(needed)}")
    missing = [name for name in needed if name not in header]
    if missing:
        raise TraceError(
            f"{path}, line 1: no column {_listed(missing)}: the first line must name at least {_listed(needed)},"
            f" it names {_listed(header)}"
        )
    empty = True
    for fields in reader:
        if not any(fields):
            continue
        empty = False
        if len(fields) != len(header):
            raise TraceError(
                f"{path}, line {reader.line_num}: {len(fields)} fields, but the first line names"
                f" {len(header)} columns: complete the line"
            )
        yield Row(path, reader.line_num, {name: field.strip() for name, field in zip(header, fields, strict=True)})
    if empty:
        raise TraceError(f"{path} has no lines after the first: add at least one")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
