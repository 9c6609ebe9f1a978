"""`shoal demo`: place a handful of pods on a small made-up cluster, and say for each why it went there or nowhere.

Until the embedded cluster exists this is the shortest way to see Shoal decide: the pods are real manifests, and the
request, the ledger and the policy are those of the scheduler to come. Nothing is installed or changed.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shoal.model.request import Share
    from shoal.placement.books.ledger import CardBooks, Ledger
    from shoal.simulate.scene import Outcome, Scene

_BAR = 20


@click.command()
@click.option("--policy", default="fragmentation", show_default=True, help="The policy that chooses.")
def demo(policy: str) -> None:
    """Place example pods on a made-up cluster and explain every decision.

    \b
    shoal demo
    shoal demo --policy binpack
    """
    from shoal.placement.errors import PolicyError
    from shoal.placement.policies import policy_named
    from shoal.simulate.scene import play

    try:
        chosen = policy_named(policy)
    except PolicyError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None
    scene = _scene()
    ledger, outcomes = play(scene, chosen)
    click.echo(f"{len(scene.pods)} pods, {len(scene.nodes)} nodes, policy {policy}; gpu-mem counts in {scene.unit}.\n")
    for outcome in outcomes:
        _tell(outcome)
    _show(ledger)
    wrong = [outcome.pod.name for outcome in outcomes if outcome.fate is not outcome.pod.expect]
    if wrong:
        click.echo(f"\nNot as expected: {', '.join(wrong)}", err=True)
        sys.exit(1)
    click.echo("\nEvery pod is where it should be, or nowhere for a reason.")


def _scene() -> Scene:
    import yaml

    from shoal.simulate.scene import read_scene

    return read_scene(yaml.safe_load(files("shoal.cli").joinpath("demo.yaml").read_text(encoding="utf-8")))


def _tell(outcome: Outcome) -> None:
    click.echo(f"{click.style(outcome.pod.name, bold=True)}: {outcome.fate}")
    if outcome.allocation is not None:
        for container in outcome.allocation.containers:
            cards = ", ".join(f"GPU{card.index} {_share(card.share)}" for card in container.cards)
            note = "" if container.kind == "app" else f" ({container.kind} container)"
            click.echo(f"    {container.name}{note} on {outcome.allocation.node}: {cards}")
    elif outcome.request is None:
        click.echo(f"    {outcome.error}")
    for node, refusal in outcome.refusals.items():
        click.echo(f"    {node}: {refusal.reason}")
        for uuid, reason in refusal.cards.items():
            click.echo(f"        {uuid}: {reason}")


def _share(share: Share) -> str:
    if share.exclusive:
        return "whole"
    parts = [
        text
        for amount, text in (
            (share.memory_mib, f"{share.memory_mib} MiB"),
            (share.compute, f"{share.compute} % compute"),
            (share.clients, f"{share.clients} MPS client"),
        )
        if amount
    ]
    return " + ".join(parts)


def _show(ledger: Ledger) -> None:
    click.echo("\nThe ledger:")
    for node in ledger.nodes():
        for card in node.slots:
            click.echo(f"  {node.name:<8} GPU{card.inventory.index}  {_bar(card)}  {_used(card)}")


def _bar(card: CardBooks) -> str:
    filled = _BAR if card.exclusive else round(_BAR * card.memory_mib / card.inventory.memory_mib)
    return "█" * filled + "░" * (_BAR - filled)


def _used(card: CardBooks) -> str:
    fault = card.fault()
    if fault is not None:
        return fault
    if card.exclusive:
        return "taken whole"
    booked = f"{card.memory_mib} of {card.inventory.memory_mib} MiB"
    pods = f", {card.pods} pod{'s' if card.pods > 1 else ''}" if card.pods else ""
    return booked + pods
