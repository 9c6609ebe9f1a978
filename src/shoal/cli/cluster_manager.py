"""`shoal cluster-manager`: take pods to the joined cluster that can serve them best."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.cli import settings
from shoal.cli.service import own_namespace, until_ended

if TYPE_CHECKING:
    from shoal.clusters.app import ManagerPorts

_FILE = click.Path(path_type=Path)


@click.command(name="cluster-manager", short_help="Take pods to the joined cluster that can serve them best.")
@click.option("--config", "path", type=_FILE, metavar="FILE", help="Settings in YAML; flags win.")
@click.option("--kubeconfig", type=_FILE, metavar="FILE", help="How to reach the cluster where pods are submitted.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option(
    "--namespace", envvar="POD_NAMESPACE", metavar="NAME", help="Where its Lease is; without it that of this pod."
)
@click.option("--probe-port", type=int, metavar="PORT", help="Where probes are answered.")
@click.option("--metrics-port", type=int, metavar="PORT", help="Where Prometheus is answered.")
@settings.log_level
def cluster_manager(path: Path | None, kubeconfig: Path | None, context: str, log_level: str, **flags: object) -> None:
    """Send pods that are held at home to joined clusters, and show at home what becomes of them.

    Several may run; one leads.

    \b
    Examples:
      shoal cluster-manager                                  in its pod
      shoal cluster-manager --namespace gpu --kubeconfig F   elsewhere
    """
    from shoal.clusters import app
    from shoal.clusters.config import ClusterManagerConfig
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError

    settings.log_at(log_level)
    try:
        config = settings.load(ClusterManagerConfig, path, flags, command="cluster-manager")
        if not config.namespace:
            config = msgspec.structs.replace(config, namespace=own_namespace())
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
        work = app.run(config, access, identity=socket.gethostname(), environ=os.environ, serving=_tell)
        asyncio.run(until_ended(work))
    except (settings.ServiceSettingsError, KubeError) as error:
        raise click.ClickException(str(error)) from error


def _tell(ports: ManagerPorts) -> None:
    click.echo(f"probes on {ports.probes}, metrics on {ports.metrics}")
