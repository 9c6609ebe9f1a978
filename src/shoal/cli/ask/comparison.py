"""Two ways to place the same pods, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from shoal.cli.ask.answers.replay import Comparison, Spot
from shoal.cli.ask.answers.words import cards, counted
from shoal.cli.ask.output import aligned, emit
from shoal.cli.ask.tables import say, say_missing

#: Pods that are told one by one, unless all are asked for.
_PODS = 20


def show(comparison: Comparison, form: str | None, *, missing: Sequence[str], everything: bool) -> None:
    """Print the comparison."""
    if form:
        emit(msgspec.to_builtins(comparison), form)
    else:
        _tell(comparison, everything=everything)
    say_missing(missing)


def _tell(comparison: Comparison, *, everything: bool) -> None:
    before, after = comparison.measure_before, comparison.measure_after
    pods = before.placed + before.waiting
    say(f"{counted(pods, 'pod')} with cards, placed anew one after another in the order of their creation.\n")
    rows = [["", comparison.before.upper(), comparison.after.upper()]]
    rows += [
        ["pods with a place", str(before.placed), str(after.placed)],
        ["pods that wait", str(before.waiting), str(after.waiting)],
        ["cards wholly free", str(before.whole_cards_free), str(after.whole_cards_free)],
        ["free, in cards", f"{before.free_cards:.2f}", f"{after.free_cards:.2f}"],
        ["of it on cards in use", f"{before.fragmented:.1f} %", f"{after.fragmented:.1f} %"],
    ]
    click.echo(aligned(rows), nl=False)
    _moved(comparison, everything=everything)


def _moved(comparison: Comparison, *, everything: bool) -> None:
    of = f" of namespace {comparison.namespace}" if comparison.namespace else ""
    if not comparison.moved:
        say(f"\nEvery pod{of} has the same place." if comparison.same else f"\nNo pod{of} has cards.", "green")
        return
    told = comparison.moved if everything else comparison.moved[:_PODS]
    rows = [["POD", comparison.before.upper(), comparison.after.upper()]]
    rows += [[one.pod, _spot(one.before), _spot(one.after)] for one in told]
    click.echo("\n" + aligned(rows), nl=False)
    more = len(comparison.moved) - len(told)
    if more:
        say(f"and {counted(more, 'more pod')}. --all tells every one.")
    say(f"{counted(comparison.same, 'pod')}{of} {'has' if comparison.same == 1 else 'have'} the same place.")


def _spot(spot: Spot | None) -> str:
    return "waits" if spot is None else f"{spot.node} {cards(spot.cards)}".rstrip()
