"""`shoal scheduler`: run the scheduler."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import click
import msgspec

from shoal.cli import settings
from shoal.cli.service import until_ended
from shoal.model.contract import gpushare


@click.command(short_help="Run the scheduler: extender and gpu-scheduler.")
@click.option("--config", "path", type=click.Path(path_type=Path), metavar="FILE", help="Settings in YAML.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--host", help="Where the extender answers; without TLS on loopback unless given.")
@click.option("--port", type=int, envvar=gpushare.ENV_PORT, help="Its port; 0 takes a free one.")
@click.option("--health-host", help="Where health and metrics answer.")
@click.option("--health-port", type=int, help="Their port; 0 takes a free one.")
@click.option("--open-inspect", is_flag=True, default=None, help="Let callers without a certificate inspect.")
@settings.memory_unit()
@click.option("--policy", help="How nodes and cards are chosen.")
@click.option(
    "--scheduler-name",
    "scheduler_names",
    multiple=True,
    help="Pods that name it are placed here; may be given more than once. Default: gpu-scheduler.",
)
@click.option("--cluster-name", help="What this cluster is called, for pods that ask for one by name.")
@click.option("--leader-elect/--no-leader-elect", default=None, help="Whether replicas agree on one that decides.")
@settings.log_level
def scheduler(
    path: Path | None,
    kubeconfig: Path | None,
    context: str,
    leader_elect: bool | None,
    log_level: str,
    **flags: object,
) -> None:
    """Run the scheduler: it answers the stock kube-scheduler, and places the pods of gpu-scheduler itself.

    \b
    Examples:
      shoal scheduler                                    in a pod, or with ~/.kube/config
      shoal scheduler --memory-unit MiB --port 12345
      shoal scheduler --config scheduler.yaml --no-leader-elect
    """
    from shoal.http.errors import TlsError
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError, LeadershipLostError
    from shoal.scheduler.app import run
    from shoal.scheduler.config import SchedulerConfig

    settings.log_at(log_level)
    try:
        config = settings.load(SchedulerConfig, path, flags, command="scheduler")
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
    except (settings.ServiceSettingsError, KubeError) as error:
        raise click.ClickException(str(error)) from error
    if leader_elect is not None:
        config = msgspec.structs.replace(
            config, election=msgspec.structs.replace(config.election, enabled=leader_elect)
        )

    work = run(
        config,
        access,
        identity=socket.gethostname(),
        serving=lambda ports: click.echo(
            f"serving on {ports.extender}, health on {ports.health}"
            + ("" if ports.offer is None else f", offers on {ports.offer}")
        ),
    )
    try:
        asyncio.run(until_ended(work))
    except TlsError as error:
        raise click.ClickException(str(error)) from error
    except LeadershipLostError as error:
        raise click.ClickException(f"{error}: start the process again") from error
