"""`shoal up`: an embedded cluster that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli import settings
from shoal.cli.output import quiet_grpc
from shoal.model.contract.gpushare import MemoryUnit

if TYPE_CHECKING:
    from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan


@click.command(short_help="Start a cluster with simulated GPUs, in this process.")
@click.option("--nodes", type=click.IntRange(0, 5000), default=3, show_default=True, help="How many nodes.")
@click.option("--gpus", default="4xA30-24G", show_default=True, help="The cards of each, such as 8xA100-80G,1xT4.")
@click.option(
    "--cluster-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Groups of nodes in YAML instead: mixed cards, labels, taints, NVLink, broken cards.",
)
@click.option("--clusters", type=click.IntRange(1, 16), default=1, show_default=True, help="How many such clusters.")
@settings.memory_unit(MemoryUnit.GIB.value)
@click.option("--policy", default="fragmentation", show_default=True, help="How nodes and cards are chosen.")
@click.option(
    "--metrics/--no-metrics", default=None, help="Run a collector on each node; up to 32 nodes they run unless told."
)
@click.option(
    "--claims/--no-claims",
    default=None,
    help="Offer the cards as claims (DRA) too; up to 32 nodes it is so unless told.",
)
@click.option(
    "--dashboard-port",
    type=click.IntRange(-1, 65535),
    default=0,
    show_default=True,
    metavar="PORT",
    help="Where the dashboard is served, 0 for a free port, -1 for none.",
)
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Where the kubeconfigs go.")
@click.option("--verbose", is_flag=True, help="Say what happens inside.")
def up(
    nodes: int,
    gpus: str,
    cluster_file: Path | None,
    clusters: int,
    memory_unit: str,
    policy: str,
    metrics: bool | None,
    claims: bool | None,
    dashboard_port: int,
    directory: Path | None,
    verbose: bool,
) -> None:
    """Start a cluster with simulated GPUs in this process, for trying Shoal without Kubernetes and without a GPU.

    The API server, the controllers, the scheduler, the agents and the collectors are real; kubelet, containers and
    cards are simulated. Everything is in memory and on 127.0.0.1, and gone when the command ends.

    \b
    shoal up
    shoal up --nodes 2 --gpus 8xA100-80G --memory-unit MiB
    shoal up --cluster-file cluster.yaml
    shoal up --clusters 3
    """
    quiet_grpc()
    from shoal.cli.embedded import MOST_COLLECTORS, EmbeddedPlan
    from shoal.embedded.nodes.cluster import few, read_file
    from shoal.embedded.nodes.errors import ClusterError, NodesError
    from shoal.embedded.policies.errors import CelError
    from shoal.placement.errors import PolicyError
    from shoal.placement.policies import policy_named

    given = [name for name in ("nodes", "gpus") if _is_given(name)]
    if cluster_file and given:
        raise click.UsageError(f"--cluster-file tells the nodes and their cards: leave out --{given[0]}")
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR)
    try:
        specs = read_file(cluster_file) if cluster_file else few(nodes, gpus)
        policy_named(policy)
    except (ClusterError, PolicyError) as error:
        raise click.ClickException(str(error)) from error
    names = [""] if clusters == 1 else [f"cluster{number}" for number in range(1, clusters + 1)]
    small = len(specs) * clusters <= MOST_COLLECTORS
    plans = [
        EmbeddedPlan(
            specs,
            MemoryUnit(memory_unit),
            policy,
            name,
            metrics=small if metrics is None else metrics,
            discovery=small,
            claims=small if claims is None else claims,
            offers=clusters > 1,
        )
        for name in names
    ]
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-")))
        try:
            stack.enter_context(_own(directory))
            asyncio.run(_serve(plans, directory, dashboard_port))
        except OSError as error:
            where = error.filename or directory
            raise click.ClickException(f"{where}: {error.strerror or error}: give another --directory") from error
        except (CelError, NodesError) as error:
            raise click.ClickException(str(error)) from error


def _is_given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not click.core.ParameterSource.DEFAULT


@contextlib.contextmanager
def _own(directory: Path) -> Iterator[None]:
    """Keep others from the directory while the block lasts, however it ends: the lock goes with the process."""
    from shoal.kube.access.secret_files import make_secret_folder

    make_secret_folder(directory)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            why = f"another shoal up runs in {directory}: end it, or give another --directory"
            raise click.ClickException(why) from None
        yield


async def _serve(plans: Sequence[EmbeddedPlan], directory: Path, dashboard_port: int) -> None:
    from shoal.cli.embedded import EmbeddedCluster
    from shoal.cli.embedded_clusters import managed

    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    started = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        clusters: list[EmbeddedCluster] = []
        for plan in plans:
            cluster = await stack.enter_async_context(EmbeddedCluster(plan, directory / (plan.name or "cluster")))
            await cluster.ready()
            clusters.append(cluster)
            _tell(cluster, time.monotonic() - started, hint=len(plans) == 1)
        if len(clusters) > 1:
            await stack.enter_async_context(managed(clusters, directory / "kubeconfig"))
            _tell_clusters(clusters, directory / "kubeconfig", time.monotonic() - started)
        if dashboard_port >= 0:
            serving = await stack.enter_async_context(clusters[0].dashboard(dashboard_port))
            click.echo(f"\nDashboard: {serving.link(clusters[0].api.token)} (the link signs in once)")
        click.echo("\nCtrl-C ends it, and everything in it.")
        await over.wait()


def _tell(cluster: EmbeddedCluster, seconds: float, *, hint: bool) -> None:
    plan = cluster.plan
    cards = sum(len(node.cards) for node in plan.nodes)
    title = f"Cluster {plan.name}" if plan.name else "A cluster"
    nodes = f"{len(plan.nodes)} node{'' if len(plan.nodes) == 1 else 's'}"
    click.echo(
        f"{title} of {nodes} with {cards} simulated GPUs, ready after {seconds:.1f} s.{' Try:' if hint else ''}\n"
    )
    if not hint:
        return
    click.echo(f"  export KUBECONFIG={cluster.kubeconfig}")
    click.echo("  kubectl get nodes")
    click.echo("  kubectl apply -f examples/01-binpack.yaml")
    click.echo("  kubectl get pods -o wide")
    click.echo("  kubectl logs binpack-1-0")


def _tell_clusters(clusters: Sequence[EmbeddedCluster], kubeconfig: Path, seconds: float) -> None:
    home = clusters[0].plan.name
    click.echo(f"{len(clusters)} clusters are joined to {home} after {seconds:.1f} s: pods in its namespace default go")
    click.echo("to the one that serves them best. Try:\n")
    click.echo(f"  export KUBECONFIG={kubeconfig}")
    click.echo("  shoal clusters list")
    click.echo("  kubectl apply -f examples/clusters/")
    click.echo("  kubectl get pods -o wide --context cluster2")
    click.echo("  shoal clusters explain POD; shoal logs POD")
