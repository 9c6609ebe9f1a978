"""What Shoal's design takes for granted about the API server, asked of a real one."""

import json
import time

import pytest

from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import TestbedError

POLICIES = "/apis/admissionregistration.k8s.io/v1"


def pod(name: str, **fields: object) -> dict:
    """A pod of one container, which asks for nothing unless told."""
    container = {"name": "main", "image": "shoal.test/busybox:1", **fields}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def test_versions_tell_the_truth(apiserver: ApiServer) -> None:
    wanted = f"v{binaries.kube_version()}"
    assert apiserver.request("GET", "/version")["gitVersion"] == wanted
    told = apiserver.kubectl("version")
    assert f"Client Version: {wanted}" in told
    assert f"Server Version: {wanted}" in told


def test_a_binding_sets_annotations_in_the_same_write(apiserver: ApiServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    made = apiserver.request("POST", pods, pod("one"))
    apiserver.request(
        "POST",
        f"{pods}/one/binding",
        {
            "metadata": {"name": "one", "annotations": {"shoal.dev/allocation": "{}"}},
            "target": {"kind": "Node", "name": "node-a"},
        },
    )
    bound = apiserver.request("GET", f"{pods}/one")
    assert bound["spec"]["nodeName"] == "node-a"
    assert bound["metadata"]["annotations"] == {"shoal.dev/allocation": "{}"}
    seen = watched(apiserver, f"{pods}?watch=1&timeoutSeconds=1&resourceVersion={made['metadata']['resourceVersion']}")
    assert [event["type"] for event in seen] == ["MODIFIED"], "one write, not two"


@pytest.mark.min_kube("1.35")
def test_a_binding_sets_labels_too(apiserver: ApiServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    apiserver.request("POST", pods, pod("one"))
    binding = {"metadata": {"name": "one", "labels": {"on": "card"}}, "target": {"kind": "Node", "name": "node-a"}}
    apiserver.request("POST", f"{pods}/one/binding", binding)
    assert apiserver.request("GET", f"{pods}/one")["metadata"]["labels"] == {"on": "card"}


def test_a_second_binding_is_refused_and_changes_nothing(apiserver: ApiServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    apiserver.request("POST", pods, pod("one"))
    for node, expected in (("node-a", 201), ("node-b", 409)):
        binding = {
            "metadata": {"name": "one", "annotations": {"for": node}},
            "target": {"kind": "Node", "name": node},
        }
        assert apiserver.try_request("POST", f"{pods}/one/binding", binding)[0] == expected
    bound = apiserver.request("GET", f"{pods}/one")
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("node-a", {"for": "node-a"})


@pytest.mark.min_kube("1.36")
def test_a_mutating_policy_adds_the_slot_to_the_containers_that_ask_for_memory(
    apiserver: ApiServer, namespace: str
) -> None:
    expression = """
        Object{spec: Object.spec{containers: object.spec.containers.filter(c,
            has(c.resources.limits) && "aliyun.com/gpu-mem" in c.resources.limits
        ).map(c, Object.spec.containers{
            name: c.name,
            resources: Object.spec.containers.resources{
                limits: {"shoal.dev/gpu": "1"}, requests: {"shoal.dev/gpu": "1"}
            }
        })}}
    """
    policy = f"slot-{namespace}"
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    apiserver.request(
        "POST",
        f"{POLICIES}/mutatingadmissionpolicies",
        {
            "metadata": {"name": policy},
            "spec": {
                "matchConstraints": {"resourceRules": [rule("CREATE")]},
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
            },
        },
    )
    apiserver.request(
        "POST",
        f"{POLICIES}/mutatingadmissionpolicybindings",
        {
            "metadata": {"name": policy},
            "spec": {"policyName": policy, "matchResources": {"namespaceSelector": selector}},
        },
    )
    wanted = {"limits": {"aliyun.com/gpu-mem": "3"}}

    def slots(name: str) -> dict:
        given = pod(name, resources=wanted)
        given["spec"]["containers"].append({"name": "plain", "image": "shoal.test/busybox:1"})
        made = apiserver.request("POST", f"/api/v1/namespaces/{namespace}/pods", given)
        return {container["name"]: container.get("resources", {}) for container in made["spec"]["containers"]}

    for attempt in range(200):  # the policy takes effect some time after it was made
        seen = slots(f"pod-{attempt}")
        if "shoal.dev/gpu" in seen["main"]["limits"]:
            break
        time.sleep(0.1)
    both = {"aliyun.com/gpu-mem": "3", "shoal.dev/gpu": "1"}
    assert seen == {"main": {"limits": both, "requests": both}, "plain": {}}


def test_a_validating_policy_refuses_with_our_message(apiserver: ApiServer, namespace: str) -> None:
    policy = f"bad-{namespace}"
    expression = (
        "object.spec.containers.all(c, !has(c.resources.limits) || !('aliyun.com/gpu-mem' in c.resources.limits) || "
        "!('nvidia.com/gpu' in c.resources.limits))"
    )
    message = "a container asks for aliyun.com/gpu-mem and nvidia.com/gpu: keep one of them"
    apiserver.request(
        "POST",
        f"{POLICIES}/validatingadmissionpolicies",
        {
            "metadata": {"name": policy},
            "spec": {
                "matchConstraints": {"resourceRules": [rule("CREATE")]},
                "validations": [{"expression": expression, "message": message}],
            },
        },
    )
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    apiserver.request(
        "POST",
        f"{POLICIES}/validatingadmissionpolicybindings",
        {
            "metadata": {"name": policy},
            "spec": {
                "policyName": policy,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": selector},
            },
        },
    )
    both = {"limits": {"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "1"}}
    for attempt in range(200):
        status, answer = apiserver.try_request(
            "POST", f"/api/v1/namespaces/{namespace}/pods", pod(f"pod-{attempt}", resources=both)
        )
        if status == 422:
            break
        assert status == 201
        time.sleep(0.1)
    assert message in answer["message"]
    good = pod("good", resources={"limits": {"aliyun.com/gpu-mem": "3"}})
    assert apiserver.request("POST", f"/api/v1/namespaces/{namespace}/pods", good)["metadata"]["name"] == "good"


def test_rbac_is_on(apiserver: ApiServer, namespace: str) -> None:
    with pytest.raises(TestbedError, match="Forbidden"):
        apiserver.kubectl("get", "pods", "-n", namespace, user="nobody")
    apiserver.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods", "-n", namespace)
    apiserver.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=nobody", "-n", namespace)
    assert apiserver.kubectl("get", "pods", "-n", namespace, "-o", "name", user="nobody") == ""


def test_a_killed_server_comes_back_with_all_it_had(new_apiserver) -> None:
    server = new_apiserver()
    server.create_namespace("kept")
    server.kill()
    with pytest.raises(OSError):  # noqa: PT011
        server.try_request("GET", "/readyz")
    server.start()
    assert server.request("GET", "/api/v1/namespaces/kept")["status"]["phase"] == "Active"


def test_old_versions_are_gone_after_compaction(new_apiserver) -> None:
    server = new_apiserver()
    server.create_namespace("one")
    old = server.request("GET", "/api/v1/namespaces/one")["metadata"]["resourceVersion"]
    for number in range(5):
        server.create_namespace(f"more-{number}")
    server.compact()
    server.kill()
    server.start()
    seen = watched(server, f"/api/v1/namespaces?watch=1&timeoutSeconds=2&resourceVersion={old}")
    assert [event["object"].get("code") for event in seen] == [410]


def rule(operation: str) -> dict:
    """Pods, for an admission policy."""
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"]}


def watched(server: ApiServer, path: str) -> list[dict]:
    """The events of a watch until its time is up. A refused watch counts as an error event."""
    lines = server.kubectl("get", "--raw", path, check=False).splitlines()
    return [json.loads(line) for line in lines if line.strip()]
