"""Results as JSON: one object per run."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shoal.simulate.churn import ChurnResult
from shoal.simulate.scenario import Churn, Lifetimes, Mode
from shoal.simulate.static import StaticResult

Results = Sequence[StaticResult] | Sequence[ChurnResult]
Object = dict[str, object]


def as_json(results: Results) -> str:
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
    if run.churn.mode is Mode.QUEUE:
        values["waiting"] = {
            wait.size: {"pods": wait.pods, "mean": wait.mean, "p95": wait.p95, "still_waiting": wait.still_waiting}
            for wait in run.waits
        }
    return values


def _start_of(churn: Churn) -> str:
    """What a run begins with: nothing when lifetimes are exponential, else the policy's `own` or the `same` start."""
    return "empty" if churn.lifetimes is Lifetimes.EXP else churn.start.value
