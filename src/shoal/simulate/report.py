"""Results as a table and as JSON. A cell of the table is the mean over the seeds ± their standard deviation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from shoal.simulate.churn import ChurnResult, Wait
from shoal.simulate.scenario import Churn, ChurnMode, Lifetimes
from shoal.simulate.static import StaticResult

Results = Sequence[StaticResult] | Sequence[ChurnResult]
Result = TypeVar("Result", bound=StaticResult | ChurnResult)
Object = dict[str, object]

#: Between two columns.
_GAP = "   "


# The table


@dataclass(frozen=True, slots=True)
class Section:
    """One table: a title, the heads of its columns, and its rows."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(results: Results) -> list[Section]:
    """The tables that tell these results."""
    static = [result for result in results if isinstance(result, StaticResult)]
    if static:
        return [
            _section(static, "GPUs allocated, %, when 100 % of the capacity has arrived", lambda run: run.alloc_100),
            _section(static, "GPUs allocated, %, when 130 % of the capacity has arrived", lambda run: run.alloc_130),
        ]
    return _churn_sections([result for result in results if isinstance(result, ChurnResult)])


def _churn_sections(results: list[ChurnResult]) -> list[Section]:
    if not results:
        return []
    allocated = _section(results, "GPUs allocated, %", lambda run: run.alloc_mean)
    if results[0].churn.mode is ChurnMode.LOSS:
        return [allocated, _section(results, "refused, % of the arriving GPU demand", lambda run: run.refused_pct)]
    pending = _section(results, "GPUs waited for", lambda run: run.pending_gpus_mean)
    return [allocated, pending, _waits_section(results)]


def _section(results: Sequence[Result], title: str, value: Callable[[Result], float]) -> Section:
    policies, workloads = _names(results)
    rows = [
        (workload, *(_cell([value(run) for run in _of(results, workload, policy)]) for policy in policies))
        for workload in workloads
    ]
    if len(workloads) > 1:
        means = [fmean([value(run) for run in results if run.policy == policy]) for policy in policies]
        rows.append(("mean", *(f"{mean:.2f}" for mean in means)))
    return Section(title, ("workload", *policies), tuple(rows))


def _waits_section(results: Sequence[ChurnResult]) -> Section:
    policies, workloads = _names(results)
    rows = []
    for workload in workloads:
        runs = [run for run in results if run.workload == workload]
        for size in dict.fromkeys(wait.size for run in runs for wait in run.waits):
            cells = [_wait_cell(_waits(_of(runs, workload, policy), size)) for policy in policies]
            rows.append((f"{workload}, {_SIZES.get(size, f'{size} GPUs')}", *cells))
    return Section(
        "waiting time in mean lifetimes: mean / 95 % wait no longer / still waiting at the end",
        ("workload, size", *policies),
        tuple(rows),
    )


_SIZES = {"cpu": "CPU only", "share": "share of a GPU", "1": "1 GPU"}


def _waits(runs: Sequence[ChurnResult], size: str) -> list[Wait]:
    return [wait for run in runs for wait in run.waits if wait.size == size]


def _wait_cell(waits: Sequence[Wait]) -> str:
    if not waits:
        return "–"
    still = fmean([wait.still_waiting for wait in waits])
    return f"{fmean([wait.mean for wait in waits]):.4f} / {fmean([wait.p95 for wait in waits]):.4f} / {still:.4g}"


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _names(results: Sequence[StaticResult | ChurnResult]) -> tuple[list[str], list[str]]:
    """The policies and the workloads, in the order of the runs."""
    return list(dict.fromkeys(run.policy for run in results)), list(dict.fromkeys(run.workload for run in results))


def _of(results: Sequence[Result], workload: str, policy: str) -> list[Result]:
    return [run for run in results if run.workload == workload and run.policy == policy]


def settings(results: Results) -> str:
    """One line on what was run."""
    seeds = len({run.seed for run in results})
    several = f"mean of {seeds} seeds ± standard deviation" if seeds > 1 else "one seed"
    for run in results:
        if isinstance(run, ChurnResult):
            return f"{_churn_words(run.churn)}; {several}"
    return f"without departures; {several}"


def _churn_words(churn: Churn) -> str:
    lifetimes = {
        Lifetimes.EXP: "exponential lifetimes",
        Lifetimes.TRACE: f"lifetimes of the trace, {churn.start.value} start",
    }
    refused = {ChurnMode.LOSS: "pods that do not fit leave", ChurnMode.QUEUE: "pods that do not fit wait"}
    return f"with departures: load {churn.load:g}, {lifetimes[churn.lifetimes]}, {refused[churn.mode]}"


def table(results: Results) -> str:
    """The tables as text, columns aligned."""
    return "\n\n".join([settings(results), *(_text(section) for section in sections(results))])


def _text(section: Section) -> str:
    lines = [section.heads, *section.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(section.heads))]
    return "\n".join([section.title, *(_line(line, widths) for line in lines)])


def _line(cells: tuple[str, ...], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return _GAP.join([first, *rest]).rstrip()


# JSON


def as_json(results: Results) -> str:
    """One object per run."""
    objects = [_static_object(run) if isinstance(run, StaticResult) else _churn_object(run) for run in results]
    return json.dumps(objects, indent=2)


def _static_object(run: StaticResult) -> Object:
    return {
        "workload": run.workload,
        "policy": run.policy,
        "seed": run.seed,
        "alloc_100": run.alloc_100,
        "alloc_130": run.alloc_130,
    }


def _churn_object(run: ChurnResult) -> Object:
    values: Object = {
        "workload": run.workload,
        "policy": run.policy,
        "seed": run.seed,
        "load": run.churn.load,
        "lifetimes": run.churn.lifetimes.value,
        "mode": run.churn.mode.value,
        "start": _start_of(run.churn),
        "alloc_mean": run.alloc_mean,
        "refused_pct": run.refused_pct,
        "pending_gpus_mean": run.pending_gpus_mean,
    }
    if run.churn.mode is ChurnMode.QUEUE:
        values["waiting"] = {
            wait.size: {"pods": wait.pods, "mean": wait.mean, "p95": wait.p95, "still_waiting": wait.still_waiting}
            for wait in run.waits
        }
    return values


def _start_of(churn: Churn) -> str:
    """What a run begins with: nothing when lifetimes are exponential, else the policy's `own` or the `same` start."""
    return "empty" if churn.lifetimes is Lifetimes.EXP else churn.start.value
