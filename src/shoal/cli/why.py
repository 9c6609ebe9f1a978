"""`shoal why`: why a pod waits, or why it is where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.connection import NamespacedSnapshot, SnapshotSource, ask, in_namespace, load_snapshot, sourced
from shoal.cli.output import aligned, emit, output, saying

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.analysis.why import PodExplanation
    from shoal.kube.client import Client
    from shoal.kube.objects.others import Event
    from shoal.kube.objects.pod import Pod

#: Pods of a similar name that are suggested.
_SIMILAR = 5


@click.command(short_help="Tell why a pod waits, or why it is where it is.")
@click.argument("name", metavar="POD")
@in_namespace
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Look for the pod in every namespace.")
@sourced
@click.option("--policy", metavar="NAME", help="Judge by this policy instead of the one in force.")
@click.option("--all", "everything", is_flag=True, help="Tell every node, not the first ten.")
@output()
def why(
    name: str,
    namespace: str,
    everywhere: bool,
    source: SnapshotSource,
    policy: str | None,
    everything: bool,
    form: str | None,
) -> None:
    """Tell why a pod waits, node by node and card by card, and what would help; or why it is where it is.

    \b
    shoal why trainer-0                     why it waits, or where it is and how good the other nodes are
    shoal why trainer-0 -n research --all   every node
    shoal why trainer-0 -A                  whatever namespace it is in
    shoal why trainer-0 -o json             the same for programs
    shoal why trainer-0 --snapshot s.json   in a cluster that is somewhere else

    What is told of a placed pod is worked out from the cluster as it is now, not as it was when the pod came.
    """
    import msgspec

    from shoal.analysis.dry_run import DryRun
    from shoal.analysis.why import explain_pod
    from shoal.cli.answers import ALL, NODES, say_missing
    from shoal.placement.errors import PolicyError

    read, events = _read(source, namespace, name, everywhere=everywhere)
    pod = _find(read, namespace, name, everywhere=everywhere)
    most = ALL if everything else NODES
    try:
        with saying(f"trying {len(read.snapshot.nodes)} nodes …"):
            dry_run = DryRun(read.snapshot, policy=policy)
            found = explain_pod(dry_run, pod, events=_of(pod, events), details=ALL if form else most)
    except PolicyError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None
    if form:
        emit(msgspec.to_builtins(found), form)
    else:
        _tell(found, most)
    say_missing(read.snapshot.missing)


def _read(
    source: SnapshotSource, namespace: str, name: str, *, everywhere: bool
) -> tuple[NamespacedSnapshot, Sequence[Event]]:
    """The snapshot and, of a live cluster, the events of pods of that name."""
    if source.snapshot is not None:
        return NamespacedSnapshot(load_snapshot(source.snapshot), "default"), ()

    async def question(client: Client, own: str) -> tuple[NamespacedSnapshot, Sequence[Event]]:
        from shoal.analysis.why import read_events

        read = await source.of_cluster(client, own)
        return read, await read_events(client, name, namespace="" if everywhere else namespace or own)

    return ask(source.connection, question)


def _of(pod: Pod, events: Sequence[Event]) -> list[Event]:
    """Its own events: another pod of the name may have been there before it."""
    return [event for event in events if event.involved_object.uid in ("", pod.metadata.uid)]


def _find(read: NamespacedSnapshot, namespace: str, name: str, *, everywhere: bool) -> Pod:
    where = namespace or read.namespace
    pods = [pod for pod in read.snapshot.pods if everywhere or pod.metadata.namespace == where]
    found = [pod for pod in pods if pod.metadata.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(sorted(pod.metadata.namespace for pod in found)[:_SIMILAR])
        raise click.ClickException(f"there are {len(found)} pods {name!r}, in {places}: give the namespace with -n")
    similar = sorted(pod.metadata.name for pod in pods if pod.metadata.name.startswith(name))
    elsewhere = sorted(pod.metadata.namespace for pod in read.snapshot.pods if pod.metadata.name == name)
    if similar:
        hint = f"did you mean {', '.join(similar[:_SIMILAR])}?"
    elif elsewhere:
        hint = f"there is one in {', '.join(elsewhere[:_SIMILAR])}: give it with -n"
    else:
        hint = "see the names with `kubectl get pods`"
    place = "any namespace" if everywhere else f"namespace {where!r}"
    raise click.ClickException(f"there is no pod {name!r} in {place}: {hint}")


def _tell(found: PodExplanation, most: int) -> None:
    from shoal.cli.answers import say

    if found.refused:
        say(f"{found.pod} cannot be placed as it is written:", "red")
        say(f"  {found.refused}")
    elif not found.wants_gpu:
        say(f"{found.pod} asks for no GPU: Shoal has no say in where it runs.")
    elif found.state == "finished":
        say(f"{found.pod} has finished and holds nothing. It asked for {found.asks}.")
    elif found.cluster:
        say(f"{found.pod} was sent to cluster {found.cluster}.", "green")
        say(f"It asks for {found.asks}.")
        if found.where:
            say(f"{found.where[0].upper()}{found.where[1:]}.")
        say("`shoal clusters explain` tells how that cluster was chosen.")
    elif found.placed is not None:
        _tell_placed(found, most)
    else:
        _tell_pending(found, most)
    _tell_said(found)


def _tell_pending(found: PodExplanation, most: int) -> None:
    from shoal.cli import answers

    answers.say(f"{found.pod} waits for a node.", "yellow")
    answers.say(f"It asks for {found.asks}; policy {found.policy} ({found.policy_from}).")
    _tell_load(found)
    for reason in found.held_up:
        answers.say(f"It is held up: {reason}.", "yellow")
    if found.unplaced is not None:
        answers.say("It fits on no node now:\n", "red")
        answers.refusals(found.unplaced.nodes, most=most)
        answers.help_for(found.unplaced)
    elif found.would_go is not None:
        answers.say("It fits now, and would go where it is best:\n", "green")
        answers.choices(found.nodes, here="", best=found.would_go.node, most=most)


def _tell_placed(found: PodExplanation, most: int) -> None:
    from shoal.analysis.words import cards
    from shoal.cli import answers

    placed = found.placed
    assert placed is not None
    answers.say(f"{found.pod} is on {placed.node}.", "green")
    answers.say(f"It asks for {found.asks}.")
    by = f", by policy {placed.policy}" if placed.policy else ""
    if found.record:
        answers.say(f"Its record is {found.record}{by}.")
    else:
        answers.say(f"It carries no record of its cards: these are a guess. {found.problem}".rstrip(), "yellow")
    rows = [["CONTAINER", "CARD", "UUID", "MODEL", "SHARE"]]
    rows += [[card.container, f"GPU{card.index}", card.uuid, card.model, card.share] for card in placed.cards]
    click.echo("\n" + aligned(rows))
    _tell_load(found)
    now = "Were it placed now, by the cluster as it is and not as it was then"
    answers.say(f"{now}, policy {found.policy} ({found.policy_from}):\n")
    answers.choices(
        found.nodes, here=placed.node, best="" if found.would_go is None else found.would_go.node, most=most
    )
    if found.would_go is None:
        answers.say("It would fit nowhere.", "yellow")
    elif (found.would_go.node, found.would_go.indices) != (placed.node, placed.indices):
        answers.say(f"It would go to {found.would_go.node}, {cards(found.would_go.indices)}.")


def _tell_load(found: PodExplanation) -> None:
    from shoal.cli.answers import say

    if found.live_load:
        say(f"{found.live_load[0].upper()}{found.live_load[1:]}.")


def _tell_said(found: PodExplanation) -> None:
    from shoal.cli.answers import say

    if found.condition and found.state == "pending":
        say("\nThe scheduler's last word:")
        say(f"  {found.condition}")
    if found.events:
        say("\nEvents:")
        rows = [[f"  {event.when}", event.reason, event.by, event.message] for event in found.events]
        click.echo(aligned(rows, gap=2), nl=False)
