"""`shoal simulate`: compare placement policies on a trace."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shoal.simulate.report import Results
    from shoal.simulate.runs import Comparison, Listener, Progress
    from shoal.simulate.scenario import Churn


#: More seeds than this are a slip of the finger.
MOST_SEEDS = 10_000


def names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """`a,b,c`, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not found:
        raise click.BadParameter(f"{value!r} names nothing: separate names by commas.", ctx, param)
    return found


def seeds(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """`42-51`, `42,43`, or a mixture; each once, in the order given."""
    found: dict[int, None] = {}
    for part in value.split(","):
        try:
            found.update(dict.fromkeys(_seeds(part)))
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error
    return tuple(found)


def _seeds(part: str) -> range:
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
    if match is None:
        raise ValueError(f"{part!r} is no seed: write a number, a range such as 42-51, or several with commas.")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{part!r} runs backwards: write {last}-{first}.")
    if last - first >= MOST_SEEDS:
        raise ValueError(f"{part!r} is more than {MOST_SEEDS} seeds: write a shorter range.")
    return range(first, last + 1)


def positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """A number above 0."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise click.BadParameter(f"{value:g} is not a number above 0: write one such as 0.95.", ctx, param)
    return value


_BAR = 30


@contextmanager
def listening(*, quiet: bool) -> Iterator[Listener]:
    """A listener for the runs inside."""
    if quiet:
        yield _silence
    elif sys.stderr.isatty():
        try:
            yield _draw
        finally:
            click.echo("\r\x1b[K", nl=False, err=True)
    else:
        yield _line


def _silence(progress: Progress) -> None:
    pass


def _line(progress: Progress) -> None:
    click.echo(f"{progress.done}/{progress.total} {progress.name}: {progress.seconds:.1f} s", err=True)


def _draw(progress: Progress) -> None:
    filled = _BAR * progress.done // progress.total
    bar = "█" * filled + "░" * (_BAR - filled)
    click.echo(f"\r\x1b[K{bar} {progress.done}/{progress.total}  {progress.name}", nl=False, err=True)


FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Compare placement policies on a trace of pods.")
@click.option(
    "--nodes",
    required=True,
    type=FILE,
    help="The nodes: a CSV file with the columns sn, cpu_milli, memory_mib, gpu and model.",
)
@click.option(
    "--pods",
    required=True,
    multiple=True,
    type=FILE,
    help="A workload: a CSV file with the columns name, cpu_milli, memory_mib, num_gpu, gpu_milli and, if wanted,"
    " gpu_spec, creation_time and deletion_time. May be given more than once.",
)
@click.option(
    "--policy",
    "policies",
    callback=names,
    metavar="NAME,…",
    default="fragmentation,fgd,best-fit",
    show_default=True,
    help="The policies to compare, separated by commas, among fragmentation, binpack, spread, topology, keti, best-fit,"
    " dot-product, gpu-packing, gpu-clustering, random, and fgd, which is told the workload beforehand.",
)
@click.option(
    "--seeds",
    callback=seeds,
    metavar="SEEDS",
    default="42-51",
    show_default=True,
    help="One run for each: 42-51, or 42,43, or both.",
)
@click.option(
    "--lifetimes",
    type=click.Choice(["exp", "trace"]),
    help="Let pods leave again: after exponential lifetimes, or after those of the trace.",
)
@click.option(
    "--load",
    type=float,
    callback=positive,
    help="The GPU demand that pods offer, as a part of the capacity.  [default: 0.95]",
)
@click.option(
    "--mode",
    type=click.Choice(["loss", "queue"]),
    help="A pod that does not fit leaves, or waits and is tried again at each departure.  [default: loss]",
)
@click.option(
    "--start",
    type=click.Choice(["own", "same"]),
    help="Lifetimes of the trace: start from the pods that the policy admits, or from those that all compared policies"
    " admit.  [default: own]",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write plots and an HTML page into this folder."
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to use.  [default: one per processor]")
@click.option("--quiet", is_flag=True, help="Do not tell how far the runs are.")
def simulate(
    nodes: Path,
    pods: tuple[Path, ...],
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
    lifetimes: str | None,
    load: float | None,
    mode: str | None,
    start: str | None,
    out: Path | None,
    form: str,
    jobs: int | None,
    quiet: bool,
) -> None:
    """Replay pods on a simulated cluster under several placement policies, and compare how well each fills the GPUs.

    Without --lifetimes no pod leaves: they arrive in random order until the demand is 1.3 times the capacity, and the
    GPUs allocated when 100 % and 130 % have arrived are reported. With --lifetimes pods come and go, and the mean
    allocation and the refused demand (or the waiting) are reported.

    \b
    Which policy fills the cluster best?
      shoal simulate --nodes nodes.csv --pods pods.csv --policy fragmentation,fgd,binpack --seeds 42-51

    \b
    And when pods leave again? With plots:
      shoal simulate --nodes nodes.csv --pods pods.csv --lifetimes exp --load 0.95 --out report

    \b
    nodes.csv                              pods.csv
      sn,cpu_milli,memory_mib,gpu,model      name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
      n1,64000,262144,4,T4                   a,8000,16384,1,1000,
      n2,96000,393216,8,A100                 b,4000,8192,1,500,T4|A100
    """
    from shoal.simulate.errors import RunError, SettingsError, SimulateError, TraceError

    try:
        comparison = _comparison(nodes, pods, policies, seeds)
        churn = _churn(lifetimes, load, mode, start)
        if out is not None:
            _check_plots(out)
        results = _run(comparison, churn, jobs, quiet=quiet)
        _tell(results, form)
        if out is not None:
            _plot(results, out)
    except (TraceError, SettingsError) as error:
        raise click.UsageError(str(error)) from error
    except RunError as error:
        click.echo(error.details, err=True)
        raise click.ClickException(str(error)) from error
    except SimulateError as error:
        raise click.ClickException(str(error)) from error


def _comparison(nodes: Path, pods: tuple[Path, ...], policies: tuple[str, ...], seeds: tuple[int, ...]) -> Comparison:
    from shoal.simulate.cluster import check_policy
    from shoal.simulate.runs import Comparison
    from shoal.simulate.trace import read_nodes, read_workload

    for name in policies:
        check_policy(name)
    cluster = read_nodes(nodes)
    return Comparison(cluster, tuple(read_workload(path, cluster) for path in pods), policies, seeds)


def _churn(lifetimes: str | None, load: float | None, mode: str | None, start: str | None) -> Churn | None:
    from shoal.simulate.scenario import DEFAULT_LOAD, Churn, ChurnMode, Lifetimes, Start

    if lifetimes is None:
        for option, value in (("--load", load), ("--mode", mode), ("--start", start)):
            if value is not None:
                raise click.UsageError(
                    f"{option} {value} is for runs in which pods leave: add --lifetimes exp or trace."
                )
        return None
    if lifetimes == Lifetimes.EXP and start is not None:
        raise click.UsageError(f"--start {start}: a run with --lifetimes exp starts empty: drop it, or use trace.")
    return Churn(
        Lifetimes(lifetimes),
        DEFAULT_LOAD if load is None else load,
        ChurnMode(mode or ChurnMode.LOSS),
        Start(start or Start.OWN),
    )


def _run(comparison: Comparison, churn: Churn | None, jobs: int | None, *, quiet: bool) -> Results:
    from shoal.simulate.runs import compare_churn, compare_static, processors

    processes = processors() if jobs is None else jobs
    with listening(quiet=quiet) as listener:
        if churn is None:
            return compare_static(comparison, processes, listener)
        return compare_churn(comparison, churn, processes, listener)


def _tell(results: Results, form: str) -> None:
    from shoal.simulate.report import as_json, table

    click.echo(as_json(results) if form == "json" else table(results))


def _check_plots(out: Path) -> None:
    """Before long runs: is all there that the plots need?"""
    import shoal.simulate.plots  # noqa: F401

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--out {out}: cannot be made ({error.strerror}): name another folder.") from error


def _plot(results: Results, out: Path) -> None:
    from shoal.simulate.plots import write_report

    page = write_report(results, out)
    click.echo(f"plots: {page}", err=True)
