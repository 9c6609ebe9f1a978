"""Many runs over several processes: every workload under every policy with every seed.

A run depends on nothing but its task, so the results are the same for any number of processes; they come back in the
order of the tasks. With one process all is done in this one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from shoal.model.gpu import NodeGpus
from shoal.simulate.churn import ChurnResult, admitted, run_churn
from shoal.simulate.errors import RunError, SettingsError
from shoal.simulate.scenario import Churn, Start, check_lifetimes
from shoal.simulate.static import StaticResult, run_static
from shoal.simulate.trace import Workload

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Task:
    """One run: all it needs to know."""

    nodes: tuple[NodeGpus, ...]
    workload: Workload
    policy: str
    seed: int
    churn: Churn | None = None
    #: The numbers of the starting pods that may be there; None leaves it to the policy.
    start: frozenset[int] | None = None

    @property
    def name(self) -> str:
        return f"{self.workload.name} {self.policy} seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after each finished run: which, how long it took, how many of how many are done."""

    name: str
    seconds: float
    done: int
    total: int


#: Is told how far the runs are.
Listener = Callable[[Progress], None]
#: Told of each finished task and its seconds.
Count = Callable[[Task, float], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared: every workload under every policy with every seed."""

    nodes: tuple[NodeGpus, ...]
    workloads: tuple[Workload, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        names = [workload.name for workload in self.workloads]
        twins = sorted({name for name in names if names.count(name) > 1})
        if twins:
            raise SettingsError(f"more than one pod list is called {', '.join(twins)}: rename a file")

    def tasks(self, churn: Churn | None = None) -> list[Task]:
        return [
            Task(self.nodes, workload, policy, seed, churn)
            for workload in self.workloads
            for seed in self.seeds
            for policy in self.policies
        ]


def processors() -> int:
    """How many processes can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compare_static(comparison: Comparison, processes: int, listener: Listener) -> list[StaticResult]:
    """All runs without departures."""
    tasks = comparison.tasks()
    return run_tasks(_static, tasks, processes, _Count(len(tasks), listener))


def compare_churn(comparison: Comparison, churn: Churn, processes: int, listener: Listener) -> list[ChurnResult]:
    """All runs with departures; from the same start, if asked for, after finding what each policy admits."""
    for workload in comparison.workloads:
        check_lifetimes(workload, churn.lifetimes)
    tasks = comparison.tasks(churn)
    if churn.start is not Start.SAME:
        return run_tasks(_churn, tasks, processes, _Count(len(tasks), listener))
    count = _Count(2 * len(tasks), listener)
    starts = run_tasks(_admitted, tasks, processes, count)
    return run_tasks(_churn, same_start(tasks, starts), processes, count)


def same_start(tasks: Sequence[Task], admissions: Sequence[frozenset[int]]) -> list[Task]:
    """The tasks, each limited to the starting pods that all policies of its workload and seed admit."""
    common: dict[tuple[str, int], frozenset[int]] = {}
    for task, numbers in zip(tasks, admissions, strict=True):
        key = (task.workload.name, task.seed)
        common[key] = common.get(key, numbers) & numbers
    return [replace(task, start=common[task.workload.name, task.seed]) for task in tasks]


def run_tasks(function: Callable[[Task], R], tasks: Sequence[Task], processes: int, count: Count) -> list[R]:
    """The function of every task, in order. `function` must be one that another process can import."""
    if processes < 1:
        raise SettingsError(f"{processes} processes: use 1 or more")
    if min(processes, len(tasks)) <= 1:
        return [_here(function, task, count) for task in tasks]
    return _spread(function, tasks, min(processes, len(tasks)), count)


# What a process does


def _timed(function: Callable[[Task], R], task: Task) -> tuple[R, float]:
    begin = time.perf_counter()
    result = function(task)
    return result, time.perf_counter() - begin


def _static(task: Task) -> StaticResult:
    return run_static(task.nodes, task.workload, task.policy, task.seed)


def _churn(task: Task) -> ChurnResult:
    return run_churn(task.nodes, task.workload, task.policy, task.seed, _settings(task), task.start)


def _admitted(task: Task) -> frozenset[int]:
    return admitted(task.nodes, task.workload, task.policy, task.seed, _settings(task))


def _settings(task: Task) -> Churn:
    if task.churn is None:
        raise SettingsError(f"{task.name}: a run with departures needs settings for them")
    return task.churn


# How the processes are driven


class _Count:
    """Counts finished runs for a listener."""

    def __init__(self, total: int, listener: Listener) -> None:
        self._done = 0
        self._total = total
        self._listener = listener

    def __call__(self, task: Task, seconds: float) -> None:
        self._done += 1
        self._listener(Progress(task.name, seconds, self._done, self._total))


def _here(function: Callable[[Task], R], task: Task, count: Count) -> R:
    try:
        result, seconds = _timed(function, task)
    except Exception as error:
        raise _failed(task, error) from error
    count(task, seconds)
    return result


def _spread(function: Callable[[Task], R], tasks: Sequence[Task], processes: int, count: Count) -> list[R]:
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        with _interrupts_stay_here():
            futures = [pool.submit(_timed, function, task) for task in tasks]
        results = _collect(dict(zip(futures, tasks, strict=True)), count)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    pool.shutdown()
    return [results[future] for future in futures]


def _collect(tasks: dict[Future[tuple[R, float]], Task], count: Count) -> dict[Future[tuple[R, float]], R]:
    results: dict[Future[tuple[R, float]], R] = {}
    for future in as_completed(tasks):
        error = future.exception()
        if error is not None:
            raise _failed(tasks[future], error) from error
        result, seconds = future.result()
        results[future] = result
        count(tasks[future], seconds)
    return results


def _failed(task: Task, error: BaseException) -> RunError:
    if isinstance(error, BrokenProcessPool):
        return RunError(f"{task.name}: its process was killed, perhaps for want of memory: try --jobs 1")
    return RunError(
        f"{task.name} failed: {type(error).__name__}: {error}", "".join(traceback.format_exception(error)).rstrip()
    )


@contextmanager
def _interrupts_stay_here() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C, which a terminal sends to all: this one ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
