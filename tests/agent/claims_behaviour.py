"""What an agent does with claims, whatever kubelet and scheduler it meets: each container has exactly its cards.

The tests of the folders `simulated` and `real` run these; `lab` is a node of four cards whose agent offers claims.
"""

from uuid import uuid4

import pytest

from shoal.model.contract import dra, nvidia
from shoal.model.request import Share
from tests.agent.claiming import Claiming, asking, claim_pod, using
from tests.agent.lab import GIB, SAY, memory_pod
from tests.kubelet.pods import is_ready
from tests.testbed.waiting import wait_for


def restarts(found: dict) -> int:
    """How often the one container of a pod was started again."""
    return int(found["status"]["containerStatuses"][0]["restartCount"])


def test_what_is_published(lab: Claiming):
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


def test_three_gib(lab: Claiming):
    name = lab.example("01-three-gib.yaml")
    lab.pods.wait_running(name)
    claim = lab.claim_of(name)
    assert lab.visible(name) == lab.cards_of(claim)
    wait_for(lambda: lab.held() == {claim["metadata"]["uid"]: {lab.card(lab.visible(name)[0]).uuid: 3072}}, "held")
    lab.pods.delete(name)
    wait_for(lambda: lab.held() == {}, "given back")
    assert not [spec for spec in lab.specs() if "claim" in spec]


def test_four_cards(lab: Claiming):
    name = lab.example("02-four-cards.yaml")
    lab.pods.wait_running(name)
    assert sorted(lab.visible(name)) == [0, 1, 2, 3]


def test_whole_card_beside_shares(lab: Claiming):
    shared = lab.example("01-three-gib.yaml")
    lab.pods.wait_running(shared)
    whole = lab.example("03-whole-card.yaml")
    lab.pods.wait_running(whole)
    assert lab.visible(whole) != lab.visible(shared)
    uid = lab.claim_of(whole)["metadata"]["uid"]
    wait_for(lambda: lab.held().get(uid) == {lab.card(lab.visible(whole)[0]).uuid: -1}, "held whole")


def test_the_alternative_that_can_be_had(lab: Claiming):
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


def test_containers_see_their_own_requests(lab: Claiming):
    name = lab.example("05-two-containers.yaml")
    lab.pods.wait_running(name)
    train, serve = lab.cards_of(lab.claim("two-parts"))
    assert train != serve
    assert lab.visible(name, "train") == [train]
    assert lab.visible(name, "serve") == [serve]
    assert sorted(lab.visible(name, "watch")) == sorted([train, serve])


def test_four_requests_in_one_container(lab: Claiming):
    """Of equal variables a container sees the last one: it must name the cards of all its requests."""
    lab.make_template("four", *(asking(f"r{number}", "6Gi") for number in range(4)))
    lab.create(claim_pod("four", {"gpu": {"resourceClaimTemplateName": "four"}}))
    lab.pods.wait_running("four")
    assert set(lab.visible("four")) == set(lab.cards_of(lab.claim_of("four")))


def test_a_container_without_the_claim_sees_no_card(lab: Claiming):
    lab.make_template("one", asking(memory="1Gi"))
    others = {**using("other"), "resources": {}}
    lab.create(claim_pod("one", {"gpu": {"resourceClaimTemplateName": "one"}}, using("main"), others))
    lab.pods.wait_running("one")
    assert len(lab.visible("one")) == 1
    assert nvidia.ENV_VISIBLE_DEVICES not in lab.env("one", "other")


def test_two_claims_in_one_container_are_refused_in_words(lab: Claiming):
    lab.make_template("one", asking(memory="1Gi"))
    source = {"resourceClaimTemplateName": "one"}
    lab.create(claim_pod("two", {"a": source, "b": source}))
    lab.pods.wait_event("two", lambda event: "ask for all in one claim" in event["message"], "of its claims")


def test_a_claim_of_two_pods_is_prepared_once(lab: Claiming):
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


def test_shares_by_number_and_by_claim_on_the_same_cards(lab: Claiming):
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
def test_an_allocation_that_cannot_be(lab: Claiming, result: dict, words: str):
    lab.make_claim("bad", asking(memory="1Gi"))
    lab.create(claim_pod("bad", {"gpu": {"resourceClaimName": "bad"}}, schedulerName="nobody"))
    good = {"request": "gpu", "device": dra.device_name(lab.card(0).uuid), "shareID": str(uuid4())}
    lab.allocate("bad", {**good, "consumedCapacity": {"memory": "1Gi"}, **result}, pods=["bad"])
    lab.bind_to("bad")
    lab.pods.wait_event("bad", lambda event: words in event["message"], f"that says {words}")
    assert lab.held() == {}


def test_slices_are_restored(lab: Claiming):
    before = {one["metadata"]["uid"] for one in lab.slices()}
    lab.pods.apiserver.request("DELETE", "/apis/resource.k8s.io/v1/resourceslices")
    wait_for(lambda: len(lab.devices()) == 4, "published again")
    assert not before & {one["metadata"]["uid"] for one in lab.slices()}
    found = lab.slices()[0]
    found["spec"]["devices"][0]["capacity"]["memory"]["value"] = "500Gi"
    lab.pods.apiserver.request("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{found['metadata']['name']}", found)
    wait_for(lambda: all(one["capacity"]["memory"]["value"] != "500Gi" for one in lab.devices()), "as they are")


def test_sick_card_has_a_taint_and_kubelet_knows(lab: Claiming):
    lab.make_template("one", asking(memory="1Gi"))
    lab.create(claim_pod("one", {"gpu": {"resourceClaimTemplateName": "one"}}))
    lab.pods.wait_running("one")
    (card,) = lab.visible("one")
    name = dra.device_name(lab.card(card).uuid)
    lab.lose_card(card)

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
    lab.mend_cards()
    wait_for(lambda: taints() == [], "well again")


def test_force_deleted_pod_keeps_its_share(lab: Claiming):
    """Its claim and the schedulers' books are gone at once; the node holds the share until kubelet has ended it."""
    lab.make_template("one", asking(memory="2Gi"))
    lab.create(claim_pod("one", {"gpu": {"resourceClaimTemplateName": "one"}}))
    lab.pods.wait_running("one")
    uid = lab.claim_of("one")["metadata"]["uid"]
    wait_for(lambda: list(lab.held()) == [uid], "held")
    lab.pause_kubelet()
    lab.force_delete("one")
    wait_for(lambda: lab.claims() == [], "without its claim")
    lab.kill()
    lab.again(wait=False)
    wait_for(lambda: lab.asked("healthz")[0] == 200 and list(lab.held()) == [uid], "still held by a new agent")
    lab.resume_kubelet()
    wait_for(lambda: lab.held() == {}, "given back")


def test_kubelet_starts_again(lab: Claiming):
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


def test_agent_killed_and_files_lost(lab: Claiming):
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


def test_reboot(lab: Claiming):
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


def test_switched_off_and_cleaned_up(lab: Claiming):
    """Without the setting nothing is published; and a clean-up leaves nothing."""
    lab.reload()
    wait_for(lambda: lab.slices() == [], "withdrawn")
    lab.stop()
    lab.clean()
    assert not [spec for spec in lab.specs() if "claim" in spec]
    assert not (lab.node.device_plugins.parent / "plugins_registry/gpu.shoal.dev-reg.sock").exists()
    lab.again()
