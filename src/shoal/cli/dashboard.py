"""`shoal dashboard`: serve the page that shows the cluster."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli import settings
from shoal.cli.service import until_ended

if TYPE_CHECKING:
    from shoal.dashboard.app import Serving

_FILE = click.Path(path_type=Path)


@click.command(short_help="Serve the page that shows cards, pods and who waits.")
@click.option("--config", "path", type=_FILE, metavar="FILE", help="Settings in YAML; flags win.")
@click.option("--kubeconfig", type=_FILE, metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--host", metavar="ADDRESS", help="Where it serves; without TLS only on loopback.")
@click.option("--port", type=int, metavar="PORT", help="The port, 0 for a free one.")
@click.option("--probe-port", type=int, metavar="PORT", help="Where probes are answered.")
@click.option("--metrics-port", type=int, metavar="PORT", help="Where Prometheus is answered.")
@settings.memory_unit()
@settings.log_level
def dashboard(path: Path | None, kubeconfig: Path | None, context: str, log_level: str, **flags: object) -> None:
    """Serve the page that shows who has which part of which card, what is used, who waits and why; and its API.

    It reads and never writes. Viewers sign in with a Kubernetes token and see what they may read.

    \b
    Examples:
      shoal dashboard                       on 127.0.0.1, with your kubeconfig
      shoal dashboard --config FILE         in a pod, with TLS
    """
    from shoal.dashboard import app
    from shoal.dashboard.config import DashboardConfig
    from shoal.http.errors import TlsError
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError

    settings.log_at(log_level)
    try:
        config = settings.load(DashboardConfig, path, flags, command="dashboard")
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
        asyncio.run(until_ended(app.run(config, access, serving=_tell)))
    except (settings.ServiceSettingsError, KubeError, TlsError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"it cannot serve: {error.strerror or error}: give another --port") from error


def _tell(serving: Serving) -> None:
    click.echo(f"dashboard on {serving.url}")
