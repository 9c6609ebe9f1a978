"""`shoal metrics`: run the collector of a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from pathlib import Path

import click

from shoal.cli import settings
from shoal.model.contract import gpushare

_FILE = click.Path(path_type=Path)


@click.command(short_help="Run the collector: what cards and containers really use.")
@click.option("--config", "path", type=_FILE, metavar="FILE", help="Settings in YAML; flags win.")
@click.option("--kubeconfig", type=_FILE, metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--node-name", envvar=gpushare.ENV_NODE_NAME, metavar="NAME", help="The node this runs on.")
@settings.memory_unit()
@click.option("--interval-seconds", type=float, metavar="S", help="How often the cards are read.")
@click.option("--proc-root", metavar="DIR", help="Where the host's /proc is seen.")
@click.option("--cgroup-root", metavar="DIR", help="Where the host's cgroups are seen.")
@settings.log_level
def metrics(path: Path | None, kubeconfig: Path | None, context: str, log_level: str, **flags: object) -> None:
    """Run the collector of a node: it reads the cards, tells whose their use is, and gives that to whoever asks.

    \b
    Examples:
      shoal metrics --node-name gpu-1                            in a pod, or with ~/.kube/config
      shoal metrics --node-name gpu-1 --proc-root /host/proc     where the host's /proc is mounted
    """
    from shoal.gpu.nvml import open_nvml
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError
    from shoal.metrics import app
    from shoal.metrics.config import MetricsConfig

    settings.log_at(log_level)
    try:
        config = settings.load(MetricsConfig, path, flags, command="metrics")
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
    except (settings.ServiceSettingsError, KubeError) as error:
        raise click.ClickException(str(error)) from error
    asyncio.run(_until_ended(app.run(config, access, open_nvml)))


async def _until_ended(work: Coroutine[None, None, None]) -> None:
    """Run until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
