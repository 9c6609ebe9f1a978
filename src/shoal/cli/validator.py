"""`shoal validator`: check a node's driver, runtime and plugin, or wait until they are ready."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from shoal.cli import settings
from shoal.cli.service import until_ended
from shoal.model.contract import gpushare, nvidia

_FILE = click.Path(path_type=Path)
_FOLDER = click.option("--validations", metavar="DIR", help=f"The files of readiness; {nvidia.VALIDATIONS_DIRECTORY}.")


_CONFIG = click.option("--config", "path", type=_FILE, metavar="FILE", help="Settings in YAML; flags win.")
_HOST = click.option("--host", help="Where probes are answered.")
_PORT = click.option("--port", type=int, help="Their port; none, no probes.")
_INTERVAL = click.option(
    "--interval-seconds", type=float, metavar="S", help="How often a step that is ready is looked at again."
)
_ANSWER = click.option("--answer-seconds", type=float, metavar="S", help="How long an answer of the driver may take.")
_GRACE = click.option(
    "--grace-seconds", type=float, metavar="S", help="How long a step that was ready must fail before it is not."
)
_REMOVE = click.option(
    "--remove-on-exit/--keep-on-exit",
    default=None,
    help="Whether the files go when this ends; pods that run need none of them.",
)


@click.group(short_help="Check driver, runtime and plugin of a node, or wait until they are ready.")
def validator() -> None:
    """Check a node step by step, and write NVIDIA's files of readiness, for which its images and Shoal's pods wait.

    \b
    Examples:
      shoal validator node --node-name gpu-1     driver and plugin; tells the node's state
      shoal validator runtime                    in a pod under the runtime class: what the runtime brings
      shoal validator wait toolkit-ready         ends when the file is there
    """


@validator.command(short_help="Wait for files of readiness.")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@_FOLDER
@settings.log_level
def wait(names: tuple[str, ...], validations: str | None, log_level: str) -> None:
    """Wait until files such as toolkit-ready are there and count; what is missing is said once a minute."""
    from shoal.validator.files import ValidationFiles, checked_name
    from shoal.validator.waiting import wait_for

    settings.log_at(log_level)
    try:
        for name in names:
            checked_name(name)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    files = ValidationFiles(Path(validations or nvidia.VALIDATIONS_DIRECTORY))

    there = False

    async def arrive() -> None:
        nonlocal there
        await wait_for(files, names)
        there = True

    asyncio.run(until_ended(arrive()))
    if not there:
        raise click.ClickException(f"told to end before {', '.join(names)}")


@validator.command(short_help="Check driver and plugin of a node.")
@_CONFIG
@click.option("--kubeconfig", type=_FILE, metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--node-name", envvar=gpushare.ENV_NODE_NAME, metavar="NAME", help="The node this runs on.")
@_FOLDER
@click.option("--host-root", metavar="DIR", help="Where this process sees the node's root.")
@click.option("--root-path", metavar="DIR", help="Which folder of the node that is; / unless given.")
@click.option("--driver-root", metavar="DIR", help="Where this process sees the root of a driver container.")
@click.option("--driver-install-dir", metavar="DIR", help="Where that is on the node.")
@click.option(
    "--driver-container/--no-driver-container",
    default=None,
    help="Whether a driver there counts only while its container says that it is ready.",
)
@_INTERVAL
@_ANSWER
@_GRACE
@_HOST
@_PORT
@_REMOVE
@settings.log_level
def node(path: Path | None, kubeconfig: Path | None, context: str, log_level: str, **flags: object) -> None:
    """Keep driver-ready and plugin-ready at what is true, and tell the node's state in shoal.dev/validation."""
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError
    from shoal.validator import app
    from shoal.validator.capabilities import SYS_CHROOT, keep_only
    from shoal.validator.config import ValidatorConfig
    from shoal.validator.errors import ValidatorError

    settings.log_at(log_level)
    keep_only(SYS_CHROOT)
    try:
        config = settings.load(ValidatorConfig, path, flags, command="validator node")
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
        asyncio.run(until_ended(app.run_node(config, access)))
    except (settings.ServiceSettingsError, ValidatorError, KubeError) as error:
        raise click.ClickException(str(error)) from error


@validator.command(short_help="Check what the runtime brings, in a pod under its class.")
@_CONFIG
@_FOLDER
@click.option("--cuda/--no-cuda", default=None, envvar="SHOAL_CUDA", help="Whether CUDA is asked too.")
@click.option("--restart-seconds", type=float, metavar="S", help="End after so long without success, to start anew.")
@_INTERVAL
@_ANSWER
@_GRACE
@_HOST
@_PORT
@_REMOVE
@settings.log_level
def runtime(path: Path | None, log_level: str, **flags: object) -> None:
    """Keep toolkit-ready and cuda-ready at what is true of a container of this one's runtime class."""
    from shoal.validator import app
    from shoal.validator.config import ValidatorConfig
    from shoal.validator.errors import ValidatorError

    settings.log_at(log_level)
    try:
        config = settings.load(ValidatorConfig, path, flags, command="validator runtime")
        asyncio.run(until_ended(app.run_runtime(config)))
    except (settings.ServiceSettingsError, ValidatorError) as error:
        raise click.ClickException(str(error)) from error
