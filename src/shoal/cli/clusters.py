"""`shoal clusters`: join clusters to the one where the cluster manager runs, list them, and take them out again."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.clusters_explain import explain_command, release
from shoal.cli.connection import ClusterConnection, ask, connected
from shoal.cli.output import aligned, emit, output, saying

if TYPE_CHECKING:
    from shoal.clusters.leaving import LeaveReport
    from shoal.clusters.members import Members
    from shoal.clusters.overview import ClusterRow, ClustersOverview
    from shoal.kube.client import Client

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])
_PATIENCE = click.FloatRange(min=0.1, max=3600)


@click.group(short_help="Join clusters to this one, list them, and take them out again.")
def clusters() -> None:
    """Join clusters to the one where the cluster manager runs (home), list them, and take them out again.

    \b
    shoal clusters join cluster2 --kubeconfig cluster2.yaml
    shoal clusters list
    shoal clusters leave cluster2 --kubeconfig cluster2.yaml
    """


@dataclass(frozen=True, slots=True)
class _Both:
    """Home, and the cluster that joins or leaves; with the rights of administrators."""

    home: ClusterConnection
    member: ClusterConnection
    namespace: str

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncIterator[tuple[Client, Client, str]]:
        """Both clients, and the manager's namespace at home."""
        from shoal.kube.client import Client

        async with Client(self.home.access()) as home, Client(self.member.access()) as member:
            yield home, member, await _namespace(home, self.namespace)


def _both(command: Command) -> Command:
    """The options that name both clusters; the command gets `both`."""

    @click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        required=True,
        metavar="FILE",
        help="How an administrator reaches the cluster that joins or leaves.",
    )
    @click.option("--context", default="", metavar="NAME", help="The context of that kubeconfig to use.")
    @click.option(
        "--home-kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="How to reach the manager's cluster."
    )
    @click.option("--home-context", default="", metavar="NAME", help="The context of that kubeconfig to use.")
    @_in_manager_namespace
    @functools.wraps(command)
    def with_both(
        *args: Any,
        kubeconfig: Path,
        context: str,
        home_kubeconfig: Path | None,
        home_context: str,
        namespace: str,
        **given: Any,
    ) -> Any:
        home, member = ClusterConnection(home_kubeconfig, home_context), ClusterConnection(kubeconfig, context)
        return command(*args, both=_Both(home, member, namespace), **given)

    return with_both  # type: ignore[return-value]


def _in_manager_namespace(command: Command) -> Command:
    return click.option(
        "-n", "--namespace", default="", metavar="NAME", help="The manager's namespace at home; else it is looked for."
    )(command)


async def _namespace(home: Client, given: str) -> str:
    from shoal.analysis.joined_clusters import manager_namespace

    return await manager_namespace(home, given)


def _run(work: Callable[[], Awaitable[T]], *, words: str) -> T:
    """Run what asks clusters; what they refuse ends the command with a message."""
    from shoal.kube.errors import KubeError

    async def run() -> T:
        return await work()

    try:
        with saying(words):
            return asyncio.run(run())
    except KubeError as error:
        raise click.ClickException(str(error)) from error


def _say(words: str) -> None:
    click.echo(words, err=True)


def _now() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


@clusters.command(short_help="Join a cluster.")
@click.argument("name")
@_both
@click.option("--server", default="", metavar="URL", help="The address at which home reaches it; else the context's.")
@click.option("--scheduler-namespace", default="", metavar="NAME", help="Where Shoal is there; else it is looked for.")
@click.option("--cost", type=click.FloatRange(-1e6, 1e6), default=0.0, help="What a card costs there.")
@click.option("--preference", type=click.FloatRange(-1e6, 1e6), default=0.0, help="How much it is preferred.")
@click.option(
    "--pod-account",
    default="default",
    show_default=True,
    metavar="NAME",
    help="ServiceAccount of dispatched pods, in each namespace there; they get no token of it.",
)
@click.option("--offer-url", default="", metavar="URL", help="Ask its scheduler there, and not through its API server.")
@click.option(
    "--offer-ca", type=click.Path(path_type=Path), metavar="FILE", help="Who signed that server's certificate."
)
@click.option(
    "--token-lifetime",
    type=click.IntRange(min=600),
    default=None,
    metavar="SECONDS",
    help="After which the token ends unless it is renewed by join; else it does not end.",
)
@click.option("--timeout", "patience", type=_PATIENCE, default=60.0, show_default=True, metavar="SECONDS")
def join(
    name: str,
    both: _Both,
    server: str,
    scheduler_namespace: str,
    cost: float,
    preference: float,
    pod_account: str,
    offer_url: str,
    offer_ca: Path | None,
    token_lifetime: int | None,
    patience: float,
) -> None:
    """Join a cluster as NAME: make an account in it that may handle its own copies only, and a Secret at home.

    It needs an administrator of both, once; the manager gets the account. Joining again renews the account's token, and
    revokes the earlier one. A namespace there takes part when it is labelled shoal.dev/accepts-copies=enabled.

    \b
    shoal clusters join cluster2 --kubeconfig cluster2.yaml
    shoal clusters join west --kubeconfig all.yaml --context west-admin --cost 2
    shoal clusters join edge --kubeconfig edge.yaml --server https://10.1.0.1:6443 --home-context home
    """
    from shoal.analysis.installed import namespace_of
    from shoal.clusters.join import binding_command
    from shoal.clusters.joining import JoinReport, JoinWish
    from shoal.clusters.joining import join as join_cluster

    authority = _read(offer_ca)

    async def work() -> JoinReport:
        async with both.clients() as (home, member, namespace):
            wish = JoinWish(
                name,
                namespace,
                scheduler_namespace or await namespace_of(member),
                server=server,
                proxy=_written_proxy(both.member),
                cost=cost,
                preference=preference,
                pod_account=pod_account,
                offer_url=offer_url,
                offer_authority=authority,
                token_seconds=token_lifetime or 0,
            )
            return await join_cluster(home, member, wish, patience=patience, say=_say)

    report = _run(work, words="joining …")
    for note in report.notes:
        click.echo(f"Note: {note}.", err=True)
    click.echo(f"To have what pods name checked and copied there: {binding_command(report.account)}", err=True)
    click.echo(f"{report.name} is joined: UID {report.uid}, as {report.account.user}")


def _read(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}: correct the path") from error


def _written_proxy(connection: ClusterConnection) -> str:
    """The proxy that the kubeconfig names. One of this terminal's environment is none of home's."""
    from shoal.kube.access.kubeconfig import load_access

    environ = {key: value for key, value in os.environ.items() if not key.upper().endswith("_PROXY")}
    return load_access(
        environ=environ, home=Path.home(), kubeconfig=connection.kubeconfig, context=connection.context
    ).proxy


@clusters.command(short_help="Take a cluster out, and what was written into it.")
@click.argument("name")
@_both
@click.option("--delete-running", is_flag=True, help="Delete copies that run there; else they are left to run.")
@click.option("--timeout", "patience", type=_PATIENCE, default=60.0, show_default=True, metavar="SECONDS")
def leave(name: str, both: _Both, delete_running: bool, patience: float) -> None:
    """Take a cluster out: account, rights and policies there, its Secret at home, and the copies that do not run.

    Pods whose copies had not been placed are sent elsewhere. A copy that runs is left to run, and its pod at home stays
    as it is until the cluster is joined again, or forgotten. It can be run again at any time.

    \b
    shoal clusters leave cluster2 --kubeconfig cluster2.yaml
    shoal clusters leave cluster2 --kubeconfig cluster2.yaml --delete-running
    """
    from shoal.clusters.leaving import leave as leave_cluster

    async def work() -> LeaveReport:
        async with both.clients() as (home, member, namespace):
            return await leave_cluster(
                home,
                member,
                name,
                namespace=namespace,
                now=_now(),
                end_running=delete_running,
                patience=patience,
                say=_say,
            )

    report = _run(work, words="leaving …")
    _tell(report, name)
    click.echo(f"{name} has left")


@clusters.command(short_help="Take a cluster out that is not there any more.")
@click.argument("name")
@click.option("--dead", is_flag=True, help="Nothing runs there any more: pods that were sent there may run elsewhere.")
@connected
@_in_manager_namespace
def forget(name: str, dead: bool, connection: ClusterConnection, namespace: str) -> None:
    """Take a cluster out without asking it: its Secret at home is deleted.

    While pods are there it is refused, since they may run. --dead says that they do not: those that had started become
    Failed and are replaced by their owners, the others are sent elsewhere. If the cluster is alive after all, they run
    twice.

    \b
    shoal clusters forget cluster2
    shoal clusters forget cluster2 --dead
    """
    from shoal.clusters.leaving import forget as forget_cluster

    async def work(home: Client, _: str) -> LeaveReport:
        space = await _namespace(home, namespace)
        return await forget_cluster(home, name, namespace=space, now=_now(), dead=dead, say=_say)

    _tell(ask(connection, work, reading="pods"), name)
    click.echo(f"{name} is forgotten")


def _tell(report: LeaveReport, name: str) -> None:
    for fate, count in sorted(report.copies.items()):
        click.echo(f"copies {fate}: {count}")
    if report.unclaimed:
        click.echo(f"pods that are sent elsewhere: {report.unclaimed}")
    if report.over:
        click.echo(f"pods that are over: {report.over}")
    if report.untouched:
        click.echo(f"pods that still run in {name}: {', '.join(report.untouched[:20])}")


@clusters.command("list", short_help="List the joined clusters, and what is wrong.")
@click.option(
    "--member-kubeconfig",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="A file or folder of kubeconfigs that the manager is given beside Secrets; can be repeated.",
)
@connected
@_in_manager_namespace
@output()
def list_clusters(files: tuple[Path, ...], connection: ClusterConnection, namespace: str, form: str | None) -> None:
    """List the joined clusters: whether each answers from here, and what room it has; then what is wrong, with the fix.

    Exits with 1 if something is wrong. SILENT SINCE is the manager's word: since when it has not heard of a cluster.

    \b
    shoal clusters list
    shoal clusters list -o json
    shoal clusters list --member-kubeconfig /etc/shoal/clusters
    """
    found = ask(connection, lambda home, _: _overview(home, namespace, files), reading="clusters")
    if form is not None:
        emit(found.document(), form)
    else:
        _table(found)
    if found.problems:
        sys.exit(1)


async def _overview(home: Client, namespace: str, files: tuple[Path, ...]) -> ClustersOverview:
    from shoal.analysis.joined_clusters import read_clusters

    return await read_clusters(home, namespace, files)


@contextlib.asynccontextmanager
async def _settled_members(home: Client, namespace: str) -> AsyncIterator[Members]:
    from shoal.analysis.joined_clusters import joined_members

    async with joined_members(home, namespace) as members:
        await members.settled()
        yield members


clusters.add_command(explain_command(_settled_members))
clusters.add_command(release)


def _table(found: ClustersOverview) -> None:
    rows = [["NAME", "UID", "VERSION", "STATE", "NODES", "CARDS", "FREE", "SILENT SINCE"], *map(_row, found.rows)]
    if found.rows:
        click.echo(aligned(rows), nl=False)
    else:
        click.echo("no cluster is joined")
    for key, words in found.problems.items():
        click.echo(f"{key}: {words}")


def _row(row: ClusterRow) -> list[str]:
    state, room = row.state, row.room
    name = f"{state.name} (own)" if state.own else state.name
    amounts = [str(room.room.nodes), str(room.cards), str(room.free)] if room.room else ["-", "-", "-"]
    return [name, state.uid or "-", state.version or "-", state.health.value, *amounts, row.silent_since or "-"]
