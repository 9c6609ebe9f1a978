"""`shoal config`: configurations of other programs that work with Shoal."""

from __future__ import annotations

import click


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
@click.option("--ca", metavar="FILE", help="The CA of the extender's certificate, as kube-scheduler sees the file.")
@click.option("--certificate", default="", metavar="FILE", help="The certificate kube-scheduler shows to the extender.")
@click.option("--key", default="", metavar="FILE", help="The key of that certificate.")
@click.option(
    "--weight", type=click.IntRange(1, 1000), help="How much Shoal's scores count beside kube-scheduler's own."
)
def kube_scheduler(
    version: str, mode: str, url: str | None, ca: str | None, certificate: str, key: str, weight: int | None
) -> None:
    """Print the configuration with which the stock kube-scheduler asks Shoal about pods that want GPUs.

    The comments in it say what to do with it. For releases up to 1.21 it is JSON, and the steps go to standard error.
    """
    from shoal.scheduler.kube_scheduler import (
        WEIGHT,
        ConfigurationError,
        Form,
        Mode,
        Tls,
        configuration,
        form_for,
        instructions,
    )

    if (certificate or key) and not (ca and certificate and key):
        raise click.UsageError("--certificate and --key go together, and with --ca.")
    try:
        text = configuration(
            version,
            mode=Mode(mode),
            url=url,
            tls=Tls(ca, certificate, key) if ca else None,
            weight=weight or WEIGHT,
        )
        if form_for(version) is Form.POLICY:
            click.echo(instructions(version, mode=Mode(mode)), err=True)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    click.echo(text, nl=False)
