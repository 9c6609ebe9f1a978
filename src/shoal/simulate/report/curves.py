"""What the plots show, as numbers: means and extremes over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from shoal.simulate.churn import WARM_UP, ChurnResult
from shoal.simulate.cluster import Idle
from shoal.simulate.report.records import Results
from shoal.simulate.scenario import Churn
from shoal.simulate.static import MARKS, Fill, StaticResult


@dataclass(frozen=True, slots=True)
class Curve:
    """The allocation in % along x, the arrived demand in % or the time: mean, least and most over the seeds."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """One workload: for each policy a curve, the reported allocation and the idle GPUs.

    `churn` is None without departures; then the reported allocation is that at the last mark.
    """

    workload: str
    seeds: int
    churn: Churn | None
    curves: dict[str, Curve]
    allocated: dict[str, float]
    idle: dict[str, Idle]


def pictures(results: Results) -> list[Picture]:
    """The pictures, one for each workload."""
    found = []
    for workload in dict.fromkeys(run.workload for run in results):
        runs = [run for run in results if run.workload == workload]
        by_policy = {
            name: [run for run in runs if run.policy == name] for name in dict.fromkeys(r.policy for r in runs)
        }
        found.append(
            Picture(
                workload,
                len({run.seed for run in runs}),
                next((run.churn for run in runs if isinstance(run, ChurnResult)), None),
                {policy: curve([_points(run) for run in own]) for policy, own in by_policy.items()},
                {policy: fmean([_allocated(run) for run in own]) for policy, own in by_policy.items()},
                {policy: mean_idle([idle for run in own for idle in _idle(run)]) for policy, own in by_policy.items()},
            )
        )
    return found


def curve(runs: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """One curve out of the points of several runs. Between its points a run stays where it was."""
    x = tuple(sorted({at for points in runs for at, _ in points}))
    lines = [_at_each(dict(points), x) for points in runs]
    values = list(zip(*lines, strict=True))
    return Curve(x, tuple(map(fmean, values)), tuple(map(min, values)), tuple(map(max, values)))


def _at_each(points: Mapping[float, float], x: Iterable[float]) -> list[float]:
    values, last = [], 0.0
    for at in x:
        last = points.get(at, last)
        values.append(last)
    return values


def mean_idle(samples: Sequence[Idle]) -> Idle:
    if not samples:
        return Idle(0.0, 0.0, 0.0)
    return Idle(
        fmean([sample.shares for sample in samples]),
        fmean([sample.no_cpu for sample in samples]),
        fmean([sample.usable for sample in samples]),
    )


def _points(run: StaticResult | ChurnResult) -> list[tuple[float, float]]:
    if isinstance(run, StaticResult):
        return [(float(fill.arrived), fill.allocated) for fill in run.fills]
    return [(span.end, span.allocated) for span in run.spans]


def _allocated(run: StaticResult | ChurnResult) -> float:
    return run.alloc_130 if isinstance(run, StaticResult) else run.alloc_mean


def _idle(run: StaticResult | ChurnResult) -> Iterable[Idle]:
    """What is idle when 100 % have arrived, or after the warm-up."""
    if isinstance(run, StaticResult):
        before: list[Fill] = [fill for fill in run.fills if fill.arrived <= MARKS[0]]
        return [fill.idle for fill in before[-1:]]
    return [span.idle for span in run.spans[WARM_UP:]]
