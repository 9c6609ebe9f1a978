"""Option values that click has no type for: lists of names, sets of seeds, positive numbers. Used as callbacks."""

from __future__ import annotations

import math
import re

import click

#: More seeds than this are a slip of the finger.
MOST_SEEDS = 10_000


def names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """`a,b,c`, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not found:
        raise click.BadParameter(f"{value!r} names nothing: separate names by commas.", ctx, param)
    return found


def seeds(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """`42-51`, `42,43`, or a mixture; each once, in the order given."""
    found: dict[int, None] = {}
    for part in value.split(","):
        try:
            found.update(dict.fromkeys(_seeds(part)))
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error
    return tuple(found)


def _seeds(part: str) -> range:
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
    if match is None:
        raise ValueError(f"{part!r} is no seed: write a number, a range such as 42-51, or several with commas.")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{part!r} runs backwards: write {last}-{first}.")
    if last - first >= MOST_SEEDS:
        raise ValueError(f"{part!r} is more than {MOST_SEEDS} seeds: write a shorter range.")
    return range(first, last + 1)


def positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """A number above 0."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise click.BadParameter(f"{value:g} is not a number above 0: write one such as 0.95.", ctx, param)
    return value
