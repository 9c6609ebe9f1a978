"""`shoal config`: configurations of other programs that work with Shoal."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shoal.scheduler.kube_scheduler import InlineClientTls


@click.group(short_help="Print configurations of programs that work with Shoal.")
def config() -> None:
    """Print configurations of programs that work with Shoal."""


@config.command("kube-scheduler", short_help="The stock scheduler's configuration for Shoal's extender.")
@click.option("--for", "version", required=True, metavar="VERSION", help="The cluster's version, such as 1.36.")
@click.option(
    "--mode",
    type=click.Choice(["default", "second"]),
    default="default",
    show_default=True,
    help="default: the cluster's own scheduler asks Shoal about GPU pods; a file on every control-plane node is edited."
    " second: another kube-scheduler, named gpu-scheduler, in a pod; the control plane is left alone.",
)
@click.option(
    "--url",
    help="Where kube-scheduler reaches the extender. Default: the node port on the control-plane node's own address,"
    " or the Service for a second scheduler.",
)
@click.option("--plain", is_flag=True, help="Ask in plain HTTP, of an extender without TLS (deploy/scheduler-plain).")
@click.option("--ca", metavar="FILE", help="The CA of the extender's certificate, as kube-scheduler sees the file.")
@click.option("--certificate", default="", metavar="FILE", help="The certificate kube-scheduler shows to the extender.")
@click.option("--key", default="", metavar="FILE", help="The key of that certificate.")
@click.option(
    "--rotate-client",
    is_flag=True,
    help="First make kube-scheduler's certificate anew. The one before counts until the new one is used.",
)
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--namespace", "-n", default="", help="Where Shoal is installed; else found, or kube-system.")
@click.option("--secret", metavar="NAMESPACE/NAME", help="The Secret of the extender's certificates, if not the usual.")
@click.option(
    "--weight", type=click.IntRange(1, 1000), help="How much Shoal's scores count beside kube-scheduler's own."
)
def kube_scheduler(
    version: str,
    mode: str,
    url: str | None,
    plain: bool,
    ca: str | None,
    certificate: str,
    key: str,
    rotate_client: bool,
    kubeconfig: Path | None,
    context: str,
    namespace: str,
    secret: str | None,
    weight: int | None,
) -> None:
    """Print the configuration with which the stock kube-scheduler asks Shoal about pods that want GPUs.

    It holds kube-scheduler's certificate and key, from the Secret that the extender keeps them in, so whoever runs this
    must be allowed to read that. The comments say what to do with it. For releases up to 1.21 it is JSON, and the steps
    go to standard error. For a second scheduler the certificates are files, which its pods mount from the Secret.

    \b
    Examples:
      shoal config kube-scheduler --for 1.36
      shoal config kube-scheduler --for 1.36 --rotate-client
      shoal config kube-scheduler --for 1.36 --plain           to an extender without TLS
    """
    from shoal.http.errors import TlsError
    from shoal.kube.errors import KubeError
    from shoal.model.contract import gpushare
    from shoal.scheduler.errors import ConfigurationError
    from shoal.scheduler.kube_scheduler import (
        MOUNTED,
        WEIGHT,
        ClientTls,
        ConfigForm,
        InlineClientTls,
        SchedulerMode,
        configuration,
        form_for,
        instructions,
    )

    if (certificate or key) and not (ca and certificate and key):
        raise click.UsageError("--certificate and --key go together, and with --ca.")
    if plain and (ca or rotate_client):
        raise click.UsageError("--plain goes with no certificates.")
    if ca and rotate_client:
        raise click.UsageError("--rotate-client changes the extender's own Secret: it goes without --ca.")
    try:
        form = form_for(version)
        tls: ClientTls | InlineClientTls | None = None
        if ca:
            tls = ClientTls(ca, certificate, key)
        elif not plain and SchedulerMode(mode) is SchedulerMode.SECOND and not rotate_client:
            tls = MOUNTED
        elif not plain:
            tls = asyncio.run(_client_half(kubeconfig, context, namespace, secret, rotate=rotate_client))
            tls = MOUNTED if SchedulerMode(mode) is SchedulerMode.SECOND else tls
        text = configuration(
            version,
            mode=SchedulerMode(mode),
            url=url,
            tls=tls,
            weight=weight or WEIGHT,
            namespace=namespace or gpushare.EXTENDER_NAMESPACE,
        )
        if form is ConfigForm.POLICY:
            click.echo(
                instructions(version, mode=SchedulerMode(mode), secret=isinstance(tls, InlineClientTls)), err=True
            )
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    except (KubeError, TlsError) as error:
        raise click.ClickException(f"kube-scheduler's certificate cannot be had: {error}") from error
    click.echo(text, nl=False)


async def _client_half(
    kubeconfig: Path | None, context: str, namespace: str, secret: str | None, *, rotate: bool
) -> InlineClientTls:
    """kube-scheduler's half of the extender's certificates, made anew first if asked for."""
    from shoal.analysis.installed import namespace_of
    from shoal.http.errors import TlsError
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.client import Client
    from shoal.scheduler.certificates import BundleSecret
    from shoal.scheduler.config import SECRET
    from shoal.scheduler.kube_scheduler import InlineClientTls

    access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
    async with Client(access) as client:
        place, _, name = (secret or SECRET).rpartition("/")
        place = place or namespace or await namespace_of(client)
        kept = BundleSecret(client, namespace=place, name=name, now=lambda: datetime.now(UTC))
        bundle = await (kept.rotate_client() if rotate else kept.read())
    if bundle is None:
        raise TlsError(
            f"Secret {place}/{name} holds none yet: start the scheduler first, or use --plain for one without TLS"
        )
    return InlineClientTls(bundle.authority.certificate, bundle.client.certificate, bundle.client.key)
