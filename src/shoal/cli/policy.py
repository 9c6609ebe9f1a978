"""`shoal policy`: which policy is in force, and what two of them would do differently."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.connection import SnapshotSource, across_namespaces, sourced
from shoal.cli.output import aligned, emit, output, saying

if TYPE_CHECKING:
    from shoal.analysis.dry_run import PolicyInForce
    from shoal.analysis.snapshot import ClusterSnapshot


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

    KETI's ConfigMap decides where there is one; else the scheduler's settings (ConfigMap kube-system/shoal-scheduler),
    else what the newest decision says, else the default. Flags of the scheduler's process cannot be seen from here.
    """
    from shoal.analysis.dry_run import in_force
    from shoal.cli.answers import say_missing

    snapshot = source.read().snapshot
    document = _document(in_force(snapshot), snapshot)
    if form:
        emit(document, form)
    else:
        _tell(document)
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


def _document(found: PolicyInForce, snapshot: ClusterSnapshot) -> dict[str, Any]:
    from shoal.model.contract import keti

    chosen = found.policy
    parts = [
        (what, weight, type(score).__name__)
        for what, scores in (
            ("node", chosen.scores),
            ("card", chosen.card_scores),
            ("pressure", chosen.pressures),
            ("tie, node", chosen.ties),
            ("tie, card", chosen.card_ties),
        )
        for weight, score in scores
    ]
    return {
        "policy": chosen.name,
        "knownFrom": found.known_from,
        "cards": type(chosen.cards).__name__,
        "weights": [{"of": what, "score": name, "weight": weight} for what, weight, name in parts],
        "grain": chosen.grain,
        "keti": {} if found.keti is None else keti.encode_policy(found.keti),
        "problems": list(found.problems),
        "decisions": dict(_decisions(snapshot)),
    }


def _decisions(snapshot: ClusterSnapshot) -> Counter[str]:
    """By which policy the pods that are there were placed."""
    from shoal.model.contract import shoal
    from shoal.model.errors import CodecError

    counts: Counter[str] = Counter()
    for pod in snapshot.pods:
        record = pod.metadata.annotations.get(shoal.ANNOTATION_ALLOCATION)
        if record is None or pod.status.phase in ("Succeeded", "Failed"):
            continue
        try:
            counts[shoal.decode_allocation(record).policy or "not told"] += 1
        except CodecError:
            counts["not readable"] += 1
    return counts


def _tell(document: dict[str, Any]) -> None:
    from shoal.analysis.words import counted
    from shoal.cli.answers import say

    say(f"Policy {document['policy']}, known from {document['knownFrom']}.", "green")
    say(f"Cards are chosen by {document['cards']}.")
    if document["weights"]:
        rows = [["OF", "SCORE", "WEIGHT"]]
        rows += [[one["of"], one["score"], f"{one['weight']:g}"] for one in document["weights"]]
        click.echo("\n" + aligned(rows), nl=False)
    if document["grain"]:
        say(f"Sums within {document['grain']:g} are equal; then the ties decide.")
    if document["keti"]:
        click.echo(
            "\n" + aligned([["KEY", "VALUE"], *([key, text] for key, text in document["keti"].items())]), nl=False
        )
    for problem in document["problems"]:
        say(f"Problem: {problem}.", "yellow")
    if document["decisions"]:
        counts = ", ".join(f"{counted(count, 'pod')} by {name}" for name, count in document["decisions"].items())
        say(f"\nOf the pods that are there: {counts}.")
