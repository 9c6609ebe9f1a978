"""The common form of all benchmarks: rows of name, value, unit, target and whether it holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

#: Where the results go, seen from the project's root.
FOLDER = Path(__file__).parent.parent / "build" / "bench"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured number. A row without a target is there to be read beside the others."""

    name: str
    value: float
    unit: str
    target: str = ""
    holds: bool | None = None


def below(name: str, value: float, unit: str, limit: float) -> Row:
    """A number that must not pass a limit."""
    return Row(name, value, unit, f"<= {limit:g}", value <= limit)


def above(name: str, value: float, unit: str, limit: float) -> Row:
    """A number that must reach a limit."""
    return Row(name, value, unit, f">= {limit:g}", value >= limit)


def report(name: str, rows: list[Row]) -> None:
    """Print the table and write `build/bench/<name>.json`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    width = max(len(row.name) for row in rows)
    for row in rows:
        verdict = {None: "", True: "holds", False: "MISSED"}[row.holds]
        print(f"{row.name:<{width}}  {row.value:>12,.2f} {row.unit:<12} {row.target:<10} {verdict}".rstrip())
    print(f"-> {path.relative_to(FOLDER.parent.parent)}")
