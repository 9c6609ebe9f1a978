"""Text whose cells end in tabs, laid out as gpushare's command lays it out.

Cells of neighbouring lines that end in a tab make a column, which is as wide as its widest cell and two spaces more.
What follows the last tab of a line is not part of a column, and a line without that tab ends the column.
"""

from __future__ import annotations

from collections.abc import Sequence

_GAP = 2


def aligned(text: str) -> str:
    """The text with spaces for tabs."""
    lines = [line.split("\t") for line in text.split("\n")]
    widths: list[list[int]] = [[] for _ in lines]
    _measure(lines, widths, 0, len(lines), 0)
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(cells, of_line, strict=False)) + cells[-1]
        for cells, of_line in zip(lines, widths, strict=True)
    )


def _measure(lines: Sequence[list[str]], widths: list[list[int]], first: int, end: int, column: int) -> None:
    """Give each run of lines that have a cell in this column its width, then the columns to its right."""
    row = first
    while row < end:
        if len(lines[row]) - 1 <= column:
            row += 1
            continue
        start = row
        while row < end and len(lines[row]) - 1 > column:
            row += 1
        width = max(len(lines[one][column]) for one in range(start, row)) + _GAP
        for one in range(start, row):
            widths[one].append(width)
        _measure(lines, widths, start, row, column + 1)
