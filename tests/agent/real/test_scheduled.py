"""From a pod that somebody creates to its cards seen from inside: scheduler and agent as processes, a real kubelet."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.model.contract import gpushare, keti, shoal
from shoal.model.contract.kubernetes import LABEL_HOSTNAME
from tests.agent.lab import CLIENTS, GIB, MEMORY, SAY, TELL, WHOLE, Lab, memory_pod
from tests.agent.real.conftest import RealLab, describe_machine
from tests.kubelet.pods import container, is_ready, pod
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import service_account
from tests.testbed.clock_skew import skewed
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

NewLab = Callable[..., RealLab]


@pytest.fixture
def scheduler(pods: Any, testbed_run: Run) -> Iterator[SchedulerProcess]:
    """`shoal scheduler` with the rights it is deployed with."""
    account = asyncio.run(service_account(pods.apiserver))
    process = SchedulerProcess(testbed_run, "scheduled", account, ["--no-leader-elect"])
    process.start()
    yield process
    process.stop()


def create(lab: Lab, manifest: dict, **annotations: str) -> None:
    """As a user does, but for the node: others may stand beside it."""
    spec = {
        **manifest["spec"],
        "schedulerName": keti.SCHEDULER_NAME,
        "nodeSelector": {LABEL_HOSTNAME: lab.node.name},
        "tolerations": [{"operator": "Exists"}],
    }
    metadata = {**manifest["metadata"], "annotations": annotations}
    path = f"/api/v1/namespaces/{lab.pods.namespace}/pods"
    lab.pods.apiserver.request("POST", path, {"metadata": metadata, "spec": spec})


def decided(lab: Lab, name: str) -> dict[str, list[int]]:
    """The cards that the scheduler chose for each container, by index."""
    text = lab.pods.get(name)["metadata"]["annotations"][shoal.ANNOTATION_ALLOCATION]
    return {one.name: [card.index for card in one.cards] for one in shoal.decode_allocation(text).containers}


@pytest.mark.parametrize(("scheduler_clock", "agent_clock"), [(600, -600), (-600, 600)])
def test_clocks_that_are_minutes_apart_change_nothing(
    new_lab: NewLab, pods: Any, testbed_run: Run, tmp_path: Path, scheduler_clock: int, agent_clock: int
) -> None:
    """Kubelet and the API server have the true time; scheduler and agent are twenty minutes apart."""
    account = asyncio.run(service_account(pods.apiserver))
    environment = skewed(tmp_path, scheduler_clock)
    process = SchedulerProcess(testbed_run, "clocks", account, ["--no-leader-elect"], environment)
    process.start()
    lab = new_lab("2xT4", start=False)
    lab.environment.update(skewed(tmp_path, agent_clock))
    lab.start(resources=[MEMORY])
    names = [f"pod-{number}" for number in range(4)]
    for name in names:
        create(lab, memory_pod(name, 7))
        lab.pods.wait_running(name)
        assert lab.visible(name) == decided(lab, name)["main"]
    assert Counter(index for name in names for index in lab.visible(name)) == {0: 2, 1: 2}
    stamp = lab.pods.get(names[0])["metadata"]["annotations"][gpushare.ANNOTATION_ASSUME_TIME]
    assert abs(int(stamp) / 1e9 - time.time() - scheduler_clock) < 300, "the scheduler's clock is wrong"

    create(lab, memory_pod("waits", 7))
    lab.pods.wait_event("waits", lambda event: event["reason"] == "FailedScheduling", "of its waiting")
    room = lab.visible(names[1])
    path = f"/api/v1/namespaces/{lab.pods.namespace}/pods/{names[1]}?gracePeriodSeconds=0"
    lab.pods.apiserver.request("DELETE", path)
    lab.pods.wait_running("waits")
    assert lab.visible("waits") == decided(lab, "waits")["main"] == room

    lab.kill()
    process.kill()
    lab.pods.delete(names[2])
    process.start()
    lab.start(resources=[MEMORY])
    create(lab, memory_pod("after", 7))
    lab.pods.wait_running("after")
    assert lab.visible("after") == decided(lab, "after")["main"]
    held = [lab.visible(name) for name in (names[0], names[3], "waits", "after")]
    assert Counter(index for cards in held for index in cards) == {0: 2, 1: 2}
    process.stop()


@pytest.mark.usefixtures("scheduler")
def test_every_family_sees_the_cards_that_the_scheduler_chose(new_lab: NewLab) -> None:
    lab = new_lab("6xT4", resources=[MEMORY, CLIENTS, WHOLE])
    create(lab, memory_pod("memory", 5))
    create(lab, pod("whole", [container("main", TELL, {WHOLE: 1})]))
    create(lab, pod("client", [container("main", TELL, {CLIENTS: 1})]), **{keti.ANNOTATION_MEMORY_LIMIT: "4Gi"})
    create(lab, pod("two", [container("main", TELL, {MEMORY: 3}), container("other", TELL, {MEMORY: 4})]))
    sidecar = container("sidecar", TELL, {MEMORY: 2}, restartPolicy="Always")
    init = [container("first", SAY, {MEMORY: 6}), sidecar]
    create(lab, pod("stages", [container("main", TELL, {MEMORY: 3})], init))
    four = memory_pod("four", 12)
    four["metadata"]["labels"] = {gpushare.RESOURCE_COUNT: "4"}
    create(lab, four)
    seen = {}
    for name in ("memory", "whole", "client", "two", "stages", "four"):
        lab.pods.wait_running(name)
        chosen = decided(lab, name)
        seen[name] = {one: lab.visible(name, one) for one in chosen}
        assert seen[name] == chosen, name
    assert set(seen["two"]) == {"main", "other"}
    assert set(seen["stages"]) == {"first", "sidecar", "main"}
    assert len(seen["four"]["main"]) == 4
    (whole,) = seen["whole"]["main"]
    others = [index for name, cards in seen.items() if name != "whole" for used in cards.values() for index in used]
    assert whole not in others, "a card that is taken whole is nobody else's"
    env = lab.env("memory")
    assert (env[gpushare.NAME_INDEX], env[gpushare.ENV_CONTAINER]) == (str(seen["memory"]["main"][0]), "5")
    assert lab.env("four")[gpushare.ENV_CONTAINER] == "3", "of each card"


@pytest.mark.usefixtures("scheduler")
def test_forty_equal_pods_at_once(new_lab: NewLab) -> None:
    lab = new_lab("4xA30")
    names = [f"equal-{number}" for number in range(40)]
    for name in names:
        create(lab, memory_pod(name, 2))
    wait_for(lambda: all(map(is_ready, lab.pods.all())), "forty running pods", 300)
    seen = {name: lab.visible(name) for name in names}
    assert seen == {name: decided(lab, name)["main"] for name in names}
    held = Counter(index for (index,) in seen.values())
    assert max(held.values()) * 2 * GIB <= lab.card(0).memory_mib


@pytest.mark.usefixtures("scheduler")
def test_a_card_fails_under_load_and_recovers(new_lab: NewLab) -> None:
    lab = new_lab("2xT4", recoverySeconds=1)
    before, during, after = ([f"{when}-{number}" for number in range(7)] for when in ("before", "during", "after"))
    for name in before[:4]:
        create(lab, memory_pod(name, 2))
        lab.pods.wait_running(name)
    (bad,) = {index for name in before[:4] for index in decided(lab, name)["main"]}
    lab.shim.write(describe_machine("2xT4", lost=[bad]))
    wait_for(lambda: not lab.card(bad).healthy, "known to be bad")
    wait_for(lambda: lab.allocatable(MEMORY) == 15 + 8, "withdrawn from kubelet but for what is in use")
    for name in during:
        create(lab, memory_pod(name, 2))
    for name in during:
        lab.pods.wait_running(name)
        assert lab.visible(name) == decided(lab, name)["main"] == [1 - bad]
    create(lab, memory_pod(after[0], 2))
    lab.pods.wait_event(after[0], lambda event: event["reason"] == "FailedScheduling", "of its waiting")
    lab.shim.write(describe_machine("2xT4"))
    for name in after[1:3]:
        create(lab, memory_pod(name, 2))
    for name in after[:3]:
        lab.pods.wait_running(name)
        assert lab.visible(name) == decided(lab, name)["main"] == [bad]
    for name in before[:4]:
        assert is_ready(lab.pods.get(name)), "what runs is left alone"
