from dataclasses import replace

import pytest

from shoal.simulate.churn import admitted, run_churn
from shoal.simulate.errors import RunError, SettingsError
from shoal.simulate.runs import Comparison, Progress, Task, compare_churn, compare_static, processors, same_start
from shoal.simulate.scenario import Churn, ChurnMode, Lifetimes, Start
from shoal.simulate.static import run_static
from shoal.simulate.trace import read_nodes, read_workload
from tests.simulate.made_up import node, node_file, pod, pod_file, workload

CHURN = Churn(Lifetimes.TRACE, 1.2, ChurnMode.QUEUE, Start.SAME)


def ignore(progress: Progress) -> None:
    pass


@pytest.fixture
def comparison(tmp_path):
    nodes = read_nodes(node_file(tmp_path))
    works = (read_workload(pod_file(tmp_path), nodes), read_workload(pod_file(tmp_path, "other.csv", seed=2), nodes))
    return Comparison(nodes, works, ("fragmentation", "binpack"), (1, 2))


def test_every_workload_runs_under_every_policy_with_every_seed(comparison):
    told: list[Progress] = []
    results = compare_static(comparison, 1, told.append)
    assert [(run.workload, run.seed, run.policy) for run in results] == [
        (work, seed, policy)
        for work in ("small", "other")
        for seed in (1, 2)
        for policy in ("fragmentation", "binpack")
    ]
    assert results[1] == run_static(comparison.nodes, comparison.workloads[0], "binpack", 1)
    assert [(progress.done, progress.total) for progress in told] == [(i, 8) for i in range(1, 9)]
    assert told[0].name == "small fragmentation seed 1"


def test_results_are_the_same_for_any_number_of_processes(comparison):
    told: list[Progress] = []
    assert compare_static(comparison, 2, told.append) == compare_static(comparison, 1, ignore)
    assert sorted(progress.done for progress in told) == list(range(1, 9))


def test_runs_with_departures_are_the_same_for_any_number_of_processes(comparison):
    told: list[Progress] = []
    assert compare_churn(comparison, CHURN, 2, told.append) == compare_churn(comparison, CHURN, 1, ignore)
    assert [progress.total for progress in told] == [16] * 16


def test_the_same_start_is_what_all_policies_admit(comparison):
    nodes, work = comparison.nodes, comparison.workloads[0]
    results = compare_churn(comparison, CHURN, 1, ignore)
    both = admitted(nodes, work, "fragmentation", 2, CHURN) & admitted(nodes, work, "binpack", 2, CHURN)
    assert results[3] == run_churn(nodes, work, "binpack", 2, CHURN, both)
    own = replace(CHURN, start=Start.OWN)
    assert compare_churn(comparison, own, 1, ignore)[3] == run_churn(nodes, work, "binpack", 2, own)


def test_starts_are_shared_within_a_workload_and_seed_only():
    nodes = (node("n", 1),)
    tasks = [
        Task(nodes, workload(pod("p", 1), name=name), policy, seed)
        for name, seed in (("v", 1), ("v", 2), ("w", 1))
        for policy in ("a", "b")
    ]
    admissions = [frozenset(numbers) for numbers in ([1, 2], [2, 3], [1], [1, 4], [7], [8])]
    shared = [task.start for task in same_start(tasks, admissions)]
    assert shared == [frozenset(numbers) for numbers in ([2], [2], [1], [1], [], [])]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failing_run_names_itself(comparison, processes):
    wrong = replace(comparison, policies=("no-such",))
    with pytest.raises(RunError, match=r"(small|other) no-such seed [12] failed: .*no policy 'no-such'") as caught:
        compare_static(wrong, processes, ignore)
    assert "Traceback" in caught.value.details
    assert "policy_for" in caught.value.details


def test_two_workloads_of_one_name_are_refused(comparison):
    with pytest.raises(SettingsError, match="called small: rename"):
        replace(comparison, workloads=(comparison.workloads[0],) * 2)


def test_the_number_of_processes(comparison):
    assert processors() >= 1
    with pytest.raises(SettingsError, match="0 processes"):
        compare_static(comparison, 0, ignore)
