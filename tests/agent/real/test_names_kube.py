"""Resource names that a node serves by claims, on a real kubelet: unchanged pods, a node that moves there and back."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shoal.model.contract import gpushare, keti, mechanisms, shoal
from tests.agent.lab import CLIENTS, GIB, MEMORY, TELL, WHOLE, memory_pod
from tests.agent.real.claims import ClaimsLab, claims_lab
from tests.kubelet.pods import container, is_ready, pod
from tests.scheduler.claims.test_allocation_kube import RIGHTS
from tests.soak import times
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import as_service_account
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.min_kube("1.36")


class NamesLab:
    """A node with an agent, and Shoal's scheduler."""

    def __init__(self, lab: ClaimsLab, scheduler: SchedulerProcess) -> None:
        self.lab = lab
        self.scheduler = scheduler

    def ask(self, name: str, value: str | None) -> None:
        """Label the node: a name shall be served by claims, or not."""
        patch = {"metadata": {"labels": {mechanisms.label_of(name): value}}}
        path = f"/api/v1/nodes/{self.lab.node.name}"
        self.lab.pods.apiserver.request("PATCH", path, patch, "application/merge-patch+json")

    def served(self, name: str) -> str:
        """By which mechanism the node says it serves a name."""
        return mechanisms.decode(self.lab.object["metadata"]["annotations"]).get(name, mechanisms.Mechanism.DEVICES)

    def wait_served(self, name: str, mechanism: str) -> None:
        wait_for(lambda: self.served(name) == mechanism, f"{name}: {mechanism}")

    def create(self, manifest: dict) -> str:
        """Create a pod for Shoal's scheduler."""
        manifest["spec"]["schedulerName"] = "gpu-scheduler"
        self.lab.create(manifest)
        return str(manifest["metadata"]["name"])

    def run(self, manifest: dict) -> str:
        name = self.create(manifest)
        self.lab.pods.wait_running(name)
        return name

    def wait_told(self, name: str, words: str) -> None:
        """Wait until a pod that waits is told why."""

        def said() -> bool:
            conditions = self.lab.pods.get(name)["status"].get("conditions", ())
            return any(words in one.get("message", "") for one in conditions)

        wait_for(said, f"{name} told {words}")

    def made(self, name: str) -> dict | None:
        """The claim that was made of a pod's names."""
        status = self.lab.pods.get(name)["status"].get("extendedResourceClaimStatus")
        return None if status is None else self.lab.claim(status["resourceClaimName"])

    def used(self) -> int:
        """The GiB that the scheduler has booked on the node."""
        return int(self.scheduler.inspect()[self.lab.node.name]["usedGPU"])


@pytest.fixture(scope="module")
def node_and_scheduler(
    testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NamesLab]:
    folder = tmp_path_factory.mktemp("names")
    with claims_lab(testbed_run, nvml_library, folder, between=False, recoverySeconds=0) as lab:
        api = lab.pods.apiserver
        account = as_service_account(api)
        api.kubectl("apply", "-f", str(RIGHTS))
        settings = folder / "scheduler.yaml"
        settings.write_text(yaml.safe_dump({"claims": True}))
        scheduler = SchedulerProcess(testbed_run, "names", account, ["--config", str(settings), "--no-leader-elect"])
        scheduler.start()
        yield NamesLab(lab, scheduler)
        scheduler.kill()


@pytest.fixture
def names(node_and_scheduler: NamesLab) -> Iterator[NamesLab]:
    yield node_and_scheduler
    node_and_scheduler.lab.sweep()


def whole_pod(name: str, cards: int = 1) -> dict:
    return pod(name, [container("main", TELL, {WHOLE: cards})])


def restarts(found: dict) -> int:
    return int(found["status"]["containerStatuses"][0]["restartCount"])


def test_there_and_back(names: NamesLab):
    """Pods of another name stay where they are; what waits is told why; nothing is booked twice."""
    lab = names.lab
    old, whole = names.run(memory_pod("old", 3)), names.run(whole_pod("whole"))
    its_card = lab.visible(whole)
    names.ask(MEMORY, "true")
    names.wait_served(MEMORY, "to-claims")
    new = names.create(memory_pod("new", 2))
    names.wait_told(new, f"are changing {MEMORY} to claims, and wait for the last pods with devices of it to end")
    assert is_ready(lab.pods.get(old))
    lab.pods.delete(old)
    lab.pods.wait_running(new)
    assert names.served(MEMORY) == "claims"
    claim = names.made(new)
    assert claim is not None
    assert lab.visible(new) == lab.cards_of(claim)
    assert lab.env(new)[gpushare.ENV_CONTAINER] == "2"
    assert shoal.ANNOTATION_ALLOCATION not in lab.pods.get(new)["metadata"].get("annotations", {})
    two = pod("two", [container("a", TELL, {MEMORY: 1}), container("b", TELL, {MEMORY: 4}), container("none", TELL)])
    names.run(two)
    made = names.made("two")
    assert made is not None
    by_request = dict(zip((one["request"] for one in lab.results(made)), lab.cards_of(made), strict=True))
    assert lab.visible("two", "a") == [by_request["container-0-request-0"]]
    assert lab.visible("two", "b") == [by_request["container-1-request-0"]]
    assert (lab.env("two", "b")[gpushare.ENV_CONTAINER], lab.env("two", "b")[gpushare.NAME_POD]) == ("4", "5")
    assert gpushare.ENV_CONTAINER not in lab.env("two", "none")
    whole_gib = lab.card(its_card[0]).memory_mib // GIB
    wait_for(lambda: set(lab.held()) == {one["metadata"]["uid"] for one in (claim, made)}, "held")
    wait_for(lambda: names.used() == whole_gib + 2 + 5, "booked once")
    names.ask(MEMORY, None)
    names.wait_served(MEMORY, "to-devices")
    back = names.create(memory_pod("back", 3))
    names.wait_told(back, f"are changing {MEMORY} to devices, and wait for the last pods with claims of it to end")
    for name in (new, "two"):
        lab.pods.delete(name)
    lab.pods.wait_running(back)
    assert names.served(MEMORY) == "devices"
    assert names.made(back) is None
    assert lab.visible(back) == lab.written(back)
    wait_for(lambda: names.used() == whole_gib + 3, "booked once")
    wait_for(lambda: lab.claims() == [], "without claims")
    assert lab.visible(whole) == its_card
    assert restarts(lab.pods.get(whole)) == 0


def test_killed_at_any_moment(names: NamesLab):
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
