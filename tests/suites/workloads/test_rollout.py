"""Real kubectl on workloads that run: rollout status, history and undo, scale, delete with its three cascades."""

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.suites.connection import Connection
from tests.suites.workloads.nodes import Nodes
from tests.testbed.cluster import Api
from tests.testbed.waiting import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.min_kube("1.36")]  # kubectl is one of the programs of `make kube`

Kubectl = Callable[..., str]

TEMPLATE = """
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: 'busybox:1'}]}
"""
DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: web}}}}
{TEMPLATE}
"""
STATEFUL_SET = DEPLOYMENT.replace("Deployment", "StatefulSet")
DAEMON_SET = DEPLOYMENT.replace("Deployment", "DaemonSet").replace("  replicas: 3\n", "")
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec:
  completions: 2
  template:
    metadata: {annotations: {testbed.shoal.dev/runs-for: '0.5'}}
    spec: {restartPolicy: Never, containers: [{name: main, image: 'busybox:1'}]}
"""


@pytest.fixture
def namespace(cluster: Api) -> str:
    name = f"rollout-{uuid.uuid4().hex[:12]}"
    cluster.create_namespace(name)
    return name


@pytest.fixture(autouse=True)
def _binding(cluster: Api, namespace: str) -> Iterator[None]:
    """Bind each pod of the namespace as it comes, while kubectl waits for it."""
    over, nodes, connection = threading.Event(), Nodes(cluster.kubeconfig()), Connection(cluster.kubeconfig())

    def bind() -> None:
        while not over.wait(0.1):
            for pod in connection.request("GET", f"/api/v1/namespaces/{namespace}/pods").body["items"]:
                if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                    nodes.bind(namespace, pod)

    thread = threading.Thread(target=bind, name="binding")
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.fixture
def kubectl(cluster: Api, namespace: str) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own."""

    def run(*arguments: str, text: str | None = None, check: bool = True) -> str:
        return cluster.kubectl("--namespace", namespace, *arguments, input=text, check=check)

    yield run
    run("delete", "daemonsets", "--all", "--wait=false")  # they would have pods on every node of later tests


def names(kubectl: Kubectl, kind: str) -> list[str]:
    return kubectl("get", kind, "-o", "name").split()


def image(kubectl: Kubectl, what: str) -> str:
    return kubectl("get", what, "-o", "jsonpath={.spec.template.spec.containers[0].image}")


def test_a_deployment_is_rolled_out_and_back(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=DEPLOYMENT)
    told = kubectl("rollout", "status", "deployment/web")
    assert told.splitlines()[-1] == 'deployment "web" successfully rolled out'
    assert kubectl("get", "deploy", "web").splitlines()[1].split()[:4] == ["web", "3/3", "3", "3"]
    kubectl("set", "image", "deployment/web", "main=busybox:2")
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web")
    history = kubectl("rollout", "history", "deployment/web").splitlines()
    assert [line.split()[0] for line in history[2:4]] == ["1", "2"]
    assert "busybox:1" in kubectl("rollout", "history", "deployment/web", "--revision=1")
    assert kubectl("rollout", "undo", "deployment/web") == "deployment.apps/web rolled back\n"
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web")
    assert image(kubectl, "deployment/web") == "busybox:1"
    history = kubectl("rollout", "history", "deployment/web").splitlines()
    assert [line.split()[0] for line in history[2:4]] == ["2", "3"]
    assert kubectl("rollout", "restart", "deployment/web") == "deployment.apps/web restarted\n"
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web")


def test_a_deployment_is_paused(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=DEPLOYMENT)
    kubectl("rollout", "status", "deployment/web")
    kubectl("set", "image", "deployment/web", "main=busybox:2")
    kubectl("rollout", "status", "deployment/web")
    assert kubectl("rollout", "pause", "deployment/web") == "deployment.apps/web paused\n"
    kubectl("set", "image", "deployment/web", "main=busybox:3")
    refused = kubectl("rollout", "undo", "deployment/web", check=False)
    assert "cannot rollback a paused deployment" in refused
    assert len(names(kubectl, "replicasets")) == 2
    kubectl("rollout", "resume", "deployment/web")
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web")
    assert len(names(kubectl, "replicasets")) == 3


def test_scale_and_wait(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=DEPLOYMENT)
    kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=180s")
    kubectl("scale", "deployment/web", "--replicas=5")
    kubectl("wait", "--for=jsonpath={.status.readyReplicas}=5", "deployment/web", "--timeout=180s")
    assert len(names(kubectl, "pods")) == 5
    assert kubectl("scale", "deployment/web", "--replicas=1") == "deployment.apps/web scaled\n"
    wait_for(lambda: len(names(kubectl, "pods")) == 1, "scaled down", 180)


def test_a_stateful_set_is_rolled_out_and_back(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=STATEFUL_SET)
    told = kubectl("rollout", "status", "statefulset/web")
    assert told.splitlines()[-1] == "partitioned roll out complete: 3 new pods have been updated..."
    assert names(kubectl, "pods") == ["pod/web-0", "pod/web-1", "pod/web-2"]
    kubectl("set", "image", "statefulset/web", "main=busybox:2")
    kubectl("rollout", "status", "statefulset/web")
    history = kubectl("rollout", "history", "statefulset/web").splitlines()
    assert [line.split()[0] for line in history[2:4]] == ["1", "2"]
    assert kubectl("rollout", "undo", "statefulset/web") == "statefulset.apps/web rolled back\n"
    kubectl("rollout", "status", "statefulset/web")
    assert image(kubectl, "statefulset/web") == "busybox:1"
    pods = json.loads(kubectl("get", "pods", "-o", "json"))["items"]
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"busybox:1"}


def test_a_daemon_set_is_rolled_out_and_back(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=DAEMON_SET)
    told = kubectl("rollout", "status", "daemonset/web")
    assert told.splitlines()[-1] == 'daemon set "web" successfully rolled out'
    kubectl("set", "image", "daemonset/web", "main=busybox:2")
    assert "successfully rolled out" in kubectl("rollout", "status", "daemonset/web")
    assert kubectl("rollout", "undo", "daemonset/web") == "daemonset.apps/web rolled back\n"
    assert "successfully rolled out" in kubectl("rollout", "status", "daemonset/web")
    assert image(kubectl, "daemonset/web") == "busybox:1"
    history = kubectl("rollout", "history", "daemonset/web").splitlines()
    assert [line.split()[0] for line in history[2:4]] == ["2", "3"]


def test_a_job_completes(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=JOB)
    kubectl("wait", "--for=condition=Complete", "job/sum", "--timeout=180s")
    row = kubectl("get", "job", "sum").splitlines()[1].split()
    assert row[:3] == ["sum", "Complete", "2/2"]
    kubectl("delete", "job", "sum")
    wait_for(lambda: not names(kubectl, "pods"), "without the pods of the job", 180)


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_delete_takes_everything(kubectl: Kubectl, cascade: str) -> None:
    kubectl("apply", "-f", "-", text=DEPLOYMENT)
    kubectl("rollout", "status", "deployment/web")
    kubectl("delete", "deployment", "web", f"--cascade={cascade}")
    wait_for(lambda: not names(kubectl, "pods,replicasets,deployments"), "empty", 180)


def test_delete_leaves_orphans(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=DEPLOYMENT)
    kubectl("rollout", "status", "deployment/web")
    before = names(kubectl, "pods,replicasets")
    kubectl("delete", "deployment", "web", "--cascade=orphan")
    assert names(kubectl, "deployments") == []
    assert names(kubectl, "pods,replicasets") == before
    (left,) = names(kubectl, "replicasets")
    kubectl("delete", left, "--cascade=orphan")
    assert len(names(kubectl, "pods")) == 3


def test_describe_tells_the_events(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", text=DEPLOYMENT)
    kubectl("rollout", "status", "deployment/web")
    wait_for(lambda: "ScalingReplicaSet" in kubectl("describe", "deployment", "web"), "told of", 60)
    described = kubectl("describe", "deployment", "web")
    assert re.search(r"Scaled up replica set web-\w+ from 0 to 3", described)
    assert "NewReplicaSetAvailable" in described
