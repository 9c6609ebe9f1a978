"""`shoal uninstall`: take Shoal away from a cluster, or its files from the node this runs on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from shoal.cli.connection import ClusterConnection, connected
from shoal.cli.service import until_ended

if TYPE_CHECKING:
    from shoal.kube.client import Client
    from shoal.operator.cluster_removal import ClusterRemoval, RemovalReport, RemovalSettings

#: Done, but for what cannot be reached from here.
_EXIT_LEFT: Final = 3


@click.command(short_help="Take Shoal away from a cluster, or its files from a node.")
@connected
@click.option("-n", "--namespace", default="", metavar="NAME", help="Where Shoal is; else it is looked for.")
@click.option("--crds", is_flag=True, help="Delete the definition of the ClusterPolicy too.")
@click.option("--dry-run", is_flag=True, help="Print what would be taken away, and change nothing.")
@click.option("--timeout", type=click.FloatRange(min=0), default=240.0, show_default=True, metavar="SECONDS")
@click.option("--image", default="", metavar="IMAGE", help="What removes files from nodes; else Shoal's own image.")
@click.option("--best-effort", is_flag=True, help="Exit with 0 although files stay on nodes that cannot be reached.")
@click.option("--node", "here", is_flag=True, help="Remove Shoal's files from this node instead. As root.")
@click.option(
    "--root", type=click.Path(path_type=Path), default="/", metavar="DIR", help="With --node: where the node's / is."
)
@click.option("--keep-validations", is_flag=True, help="With --node: NVIDIA's operator goes on here.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="With --node: how long an agent may take to end.",
)
@click.option("--idle", is_flag=True, hidden=True, help="Do nothing until told to end: the pod of a cleaned node.")
def uninstall(
    connection: ClusterConnection,
    namespace: str,
    crds: bool,
    dry_run: bool,
    timeout: float,
    image: str,
    best_effort: bool,
    here: bool,
    root: Path,
    keep_validations: bool,
    wait: float,
    idle: bool,
) -> None:
    """Take Shoal away: operands, their files on nodes, labels, annotations, taint, Leases, and the finalizer.

    The operator is asked first, and not needed. What was applied as manifests (rights, admission policies, settings) is
    then for `helm uninstall` or `kubectl delete -k`. It can be run again at any time. Exits with 1 if something could
    not be done, with 3 if only files of nodes are left that could not be reached.

    \b
    Examples:
      shoal uninstall --dry-run           what would go
      shoal uninstall                     before kubectl delete -k deploy/...
      shoal uninstall -n gpu-operator --crds
      shoal uninstall --node              on a node that was away meanwhile, as root
    """
    if idle:
        asyncio.run(until_ended(_nothing()))
    elif here:
        _clean_node(root, keep_validations=keep_validations, wait=wait)
    else:
        _clean_cluster(
            connection, namespace, crds=crds, dry_run=dry_run, timeout=timeout, image=image, best_effort=best_effort
        )


async def _nothing() -> None:
    await asyncio.Event().wait()


def _clean_node(root: Path, *, keep_validations: bool, wait: float) -> None:
    from shoal.operator.node_removal import NodeRemoval

    try:
        report = NodeRemoval(root, keep_validations).run(patience=wait)
    except OSError as error:
        raise click.ClickException(f"the files below {root} cannot be read: {error}") from error
    for path in report.removed:
        click.echo(f"removed {path}")
    for words in report.kept:
        click.echo(f"not Shoal's: {words}")
    for words in report.failed:
        click.echo(f"failed: {words}", err=True)
    if report.failed:
        sys.exit(1)
    if not report.removed:
        click.echo("nothing of Shoal is on this node")


def _clean_cluster(
    connection: ClusterConnection,
    namespace: str,
    *,
    crds: bool,
    dry_run: bool,
    timeout: float,
    image: str,
    best_effort: bool,
) -> None:
    from shoal.kube.errors import KubeError

    async def work() -> int:
        from shoal.kube.client import Client
        from shoal.kube.events import Recorder
        from shoal.model.contract.operator import NAME_OPERATOR
        from shoal.operator.cluster_removal import ClusterRemoval
        from shoal.operator.writes import Writes

        async with Client(connection.access()) as client, Recorder(client, NAME_OPERATOR) as recorder:
            space = namespace or await _found_namespace(client)
            removal = ClusterRemoval(
                client,
                Writes(client, recorder),
                _settings(space, timeout, crds=crds, image=image),
                clean_labels=lambda: _clean_labels(client, space),
                say=lambda words: click.echo(words, err=True),
            )
            if dry_run:
                return await _tell(removal)
            return _report(await removal.run(), best_effort=best_effort)

    try:
        status = asyncio.run(work())
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(status)


def _settings(namespace: str, timeout: float, *, crds: bool, image: str) -> RemovalSettings:
    from shoal.metrics import history_wire
    from shoal.model.contract import keti, load, shoal
    from shoal.model.contract.discovery import NAME_LEADER
    from shoal.model.contract.operator import NAME_OPERATOR
    from shoal.operator.cluster_removal import RemovalSettings

    return RemovalSettings(
        namespace=namespace,
        timeout=timeout,
        definitions=crds,
        image=image,
        leases=((load.NAMESPACE, ""), (history_wire.NAMESPACE, "")),
        lease_names=(NAME_OPERATOR, shoal.NAME_SCHEDULER, NAME_LEADER, keti.SCHEDULER_NAME),
        secret_names=(shoal.NAME_EXTENDER_SECRET,),
    )


async def _found_namespace(client: Client) -> str:
    """Where Shoal is, by the rights of its services: a workload of its name could be anybody's."""
    from shoal.analysis.installed import DEFAULT, GRANTS, granted_namespace
    from shoal.kube.errors import NotFoundError
    from shoal.model.contract import shoal
    from shoal.model.contract.discovery import NAME_LEADER
    from shoal.model.contract.load import NAME_COLLECTOR
    from shoal.model.contract.operator import NAME_OPERATOR

    for service in (NAME_OPERATOR, shoal.NAME_SCHEDULER, shoal.NAME_AGENT, NAME_LEADER, NAME_COLLECTOR):
        with contextlib.suppress(NotFoundError):
            if found := granted_namespace(await client.get(GRANTS, service), service):
                return found
    return DEFAULT


async def _clean_labels(client: Client, namespace: str) -> int:
    from shoal.discovery.cleanup import clean_up
    from shoal.discovery.config import DiscoveryConfig

    return await clean_up(client, DiscoveryConfig(lease_namespace=namespace))


async def _tell(removal: ClusterRemoval) -> int:
    found = await removal.inventory()
    for words in found:
        click.echo(f"would remove {words}")
    if not found:
        click.echo("nothing of Shoal is in this cluster")
    return 0


def _report(report: RemovalReport, *, best_effort: bool) -> int:
    for words in report.done:
        click.echo(f"removed {words}")
    for words in report.left:
        click.echo(f"left: {words}")
    for words in report.failed:
        click.echo(f"failed: {words}", err=True)
    if not (report.done or report.left or report.failed):
        click.echo("nothing of Shoal was in this cluster")
    if report.failed:
        return 1
    return _EXIT_LEFT if report.left and not best_effort else 0
