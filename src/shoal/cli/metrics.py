"""`shoal metrics`: run the collector of a node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli import settings
from shoal.cli.service import until_ended
from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.metrics.exporter.settings import DCGM_SETTINGS, ExporterSettings, interval_seconds, with_environment
from shoal.model.contract import gpushare

if TYPE_CHECKING:
    from shoal.metrics.config import MetricsConfig

_FILE = click.Path(path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


def _dcgm_flags(command: F) -> F:
    """dcgm-exporter's flags, for what starts it today. They reach the command under the names of its variables."""
    for setting in DCGM_SETTINGS:
        names = [f"--{setting.flag}", *([f"-{setting.short}"] if setting.short else [])]
        optional: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if setting.switch else {}
        command = click.option(*names, setting.variable.lower(), hidden=True, **optional)(command)
    return command


@click.command(short_help="Run the collector: what cards and containers really use.")
@click.option("--config", "path", type=_FILE, metavar="FILE", help="Settings in YAML; flags win.")
@click.option("--kubeconfig", type=_FILE, metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--node-name", envvar=gpushare.ENV_NODE_NAME, metavar="NAME", help="The node this runs on.")
@settings.memory_unit()
@click.option("--interval-seconds", type=float, metavar="S", help="How often the cards are read.")
@click.option("--proc-root", metavar="DIR", help="Where the host's /proc is seen.")
@click.option("--cgroup-root", metavar="DIR", help="Where the host's cgroups are seen.")
@_dcgm_flags
@settings.log_level
def metrics(path: Path | None, kubeconfig: Path | None, context: str, log_level: str, **flags: object) -> None:
    """Run the collector of a node: it reads the cards, tells whose their use is, and gives that to whoever asks.

    \b
    Examples:
      shoal metrics --node-name gpu-1                            in a pod, or with ~/.kube/config
      shoal metrics --node-name gpu-1 --proc-root /host/proc     where the host's /proc is mounted
      shoal metrics --node-name gpu-1 -f counters.csv            dcgm-exporter's flags and variables are taken too
    """
    from shoal.gpu.nvml import open_nvml
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError
    from shoal.metrics import app
    from shoal.metrics.config import MetricsConfig

    settings.log_at(log_level)
    given = {setting.variable: flags.pop(setting.variable.lower()) for setting in DCGM_SETTINGS}
    environment = {
        **os.environ,
        **{name: str(text).removeprefix("=") for name, text in given.items() if text is not None},
    }
    try:
        config = settings.load(MetricsConfig, path, flags, command="metrics")
        config = _with_dcgm(config, environment, interval_given=flags["interval_seconds"] is not None)
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
    except (settings.ServiceSettingsError, ExporterConfigError, KubeError) as error:
        raise click.ClickException(str(error)) from error
    asyncio.run(until_ended(app.run(config, access, open_nvml)))


def _with_dcgm(config: MetricsConfig, environment: Mapping[str, str], *, interval_given: bool) -> MetricsConfig:
    """The settings with what dcgm-exporter's variables say, and with its port."""
    import msgspec

    exporter = with_environment(config.exporter or ExporterSettings(), environment)
    interval = None if interval_given else interval_seconds(environment)
    return msgspec.structs.replace(
        config, exporter=exporter, interval_seconds=config.interval_seconds if interval is None else interval
    )
