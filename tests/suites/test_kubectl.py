"""Real kubectl does its daily work on a cluster: what it prints, on the real and on the embedded one alike.

No controller runs here: pods are not scheduled, and namespaces are not emptied.
"""

import json
import re
import uuid
from collections.abc import Callable

import pytest
import yaml

from tests.testbed.cluster import Api

# kubectl is one of the programs of `make kube`: the embedded half needs it too.
pytestmark = pytest.mark.usefixtures("testbed_run")

Kubectl = Callable[..., str]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: x}}
spec: {containers: [{name: main, image: busybox, resources: {limits: {aliyun.com/gpu-mem: 3}}}]}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: busybox}]}}
"""
MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {a: '1', b: '2'}
"""


@pytest.fixture
def namespace(cluster: Api) -> str:
    name = f"kubectl-{uuid.uuid4().hex[:12]}"
    cluster.create_namespace(name)
    return name


@pytest.fixture
def kubectl(cluster: Api, namespace: str) -> Kubectl:
    """kubectl in a namespace of the test's own."""

    def run(*arguments: str, text: str | None = None, check: bool = True) -> str:
        return cluster.kubectl("--namespace", namespace, *arguments, input=text, check=check)

    return run


def words(table: str) -> list[list[str]]:
    """A table as rows of words; two spaces or more stand between columns."""
    return [re.split(r" {2,}", line.strip()) for line in table.strip().splitlines()]


def test_create_and_get(kubectl: Kubectl) -> None:
    assert kubectl("create", "-f", "-", text=POD) == "pod/one created\n"
    header, row = words(kubectl("get", "pods"))
    assert header == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row[:4] == ["one", "0/1", "Pending", "0"]
    assert re.fullmatch(r"\d+s", row[4])
    header, row = words(kubectl("get", "po", "-o", "wide"))
    assert header[5:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    assert row[5:] == ["<none>"] * 4
    assert kubectl("get", "pods", "-o", "name", "-l", "app=x") == "pod/one\n"
    assert kubectl("get", "pods", "-o", "name", "-l", "app=y") == ""
    assert kubectl("get", "pods", "-o", "name", "--field-selector", "status.phase=Pending") == "pod/one\n"


def test_get_says_what_is_not_there(kubectl: Kubectl) -> None:
    assert kubectl("get", "pod", "none", check=False) == 'Error from server (NotFound): pods "none" not found\n'
    assert kubectl("get", "nothings", check=False) == 'error: the server doesn\'t have a resource type "nothings"\n'
    assert kubectl("get", "pods", check=False) == ""  # "No resources found" goes to stderr, with success


def test_create_without_a_file(kubectl: Kubectl, namespace: str) -> None:
    assert kubectl("create", "configmap", "map", "--from-literal=a=b") == "configmap/map created\n"
    assert kubectl("create", "secret", "generic", "hidden", "--from-literal=a=b") == "secret/hidden created\n"
    assert kubectl("create", "deployment", "web", "--image=busybox", "--replicas=0") == "deployment.apps/web created\n"
    spec = json.loads(kubectl("get", "deploy", "web", "-o", "json"))["spec"]
    assert (spec["replicas"], spec["template"]["spec"]["containers"][0]["image"]) == (0, "busybox")
    assert kubectl("create", "job", "once", "--image=busybox", "--", "true") == "job.batch/once created\n"
    assert kubectl("create", "cronjob", "often", "--image=busybox", "--schedule=* * * * *").startswith("cronjob.batch/")
    assert kubectl("create", "serviceaccount", "robot") == "serviceaccount/robot created\n"
    assert kubectl("create", "service", "nodeport", "door", "--tcp=80:http") == "service/door created\n"
    port = json.loads(kubectl("get", "svc", "door", "-o", "jsonpath={.spec.ports[0]}"))
    assert (port["port"], port["targetPort"], port["protocol"]) == (80, "http", "TCP")
    assert kubectl("create", "pdb", "web", "--selector=app=web", "--min-available=50%").startswith(
        "poddisruptionbudget"
    )
    assert kubectl("get", "pdb", "web", "-o", "jsonpath={.spec.minAvailable}") == "50%"
    assert kubectl("create", "quota", "few", "--hard=pods=100") == "resourcequota/few created\n"
    assert kubectl("create", "role", "reader", "--verb=get", "--resource=pods").startswith("role.rbac")
    assert kubectl("create", "ingress", "way", "--rule=a/b=door:80").startswith("ingress.networking")
    assert kubectl("get", "ingress", "way", "-o", "jsonpath={.spec.rules[0].http.paths[0].path}") == "/b"
    assert kubectl("create", "namespace", f"{namespace}-a") == f"namespace/{namespace}-a created\n"
    assert "already exists" in kubectl("create", "namespace", f"{namespace}-a", check=False)


def test_outputs(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-f", "-", text=POD)
    as_yaml = yaml.safe_load(kubectl("get", "pod", "one", "-o", "yaml"))
    as_json = json.loads(kubectl("get", "pod", "one", "-o", "json"))
    assert as_json["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "3"}
    assert (as_yaml["kind"], as_yaml["metadata"]["namespace"], as_yaml["metadata"]["uid"]) == (
        "Pod",
        namespace,
        as_json["metadata"]["uid"],
    )
    told = kubectl("get", "pod", "one", "-o", r"jsonpath={.spec.containers[0].resources.limits.aliyun\.com/gpu-mem}")
    assert told == "3"
    assert words(kubectl("get", "pods", "-o", "custom-columns=N:.metadata.name,S:.spec.schedulerName")) == [
        ["N", "S"],
        ["one", "default-scheduler"],
    ]
    assert json.loads(kubectl("get", "pods,configmaps", "-o", "json"))["kind"] == "List"


def test_apply_changes_what_changed(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", text=MAP) == "configmap/map created\n"
    assert kubectl("apply", "-f", "-", text=MAP) == "configmap/map unchanged\n"
    changed = MAP.replace("b: '2'", "c: '3'")
    assert kubectl("apply", "-f", "-", text=changed) == "configmap/map configured\n"
    assert json.loads(kubectl("get", "cm", "map", "-o", "jsonpath={.data}")) == {"a": "1", "c": "3"}


def test_apply_a_deployment(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", text=DEPLOYMENT) == "deployment.apps/web created\n"
    assert (
        kubectl("apply", "-f", "-", text=DEPLOYMENT.replace("busybox", "busybox:2"))
        == "deployment.apps/web configured\n"
    )
    assert kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[*].image}") == "busybox:2"
    assert words(kubectl("get", "deploy"))[1][:4] == ["web", "0/2", "0", "0"]
    assert kubectl("scale", "deploy/web", "--replicas=5") == "deployment.apps/web scaled\n"
    assert kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}") == "5"
    assert kubectl("set", "image", "deploy/web", "main=busybox:3") == "deployment.apps/web image updated\n"


def test_apply_a_list(kubectl: Kubectl) -> None:
    objects = [yaml.safe_load(text) for text in (MAP, DEPLOYMENT)]
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    made = "configmap/map created\ndeployment.apps/web created\n"
    assert kubectl("apply", "-f", "-", text=json.dumps(listed)) == made
    assert kubectl("apply", "-f", "-", text=yaml.safe_dump(listed)) == made.replace("created", "unchanged")
    objects[0]["dat"] = objects[0].pop("data")
    assert 'unknown field "dat"' in kubectl("apply", "-f", "-", text=json.dumps(listed), check=False)
    assert kubectl("delete", "-f", "-", text=json.dumps(listed)).count("deleted") == 2


def test_server_side_apply(kubectl: Kubectl) -> None:
    assert kubectl("apply", "--server-side", "-f", "-", text=MAP) == "configmap/map serverside-applied\n"
    other = MAP.replace("a: '1', b: '2'", "a: '9'")
    refused = kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", text=other, check=False)
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .data.a' in refused
    kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-", text=other)
    assert json.loads(kubectl("get", "cm", "map", "-o", "jsonpath={.data}")) == {"a": "9", "b": "2"}


@pytest.mark.min_kube("1.36")
def test_a_bad_request_is_refused_with_the_reason(kubectl: Kubectl) -> None:
    refused = kubectl("apply", "-f", "-", text=POD.replace("gpu-mem: 3", "gpu-mem: 1.5"), check=False)
    assert 'The Pod "one" is invalid' in refused
    assert (
        'spec.containers[0].resources.limits[aliyun.com/gpu-mem]: Invalid value: "1500m": must be an integer' in refused
    )


def test_unknown_fields_are_refused(kubectl: Kubectl) -> None:
    refused = kubectl("apply", "-f", "-", text=MAP.replace("\ndata:", "\ndat:"), check=False)
    assert 'strict decoding error: unknown field "dat"' in refused
    refused = kubectl("create", "-f", "-", text=DEPLOYMENT.replace("containers:", "contianers:"), check=False)
    assert 'strict decoding error: unknown field "spec.template.spec.contianers"' in refused
    kubectl("apply", "--validate=false", "-f", "-", text=MAP.replace("\ndata:", "\ndat: {}\ndata:"))
    assert json.loads(kubectl("get", "cm", "map", "-o", "json")).keys().isdisjoint({"dat"})


def test_explain(kubectl: Kubectl) -> None:
    told = kubectl("explain", "pod.spec.containers.resources")
    assert re.search(r"^FIELD: resources <ResourceRequirements>$", told, re.MULTILINE)
    assert re.search(r"^  limits\t<map\[string\](string|Quantity)>", told, re.MULTILINE)
    assert 'field "nothing" does not exist' in kubectl("explain", "pod.nothing", check=False)


def test_drain(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-f", "-", text=f"apiVersion: v1\nkind: Node\nmetadata: {{name: {namespace}}}")
    kubectl(
        "create", "-f", "-", text=POD.replace("spec: {", f"spec: {{nodeName: {namespace}, ").replace("busybox", "x")
    )
    refused = kubectl("drain", namespace, check=False)
    assert "cannot delete Pods that declare no controller" in refused
    assert f"pod/one evicted\nnode/{namespace} drained\n" in kubectl(
        "drain", namespace, "--force", "--grace-period=0", "--timeout=60s"
    )
    assert kubectl("get", "pods", "-o", "name") == ""
    kubectl("delete", "node", namespace)


def test_questions_about_access_and_use(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert re.search(r"^Username +admin$", kubectl("auth", "whoami"), re.MULTILINE)
    assert kubectl("top", "pods", check=False) == "error: Metrics API not available\n"


def test_events_of_both_apis(kubectl: Kubectl, namespace: str) -> None:
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "one.1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "shoal.dev/test",
        "reportingInstance": "here",
        "action": "Bind",
        "reason": "Bound",
        "regarding": {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": "one"},
        "note": "put on a card",
        "type": "Normal",
    }
    assert kubectl("create", "-f", "-", text=json.dumps(event)) == "event.events.k8s.io/one.1 created\n"
    for api in ("events", "events.events.k8s.io"):
        header, row = words(kubectl("get", api))
        assert header == ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
        assert row[1:] == ["Normal", "Bound", "pod/one", "put on a card"]
    assert kubectl("get", "events.events.k8s.io", "-o", "jsonpath={.items[*].note}") == "put on a card"
    assert words(kubectl("events", "--for", "pod/one"))[1][1:] == ["Normal", "Bound", "Pod/one", "put on a card"]
    assert "regarding" in kubectl("explain", "events", "--api-version=events.k8s.io/v1")


def test_label_and_annotate(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", text=POD)
    assert kubectl("label", "pod", "one", "tier=front") == "pod/one labeled\n"
    assert "already has a value (front), and --overwrite is false" in kubectl(
        "label", "pod", "one", "tier=back", check=False
    )
    kubectl("label", "pod", "one", "tier=back", "app-", "--overwrite")
    kubectl("annotate", "pod", "one", "shoal.dev/note=x")
    metadata = json.loads(kubectl("get", "pod", "one", "-o", "json"))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"tier": "back"}, {"shoal.dev/note": "x"})
    assert words(kubectl("get", "pods", "-L", "tier"))[1][-1] == "back"


def test_nodes(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-f", "-", text=f"apiVersion: v1\nkind: Node\nmetadata: {{name: {namespace}}}")
    assert kubectl("taint", "node", namespace, "gpu=bad:NoSchedule") == f"node/{namespace} tainted\n"
    assert kubectl("cordon", namespace) == f"node/{namespace} cordoned\n"
    spec = json.loads(kubectl("get", "node", namespace, "-o", "json"))["spec"]
    assert {"key": "gpu", "value": "bad", "effect": "NoSchedule"} in spec["taints"]
    assert spec["unschedulable"] is True
    assert "SchedulingDisabled" in kubectl("get", "node", namespace)
    assert kubectl("uncordon", namespace) == f"node/{namespace} uncordoned\n"
    assert kubectl("taint", "node", namespace, "gpu-") == f"node/{namespace} untainted\n"
    assert kubectl("delete", "node", namespace) == f'node "{namespace}" deleted\n'


def test_patch(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=DEPLOYMENT)
    side = json.dumps({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "x"}]}}}})
    assert kubectl("patch", "deploy", "web", "-p", side) == "deployment.apps/web patched\n"
    names = kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[*].name}")
    assert sorted(names.split()) == ["main", "side"]
    kubectl("patch", "deploy", "web", "--type=json", "-p", '[{"op": "replace", "path": "/spec/replicas", "value": 7}]')
    assert kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}") == "7"
    kubectl("patch", "deploy", "web", "--subresource=status", "--type=merge", "-p", '{"status": {"replicas": 2}}')
    assert kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.replicas} {.status.replicas}") == "7 2"


def test_describe(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-f", "-", text=POD)
    uid = kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.uid}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "one.1"},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "one", "uid": uid},
        "reason": "Placed",
        "message": "on card 0",
        "type": "Normal",
        "source": {"component": "shoal"},
    }
    kubectl("create", "-f", "-", text=json.dumps(event))
    assert re.search(r"Normal +Placed +Pod/one +on card 0", kubectl("events"))
    told = kubectl("describe", "pod", "one")
    assert re.search(r"^Name: +one$", told, re.MULTILINE)
    assert re.search(r"^ +aliyun.com/gpu-mem: +3$", told, re.MULTILINE)
    assert re.search(r"^QoS Class: +BestEffort$", told, re.MULTILINE)
    assert re.search(r"Normal +Placed +.* +shoal +on card 0", told)


def test_wait(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", text=POD)
    ready = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    kubectl("patch", "pod", "one", "--subresource=status", "-p", ready)
    for condition in ("condition=Ready", "jsonpath={.status.phase}=Pending"):
        assert kubectl("wait", "pod/one", f"--for={condition}", "--timeout=60s") == "pod/one condition met\n"


def test_delete(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-f", "-", text=POD)
    kubectl("apply", "-f", "-", text=MAP)
    assert kubectl("delete", "pod", "one").startswith('pod "one" deleted')
    assert kubectl("delete", "cm", "--all").startswith('configmap "map" deleted')
    assert kubectl("get", "pods,cm", "-o", "name") == ""
    assert kubectl("delete", "pod", "one", "--ignore-not-found") == ""


def test_explaining_what_there_is(kubectl: Kubectl) -> None:
    resources = {row[0]: row for row in words(kubectl("api-resources"))}
    assert resources["pods"] == ["pods", "po", "v1", "true", "Pod"]
    assert resources["deployments"] == ["deployments", "deploy", "apps/v1", "true", "Deployment"]
    assert {"v1", "apps/v1", "batch/v1", "coordination.k8s.io/v1"} <= set(kubectl("api-versions").split())
    assert "Server Version: v1." in kubectl("version")
