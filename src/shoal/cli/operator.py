"""`shoal operator`: bring nodes to serving cards, by the wish of a ClusterPolicy."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import click
import msgspec

from shoal.cli import settings
from shoal.cli.service import own_namespace, until_ended

_FILE = click.Path(path_type=Path)


@click.command(short_help="Bring GPU nodes to serving cards, by the wish of a ClusterPolicy.")
@click.option("--config", "path", type=_FILE, metavar="FILE", help="Settings in YAML; flags win.")
@click.option("--kubeconfig", type=_FILE, metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    metavar="NAME",
    help="Where operands run; without it the namespace of this pod.",
)
@click.option("--operands", metavar="DIR", help="The manifests of operands, one YAML file each.")
@click.option(
    "--operands-digest",
    metavar="sha256:HEX",
    help="Refuse manifests with another digest; without it any are taken. "
    "`sha256sum *.yaml | sha256sum` in their folder prints it.",
)
@click.option("--probe-port", type=int, metavar="PORT", help="Where probes are answered.")
@click.option("--metrics-port", type=int, metavar="PORT", help="Where Prometheus is answered.")
@settings.log_level
def operator(path: Path | None, kubeconfig: Path | None, context: str, log_level: str, **flags: object) -> None:
    """Make what a ClusterPolicy wishes, say what each node waits for, and take it away when the policy is deleted.

    Several may run; one leads.

    \b
    Examples:
      shoal operator                                            in its pod
      shoal operator --namespace gpu-operator --operands DIR    elsewhere
    """
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError
    from shoal.operator import app
    from shoal.operator.config import OperatorConfig
    from shoal.operator.errors import OperatorError

    settings.log_at(log_level)
    try:
        config = settings.load(OperatorConfig, path, flags, command="operator")
        if not config.namespace:
            config = msgspec.structs.replace(config, namespace=own_namespace())
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
        asyncio.run(until_ended(app.run(config, access, identity=socket.gethostname())))
    except (settings.ServiceSettingsError, OperatorError, KubeError) as error:
        raise click.ClickException(str(error)) from error
