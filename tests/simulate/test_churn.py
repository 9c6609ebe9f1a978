from dataclasses import dataclass, field
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.simulate.churn import TimeMeans, admitted, mean, quantile, run_churn
from shoal.simulate.cluster import new_engine, policy_for
from shoal.simulate.scenario import Arrival, Churn, ChurnMode, Lifetimes, Scenario, Start, draw
from shoal.simulate.trace import capacity_milli, read_nodes, read_workload
from tests.simulate.made_up import node, node_file, pod, pod_file, workload


@pytest.fixture
def small(tmp_path):
    nodes = read_nodes(node_file(tmp_path))
    return nodes, read_workload(pod_file(tmp_path), nodes)


@dataclass
class Plain:
    """The protocol once more: events in a sorted list, every waiting pod tried at every departure."""

    alloc: float = 0.0
    arrived: int = 0
    refused: int = 0
    pending: float = 0.0
    admitted: list[int] = field(default_factory=list)
    waits: list[tuple[str, float]] = field(default_factory=list)
    waiting: list[Arrival] = field(default_factory=list)


def plainly(nodes, work, policy, seed, churn, keep=None) -> Plain:
    rng = Random(seed)
    gpus = sum(len(item.gpus) for item in nodes)
    scenario: Scenario = draw(work, gpus, churn, rng)
    engine = new_engine(nodes, policy_for(policy, work), rng)
    horizon = 6.0 if churn.lifetimes is Lifetimes.EXP else 3.0
    warm = 0.4 * horizon
    found = Plain()
    leaving: dict[int, tuple[float, Arrival]] = {}

    def place(item: Arrival, now: float) -> bool:
        if engine.place(item.key, item.pod.request) is None:
            return False
        leaving[item.number] = (now + item.lifetime, item)
        if item.time >= warm:
            found.waits.append((item.pod.size_class, now - item.time))
        return True

    comers = [a for a in scenario.start if keep is None or a.number in keep] + list(scenario.later)
    now = 0.0
    while now < horizon:
        next_leave = min(((time, number) for number, (time, _) in leaving.items()), default=(horizon, -1))
        next_come = comers[0].time if comers else horizon
        then = min(next_leave[0], next_come, horizon)
        counted = max(0.0, then - max(now, warm))
        found.alloc += counted * sum(item.pod.gpu_milli for _, item in leaving.values())
        found.pending += counted * sum(item.pod.gpu_milli for item in found.waiting)
        now = then
        if now >= horizon:
            break
        if next_leave[0] <= next_come:
            del leaving[next_leave[1]]
            engine.remove(str(next_leave[1]))
            found.waiting = [item for item in found.waiting if not place(item, now)]
            continue
        item = comers.pop(0)
        late = item.time >= warm
        found.arrived += item.pod.gpu_milli * late
        if place(item, now):
            found.admitted.append(item.number)
        elif churn.mode is ChurnMode.QUEUE:
            found.waiting.append(item)
        else:
            engine.remove(item.key)
            found.refused += item.pod.gpu_milli * late
    found.alloc *= 100 / (0.6 * horizon * gpus * 1000)
    found.pending /= 0.6 * horizon * 1000
    return found


@pytest.mark.parametrize("policy", ["fragmentation", "fgd", "binpack", "random"])
@pytest.mark.parametrize("lifetimes", Lifetimes)
def test_loss_is_what_a_plain_replay_finds(small, policy, lifetimes):
    nodes, work = small
    churn = Churn(lifetimes, 1.1)
    result = run_churn(nodes, work, policy, 3, churn)
    plain = plainly(nodes, work, policy, 3, churn)
    assert result.alloc_mean == pytest.approx(plain.alloc)
    assert result.refused_pct == pytest.approx(100 * plain.refused / plain.arrived)
    assert result.refused_pct > 1
    assert result.pending_gpus_mean == 0
    assert result.waits == ()


@pytest.mark.parametrize("policy", ["fragmentation", "fgd", "binpack", "random"])
@pytest.mark.parametrize(("lifetimes", "load"), [(Lifetimes.EXP, 0.9), (Lifetimes.EXP, 1.2), (Lifetimes.TRACE, 1.0)])
def test_a_queue_with_few_retries_is_the_queue_with_all_of_them(small, policy, lifetimes, load):
    nodes, work = small
    churn = Churn(lifetimes, load, ChurnMode.QUEUE)
    result = run_churn(nodes, work, policy, 5, churn)
    plain = plainly(nodes, work, policy, 5, churn)
    assert result.alloc_mean == pytest.approx(plain.alloc)
    assert result.pending_gpus_mean == pytest.approx(plain.pending)
    assert result.pending_gpus_mean > 0 or load < 1
    assert result.refused_pct == 0
    late = [item for item in plain.waiting if item.time >= 0.4 * churn.horizon]
    for wait in result.waits:
        waits = [time for size, time in plain.waits if size == wait.size]
        waits += [churn.horizon - item.time for item in late if item.pod.size_class == wait.size]
        assert wait.pods == len(waits)
        assert wait.mean == pytest.approx(fmean(waits))
        assert wait.p95 in [pytest.approx(time) for time in waits]
        assert wait.still_waiting == sum(item.pod.size_class == wait.size for item in late)
    assert [wait.size for wait in result.waits] == ["cpu", "share", "1", "2", "4"]


def erlang(cards: int, load: float) -> tuple[float, float]:
    """Held and refused parts that theory expects of cards which start free, from time 2.4 to 6.

    The forward equations of the birth and death chain, in small steps.
    """
    step = 0.0005
    chance = [1.0] + [0.0] * cards
    held = refused = 0.0
    for i in range(round(6 / step)):
        if i * step >= 2.4:
            held += step / 3.6 * sum(k * part for k, part in enumerate(chance)) / cards
            refused += step / 3.6 * chance[-1]
        up = [load * cards * part for part in chance[:-1]] + [0.0]
        down = [k * part for k, part in enumerate(chance)]
        chance = [
            part + step * ((up[k - 1] if k else 0) - up[k] - down[k] + (down[k + 1] if k < cards else 0))
            for k, part in enumerate(chance)
        ]
    return held, refused


def test_whole_cards_with_exponential_lifetimes_do_what_theory_says():
    nodes, work = (node("n", 10),), workload(pod("a", 1))
    runs = [run_churn(nodes, work, "binpack", seed, Churn(Lifetimes.EXP, 1.0)) for seed in range(60)]
    held, refused = erlang(10, 1.0)
    for values, expected in (([r.alloc_mean for r in runs], held), ([r.refused_pct for r in runs], refused)):
        assert fmean(values) == pytest.approx(100 * expected, abs=3 * stdev(values) / len(runs) ** 0.5)


def occupancy(scenario: Scenario, begin: float, end: float) -> float:
    """GPUs held on the average if all were placed at once."""
    held = 0.0
    for item in (*scenario.start, *scenario.later):
        held += item.pod.gpu_milli * max(0.0, min(item.time + item.lifetime, end) - max(item.time, begin))
    return held / (end - begin) / 1000


@pytest.mark.parametrize("lifetimes", Lifetimes)
def test_at_a_light_load_nobody_is_refused_and_the_allocation_is_the_load(lifetimes):
    nodes = tuple(node(f"n{i:02}", 8, cpu=1_000_000, memory=10**6) for i in range(40))
    work = workload(
        *(pod(f"a{i}", 1, lifetime=3600) for i in range(4)),
        *(pod(f"b{i}", 0.5, lifetime=600) for i in range(4)),
        pod("c", 2, lifetime=20_000),
    )
    churn = Churn(lifetimes, 0.5)
    runs = [run_churn(nodes, work, "binpack", seed, churn) for seed in range(5)]
    assert [run.refused_pct for run in runs] == [0] * 5
    for seed, run in enumerate(runs):
        scenario = draw(work, capacity_milli(nodes) // 1000, churn, Random(seed))
        held = occupancy(scenario, 0.4 * churn.horizon, churn.horizon)
        assert run.alloc_mean == pytest.approx(100 * held / 320)
    assert fmean(run.alloc_mean for run in runs) == pytest.approx(50, rel=0.08)
    if lifetimes is Lifetimes.TRACE:
        first = [span.allocated for run in runs for span in run.spans[:10]]
        assert fmean(first) == pytest.approx(50, rel=0.1), "the start is near the stationary state"


def test_the_spans_cover_the_run_and_their_late_mean_is_the_result(small):
    nodes, work = small
    result = run_churn(nodes, work, "binpack", 3, Churn(Lifetimes.EXP, 1.0))
    assert len(result.spans) == 100
    assert result.spans[-1].end == pytest.approx(6)
    assert fmean(span.allocated for span in result.spans[40:]) == pytest.approx(result.alloc_mean)
    for span in result.spans:
        assert min(span.idle.shares, span.idle.no_cpu, span.idle.usable) >= 0
        assert span.idle.shares + span.idle.no_cpu + span.idle.usable <= 100


def test_the_admitted_pods_are_those_of_the_start(small):
    nodes, work = small
    churn = Churn(Lifetimes.TRACE, 1.3, start=Start.SAME)
    number = len(draw(work, 40, churn, Random(2)).start)
    found = admitted(nodes, work, "binpack", 2, churn)
    plain = plainly(nodes, work, "binpack", 2, churn)
    assert found == {i for i in plain.admitted if i < number}
    assert 0 < len(found) < number


def test_a_run_may_be_limited_to_some_of_the_starting_pods(small):
    nodes, work = small
    churn = Churn(Lifetimes.TRACE, 1.0, start=Start.SAME)
    keep = admitted(nodes, work, "spread", 2, churn) & admitted(nodes, work, "binpack", 2, churn)
    result = run_churn(nodes, work, "binpack", 2, churn, keep)
    plain = plainly(nodes, work, "binpack", 2, churn, keep)
    assert result.alloc_mean == pytest.approx(plain.alloc)
    assert result.refused_pct == pytest.approx(100 * plain.refused / plain.arrived)
    assert result != run_churn(nodes, work, "binpack", 2, churn)


# Means over time


def test_means_are_weighted_by_time_and_split_at_the_edges():
    means = TimeMeans(10, 5)
    means.hold(1, 0, 3)
    means.hold(4, 3, 3.5)
    means.hold(2, 3.5, 10)
    assert means.means() == pytest.approx([1, (1 + 2 + 1) / 2, 2, 2, 2])
    assert means.mean_from(0) == pytest.approx((3 + 2 + 13) / 10)
    assert means.mean_from(2) == pytest.approx(2)


@given(st.lists(st.tuples(st.floats(0.001, 3), st.floats(0, 100)), min_size=1, max_size=30), st.integers(1, 40))
def test_the_means_of_the_spans_add_up_to_the_whole(steps, spans):
    horizon = sum(length for length, _ in steps)
    means = TimeMeans(horizon, spans)
    now = 0.0
    for length, value in steps:
        means.hold(value, now, now + length)
        now += length
    whole = sum(length * value for length, value in steps) / horizon
    assert means.mean_from(0) == pytest.approx(whole, abs=1e-6)
    assert mean(means.means()) == pytest.approx(whole, abs=1e-6)


def test_a_quantile_is_a_value_that_so_many_do_not_exceed():
    values = [float(i) for i in range(20, 0, -1)]
    assert quantile(values, 0.95) == 19
    assert quantile(values, 1) == 20
    assert quantile(values, 0.5) == 10
    assert quantile([7.0], 0.95) == 7
    assert quantile([], 0.95) == 0
    assert mean([]) == 0
