"""`kubectl inspect gpushare` and `shoal inspect`: what is allocated of the cards of a cluster."""

from __future__ import annotations

import gc
import sys
from typing import IO, TYPE_CHECKING, Any

import click

from shoal.cli.connection import (
    ClusterConnection,
    CollectorChoice,
    across_namespaces,
    ask,
    connected,
    counted_in_unit,
    measuring,
    watching,
)
from shoal.cli.output import emit, output

if TYPE_CHECKING:
    from shoal.analysis.inspect.use import ClusterUse
    from shoal.kube.client import Client
    from shoal.model.contract.gpushare import MemoryUnit


class FailedError(click.ClickException):
    """An error in gpushare's words."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Failed due to {self.message}", file=file, err=file is None)


@click.command(
    "inspect",
    short_help="Show what is allocated of each card (kubectl inspect gpushare).",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("-d", "--details", is_flag=True, help="For each node, what every pod has of each card.")
@click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
@click.option("--pending", is_flag=True, help="Say why pods have no card; on a terminal it is always said.")
@click.option("--used", is_flag=True, help="What is really used, beside what was requested; needs collectors.")
@counted_in_unit
@across_namespaces
@output("wide")
@measuring
@connected
def inspect(
    nodes: tuple[str, ...],
    details: bool,
    watch: bool,
    pending: bool,
    used: bool,
    unit: MemoryUnit | None,
    namespace: str,
    form: str | None,
    choice: CollectorChoice,
    connection: ClusterConnection,
) -> None:
    """Show what is allocated of each card, on all nodes or those named.

    \b
    kubectl inspect gpushare              how full each card is
    kubectl inspect gpushare -d node-1    which pod has how much of which card
    kubectl inspect gpushare -d -n team   only the pods of one namespace
    kubectl inspect gpushare -o wide      UUID, model and health of each card too
    kubectl inspect gpushare -w           again whenever it changes
    kubectl inspect gpushare --used -d    what nodes, cards and pods really use, beside what they requested

    A card is as full as the pods of all namespaces make it: -n chooses the pods that are named, not what is counted.
    """
    if details and form is not None:
        raise click.UsageError(f"-d is a table of its own: leave out -o {form}, which has the pods of each card too")
    if used:
        if watch or form == "wide":
            raise click.UsageError("--used goes with -d and -o json|yaml; `shoal top` shows it live")
        _used(connection, nodes, unit, choice, details=details, form=form, namespace=namespace)
        return
    show = InspectForm(form, details=details, explained=pending or sys.stdout.isatty(), namespace=namespace)
    try:
        if watch:
            _follow(connection, nodes, unit, show)
        else:
            _once(connection, nodes, unit, show)
    except click.ClickException as error:
        raise FailedError(error.message) from error


def inspect_gpushare() -> None:
    """The same as a plugin of kubectl."""
    inspect.main(prog_name="kubectl inspect gpushare")


class InspectForm:
    """In which form the cluster is shown, and the pods of which namespace; empty for all."""

    def __init__(self, name: str | None, *, details: bool, explained: bool, namespace: str) -> None:
        self._name = name
        self._details = details
        self._explained = explained
        self._namespace = namespace

    def show(self, whole: ClusterUse) -> None:
        """Print it."""
        from shoal.analysis.inspect.use import of_namespace

        cluster = of_namespace(whole, self._namespace)
        if self._name in ("json", "yaml"):
            from shoal.analysis.inspect.document import document

            emit(document(cluster), self._name or "")
            return
        from shoal.cli.inspect.tables import nobody, waiting

        click.echo(self._table(cluster) + (waiting(cluster) if self._explained else ""), nl=False)
        click.echo(nobody(cluster), nl=False, err=True)

    def _table(self, cluster: ClusterUse) -> str:
        if self._name == "wide":
            from shoal.cli.inspect.tables import wide

            return wide(cluster)
        if self._details:
            from shoal.cli.inspect.tables import details

            return details(cluster.sharing, cluster.unit)
        from shoal.cli.inspect.tables import summary

        return summary(cluster.sharing, cluster.unit)


def _once(connection: ClusterConnection, names: tuple[str, ...], unit: MemoryUnit | None, form: InspectForm) -> None:
    from shoal.analysis.inspect.read import read_cluster

    async def question(client: Client, _: str) -> ClusterUse:
        return await read_cluster(client, names=names, unit=unit)

    # Next to nothing made here is garbage before the end, and looking for it takes a third of the time.
    gc.disable()
    try:
        form.show(ask(connection, question, reading="nodes and pods"))
    finally:
        gc.enable()


def _used(
    connection: ClusterConnection,
    names: tuple[str, ...],
    unit: MemoryUnit | None,
    choice: CollectorChoice,
    *,
    details: bool,
    form: str | None,
    namespace: str,
) -> None:
    from shoal.analysis.collectors import Measured
    from shoal.analysis.errors import NotMeasuredError
    from shoal.analysis.inspect.read import read_cluster
    from shoal.analysis.inspect.use import of_namespace
    from shoal.analysis.inspect.used import used_nodes

    async def question(client: Client, _: str) -> tuple[ClusterUse, Measured]:
        cluster = await read_cluster(client, names=names, unit=unit)
        return cluster, await choice.collectors(client).snapshots([use.node.name for use in cluster.nodes])

    try:
        whole, measured = ask(connection, question, reading="what is used")
    except NotMeasuredError as error:
        raise FailedError(f"--used: {error}") from error
    except click.ClickException as error:
        raise FailedError(error.message) from error
    cluster = of_namespace(whole, namespace)
    nodes = used_nodes(cluster, measured)
    if form is not None:
        from shoal.analysis.inspect.used_document import used_document

        emit(used_document(cluster, nodes), form)
        return
    from shoal.cli.inspect.tables import nobody
    from shoal.cli.inspect.used_tables import silent, used_tables
    from shoal.model.contract.gpushare import MemoryUnit

    click.echo(used_tables(nodes, cluster.unit or MemoryUnit.GIB, pods=details), nl=False)
    click.echo(silent(nodes) + nobody(cluster), nl=False, err=True)


def _follow(connection: ClusterConnection, names: tuple[str, ...], unit: MemoryUnit | None, form: InspectForm) -> None:
    from shoal.cli.inspect.follow import follow
    from shoal.kube.errors import KubeError

    try:
        watching(connection, lambda client: follow(client, form.show, names=names, unit=unit))
    except KubeError as error:
        raise FailedError(str(error)) from error
