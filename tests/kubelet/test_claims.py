"""How kubelet deals with claims and their drivers: when it asks, what containers get, what it remembers and says."""

import contextlib
import uuid
from collections.abc import Callable, Iterator

import pytest

from shoal.embedded.nodes.claims import checkpoint
from tests.kubelet.claim_driver import CDI_KIND, RESOURCES, TELL, ClaimDriver, Claims, claim_pod
from tests.kubelet.device_plugin import PluginLoop, pod_resources
from tests.kubelet.pods import Pods, container, container_status, is_ready
from tests.testbed.node import Node
from tests.testbed.node_fixtures import NewNode
from tests.testbed.processes import TestbedError
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.min_kube("1.36")

NewDriver = Callable[[Node], ClaimDriver]
PREFIX = "Failed to prepare dynamic resources: prepare dynamic resources: "


@pytest.fixture
def new_driver(plugin_loop: PluginLoop, pods: Pods) -> Iterator[NewDriver]:
    """Drivers that have registered, each with a name of its own. They go after the pods of the test."""
    made: dict[ClaimDriver, Node] = {}

    def make(node: Node) -> ClaimDriver:
        driver = ClaimDriver(plugin_loop, node, f"{uuid.uuid4().hex[:8]}.shoal.test")
        made[driver] = node
        driver.start()
        return driver

    yield make
    pods.delete_all()
    for driver, node in made.items():
        # A kubelet that was left with claims of a driver that is gone would ask for it for ever.
        with contextlib.suppress(TestbedError):
            wait_for(lambda: all(driver.name not in one.drivers for one in recorded(node)), "taken back", 10)  # noqa: B023
        driver.stop()


def given(pods: Pods, name: str, container_name: str = "main") -> str:
    """What a container was given by the driver."""
    wait_for(lambda: pods.log(name, container_name) != "", f"{name} tells what it has")
    return pods.log(name, container_name).strip()


def told(pods: Pods, name: str) -> set[str]:
    """Why a pod's claims are not prepared."""
    events = [event for event in pods.events(name) if event["reason"] == "FailedPrepareDynamicResources"]
    return {event["message"].removeprefix(PREFIX) for event in events}


def recorded(node: Node) -> list[checkpoint.ClaimInfo]:
    """kubelet's own record of claims."""
    return checkpoint.read(node.device_plugins.parent / "dra_manager_state")


def test_claims_of_a_pod_are_prepared_at_once_and_taken_back(kubelet: Node, pods: Pods, new_driver: NewDriver):
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    for name in ("a", "b"):
        claims.create(name)
    both = [
        {**container("one", TELL), "resources": {"claims": [{"name": "a"}]}},
        {**container("two", TELL), "resources": {"claims": [{"name": "b"}]}},
        container("none", TELL),
    ]
    claims.run(claim_pod("both", "a", "b", containers=both), driver.name)
    pods.wait_running("both")
    assert [given(pods, "both", name) for name in ("one", "two")] == ["a/gpu", "b/gpu"]
    assert pods.log("both", "none").strip() == ""
    assert driver.prepared == [["a", "b"]]
    pods.delete("both")
    assert driver.taken_back == [["a", "b"]], "before the pod is gone"
    assert {"a", "b"}.isdisjoint(one.name for one in recorded(kubelet))


def test_containers_get_the_requests_they_name(kubelet: Node, pods: Pods, new_driver: NewDriver):
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    claims.create("parts", "train", "serve")
    driver.requests["parts"] = ["train", "serve"]
    named = [
        {**container(name, TELL), "resources": {"claims": [{"name": "parts", "request": name}]}}
        for name in ("train", "serve")
    ]
    claims.run(claim_pod("parts", "parts", containers=named), driver.name)
    pods.wait_running("parts")
    assert [given(pods, "parts", name) for name in ("train", "serve")] == ["parts/train", "parts/serve"]


def test_a_claim_of_two_pods_is_prepared_once(kubelet: Node, pods: Pods, new_driver: NewDriver):
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    claims.create("shared")
    for name in ("first", "second"):
        claims.wait_for_node(claim_pod(name, "shared"))
    claims.allocate("shared", driver.name, "first", "second")
    for name in ("first", "second"):
        claims.bind(name)
        pods.wait_running(name)
    assert driver.prepared == [["shared"]]
    pods.delete("first")
    assert driver.taken_back == []
    pods.delete("second")
    assert driver.taken_back == [["shared"]]


def test_a_pod_that_waits_is_told_why(kubelet: Node, pods: Pods, new_driver: NewDriver):
    """Each cause in kubelet's words; when the last is gone, the pod runs."""
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    uid = claims.create("c")
    claims.wait_for_node(claim_pod("waits", "c"))
    claims.bind("waits")
    pod_uid = pods.get("waits")["metadata"]["uid"]
    not_allowed = f"pod waits ({pod_uid}) is not allowed to use ResourceClaim c ({uid})"
    wait_for(lambda: told(pods, "waits") == {not_allowed}, "told that it is not reserved")
    claims.allocate("c", "nowhere.shoal.test", "waits")
    unknown = "DRA driver nowhere.shoal.test is not registered"
    wait_for(lambda: told(pods, "waits") == {not_allowed, unknown}, "told that there is no driver")
    assert driver.prepared == []
    claims.wait_for_node(claim_pod("early", "gone"))
    claims.bind("early")
    missing = 'fetch ResourceClaim gone: resourceclaims.resource.k8s.io "gone" not found'
    wait_for(lambda: told(pods, "early") == {missing}, "told that there is no claim")
    state = container_status(pods.get("early"), "main")["state"]
    assert state == {"waiting": {"reason": "ContainerCreating"}}
    claims.create("gone")
    claims.allocate("gone", driver.name, "early")
    pods.wait_running("early")
    assert given(pods, "early") == "gone/gpu"


def test_a_driver_that_refuses_is_asked_again(kubelet: Node, pods: Pods, new_driver: NewDriver):
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    claims.create("c")
    driver.failure = "no room"
    claims.run(claim_pod("refused", "c"), driver.name)
    why = "NodePrepareResources failed for ResourceClaim c: no room"
    wait_for(lambda: told(pods, "refused") == {why}, "told what the driver said")
    driver.failure = ""
    pods.wait_running("refused")
    pods.delete("refused")
    assert driver.taken_back == [["c"]]


def test_a_pod_that_never_got_its_claims_ends(kubelet: Node, pods: Pods, new_driver: NewDriver):
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    claims.create("c")
    claims.wait_for_node(claim_pod("unlucky", "c"))
    claims.bind("unlucky")
    wait_for(lambda: bool(told(pods, "unlucky")), "told why it waits")
    pods.delete("unlucky")
    assert driver.taken_back == [], "nothing of it was prepared"


def test_a_deadline_ends_a_pod_that_waits_for_its_claims(kubelet: Node, pods: Pods, new_driver: NewDriver):
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    claims.create("c")
    manifest = claim_pod("late", "c")
    manifest["spec"]["activeDeadlineSeconds"] = 1
    claims.wait_for_node(manifest)
    claims.bind("late")
    assert pods.wait_phase("late", "Failed")["status"]["reason"] == "DeadlineExceeded"
    assert (driver.prepared, driver.taken_back) == ([], [])


def test_claims_outlive_kubelet(new_node: NewNode, pods: Pods, new_driver: NewDriver):
    node = new_node()
    driver, claims = new_driver(node), Claims(pods, node)
    claims.create("c")
    claims.run(claim_pod("stays", "c"), driver.name)
    before = container_status(pods.wait_running("stays"), "main")
    (kept,) = recorded(node)
    assert (kept.name, kept.pods, list(kept.drivers)) == (
        "c",
        {pods.get("stays")["metadata"]["uid"]},
        [driver.name],
    )
    content = (node.device_plugins.parent / "dra_manager_state").read_bytes()
    assert checkpoint.encode([kept]) == content, "the record byte for byte"
    node.kubelet.stop()
    driver.server.registered.clear()
    node.kubelet.start()
    wait_for(driver.server.registered.is_set, "registered again")
    now = container_status(pods.wait_running("stays"), "main")
    assert (now["containerID"], now["restartCount"]) == (before["containerID"], 0)
    pods.delete("stays")
    assert driver.prepared == [["c"]], "what was prepared stays so"
    assert driver.taken_back == [["c"]]
    assert recorded(node) == []


def test_slices_of_a_node_go_when_kubelet_starts(new_node: NewNode, pods: Pods):
    node = new_node()
    spec = {"driver": "any.shoal.test", "nodeName": node.name, "pool": {"name": node.name, "resourceSliceCount": 1}}
    for name, where in ((f"own-{node.name}", node.name), (f"other-{node.name}", "elsewhere")):
        body = {"metadata": {"name": name}, "spec": {**spec, "nodeName": where}}
        pods.apiserver.request("POST", f"{RESOURCES}/resourceslices", body)
    node.kubelet.stop()
    node.kubelet.start()

    def left() -> set[str]:
        items = pods.apiserver.request("GET", f"{RESOURCES}/resourceslices")["items"]
        return {one["metadata"]["name"] for one in items if node.name in one["metadata"]["name"]}

    wait_for(lambda: left() == {f"other-{node.name}"}, "without its slices")
    pods.apiserver.request("DELETE", f"{RESOURCES}/resourceslices/other-{node.name}")


def test_reboot_prepares_anew(new_node: NewNode, pods: Pods, new_driver: NewDriver):
    node = new_node()
    driver, claims = new_driver(node), Claims(pods, node)
    claims.create("c")
    claims.run(claim_pod("again", "c"), driver.name)
    pods.wait_running("again")
    driver.stop()
    node.reboot()
    driver.start()
    pods.wait(
        "again", lambda found: is_ready(found) and container_status(found, "main")["restartCount"] > 0, "running again"
    )
    assert driver.prepared == [["c"], ["c"]]
    assert driver.taken_back == []


def test_extended_resources_that_a_claim_serves(kubelet: Node, pods: Pods, new_driver: NewDriver):
    """As a scheduler does it: the claim is in the pod's status, with a request for each container and name."""
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    claims.create("made", "container-0-request-0", "container-1-request-0")
    driver.requests["made"] = ["container-0-request-0", "container-1-request-0"]
    resource = "shoal.test/cards"
    manifest = claim_pod(
        "plain",
        containers=[container(name, TELL, {resource: 1}) for name in ("one", "two")] + [container("none", TELL)],
    )
    claims.wait_for_node(manifest)
    mappings = [
        {"containerName": name, "resourceName": resource, "requestName": f"container-{number}-request-0"}
        for number, name in enumerate(("one", "two"))
    ]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": mappings}}
    path = f"/api/v1/namespaces/{pods.namespace}/pods/plain/status"
    pods.apiserver.request("PATCH", path, {"status": status}, "application/merge-patch+json")
    claims.allocate("made", driver.name, "plain")
    claims.bind("plain")
    found = pods.wait_running("plain")
    assert given(pods, "plain", "one") == "made/container-0-request-0"
    assert given(pods, "plain", "two") == "made/container-1-request-0"
    assert pods.log("plain", "none").strip() == ""
    assert found["status"]["extendedResourceClaimStatus"] == status["extendedResourceClaimStatus"]
    pods.delete("plain")
    assert driver.taken_back == [["made"]]


def test_what_kubelet_says_of_claims(kubelet: Node, pods: Pods, new_driver: NewDriver, plugin_loop: PluginLoop):
    """PodResources lists claims with their devices; a container's status tells how these are."""
    driver, claims = new_driver(kubelet), Claims(pods, kubelet)
    uid = claims.create("c")
    claims.run(claim_pod("listed", "c"), driver.name)
    pods.wait_running("listed")
    answer = plugin_loop.run(pod_resources(kubelet))
    (listed,) = [one for one in answer.pod_resources if (one.namespace, one.name) == (pods.namespace, "listed")]
    (resource,) = listed.containers[0].dynamic_resources
    assert (resource.claim_namespace, resource.claim_name) == (pods.namespace, "c")
    (device,) = resource.claim_resources
    assert (device.driver_name, device.pool_name, device.device_name) == (driver.name, kubelet.name, "device-gpu")
    assert [one.name for one in device.cdi_devices] == [f"{CDI_KIND}={uid}-gpu"]

    def health() -> list[dict]:
        return list(container_status(pods.get("listed"), "main").get("allocatedResourcesStatus", []))

    def expected(**words: str) -> list[dict]:
        return [{"name": "claim:c", "resources": [{"resourceID": f"{CDI_KIND}={uid}-gpu", **words}]}]

    wait_for(lambda: health() == expected(health="Healthy"), "told to be healthy")
    driver.fail("broken")
    wait_for(lambda: health() == expected(health="Unhealthy", message="broken"), "told to be broken")
