"""Cards as claims on a real kubelet, allocated by the stock scheduler: each container has exactly its cards."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from shoal.model.contract import dra, nvidia
from shoal.model.request import Share
from tests.agent.lab import GIB, SAY, TELL, memory_pod
from tests.agent.real.claims import ClaimsLab, asking, claim_pod, claims_lab, using
from tests.agent.real.conftest import describe_machine
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


def restarts(found: dict) -> int:
    """How often the one container of a pod was started again."""
    return int(found["status"]["containerStatuses"][0]["restartCount"])


def test_what_is_published(lab: ClaimsLab):
    (one,) = lab.slices()
    assert one["metadata"]["name"] == f"{lab.node.name}-gpu.shoal.dev-0"
    assert one["metadata"]["ownerReferences"][0]["name"] == lab.node.name
    assert one["spec"]["pool"]["resourceSliceCount"] == 1
    card = lab.card(0)
    device = next(one for one in lab.devices() if one["name"] == dra.device_name(card.uuid))
    assert device["allowMultipleAllocations"]
    assert device["attributes"]["uuid"] == {"string": card.uuid}
    assert device["capacity"]["memory"]["requestPolicy"]["validRange"] == {"min": "1Mi", "step": "1Mi"}
    wait_for(lambda: (lab.node.device_plugins.parent / "plugins_registry/gpu.shoal.dev-reg.sock").exists(), "serving")


def test_three_gib(lab: ClaimsLab):
    name = lab.example("01-three-gib.yaml")
    lab.pods.wait_running(name)
    claim = lab.claim_of(name)
    assert lab.visible(name) == lab.cards_of(claim)
    wait_for(lambda: lab.held() == {claim["metadata"]["uid"]: {lab.card(lab.visible(name)[0]).uuid: 3072}}, "held")
    lab.pods.delete(name)
    wait_for(lambda: lab.held() == {}, "given back")
    assert not [spec for spec in lab.specs() if "claim" in spec]


def test_four_cards(lab: ClaimsLab):
    name = lab.example("02-four-cards.yaml")
    lab.pods.wait_running(name)
    assert sorted(lab.visible(name)) == [0, 1, 2, 3]


def test_whole_card_beside_shares(lab: ClaimsLab):
    shared = lab.example("01-three-gib.yaml")
    lab.pods.wait_running(shared)
    whole = lab.example("03-whole-card.yaml")
    lab.pods.wait_running(whole)
    assert lab.visible(whole) != lab.visible(shared)
    uid = lab.claim_of(whole)["metadata"]["uid"]
    wait_for(lambda: lab.held().get(uid) == {lab.card(lab.visible(whole)[0]).uuid: -1}, "held whole")


def test_the_alternative_that_can_be_had(lab: ClaimsLab):
    """A container that names the request gets the card of the alternative that was taken."""
    for number in range(4):
        lab.make_claim(f"full-{number}", asking(memory="8Gi"))
        lab.create(claim_pod(f"full-{number}", {"gpu": {"resourceClaimName": f"full-{number}"}}))
        lab.pods.wait_running(f"full-{number}")
    lab.make_claim("spread", asking(memory="1Gi", count=4))
    name = lab.example("04-large-else-small.yaml")
    lab.pods.wait_running(name)
    claim = lab.claim_of(name)
    taken = lab.results(claim)[0]["request"]
    assert taken in ("gpu/large", "gpu/small")
    assert lab.visible(name) == lab.cards_of(claim)


def test_containers_see_their_own_requests(lab: ClaimsLab):
    name = lab.example("05-two-containers.yaml")
    lab.pods.wait_running(name)
    train, serve = lab.cards_of(lab.claim("two-parts"))
    assert train != serve
    assert lab.visible(name, "train") == [train]
    assert lab.visible(name, "serve") == [serve]
    assert sorted(lab.visible(name, "watch")) == sorted([train, serve])


def test_four_requests_in_one_container(lab: ClaimsLab):
    """Of equal variables a container sees the last one: it must name the cards of all its requests."""
    lab.make_template("four", *(asking(f"r{number}", "6Gi") for number in range(4)))
    lab.create(claim_pod("four", {"gpu": {"resourceClaimTemplateName": "four"}}))
    lab.pods.wait_running("four")
    assert set(lab.visible("four")) == set(lab.cards_of(lab.claim_of("four")))


def test_a_container_without_the_claim_sees_no_card(lab: ClaimsLab):
    lab.make_template("one", asking(memory="1Gi"))
    others = {**using("other"), "resources": {}}
    lab.create(claim_pod("one", {"gpu": {"resourceClaimTemplateName": "one"}}, using("main"), others))
    lab.pods.wait_running("one")
    assert len(lab.visible("one")) == 1
    assert nvidia.ENV_VISIBLE_DEVICES not in lab.env("one", "other")


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


def test_two_claims_in_one_container_are_refused_in_words(lab: ClaimsLab):
    lab.make_template("one", asking(memory="1Gi"))
    source = {"resourceClaimTemplateName": "one"}
    lab.create(claim_pod("two", {"a": source, "b": source}))
    lab.pods.wait_event("two", lambda event: "ask for all in one claim" in event["message"], "of its claims")


def test_a_claim_of_two_pods_is_prepared_once(lab: ClaimsLab):
    uid = lab.make_claim("shared", asking(memory="2Gi"))
    for name in ("first", "second"):
        lab.create(claim_pod(name, {"gpu": {"resourceClaimName": "shared"}}))
        lab.pods.wait_running(name)
    assert lab.visible("first") == lab.visible("second") == lab.cards_of(lab.claim("shared"))
    assert list(lab.held()) == [uid]
    lab.pods.delete("first")
    assert list(lab.held()) == [uid]
    lab.pods.delete("second")
    wait_for(lambda: lab.held() == {}, "given back")


def test_shares_by_number_and_by_claim_on_the_same_cards(lab: ClaimsLab):
    """Neither scheduler sees the other's shares; the node does, and a claim waits until there is room."""
    card = lab.card(0)
    numbers = memory_pod("numbers", 10)
    lab.place(numbers, lab.allocation({"main": [0]}, {"main": Share(10 * GIB)}))
    lab.pods.wait_running("numbers")
    lab.make_claim("mine", asking(memory="8Gi"))
    lab.create(claim_pod("mine", {"gpu": {"resourceClaimName": "mine"}}, schedulerName="nobody"))
    lab.allocate(
        "mine",
        {
            "request": "gpu",
            "device": dra.device_name(card.uuid),
            "shareID": str(uuid4()),
            "consumedCapacity": {"memory": "8Gi", "compute": "0"},
        },
        pods=["mine"],
    )
    lab.bind_to("mine")
    uid = lab.claim("mine")["metadata"]["uid"]
    lab.wait_logged("waits: card 0")
    assert uid not in lab.held()
    lab.pods.delete("numbers")
    lab.pods.wait_running("mine")
    assert lab.visible("mine") == [0]
    lab.place(memory_pod("late", 10), lab.allocation({"main": [0]}, {"main": Share(10 * GIB)}))
    lab.pods.wait_event("late", lambda event: "of the node, or by claims" in event["message"], "of its card")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"device": "gpu-nowhere"}, "does not have"),
        ({"consumedCapacity": {"memory": "30Gi"}}, "the card has"),
        ({"consumedCapacity": {"memory": "-1Gi"}}, "the card has"),
        ({"consumedCapacity": {}}, "says nothing of memory"),
        ({"pool": "other"}, "pool"),
    ],
)
def test_an_allocation_that_cannot_be(lab: ClaimsLab, result: dict, words: str):
    lab.make_claim("bad", asking(memory="1Gi"))
    lab.create(claim_pod("bad", {"gpu": {"resourceClaimName": "bad"}}, schedulerName="nobody"))
    good = {"request": "gpu", "device": dra.device_name(lab.card(0).uuid), "shareID": str(uuid4())}
    lab.allocate("bad", {**good, "consumedCapacity": {"memory": "1Gi"}, **result}, pods=["bad"])
    lab.bind_to("bad")
    lab.pods.wait_event("bad", lambda event: words in event["message"], f"that says {words}")
    assert lab.held() == {}


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


def test_slices_are_restored(lab: ClaimsLab):
    before = {one["metadata"]["uid"] for one in lab.slices()}
    lab.pods.apiserver.request("DELETE", "/apis/resource.k8s.io/v1/resourceslices")
    wait_for(lambda: len(lab.devices()) == 4, "published again")
    assert not before & {one["metadata"]["uid"] for one in lab.slices()}
    found = lab.slices()[0]
    found["spec"]["devices"][0]["capacity"]["memory"]["value"] = "500Gi"
    lab.pods.apiserver.request("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{found['metadata']['name']}", found)
    wait_for(lambda: all(one["capacity"]["memory"]["value"] != "500Gi" for one in lab.devices()), "as they are")


def test_sick_card_has_a_taint_and_kubelet_knows(lab: ClaimsLab):
    lab.make_template("one", asking(memory="1Gi"))
    lab.create(claim_pod("one", {"gpu": {"resourceClaimTemplateName": "one"}}))
    lab.pods.wait_running("one")
    (card,) = lab.visible("one")
    name = dra.device_name(lab.card(card).uuid)
    lab.shim.write(describe_machine("4xT4", lost=[card]))

    def taints() -> list[str]:
        return [taint["key"] for one in lab.devices() if one["name"] == name for taint in one.get("taints", ())]

    def said() -> str:
        status = lab.pods.get("one")["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
        return " ".join(one["health"] for entry in status for one in entry["resources"])

    wait_for(lambda: taints() == [dra.TAINT_UNHEALTHY], "tainted")
    wait_for(lambda: said() == "Unhealthy", "told by kubelet")
    lab.create(claim_pod("next", {"gpu": {"resourceClaimTemplateName": "one"}}))
    lab.pods.wait_running("next")
    assert lab.visible("next") != [card]
    lab.shim.write(describe_machine("4xT4"))
    wait_for(lambda: taints() == [], "well again")


def test_force_deleted_pod_keeps_its_share(lab: ClaimsLab):
    """Its claim and the schedulers' books are gone at once; the node holds the share until kubelet has ended it."""
    lab.make_template("one", asking(memory="2Gi"))
    lab.create(claim_pod("one", {"gpu": {"resourceClaimTemplateName": "one"}}))
    lab.pods.wait_running("one")
    uid = lab.claim_of("one")["metadata"]["uid"]
    wait_for(lambda: list(lab.held()) == [uid], "held")
    lab.node.kubelet.pause()
    lab.force_delete("one")
    wait_for(lambda: lab.claims() == [], "without its claim")
    lab.kill()
    lab.again(wait=False)
    wait_for(lambda: lab.asked("healthz")[0] == 200 and list(lab.held()) == [uid], "still held by a new agent")
    lab.node.kubelet.resume()
    wait_for(lambda: lab.held() == {}, "given back")


def test_kubelet_starts_again(lab: ClaimsLab):
    """It deletes all slices, just after it has registered the driver again."""
    lab.make_template("one", asking(memory="2Gi"))
    source = {"gpu": {"resourceClaimTemplateName": "one"}}
    lab.create(claim_pod("before", source))
    lab.pods.wait_running("before")
    before = {one["metadata"]["uid"] for one in lab.slices()}
    lab.node.kubelet.kill()
    lab.node.kubelet.start()
    wait_for(lambda: len(lab.devices()) == 4 and not before & {one["metadata"]["uid"] for one in lab.slices()}, "anew")
    lab.create(claim_pod("after", source))
    lab.pods.wait_running("after")
    assert lab.visible("after") == lab.cards_of(lab.claim_of("after"))
    lab.pods.delete("before")
    uid = lab.claim_of("after")["metadata"]["uid"]
    wait_for(lambda: list(lab.held()) == [uid], "given back")


def test_agent_killed_and_files_lost(lab: ClaimsLab):
    """A new agent knows the claims, makes their files again, and takes back one whose object is gone."""
    lab.make_template("one", asking(memory="2Gi"))
    source = {"gpu": {"resourceClaimTemplateName": "one"}}
    lab.create(claim_pod("one", source, script=f"{SAY}; sleep 3", restartPolicy="Always"))
    lab.pods.wait_running("one")
    seen = lab.visible("one")
    uid = lab.claim_of("one")["metadata"]["uid"]
    lab.kill()
    for path in lab.node.cdi.glob("shoal.dev-claim-*"):
        path.unlink()
    lab.create(claim_pod("meanwhile", source))
    lab.again()
    before = restarts(lab.pods.get("one"))
    lab.pods.wait("one", lambda found: restarts(found) > before, "started again")
    lab.pods.wait_running("one")
    assert lab.visible("one") == seen
    lab.pods.wait_running("meanwhile")
    assert set(lab.held()) >= {uid}


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


def test_reboot(lab: ClaimsLab):
    """The pod's claim is prepared again under the same UID."""
    lab.make_template("one", asking(memory="2Gi"))
    lab.create(claim_pod("one", {"gpu": {"resourceClaimTemplateName": "one"}}, restartPolicy="Always"))
    lab.pods.wait_running("one")
    claim = lab.claim_of("one")
    lab.kill()
    lab.node.reboot()
    for path in lab.node.cdi.glob("shoal.dev-*"):
        path.unlink()
    lab.again()
    wait_for(lambda: list(lab.held()) == [claim["metadata"]["uid"]], "held again")
    lab.pods.wait(
        "one", lambda found: is_ready(found) and found["status"]["containerStatuses"][0]["restartCount"] > 0, "up"
    )
    assert lab.visible("one") == lab.cards_of(claim)


def test_switched_off_and_cleaned_up(lab: ClaimsLab):
    """Without the setting nothing is published; and a clean-up leaves nothing."""
    lab.reload()
    wait_for(lambda: lab.slices() == [], "withdrawn")
    lab.stop()
    lab.clean()
    assert not [spec for spec in lab.specs() if "claim" in spec]
    assert not (lab.node.device_plugins.parent / "plugins_registry/gpu.shoal.dev-reg.sock").exists()


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
