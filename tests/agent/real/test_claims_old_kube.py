"""Whole cards as claims on a kubelet that is older than shares by claims, allocated by the stock scheduler."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.claims_api import ClaimsApi
from shoal.kube.client import Client
from shoal.kube.errors import UnservedError
from shoal.model.contract import dra, nvidia
from shoal.model.request import Share
from tests.agent.claiming import ROOT, claim_pod, using
from tests.agent.lab import GIB, MEMORY, SAY, memory_pod
from tests.agent.real.claims import VERSION, ClaimsLab, asking, claims_lab
from tests.agent.real.conftest import describe_machine
from tests.agent.sharing import CUT
from tests.kubelet.pods import is_ready
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.before_kube("1.34")


@pytest.fixture(scope="module")
def node_with_claims(
    testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClaimsLab]:
    folder = tmp_path_factory.mktemp("machine")
    with claims_lab(testbed_run, nvml_library, folder, recoverySeconds=0) as made:
        yield made


@pytest.fixture
def lab(node_with_claims: ClaimsLab) -> Iterator[ClaimsLab]:
    node_with_claims.make_template("card", asking())
    yield node_with_claims
    node_with_claims.sweep()


CARD = {"gpu": {"resourceClaimTemplateName": "card"}}


def offered(lab: ClaimsLab) -> set[int]:
    """The cards that are devices, by index."""
    return {device["basic"]["attributes"]["index"]["int"] for device in lab.devices()}


def unscheduled(lab: ClaimsLab, name: str) -> bool:
    """Whether the scheduler has tried a pod and found no node."""
    conditions = lab.pods.get(name)["status"].get("conditions", ())
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def restarts(found: dict) -> int:
    """How often the one container of a pod was started again."""
    return int(found["status"]["containerStatuses"][0]["restartCount"])


def test_what_is_published(lab: ClaimsLab):
    (one,) = lab.slices()
    assert one["metadata"]["name"] == f"{lab.node.name}-gpu.shoal.dev-0"
    assert one["metadata"]["ownerReferences"][0]["name"] == lab.node.name
    card = lab.card(0)
    device = next(one for one in lab.devices() if one["name"] == dra.device_name(card.uuid))
    assert set(device) == {"name", "basic"}
    assert device["basic"]["attributes"]["uuid"] == {"string": card.uuid}
    assert set(device["basic"]["capacity"]["memory"]) == {"value"}


def test_a_whole_card(lab: ClaimsLab):
    before = lab.allocatable(MEMORY)
    name = lab.example("06-whole-card-v1beta1.yaml")
    lab.pods.wait_running(name)
    claim = lab.claim_of(name)
    (card,) = lab.cards_of(claim)
    assert lab.visible(name) == [card]
    wait_for(lambda: lab.held() == {claim["metadata"]["uid"]: {lab.card(card).uuid: -1}}, "held whole")
    wait_for(lambda: lab.allocatable(MEMORY) < before, "fewer units by number")
    lab.pods.delete(name)
    wait_for(lambda: lab.held() == {}, "given back")
    assert not [spec for spec in lab.specs() if "claim" in spec]
    wait_for(lambda: lab.allocatable(MEMORY) == before, "all units again")


def test_containers_see_their_own_requests(lab: ClaimsLab):
    lab.make_claim("parts", asking("train", count=2), asking("serve"))
    containers = [using("train", "train"), using("serve", "serve"), using("watch")]
    lab.create(claim_pod("parts", {"gpu": {"resourceClaimName": "parts"}}, *containers))
    lab.pods.wait_running("parts")
    first, second, third = lab.cards_of(lab.claim("parts"))
    assert len({first, second, third}) == 3
    assert sorted(lab.visible("parts", "train")) == sorted([first, second])
    assert lab.visible("parts", "serve") == [third]
    assert sorted(lab.visible("parts", "watch")) == sorted([first, second, third])


def test_a_second_claim_waits(lab: ClaimsLab):
    lab.make_template("all", asking(count=4))
    source = {"gpu": {"resourceClaimTemplateName": "all"}}
    lab.create(claim_pod("first", source))
    lab.pods.wait_running("first")
    assert sorted(lab.visible("first")) == [0, 1, 2, 3]
    lab.create(claim_pod("second", CARD))
    wait_for(lambda: unscheduled(lab, "second"), "without a node")
    lab.pods.delete("first")
    lab.pods.wait_running("second")
    assert lab.visible("second") == lab.cards_of(lab.claim_of("second"))


def test_a_card_with_shares_by_number_is_not_offered(lab: ClaimsLab):
    lab.place(memory_pod("numbers", 2), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("numbers")
    wait_for(lambda: offered(lab) == {0, 2, 3}, "without the card")
    lab.make_template("all", asking(count=4))
    lab.create(claim_pod("all", {"gpu": {"resourceClaimTemplateName": "all"}}))
    wait_for(lambda: unscheduled(lab, "all"), "without a node")
    lab.pods.delete("numbers")
    lab.pods.wait_running("all")
    assert offered(lab) == {0, 1, 2, 3}


def test_a_share_by_number_has_no_room_on_a_claimed_card(lab: ClaimsLab):
    lab.create(claim_pod("one", CARD))
    lab.pods.wait_running("one")
    late = lab.allocation({"main": lab.visible("one")}, {"main": Share(2 * GIB)})
    lab.place(memory_pod("late", 2), late)
    lab.pods.wait_event("late", lambda event: "of the node, or by claims" in event["message"], "of its card")


def test_a_claim_that_came_too_late_waits_on_the_node(lab: ClaimsLab):
    """The scheduler may have chosen a card before it heard of a share by number on it."""
    lab.place(memory_pod("numbers", 2), lab.allocation({"main": [0]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("numbers")
    lab.make_claim("mine", asking())
    lab.create(claim_pod("mine", {"gpu": {"resourceClaimName": "mine"}}, schedulerName="nobody"))
    lab.allocate("mine", {"request": "gpu", "device": dra.device_name(lab.card(0).uuid)}, pods=["mine"])
    lab.bind_to("mine")
    lab.wait_logged("waits: card 0")
    assert lab.held() == {}
    lab.pods.delete("numbers")
    lab.pods.wait_running("mine")
    assert lab.visible("mine") == [0]


def test_a_sick_card_is_left_out(lab: ClaimsLab):
    lab.create(claim_pod("one", CARD))
    lab.pods.wait_running("one")
    (card,) = lab.visible("one")
    lab.shim.write(describe_machine("4xT4", lost=[card]))
    wait_for(lambda: offered(lab) == {0, 1, 2, 3} - {card}, "without the card")
    assert is_ready(lab.pods.get("one")), "who has it keeps it"
    lab.shim.write(describe_machine("4xT4"))
    wait_for(lambda: offered(lab) == {0, 1, 2, 3}, "well again")


def test_slices_are_restored(lab: ClaimsLab):
    before = {one["metadata"]["uid"] for one in lab.slices()}
    lab.pods.apiserver.request("DELETE", f"{lab.resources}/resourceslices")
    wait_for(lambda: len(lab.devices()) == 4, "published again")
    assert not before & {one["metadata"]["uid"] for one in lab.slices()}
    found = lab.slices()[0]
    found["spec"]["devices"][0]["basic"]["capacity"]["memory"]["value"] = "500Gi"
    lab.pods.apiserver.request("PUT", f"{lab.resources}/resourceslices/{found['metadata']['name']}", found)
    wait_for(lambda: all(one["basic"]["capacity"]["memory"]["value"] != "500Gi" for one in lab.devices()), "as it is")


def test_kubelet_starts_again(lab: ClaimsLab):
    """It deletes all slices, just after it has registered the driver again."""
    lab.create(claim_pod("before", CARD))
    lab.pods.wait_running("before")
    before = {one["metadata"]["uid"] for one in lab.slices()}
    lab.node.kubelet.kill()
    lab.node.kubelet.start()
    wait_for(lambda: len(lab.devices()) == 4 and not before & {one["metadata"]["uid"] for one in lab.slices()}, "anew")
    lab.create(claim_pod("after", CARD))
    lab.pods.wait_running("after")
    assert lab.visible("after") == lab.cards_of(lab.claim_of("after"))
    assert lab.visible("after") != lab.visible("before")
    lab.pods.delete("before")
    uid = lab.claim_of("after")["metadata"]["uid"]
    wait_for(lambda: list(lab.held()) == [uid], "given back")


def test_agent_killed_and_files_lost(lab: ClaimsLab):
    """A new agent knows the claims and makes their files again; kubelet asks it for those that came meanwhile."""
    lab.create(claim_pod("one", CARD, script=f"{SAY}; sleep 3", restartPolicy="Always"))
    lab.pods.wait_running("one")
    seen = lab.visible("one")
    uid = lab.claim_of("one")["metadata"]["uid"]
    lab.kill()
    for path in lab.node.cdi.glob("shoal.dev-claim-*"):
        path.unlink()
    lab.create(claim_pod("meanwhile", CARD))
    lab.again()
    before = restarts(lab.pods.get("one"))
    lab.pods.wait("one", lambda found: restarts(found) > before, "started again")
    lab.pods.wait_running("one")
    assert lab.visible("one") == seen
    lab.pods.wait_running("meanwhile")
    assert lab.visible("meanwhile") != seen
    assert set(lab.held()) >= {uid}
    lab.kill()
    for name in ("one", "meanwhile"):
        lab.pods.apiserver.request("DELETE", f"/api/v1/namespaces/{lab.pods.namespace}/pods/{name}")
    lab.again()
    wait_for(lambda: lab.held() == {}, "given back")


def test_reboot(lab: ClaimsLab):
    """The pod's claim is prepared again under the same UID."""
    lab.create(claim_pod("one", CARD, restartPolicy="Always"))
    lab.pods.wait_running("one")
    claim = lab.claim_of("one")
    lab.kill()
    lab.node.reboot()
    for path in lab.node.cdi.glob("shoal.dev-*"):
        path.unlink()
    lab.again()
    wait_for(lambda: list(lab.held()) == [claim["metadata"]["uid"]], "held again")
    lab.pods.wait("one", lambda found: is_ready(found) and restarts(found) > 0, "up")
    assert lab.visible("one") == lab.cards_of(claim)


def test_rights_end_at_the_own_node(lab: ClaimsLab):
    found = lab.slices()[0]
    own = {"apiVersion": f"resource.k8s.io/{VERSION}", "kind": "ResourceSlice"}

    def told(spec: dict) -> str:
        metadata = {"name": "x", "ownerReferences": found["metadata"]["ownerReferences"]}
        document = {**own, "metadata": metadata, "spec": spec}
        return lab.as_agent("create", "--dry-run=server", "-f", "-", input=json.dumps(document))

    assert "created" in told(found["spec"])
    assert "of its own node and driver only" in told({**found["spec"], "driver": "other.example.com"})


def test_partitions_of_a_card(
    lab: ClaimsLab, testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
):
    """Each is a device of its own, and one claim's."""
    with lab.beside(testbed_run, nvml_library, tmp_path_factory.mktemp("cut"), [CUT]) as cut:
        one = 'device.attributes["gpu.shoal.dev"]'
        small = {"cel": {"expression": f'{one}.type == "mig" && {one}.profile == "1g.6gb"'}}
        cut.make_template("part", asking(selectors=[small]))
        parts = {one.uuid for one in cut.card(0).mig_instances if one.profile == "1g.6gb"}
        for name in ("first", "second", "third"):
            cut.create(claim_pod(name, {"gpu": {"resourceClaimTemplateName": "part"}}))
        cut.wait_for_running(2)
        seen = {cut.env(one["metadata"]["name"])[nvidia.ENV_VISIBLE_DEVICES] for one in cut.pods.all() if is_ready(one)}
        assert seen == parts
        cut.sweep()


def test_a_kubelet_with_the_gate_off(
    lab: ClaimsLab, testbed_run: Run, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
):
    """It would start pods without their cards: nothing is offered, and the node's event says what to do."""
    folder = tmp_path_factory.mktemp("off")
    with lab.beside(testbed_run, nvml_library, folder, "2xT4", gates={}, wait=False) as off:

        def said() -> list[str]:
            events = off.pods.apiserver.request("GET", "/api/v1/namespaces/default/events")["items"]
            about = [one for one in events if one["involvedObject"]["name"] == off.node.name]
            return [one["message"] for one in about if one["reason"] == "GPUClaimsUnavailable"]

        wait_for(lambda: bool(said()), "told")
        assert "switch its feature gate DynamicResourceAllocation on" in said()[0]
        assert off.devices() == []
        wait_for(lambda: off.allocatable(MEMORY) > 0, "shares by number all the same")
        off.make_claim("mine", asking())
        off.create(claim_pod("mine", {"gpu": {"resourceClaimName": "mine"}}, schedulerName="nobody"))
        off.allocate("mine", {"request": "gpu", "device": dra.device_name(off.card(0).uuid)}, pods=["mine"])
        off.bind_to("mine")
        off.pods.wait_running("mine")
        assert nvidia.ENV_VISIBLE_DEVICES not in off.env("mine"), "which is why"
        off.sweep()


def test_manifests_are_taken_strictly(lab: ClaimsLab):
    strictly = ("--validate=strict", "--warnings-as-errors", "--dry-run=server")
    said = lab.pods.apiserver.kubectl("apply", "-k", str(ROOT / "deploy" / "agent-claims-v1beta1"), *strictly)
    assert "daemonset.apps/shoal-agent" in said
    assert "deviceclass.resource.k8s.io/shoal-gpu" in said


async def test_a_server_with_the_api_off(apiserver: ApiServer):
    access = load_access(environ={}, home=Path("/"), kubeconfig=apiserver.kubeconfig())
    async with Client(access) as client:
        with pytest.raises(UnservedError, match=r"has no resource\.k8s\.io"):
            await ClaimsApi(client).version()


def test_switched_off_and_cleaned_up(lab: ClaimsLab):
    """Without the setting nothing is published; and a clean-up leaves nothing."""
    lab.reload()
    wait_for(lambda: lab.slices() == [], "withdrawn")
    lab.stop()
    lab.clean()
    assert not [spec for spec in lab.specs() if "claim" in spec]
    assert not (lab.node.device_plugins.parent / "plugins_registry/gpu.shoal.dev-reg.sock").exists()
