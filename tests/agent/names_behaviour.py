"""Resource names that a node serves by claims, whatever kubelet there is: unchanged pods, there and back.

The tests of the folders `simulated` and `real` run this; `names` is a node with an agent, and Shoal's scheduler.
"""

from collections.abc import Callable
from typing import Any

from shoal.model.contract import gpushare, mechanisms, shoal
from tests.agent.claiming import Claiming, asking, claim_pod
from tests.agent.lab import GIB, MEMORY, TELL, WHOLE, memory_pod
from tests.kubelet.pods import container, is_ready, pod
from tests.testbed.waiting import wait_for


class NamesLab:
    """A node with an agent, and Shoal's scheduler."""

    def __init__(self, lab: Claiming, inspect: Callable[[], dict[str, Any]]) -> None:
        """`inspect` gives the scheduler's ledger by node."""
        self.lab = lab
        self._inspect = inspect

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

    def map_to(self, claim: str, name: str) -> None:
        """Write that a claim serves the memory of a pod's container, and that the pod uses the claim."""
        lab, merge = self.lab, "application/merge-patch+json"
        mapping = {"containerName": "main", "resourceName": MEMORY, "requestName": "gpu"}
        status = {"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": [mapping]}}
        path = f"/api/v1/namespaces/{lab.pods.namespace}/pods/{name}"
        pod = lab.pods.apiserver.request("PATCH", f"{path}/status", {"status": status}, merge)
        user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
        lab.reserve(claim, user)

    def made(self, name: str) -> dict | None:
        """The claim that was made of a pod's names."""
        status = self.lab.pods.get(name)["status"].get("extendedResourceClaimStatus")
        return None if status is None else self.lab.claim(status["resourceClaimName"])

    def used(self) -> int:
        """The GiB that the scheduler has booked on the node."""
        return int(self._inspect()[self.lab.node.name]["usedGPU"])


def whole_pod(name: str, cards: int = 1) -> dict:
    return pod(name, [container("main", TELL, {WHOLE: cards})])


def restarts(found: dict) -> int:
    return int(found["status"]["containerStatuses"][0]["restartCount"])


def borrow_a_claim(names: NamesLab) -> None:
    """A pod whose status names the claim of another pod, and which somebody binds, does not start with it."""
    lab = names.lab
    lab.make_claim("small", asking(memory="1Mi"))
    names.run(claim_pod("lender", {"gpu": {"resourceClaimName": "small"}}))
    greedy = memory_pod("greedy", 8)
    greedy["spec"]["schedulerName"] = "nobody"
    lab.create(greedy)
    names.map_to("small", "greedy")
    lab.pods.delete("lender")
    lab.bind_to("greedy")
    lab.wait_logged("small", "is not prepared", "'greedy' maps resource names", "was not made for this pod")
    assert not is_ready(lab.pods.get("greedy"))
    lab.pods.delete("greedy")
    lab.drop_claim("small")


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
    borrow_a_claim(names)
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
