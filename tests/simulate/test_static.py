from collections import defaultdict
from random import Random

import pytest

from shoal.model.gpu import NodeGpus
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import policy_named
from shoal.simulate.cluster import POLICY_NAMES
from shoal.simulate.static import Fill, allocation_at, arrivals, run_static
from shoal.simulate.trace import Workload, capacity_milli, read_nodes, read_workload
from tests.simulate.made_up import node, node_file, pod, pod_file, workload


@pytest.fixture
def small(tmp_path):
    nodes = read_nodes(node_file(tmp_path))
    return nodes, read_workload(pod_file(tmp_path), nodes)


def test_every_pod_arrives_then_clones_until_the_next_would_pass_the_limit(small):
    nodes, work = small
    capacity = capacity_milli(nodes)
    for seed in range(20):
        pods = arrivals(work, capacity, Random(seed))
        own = len(work.pods)
        assert sorted(item.name for item in pods[:own]) == [item.name for item in work.pods]
        assert set(pods[own:]) <= set(work.pods)
        assert sum(item.gpu_milli for item in pods) <= 1.3 * capacity
        assert sum(item.gpu_milli for item in pods) > 1.3 * capacity - 4000


def test_the_clone_that_would_pass_ends_the_list_even_if_another_would_fit():
    work = workload(pod("big", 4), pod("small", 1))
    lists = [arrivals(work, 10_000, Random(seed)) for seed in range(50)]
    demands = {sum(item.gpu_milli for item in pods) for pods in lists}
    assert max(demands) == 13_000
    assert min(demands) < 13_000
    assert all(sum(item.gpu_milli for item in pods) >= 10_000 for pods in lists)


def test_a_trace_larger_than_the_limit_gets_no_clones():
    work = workload(*(pod(f"p{i}", 1) for i in range(40)))
    assert len(arrivals(work, 10_000, Random(0))) == 40


def test_clones_are_drawn_uniformly():
    work = workload(pod("a", 1), pod("b", 1), pod("cpu", 0))
    names = [item.name for item in arrivals(work, 2_000_000, Random(5))[3:]]
    assert len(names) == pytest.approx(2600 * 1.5, rel=0.05)
    assert names.count("a") == pytest.approx(len(names) / 3, rel=0.1)
    assert names.count("cpu") == pytest.approx(len(names) / 3, rel=0.1)


def plainly(nodes: tuple[NodeGpus, ...], work: Workload, name: str, seed: int) -> tuple[float, float]:
    """The protocol once more, written down in the shortest way."""
    rng = Random(seed)
    pods = sorted(work.pods, key=lambda item: item.name)
    rng.shuffle(pods)
    capacity = sum(len(item.gpus) for item in nodes) * 1000
    while True:
        clone = work.pods[rng.randrange(len(work.pods))]
        if sum(item.gpu_milli for item in pods) + clone.gpu_milli > 1.3 * capacity:
            break
        pods.append(clone)
    order = list(nodes)
    rng.shuffle(order)
    ledger = Ledger()
    for inventory in order:
        ledger.set_inventory(inventory)
    engine = Engine(ledger, policy_named(name), rng=rng)
    seen = defaultdict(list)
    arrived = allocated = 0
    for i, item in enumerate(pods):
        arrived += item.gpu_milli
        if engine.place(f"pod {i}", item.request):
            allocated += item.gpu_milli
        seen[round(arrived / capacity * 100)].append(allocated / capacity * 100)
    return sum(seen[100]) / len(seen[100]), sum(seen[130]) / len(seen[130])


@pytest.mark.parametrize("policy", ["fragmentation", "binpack", "random"])
def test_the_metric_is_that_of_a_plain_replay(small, policy):
    nodes, work = small
    seed = next(seed for seed in range(1, 100) if _has_both(work, nodes, seed))
    result = run_static(nodes, work, policy, seed)
    assert (result.alloc_100, result.alloc_130) == pytest.approx(plainly(nodes, work, policy, seed))


def _has_both(work, nodes, seed):
    """Whether arrivals fall on both marks: in so small a cluster one may leap over them."""
    arrived, seen = 0, set()
    for item in arrivals(work, capacity_milli(nodes), Random(seed)):
        arrived += item.gpu_milli
        seen.add(round(100 * arrived / capacity_milli(nodes)))
    return {100, 130} <= seen


def test_by_hand():
    """Four cards, pods of 0.4 GPUs: two fit on a card, so eight of them are placed and 80 % is allocated."""
    result = run_static((node("n", 4),), workload(pod("a", 0.4)), "binpack", 1)
    assert [fill.arrived for fill in result.fills] == list(range(10, 131, 10))
    assert [fill.allocated for fill in result.fills] == pytest.approx(
        [10, 20, 30, 40, 50, 60, 70, 80, 80, 80, 80, 80, 80]
    )
    assert (result.alloc_100, result.alloc_130) == pytest.approx((80, 80))
    idle = result.fills[-1].idle
    assert (idle.shares, idle.no_cpu, idle.usable) == pytest.approx((20, 0, 0))


def test_idle_whole_cards_are_told_apart_by_the_cpu_beside_them():
    """Two nodes of two cards; on one, a pod of no GPU has taken nearly all CPU."""
    nodes = (node("n1", 2, cpu=8000), node("n2", 2, cpu=8000))
    work = workload(pod("a", 1, cpu=4000), pod("b", 0, cpu=8000))
    result = run_static(nodes, work, "binpack", 3)
    for fill in result.fills:
        assert fill.idle.shares + fill.idle.no_cpu + fill.idle.usable == pytest.approx(100 - fill.last_allocated)
    assert any(fill.idle.no_cpu >= 25 for fill in result.fills)


def test_nothing_is_replayed_past_the_last_mark():
    work = workload(*(pod(f"p{i}", 1) for i in range(40)))
    assert run_static((node("n", 10),), work, "binpack", 0).fills[-1].arrived == 130


def test_where_nothing_arrives_at_the_mark_the_last_arrival_before_it_counts():
    idle = run_static((node("n", 1),), workload(pod("a", 1)), "binpack", 0).fills[0].idle
    fills = [Fill(90, 85.0, 88.0, idle), Fill(110, 95.0, 96.0, idle)]
    assert allocation_at(fills, 100) == 88.0
    assert allocation_at(fills, 110) == 95.0
    assert allocation_at(fills, 130) == 96.0
    assert allocation_at(fills, 50) == 0.0


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_runs_and_equal_seeds_give_equal_results(small, policy):
    nodes, work = small
    result = run_static(nodes, work, policy, 7)
    assert result == run_static(nodes, work, policy, 7)
    assert result != run_static(nodes, work, policy, 8)
    assert 50 < result.alloc_100 <= result.alloc_130 + 1e-9 <= 100
