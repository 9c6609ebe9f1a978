"""`shoal policy`: which policy is in force, and what two of them would do differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.connection import SnapshotSource, across_namespaces, sourced
from shoal.cli.output import aligned, emit, output, saying

if TYPE_CHECKING:
    from shoal.analysis.policy import PolicyDescription


@click.group(short_help="Show the policy in force, or compare two.")
def policy() -> None:
    """Show by which policy nodes and cards are chosen, or what two policies would do differently.

    \b
    shoal policy show
    shoal policy diff fragmentation binpack
    """


@policy.command(short_help="Show the policy in force and its weights.")
@sourced
@output()
def show(source: SnapshotSource, form: str | None) -> None:
    """Show the policy in force, where that is known from, and its weights.

    \b
    shoal policy show
    shoal policy show -o yaml

    KETI's ConfigMap decides where there is one; else the scheduler's settings (ConfigMap shoal-scheduler where
    it is installed), else what the newest decision says, else the default. Flags of the scheduler's process cannot be
    seen from here.
    """
    import msgspec

    from shoal.analysis.policy import describe_policy
    from shoal.cli.answers import say_missing

    snapshot = source.read().snapshot
    found = describe_policy(snapshot)
    if form:
        emit(msgspec.to_builtins(found), form)
    else:
        _tell(found)
    say_missing(snapshot.missing)


@policy.command(short_help="Compare what two policies would do with the pods of the cluster.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--all", "everything", is_flag=True, help="Tell every pod that differs.")
@across_namespaces
@sourced
@output()
def diff(first: str, second: str, everything: bool, namespace: str, source: SnapshotSource, form: str | None) -> None:
    """Place the cluster's pods anew under policy A and under policy B, and tell what differs. Nothing is moved.

    \b
    shoal policy diff fragmentation binpack
    shoal policy diff fragmentation binpack -n research
    shoal policy diff binpack spread --snapshot before.json.gz -o json

    All pods are placed, whatever their namespace: -n chooses those that are told one by one.
    """
    from shoal.analysis.policy_diff import compare, replay
    from shoal.cli.answers import show_comparison
    from shoal.placement.errors import PolicyError
    from shoal.placement.policies import policy_named

    try:
        for name in (first, second):
            policy_named(name)
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    snapshot = source.read().snapshot
    with saying(f"placing the pods of {len(snapshot.nodes)} nodes anew …"):
        comparison = compare(replay(snapshot, first), replay(snapshot, second), namespace=namespace)
    show_comparison(comparison, form, missing=snapshot.missing, everything=everything)


def _tell(found: PolicyDescription) -> None:
    from shoal.analysis.words import counted
    from shoal.cli.answers import say

    say(f"Policy {found.policy}, known from {found.known_from}.", "green")
    say(f"Cards are chosen by {found.cards}.")
    if found.weights:
        rows = [["OF", "SCORE", "WEIGHT"]]
        rows += [[one.of, one.score, f"{one.weight:g}"] for one in found.weights]
        click.echo("\n" + aligned(rows), nl=False)
    if found.grain:
        say(f"Sums within {found.grain:g} are equal; then the ties decide.")
    if found.keti:
        click.echo("\n" + aligned([["KEY", "VALUE"], *([key, text] for key, text in found.keti.items())]), nl=False)
    for problem in found.problems:
        say(f"Problem: {problem}.", "yellow")
    if found.decisions:
        counts = ", ".join(f"{counted(count, 'pod')} by {name}" for name, count in found.decisions.items())
        say(f"\nOf the pods that are there: {counts}.")
