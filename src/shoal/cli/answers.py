"""Answers as people read them: tables of nodes and cards, what would help, and two ways to place the same pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import click
import msgspec

from shoal.analysis.node_fit import NodeAnswer
from shoal.analysis.policy_diff import PlacementComparison, PodPlace
from shoal.analysis.unschedulable import Unschedulable, what_helps
from shoal.analysis.words import cards, counted
from shoal.cli.output import aligned, emit, styled

#: Nodes that are told one by one, unless all are asked for.
NODES: Final = 10
#: More than any cluster has.
ALL: Final = 1_000_000


def say(text: str = "", colour: str = "") -> None:
    """Print a line."""
    click.echo(styled(text, colour) if colour else text)


def say_missing(missing: Iterable[str]) -> None:
    """What could not be read, where it does not get into the way of the answer."""
    for what in missing:
        click.echo(f"Note: {what}.", err=True)


def refusals(nodes: Sequence[NodeAnswer], *, most: int) -> None:
    """Nodes that do not take the pod, card by card where cards decide it, the closest first."""
    rows = [["NODE", "CARD", "FREE", "WHY NOT"]]
    told, rest = nodes[:most], nodes[most:]
    for node in told:
        says = [card for card in node.cards if card.why]
        rows.append([node.node, "", "", f"{node.refused_by}: {node.why}" if node.refused_by else "fits"])
        if node.refused_by in ("Cards", "NodeResourcesFit"):
            rows += [["", f"GPU{one.index}", f"{one.free_mib}/{one.memory_mib} MiB", one.why] for one in says]
    click.echo(aligned(rows), nl=False)
    if rest:
        reasons = Counter(f"{node.refused_by}: {node.why}" if node.refused_by != "Cards" else "Cards" for node in rest)
        common = [f"{count} × {reason}" for reason, count in reasons.most_common(5)]
        say(f"and {counted(len(rest), 'more node')}: {'; '.join(common)}. --all tells every one.")


def help_for(lacking: Unschedulable) -> None:
    """The smallest changes that would let the pod in."""
    say("\nWhat would help:")
    for line in what_helps(lacking):
        say(f"  {line}")


def choices(nodes: Sequence[NodeAnswer], *, here: str, best: str, most: int) -> None:
    """Nodes that take the pod with what they are worth, and how many do not."""
    fitting = [node for node in nodes if node.fits]
    preferred = any(node.preference is not None for node in fitting)
    rows = [["NODE", "CARDS", "SCORE", *(["PREFERENCE"] if preferred else []), ""]]
    for node in fitting[:most]:
        marks = [word for word, name in (("it is here", here), ("best", best)) if node.node == name]
        favour = [f"{node.preference:.0f}"] if preferred and node.preference is not None else []
        rows.append([node.node, cards(node.takes), f"{node.score or 0.0:.4f}", *favour, ", ".join(marks)])
    click.echo(aligned(rows), nl=False)
    left = len(nodes) - len(fitting)
    more = f"{counted(len(fitting) - most, 'more node')} would do. " if len(fitting) > most else ""
    if more or left:
        say(f"{more}{counted(left, 'node')} would not take it." if left else more.rstrip())


#: Pods that are told one by one, unless all are asked for.
_PODS = 20


def show_comparison(
    comparison: PlacementComparison, form: str | None, *, missing: Sequence[str], everything: bool
) -> None:
    """Print the comparison."""
    if form:
        emit(msgspec.to_builtins(comparison), form)
    else:
        _tell(comparison, everything=everything)
    say_missing(missing)


def _tell(comparison: PlacementComparison, *, everything: bool) -> None:
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


def _moved(comparison: PlacementComparison, *, everything: bool) -> None:
    of = f" of namespace {comparison.namespace}" if comparison.namespace else ""
    if not comparison.moved:
        say(f"\nEvery pod{of} has the same place." if comparison.same else f"\nNo pod{of} has cards.", "green")
        return
    told = comparison.moved if everything else comparison.moved[:_PODS]
    rows = [["POD", comparison.before.upper(), comparison.after.upper()]]
    rows += [[one.pod, _place(one.before), _place(one.after)] for one in told]
    click.echo("\n" + aligned(rows), nl=False)
    more = len(comparison.moved) - len(told)
    if more:
        say(f"and {counted(more, 'more pod')}. --all tells every one.")
    say(f"{counted(comparison.same, 'pod')}{of} {'has' if comparison.same == 1 else 'have'} the same place.")


def _place(place: PodPlace | None) -> str:
    return "waits" if place is None else f"{place.node} {cards(place.cards)}".rstrip()
