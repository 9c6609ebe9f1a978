"""Resource names that a node serves by claims, on a real kubelet: unchanged pods, a node that moves there and back."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shoal.model.contract import keti, mechanisms
from tests.agent.lab import CLIENTS, GIB, TELL, memory_pod
from tests.agent.names_behaviour import NamesLab, test_there_and_back, whole_pod
from tests.agent.real.claims import ClaimsLab, claims_lab
from tests.kubelet.pods import container, pod
from tests.scheduler.claims.test_allocation_kube import RIGHTS
from tests.soak import times
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import as_service_account
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

__all__ = ["test_there_and_back"]

pytestmark = pytest.mark.min_kube("1.36")


class RealNamesLab(NamesLab):
    """With the scheduler as a process of its own, which can be killed."""

    def __init__(self, lab: ClaimsLab, scheduler: SchedulerProcess) -> None:
        super().__init__(lab, scheduler.inspect)
        self.scheduler = scheduler


@pytest.fixture(scope="module")
def node_and_scheduler(
    testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealNamesLab]:
    folder = tmp_path_factory.mktemp("names")
    with claims_lab(testbed_run, nvml_library, folder, between=False, recoverySeconds=0) as lab:
        api = lab.pods.apiserver
        account = as_service_account(api)
        api.kubectl("apply", "-f", str(RIGHTS))
        settings = folder / "scheduler.yaml"
        settings.write_text(yaml.safe_dump({"claims": True}))
        scheduler = SchedulerProcess(testbed_run, "names", account, ["--config", str(settings), "--no-leader-elect"])
        scheduler.start()
        yield RealNamesLab(lab, scheduler)
        scheduler.kill()


@pytest.fixture
def names(node_and_scheduler: RealNamesLab) -> Iterator[RealNamesLab]:
    yield node_and_scheduler
    node_and_scheduler.lab.sweep()


def test_killed_at_any_moment(names: RealNamesLab):
    """Between any two writes of the scheduler: each pod has its cards once in the end, and no claim is left over."""
    lab, chance = names.lab, random.Random(times(1))
    for name in mechanisms.NAMES:
        names.ask(name, "true")
    for name in mechanisms.NAMES:
        names.wait_served(name, "claims")
    client = names.create(pod("client", [container("main", TELL, {CLIENTS: 1})]))
    pods = [f"pod-{number}" for number in range(6)]
    for number, name in enumerate(pods):
        names.create(whole_pod(name) if number == 3 else memory_pod(name, 1 + number % 4))
        if number in (1, 4):
            time.sleep(chance.uniform(0.0, 0.08))
            names.scheduler.kill()
            names.scheduler.start()
    for name in pods:
        lab.pods.wait_running(name)
    # Agent and kubelet know by themselves what the node serves by claims.
    before = {one["metadata"]["uid"] for one in lab.slices()}
    lab.node.kubelet.kill()
    lab.kill()
    lab.again(wait=False)
    lab.node.kubelet.start()
    wait_for(lambda: len(lab.devices()) == 4 and not before & {one["metadata"]["uid"] for one in lab.slices()}, "anew")
    wait_for(lambda: lab.asked("readyz")[0] == 200, "ready")
    assert [names.served(name) for name in mechanisms.NAMES] == ["claims"] * 3
    pods.append(names.run(memory_pod("pod-6", 3)))
    claims = {name: names.made(name) for name in pods}
    for name, claim in claims.items():
        assert claim is not None
        assert lab.visible(name) == lab.cards_of(claim)
    whole = claims[pods[3]]
    assert whole is not None
    (alone,) = lab.cards_of(whole)
    assert [card for name in pods for card in lab.visible(name)].count(alone) == 1
    lab.pods.wait_running(client)
    its_claim = names.made(client)
    assert its_claim is not None
    assert lab.env(client)[keti.ENV_VISIBLE_DEVICES] == lab.card(lab.cards_of(its_claim)[0]).uuid
    assert lab.results(its_claim)[0]["consumedCapacity"] == {"memory": "0", "compute": "0", "clients": "1"}
    lab.pods.delete(client)
    wait_for(lambda: len(lab.held()) == len(pods), "all of them held")
    expected_claims = {claim["metadata"]["uid"] for claim in claims.values() if claim is not None}
    wait_for(
        lambda: {one["metadata"]["uid"] for one in lab.claims()} == expected_claims, "one claim a pod, and no other"
    )
    expected = lab.card(lab.visible(pods[3])[0]).memory_mib // GIB
    expected += sum(1 + number % 4 for number in range(len(pods)) if number != 3)
    wait_for(lambda: names.used() == expected, "booked once")
    for name in pods:
        lab.pods.apiserver.request("DELETE", f"/api/v1/namespaces/{lab.pods.namespace}/pods/{name}")
    wait_for(lambda: names.used() == 0 and lab.claims() == [], "given back")
