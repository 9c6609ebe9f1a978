"""Cards as claims on a real kubelet, allocated by the stock scheduler: each container has exactly its cards."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.model.contract import dra, nvidia
from tests.agent.claiming import asking, claim_pod
from tests.agent.claims_behaviour import *  # noqa: F403 - tests themselves
from tests.agent.lab import TELL
from tests.agent.real.claims import ClaimsLab, claims_lab
from tests.agent.sharing import CUT
from tests.kubelet.pods import container, is_ready, pod
from tests.soak import times
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.min_kube("1.36")


@pytest.fixture(scope="module")
def node_with_claims(
    testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClaimsLab]:
    folder = tmp_path_factory.mktemp("machine")
    with claims_lab(testbed_run, nvml_library, folder, recoverySeconds=0) as made:
        yield made


@pytest.fixture
def lab(node_with_claims: ClaimsLab) -> Iterator[ClaimsLab]:
    yield node_with_claims
    node_with_claims.sweep()


def test_whole_cards_by_the_name_of_the_class(lab: ClaimsLab):
    """Kubernetes makes a claim of an extended resource; each container has its own request of it."""
    resource = f"deviceclass.resource.kubernetes.io/{dra.DEVICE_CLASS}"
    containers = [container("one", TELL, {resource: 1}), container("two", TELL, {resource: 2}), container("none", TELL)]
    lab.create(pod("cards", containers))
    lab.pods.wait_running("cards")
    seen = [lab.visible("cards", name) for name in ("one", "two")]
    assert [len(one) for one in seen] == [1, 2]
    assert not set(seen[0]) & set(seen[1])
    assert nvidia.ENV_VISIBLE_DEVICES not in lab.env("cards", "none")


def test_order_follows_what_is_free(lab: ClaimsLab):
    """The stock scheduler takes the first device that fits: the fullest comes first."""
    lab.make_template("big", asking(memory="6Gi"))
    lab.make_template("little", asking(memory="1Gi"))
    lab.create(claim_pod("big", {"gpu": {"resourceClaimTemplateName": "big"}}))
    lab.pods.wait_running("big")
    (card,) = lab.visible("big")
    wait_for(lambda: lab.devices()[0]["name"] == dra.device_name(lab.card(card).uuid), "ordered")
    lab.create(claim_pod("little", {"gpu": {"resourceClaimTemplateName": "little"}}))
    lab.pods.wait_running("little")
    assert lab.visible("little") == [card]


def test_killed_at_any_moment(lab: ClaimsLab):
    """Between any two steps of preparing and taking back: each container has its own cards in the end."""
    chance = random.Random(times(1))
    lab.make_template("one", asking(memory="1Gi"))
    lab.make_template("two", asking("a", "1Gi"), asking("b", "2Gi"))
    names = [f"pod-{number}" for number in range(times(6))]
    for number, name in enumerate(names):
        template = "two" if number % 2 else "one"
        lab.create(claim_pod(name, {"gpu": {"resourceClaimTemplateName": template}}))
        if number % 2:
            time.sleep(chance.uniform(0, 0.5))
            lab.kill()
            lab.again(wait=False)
    lab.wait_ready()

    def all_run() -> bool:
        waiting = [one for one in lab.pods.all() if not is_ready(one)]
        for one in waiting:  # kubelet tries again a minute later, or when a pod changes
            lab.touch(one["metadata"]["name"])
        return not waiting

    wait_for(all_run, "running")
    claims = {name: lab.claim_of(name) for name in names}
    for name, claim in claims.items():
        assert lab.visible(name) == list(dict.fromkeys(lab.cards_of(claim)))
    wait_for(lambda: set(lab.held()) == {claim["metadata"]["uid"] for claim in claims.values()}, "all of them held")
    for name in names:
        lab.pods.apiserver.request("DELETE", f"/api/v1/namespaces/{lab.pods.namespace}/pods/{name}")
    time.sleep(chance.uniform(0.5, 2.0))
    lab.kill()
    lab.again()
    wait_for(lambda: lab.held() == {}, "given back")
    assert not [spec for spec in lab.specs() if "claim" in spec]


def test_api_server_is_away_for_the_agent(lab: ClaimsLab):
    """kubelet's call waits for the claim; and taking a claim back needs no API server."""
    lab.make_template("one", asking(memory="2Gi"))
    source = {"gpu": {"resourceClaimTemplateName": "one"}}
    lab.create(claim_pod("before", source))
    lab.pods.wait_running("before")
    assert lab.between is not None
    lab.between.away()
    lab.pods.delete("before")
    lab.create(claim_pod("late", source))
    lab.wait_logged("tenant/late-gpu-", "waits: claim")
    lab.between.back()
    lab.pods.wait_running("late")
    claim = lab.claim_of("late")
    assert lab.visible("late") == lab.cards_of(claim)
    assert not [one for one in lab.pods.events("late") if "Prepare" in one["reason"]], "the call waited"
    wait_for(lambda: list(lab.held()) == [claim["metadata"]["uid"]], "held")


def test_rights_end_at_the_own_node(lab: ClaimsLab):
    """The agent's account can write the slices of its own node and driver, and no others."""
    found = lab.slices()[0]
    spec = {**found["spec"], "nodeName": "elsewhere", "pool": {**found["spec"]["pool"], "name": "elsewhere"}}
    own = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}

    def told(metadata: dict, spec: dict) -> str:
        document = {**own, "metadata": metadata, "spec": spec}
        return lab.as_agent("create", "--dry-run=server", "-f", "-", input=json.dumps(document))

    own_node = {"name": "x", "ownerReferences": found["metadata"]["ownerReferences"]}
    assert "created" in told(own_node, found["spec"])
    assert "of its own node and driver only" in told({"name": "x"}, spec)
    assert "of its own node and driver only" in told({"name": "x"}, {**found["spec"], "driver": "other.example.com"})
    assert "owned by their node" in told({"name": "x", "labels": {"a": "b"}}, found["spec"])
    other = {**own, "metadata": {"name": "elsewhere-gpu"}, "spec": spec}
    lab.pods.apiserver.request("POST", "/apis/resource.k8s.io/v1/resourceslices", other)
    assert "of its own node and driver only" in lab.as_agent("delete", "resourceslices", "elsewhere-gpu")
    lab.pods.apiserver.request("DELETE", "/apis/resource.k8s.io/v1/resourceslices/elsewhere-gpu")


def test_partitions_of_a_card(
    lab: ClaimsLab, testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
):
    """Each is one claim's; the scheduler takes those that the claim selects."""
    with lab.beside(testbed_run, nvml_library, tmp_path_factory.mktemp("cut"), [CUT]) as cut:
        # Cards of the other node, if it publishes some, have no profile.
        one = 'device.attributes["gpu.shoal.dev"]'
        small = {"cel": {"expression": f'{one}.type == "mig" && {one}.profile == "1g.6gb"'}}
        cut.make_template("part", asking(selectors=[small]))
        source = {"gpu": {"resourceClaimTemplateName": "part"}}
        parts = {one.uuid for one in cut.card(0).mig_instances if one.profile == "1g.6gb"}
        for name in ("first", "second", "third"):
            cut.create(claim_pod(name, source))
        cut.wait_for_running(2)
        seen = {cut.env(one["metadata"]["name"])[nvidia.ENV_VISIBLE_DEVICES] for one in cut.pods.all() if is_ready(one)}
        assert seen == parts
        cut.sweep()
