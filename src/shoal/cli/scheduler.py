"""`shoal scheduler`: run the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from pathlib import Path

import click

from shoal.model.contract import gpushare


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


@click.command(short_help="Run the scheduler: extender and gpu-scheduler.")
@click.option("--config", "path", type=click.Path(path_type=Path), metavar="FILE", help="Settings in YAML.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--host", help="Where the extender, health and metrics answer.")
@click.option("--port", type=int, envvar=gpushare.ENV_PORT, help="Their port; 0 takes a free one.")
@click.option(
    "--memory-unit",
    type=click.Choice([unit.value for unit in gpushare.MemoryUnit]),
    help="What 1 of aliyun.com/gpu-mem means.",
)
@click.option("--policy", help="How nodes and cards are chosen.")
@click.option(
    "--scheduler-name",
    "scheduler_names",
    multiple=True,
    help="Pods that name it are placed here; may be given more than once. Default: gpu-scheduler.",
)
@click.option("--cluster-name", help="What this cluster is called, for pods that ask for one by name.")
@click.option("--leader-elect/--no-leader-elect", default=None, help="Whether replicas agree on one that decides.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warn", "error"], case_sensitive=False),
    envvar=gpushare.ENV_LOG_LEVEL,
    default="info",
    show_default=True,
    help="How much is said.",
)
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
    from shoal.kube.access.load import load_access
    from shoal.kube.errors import KubeError, LeadershipLostError
    from shoal.scheduler.app import run
    from shoal.scheduler.config import ConfigError, load

    logging.basicConfig(
        level={"warn": logging.WARNING}.get(log_level.lower(), log_level.upper()),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    overrides = {_camel(name): value for name, value in flags.items() if value not in (None, ())}
    try:
        settings = load(path, overrides, leader_elect=leader_elect)
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
    except (ConfigError, KubeError) as error:
        raise click.ClickException(str(error)) from error

    async def until_told() -> None:
        task = asyncio.ensure_future(
            run(settings, access, identity=socket.gethostname(), serving=lambda port: click.echo(f"serving on {port}"))
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    try:
        asyncio.run(until_told())
    except LeadershipLostError as error:
        raise click.ClickException(f"{error}: start the process again") from error
