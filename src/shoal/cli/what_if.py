"""`shoal what-if`: would a pod fit, where and at whose cost; or what another policy would make of the cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, BinaryIO

import click

from shoal.cli.connection import NamespacedSnapshot, SnapshotSource, sourced
from shoal.cli.output import aligned, emit, output, saying

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.analysis.policy import PolicyInForce
    from shoal.analysis.what_if import PodPlacement, WorkloadFit

#: Pods that are told one by one.
_PODS = 20
_MAX_COUNT = 10_000


@click.command(name="what-if", short_help="Tell where a pod would go, or what another policy would change.")
@click.option("-f", "--filename", "file", type=click.File("rb"), metavar="FILE", help="Manifests; - is standard input.")
@click.option("--policy", metavar="NAME", help="Decide by this policy instead of the one in force.")
@click.option("--count", type=click.IntRange(1, _MAX_COUNT), metavar="N", help="Try so many pods of each manifest.")
@click.option("--all", "everything", is_flag=True, help="Tell every node and pod.")
@click.option(
    "-n", "--namespace", default="", metavar="NAME", help="With -f: where to, else the context's own; else whose pods."
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Without -f: all pods, which is the default.")
@sourced
@output()
def what_if(
    file: BinaryIO | None,
    policy: str | None,
    count: int | None,
    everything: bool,
    namespace: str,
    everywhere: bool,
    source: SnapshotSource,
    form: str | None,
) -> None:
    """Tell where a pod would go and on which cards, or who would have to leave for it. Nothing is created.

    \b
    shoal what-if -f pod.yaml               would it fit, and where?
    shoal what-if -f deployment.yaml        all its replicas, one after another
    shoal what-if -f pod.yaml --count 100   how many more of it fit
    shoal what-if --policy binpack          what would move if this policy placed all pods anew
    shoal what-if --snapshot s.json --policy spread -o json

    Exit code 1 when not everything fits.
    """
    from shoal.cli.answers import say, say_missing

    if file is None and policy is None:
        raise click.UsageError("give a manifest with -f, or a policy to compare with --policy")
    if file is None and count is not None:
        raise click.UsageError("--count is for pods of a manifest: give one with -f")
    if file is not None and everywhere:
        raise click.UsageError("pods of a manifest go to one namespace: give it with -n instead of -A")
    read = source.read()
    if file is None:
        _replay(read, policy, form, namespace="" if everywhere else namespace, everything=everything)
        return
    in_force, tried = _try(read, file, namespace or read.namespace, policy, count, everything=everything or bool(form))
    fits = all(one.fits == one.pods for one in tried)
    if form:
        import msgspec

        known = {"policy": in_force.policy.name, "policyFrom": in_force.known_from}
        emit({"fits": fits, **known, "workloads": msgspec.to_builtins(tried)}, form)
    else:
        say(f"Policy {in_force.policy.name} ({in_force.known_from}).")
        for one in tried:
            say()
            _tell(one, everything=everything)
    say_missing(read.snapshot.missing)
    sys.exit(0 if fits else 1)


def _try(
    read: NamespacedSnapshot, file: BinaryIO, namespace: str, policy: str | None, count: int | None, *, everything: bool
) -> tuple[PolicyInForce, list[WorkloadFit]]:
    from shoal.analysis.dry_run import DryRun
    from shoal.analysis.errors import WorkloadFileError
    from shoal.analysis.manifests import MAX_BYTES, workloads
    from shoal.analysis.what_if import try_workload
    from shoal.cli.answers import ALL, NODES
    from shoal.placement.errors import PolicyError

    details = ALL if everything else NODES
    try:
        asked = workloads(file.read(MAX_BYTES + 1), namespace=namespace, snapshot=read.snapshot, count=count)
        with saying(f"trying {len(read.snapshot.nodes)} nodes …"):
            dry_run = DryRun(read.snapshot, policy=policy)
            return dry_run.in_force, [try_workload(dry_run, one, details=details) for one in asked]
    except WorkloadFileError as error:
        raise click.ClickException(f"{getattr(file, 'name', 'standard input')}: {error}") from error
    except PolicyError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None


def _replay(
    read: NamespacedSnapshot, policy: str | None, form: str | None, *, namespace: str, everything: bool
) -> None:
    from shoal.analysis.policy_diff import as_it_is, compare, replay
    from shoal.cli.answers import show_comparison
    from shoal.placement.errors import PolicyError

    try:
        with saying(f"placing the pods of {len(read.snapshot.nodes)} nodes anew …"):
            after = replay(read.snapshot, policy)
            comparison = compare(as_it_is(read.snapshot), after, namespace=namespace)
    except PolicyError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None
    show_comparison(comparison, form, missing=read.snapshot.missing, everything=everything)


def _tell(tried: WorkloadFit, *, everything: bool) -> None:
    from shoal.analysis.words import counted
    from shoal.cli import answers

    what = f"{tried.kind} {tried.name}"
    asks = f"; each asks for {tried.asks}" if tried.asks and tried.pods > 1 else ""
    asks = asks or (f"; it asks for {tried.asks}" if tried.asks else "; it asks for no GPU")
    if tried.refused:
        answers.say(f"{what} would not be placed: {tried.refused}", "red")
    elif tried.fits == tried.pods:
        answers.say(f"{what} fits: {counted(tried.pods, 'pod')}{asks}.", "green")
    elif tried.fits:
        answers.say(f"{what}: {tried.fits} of {counted(tried.pods, 'pod')} fit{asks}.", "yellow")
    else:
        answers.say(f"{what} does not fit: {counted(tried.pods, 'pod')}{asks}.", "red")
    if tried.placed:
        click.echo("\n" + _places(tried.placed, everything=everything), nl=False)
    if tried.unplaced is not None:
        answers.say(f"\n{'The next one' if tried.fits else 'It'} fits on no node:\n")
        answers.refusals(tried.unplaced.nodes, most=answers.ALL if everything else answers.NODES)
        answers.help_for(tried.unplaced)


def _places(placed: Sequence[PodPlacement], *, everything: bool) -> str:
    from shoal.analysis.words import cards, counted

    told = placed if everything or len(placed) <= _PODS else placed[:_PODS]
    rows = [["POD", "NODE", "CARDS", "SHARE", "POLICY"]]
    for one in told:
        shares = ", ".join(dict.fromkeys(card.share for card in one.cards))
        rows.append([one.pod, one.node, cards(one.indices), shares, one.policy])
    text = aligned(rows)
    if len(placed) > len(told):
        by_node: dict[str, int] = {}
        for one in placed:
            by_node[one.node] = by_node.get(one.node, 0) + 1
        most = sorted(by_node.items(), key=lambda item: -item[1])[:_PODS]
        text += f"and {counted(len(placed) - len(told), 'more pod')}. --all tells every one.\n\n"
        text += aligned([["NODE", "PODS"], *([node, str(pods)] for node, pods in most)])
    return text
