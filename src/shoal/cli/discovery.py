"""`shoal discovery`: run a worker or the leader of discovery, or take away what they wrote."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import click

from shoal.cli import settings
from shoal.cli.service import until_ended
from shoal.model.contract import gpushare, nvidia

_FILE = click.Path(path_type=Path)


@click.command(short_help="Label nodes with what they have: worker of a node, or leader.")
@click.option("--config", "path", type=_FILE, metavar="FILE", help="Settings in YAML; flags win.")
@click.option("--kubeconfig", type=_FILE, metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--leader", is_flag=True, help="Label all nodes by what their workers tell.")
@click.option("--cleanup", is_flag=True, help="Take away labels and annotations of discovery, and end.")
@click.option("--node-name", envvar=gpushare.ENV_NODE_NAME, metavar="NAME", help="The node this worker runs on.")
@click.option("--interval-seconds", type=float, metavar="S", help="How often a worker reads the machine.")
@click.option("--sys-root", metavar="DIR", help="Where a worker sees the kernel's /sys.")
@click.option("--driver/--no-driver", default=None, help="Whether a worker asks the driver, or reads the bus only.")
@click.option("--nvidia-config", metavar="FILE", help="The configuration of NVIDIA's device plugin.")
@click.option(
    "--nvidia-config-map", metavar="NAMESPACE/NAME", help="The same in a ConfigMap; the node's label names the key."
)
@click.option("--nvidia-config-default", metavar="KEY", help="The key for nodes without that label.")
@click.option(
    "--mig-strategy",
    type=click.Choice(list(nvidia.MIG_STRATEGIES)),
    envvar=nvidia.ENV_MIG_STRATEGY,
    help="How MIG partitions are served where it says nothing.",
)
@click.option("--grace-seconds", type=float, metavar="S", help="No sign of a card for so long: there is none.")
@click.option("--lease-namespace", metavar="NAME", help="Where the leader's Lease is.")
@click.option("--host", help="Where probes are answered.")
@click.option("--port", type=int, help="Their port; none, no probes.")
@settings.log_level
def discovery(
    path: Path | None,
    kubeconfig: Path | None,
    context: str,
    leader: bool,
    cleanup: bool,
    log_level: str,
    **flags: object,
) -> None:
    """Label nodes by the names of NFD and of NVIDIA's feature discovery: what is on the bus, cards, driver, MIG.

    A worker on each node tells what it reads, one leader makes labels of it. Where NFD or GFD run, their labels are
    left to them.

    \b
    Examples:
      shoal discovery --node-name gpu-1              the worker of a node
      shoal discovery --node-name gpu-1 --no-driver  where the driver is not there yet
      shoal discovery --leader                       the leader, of which several may wait
      shoal discovery --cleanup                      after both were removed
    """
    from shoal.discovery import app
    from shoal.discovery.config import DiscoveryConfig
    from shoal.discovery.errors import DiscoveryError
    from shoal.gpu.nvml import open_nvml
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError

    settings.log_at(log_level)
    if leader and cleanup:
        raise click.ClickException("--leader and --cleanup exclude each other: give one of them")
    try:
        config = settings.load(DiscoveryConfig, path, flags, command="discovery")
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
        if cleanup:
            nodes = asyncio.run(app.run_cleanup(config, access))
            click.echo(f"discovery's labels and annotations are gone from {nodes} node{'' if nodes == 1 else 's'}")
        elif leader:
            asyncio.run(until_ended(app.run_leader(config, access, identity=socket.gethostname())))
        else:
            asyncio.run(until_ended(app.run_worker(config, access, open_nvml)))
    except (settings.ServiceSettingsError, DiscoveryError, KubeError) as error:
        raise click.ClickException(str(error)) from error
