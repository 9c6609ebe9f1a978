"""`shoal clusters explain` and `release`: why a pod goes where, and how to open what a lost manager left held.

`explain` works the choice out anew, by the manager's own code and with the caller's credentials, instead of asking the
manager: so the manager serves nothing that tells of pods, there is nobody to be kept out, and what is shown is what the
clusters say now. It needs the right to read the Secrets of joined clusters, which administrators have. Others read the
condition shoal.dev/Dispatched of their pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.connection import ClusterConnection, across_namespaces, connected, in_namespace
from shoal.cli.output import aligned, emit, output, saying

if TYPE_CHECKING:
    from shoal.clusters.choice import ClusterChoice
    from shoal.clusters.member import MemberTable
    from shoal.kube.client import Client
    from shoal.kube.resources import RawObject

#: Opens the table of joined clusters, settled, of a home and the manager's namespace in it.
OpenMembers = Callable[["Client", str], AbstractAsyncContextManager["MemberTable"]]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pod, where it was sent, and what would be chosen now."""

    pod: str
    sent: str
    choice: ClusterChoice
    gpus: int
    #: What is wrong with clusters that are used all the same, by name.
    problems: Mapping[str, str] = field(default_factory=dict)


def explain_command(open_members: OpenMembers) -> click.Command:
    """The command, which finds joined clusters by `open_members`."""

    @click.command(name="explain", short_help="Tell why a pod goes to which cluster.")
    @click.argument("pod")
    @in_namespace
    @click.option("--manager-namespace", default="", metavar="NAME", help="The manager's; else it is looked for.")
    @output()
    @connected
    def explain(
        pod: str, namespace: str, manager_namespace: str, form: str | None, connection: ClusterConnection
    ) -> None:
        """Show all joined clusters, their scores and reasons, for POD as the manager would choose now.

        Nothing is held or changed. It needs the right to read the manager's Secrets.

        \b
        shoal clusters explain train-x7k2p -n team
        """
        from shoal.kube.errors import KubeError
        from shoal.model.errors import CodecError

        asked = _explained(connection, open_members, pod, namespace, manager_namespace)
        try:
            with saying("asking the clusters"):
                found = asyncio.run(asked)
        except (KubeError, CodecError) as error:
            raise click.ClickException(str(error)) from error
        if form:
            emit(document(found), form)
        else:
            click.echo(shown(found))

    return explain


async def _explained(
    connection: ClusterConnection, open_members: OpenMembers, name: str, namespace: str, manager_namespace: str
) -> Explanation:
    from shoal.analysis.installed import namespace_of
    from shoal.clusters.members import cluster_uid
    from shoal.clusters.overview import unguarded
    from shoal.kube.client import Client
    from shoal.kube.resources import PODS
    from shoal.model.contract.clusters import NAME_MANAGER

    async with Client(connection.access()) as client:
        namespace = namespace or client.namespace
        pod = await client.get(PODS.raw, name, namespace=namespace)
        others = (await client.list(PODS.raw, namespace=namespace)).items
        manager = manager_namespace or await namespace_of(client, NAME_MANAGER)
        async with open_members(client, manager) as table:
            found = await explained(pod, others, table)
            problems = await unguarded(await cluster_uid(client), table.members.values())
            return replace(found, problems=problems)


async def explained(pod: RawObject, others: list[RawObject], table: MemberTable) -> Explanation:
    """What would be chosen for a pod now, beside the others of its namespace."""
    from shoal.clusters.asking import AskingChoice
    from shoal.clusters.offers import OfferClient
    from shoal.clusters.siblings import sent_of, siblings_of
    from shoal.model.contract.clusters import selector_of
    from shoal.model.contract.gpushare import MemoryUnit
    from shoal.model.errors import ModelError
    from shoal.model.manifest import read_pod
    from shoal.model.pod import gpus_of

    meta = pod["metadata"]
    try:
        gpus = sum(container.gpus for container in gpus_of(read_pod(pod), unit=MemoryUnit.GIB).containers)
    except ModelError:
        gpus = 0
    async with OfferClient() as offers:
        look = AskingChoice(offers, problems=lambda: table.problems).look
        choice = await look(pod, selector_of(meta.get("annotations") or {}), table.members, siblings_of(pod, others))
    sent = sent_of(meta)
    return Explanation(f"{meta['namespace']}/{meta['name']}", sent.cluster if sent else "", choice, gpus)


def shown(found: Explanation) -> str:
    """The table, the sum of it in words, and KETI's lines."""
    from shoal.clusters.choice import keti_lines

    choice = found.choice
    rows = [("CLUSTER", "SCORE", "WHY")]
    rows += [(row.cluster, "-" if row.score is None else f"{row.score:.3f}", row.why) for row in choice.ranking]
    sent = f"it was sent to {found.sent}; now " if found.sent else ""
    best = f"the choice is {choice.cluster}" if choice.cluster else f"it waits: {choice.why}"
    words = f"pod {found.pod}: {sent}{best}"
    problems = [f"{name}: {why}" for name, why in found.problems.items()]
    return "\n".join([words, "", aligned(rows), *problems, *keti_lines(choice, gpus=found.gpus)])


def document(found: Explanation) -> dict[str, Any]:
    """The same for programs."""
    return {
        "pod": found.pod,
        "sent": found.sent,
        "choice": found.choice.cluster,
        "why": found.choice.why,
        "clusters": [
            {"name": row.cluster, "score": row.score, "why": row.why, "trial": row.trial}
            for row in found.choice.ranking
        ],
        "problems": dict(found.problems),
    }


@click.command(name="release", short_help="Open pods that are held for a manager that is no more.")
@across_namespaces
@click.option("--sent", is_flag=True, help="Also pods that were sent to a cluster: where they may still run.")
@click.option("--force", is_flag=True, help="Also while a manager leads, which may send them all the same.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@connected
def release(namespace: str, sent: bool, force: bool, dry_run: bool, connection: ClusterConnection) -> None:
    """Open the gates of held pods, so that they run here, and drop their finalizers.

    It first looks for as long as a Lease lasts whether a manager still leads, and does nothing then. Pods that were
    sent to a cluster are left alone: opened here too, they would run twice. With --sent they are opened; make sure
    first that nothing of them runs there. New pods are held all the same while the policy shoal-cluster-gate is there
    and their namespace is labelled shoal.dev/dispatch=enabled.

    \b
    shoal clusters release --dry-run
    shoal clusters release -n team
    """
    from shoal.kube.errors import KubeError

    try:
        done = asyncio.run(_release(connection, namespace, sent=sent, force=force, dry_run=dry_run))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    for pod, words in done:
        click.echo(f"{pod}: {words}")
    if not done:
        click.echo("no pod is held")


async def _release(
    connection: ClusterConnection, namespace: str, *, sent: bool, force: bool, dry_run: bool
) -> list[tuple[str, str]]:
    from shoal.clusters.release import living_manager, release_of, released
    from shoal.kube.client import Client
    from shoal.kube.resources import PODS

    done: list[tuple[str, str]] = []
    async with Client(connection.access()) as client:
        if not force and not dry_run:
            with saying("looking whether a manager leads"):
                leader = await living_manager(client)
            if leader:
                raise click.ClickException(
                    f"{leader} leads as the cluster manager, and sends these pods: stop it first, or use --force"
                )
        for pod in (await client.list(PODS.raw, namespace=namespace)).items:
            if dry_run:
                what = release_of(pod, sent_too=sent)
                words = "" if what is None else f"would be {what.words}" if what.patch else what.words
            else:
                words = await released(client, pod, sent_too=sent)
            if words:
                done.append((f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", words))
    return done
