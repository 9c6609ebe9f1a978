from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.controllers.loop import Item, Queue
from shoal.embedded.controllers.reconcile import deployment as rollout
from shoal.embedded.controllers.reconcile import job
from shoal.embedded.controllers.reconcile.revisions import hash_of
from tests.embedded.controllers.short import replica_set_of, workload

sizes = st.integers(0, 40)
parts = st.one_of(st.integers(0, 10), st.integers(0, 100).map(lambda number: f"{number}%"))


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """A Deployment in the middle of a rollout: its old ReplicaSets and the new one, with pods that run or do not."""
    rolling = {"maxSurge": draw(parts), "maxUnavailable": draw(parts)}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    deployment = workload({"kind": "Deployment", "spec": {"replicas": draw(sizes), "strategy": strategy}})
    sets = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(sizes)
        told = {"name": f"set{number}", "size": size, "up": draw(st.integers(0, size))}
        sets.append(replica_set_of(told, deployment))
    return deployment, sets[1:], sets[0]


@given(rollouts())
def test_a_step_up_stays_within_the_surge(case: Any) -> None:
    deployment, old, new = case
    total, present = rollout.replicas(deployment), rollout.replicas(new)
    size = rollout.first_size(deployment, old, present)
    if present <= total:
        assert present <= size <= total
    if size > present:
        assert size + rollout.asked(old) <= total + rollout.max_surge(deployment)


@given(rollouts())
def test_a_step_down_leaves_enough_available(case: Any) -> None:
    deployment, old, new = case
    least = rollout.replicas(deployment) - rollout.max_unavailable(deployment)
    shrunk = rollout.shrunk(deployment, old, new)
    assert all(0 <= shrunk[one["metadata"]["name"]] <= rollout.replicas(one) for one in old)
    before = rollout.counted([*old, new], "availableReplicas")
    # The pods that are available are the last ones a ReplicaSet deletes.
    left = sum(min(shrunk[one["metadata"]["name"]], one["status"]["availableReplicas"]) for one in old)
    assert left + new["status"]["availableReplicas"] >= min(before, least)


@given(rollouts())
def test_one_of_surge_and_absence_is_allowed(case: Any) -> None:
    assert sum(rollout.fence(case[0])) > 0


@given(rollouts())
def test_scaling_in_a_rollout_adds_up(case: Any) -> None:
    deployment, old, new = case
    active = [one for one in [*old, new] if rollout.replicas(one)]
    sizes_after = rollout.proportional(deployment, active)
    assert all(size >= 0 for size in sizes_after.values())
    total = rollout.replicas(deployment)
    wanted = total + rollout.max_surge(deployment) if total else 0
    if active and wanted >= rollout.asked(active):
        assert sum(sizes_after.values()) == wanted


@given(st.frozensets(st.integers(0, 60)), st.integers(1, 61))
def test_indexes_survive_their_text(numbers: frozenset[int], completions: int) -> None:
    wanted = frozenset(number for number in numbers if number < completions)
    assert job.parsed(job.text_of(numbers), completions) == wanted


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([1], "1"), ([1, 2], "1,2"), ([0, 1, 2, 4, 7, 8], "0-2,4,7,8"), ([3, 4, 5], "3-5")]
)
def test_the_text_of_indexes(numbers: list[int], text: str) -> None:
    assert job.text_of(numbers) == text


@given(st.frozensets(st.integers(0, 30)), st.integers(0, 10), st.integers(1, 30))
def test_free_indexes_are_the_lowest(taken: frozenset[int], count: int, completions: int) -> None:
    free = job.first_free(taken, count, completions)
    everything = [number for number in range(completions) if number not in taken]
    assert free == everything[:count]


def test_hashes_differ_by_template_and_by_collision() -> None:
    first = {"spec": {"containers": [{"image": "a"}]}, "metadata": {"labels": {"x": "1", "y": "2"}}}
    other = {"metadata": {"labels": {"y": "2", "x": "1"}}, "spec": {"containers": [{"image": "a"}]}}
    assert hash_of(first) == hash_of(other)
    assert len({hash_of(first), hash_of(first, 0), hash_of(first, 1), hash_of({**first, "spec": {}})}) == 4


def test_the_queue_holds_each_item_once() -> None:
    queue, item, other = Queue(), Item("c", ("ns", "a")), Item("c", ("ns", "b"))
    for _ in range(3):
        queue.add(item)
        queue.add(other)
    assert [queue.pop(0.0), queue.pop(0.0), queue.pop(0.0)] == [item, other, None]


def test_the_queue_waits() -> None:
    queue, item = Queue(), Item("c", ("ns", "a"))
    queue.add_at(item, 5.0)
    queue.add_at(item, 3.0)
    queue.add_at(item, 9.0)
    assert queue.pop(2.9) is None
    assert queue.next_due() == 3.0
    assert queue.pop(3.0) == item
    assert queue.pop(100.0) is None


def test_an_item_rests_after_a_look() -> None:
    queue, item = Queue(), Item("c", ("ns", "a"))
    queue.rest(item, 1.0, 2.0)
    queue.add(item)
    assert queue.pop(2.5) is None
    due = queue.next_due()
    assert due == 5.0
    assert queue.pop(due) == item


def test_retries_come_ever_later() -> None:
    queue, item = Queue(), Item("c", ("ns", "a"))
    delays = []
    for _ in range(40):
        queue.retry(item, 0.0)
        delays.append(queue.next_due())
        assert queue.pop(2000.0) == item
    assert delays[:3] == [0.005, 0.01, 0.02]
    assert delays[-1] == 1000.0
    queue.succeeded(item)
    queue.retry(item, 0.0)
    assert queue.next_due() == 0.005
