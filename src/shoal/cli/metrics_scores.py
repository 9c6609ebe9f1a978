"""`shoal metrics-scores`: scores of nodes and cards for KETI's scheduler."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from shoal.cli import settings
from shoal.cli.service import until_ended


@click.command(name="metrics-scores", short_help="Run KETI's analysis engine: scores of all nodes and cards.")
@click.option("--config", "path", type=click.Path(path_type=Path), metavar="FILE", help="Settings in YAML; flags win.")
@click.option(
    "--collector",
    "collectors",
    multiple=True,
    metavar="HOST:PORT",
    help="A collector, or a name that stands for many, such as that of a headless Service. Repeat it for more.",
)
@click.option("--host", metavar="ADDRESS", help="Where to listen; all addresses unless given.")
@click.option("--port", type=int, metavar="N", help="The port, 9322 unless given.")
@settings.log_level
def metrics_scores(path: Path | None, log_level: str, collectors: tuple[str, ...], **flags: object) -> None:
    """Answer score.MetricGRPC/GetScore from what all collectors tell by GetMultiMetric.

    Plain text, and it asks nobody who he is, as KETI's clients know it: keep it inside the cluster's network.

    \b
    Examples:
      shoal metrics-scores --collector gpu-metric-collector.gpu:9323     all pods behind a headless Service
      shoal metrics-scores --collector 10.0.0.7:9323 --collector 10.0.0.8:9323
    """
    from shoal.metrics.keti_engine import ScoreEngine
    from shoal.metrics.keti_settings import KetiScoresSettings

    settings.log_at(log_level)
    try:
        config = settings.load(KetiScoresSettings, path, {**flags, "collectors": collectors}, command="metrics-scores")
    except settings.ServiceSettingsError as error:
        raise click.ClickException(str(error)) from error
    asyncio.run(until_ended(ScoreEngine(config).run()))
