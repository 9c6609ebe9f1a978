"""The manifests of the agent: taken by a real API server, as the code has them, and enough rights but no more."""

import http.client
import itertools
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal import __version__
from shoal.agent.config import AgentConfig
from shoal.cli import settings
from shoal.kubelet import constants
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import gpushare, keti, nvidia, shoal
from tests.agent.lab import memory_pod
from tests.agent.real.conftest import NewLab, RealLab
from tests.kubelet.pods import container
from tests.testbed.apiserver import ApiServer
from tests.testbed.waiting import wait_for

DEPLOY = Path(__file__).parents[3] / "deploy" / "agent"
WITH_MPS = DEPLOY.parent / "agent-mps"
WITH_CLAIMS = DEPLOY.parent / "agent-claims"
ACCOUNT = "shoal-agent"


def documents() -> list[dict[str, Any]]:
    """What lies in the files, kustomization excepted."""
    paths = sorted(path for path in DEPLOY.glob("*.yaml") if path.name != "kustomization.yaml")
    return list(itertools.chain.from_iterable(yaml.safe_load_all(path.read_text()) for path in paths))


def one(kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents() if document["kind"] == kind]
    return found


def test_settings_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(one("ConfigMap")["data"]["agent.yaml"])
    written = settings.load(AgentConfig, path, {"node_name": "n"}, command="agent")
    assert written == AgentConfig(node_name="n"), "they are the defaults, written out"


def test_names_paths_and_ports_are_those_of_the_code() -> None:
    pod = one("DaemonSet")["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    wanted = {(gpushare.LABEL_NODE, "true"), (keti.LABEL_NODE, keti.LABEL_NODE_VALUE), (nvidia.LABEL_PRESENT, "true")}
    assert {(rule["key"], *rule["values"]) for term in terms for rule in term["matchExpressions"]} == wanted
    assert [toleration["key"] for toleration in pod["tolerations"]] == [nvidia.TAINT_GPU]
    (agent,) = pod["containers"]
    assert agent["image"] == f"shoal:{__version__}"
    assert agent["env"][0]["name"] == gpushare.ENV_NODE_NAME
    assert agent["livenessProbe"]["httpGet"]["path"] == shoal.PATH_HEALTH
    assert agent["readinessProbe"]["httpGet"]["path"] == shoal.PATH_READY
    assert agent["ports"][0]["containerPort"] == AgentConfig(node_name="n").port
    assert not agent["securityContext"].get("privileged")
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert hosts["device-plugins"] == mounts["device-plugins"] == str(constants.DEVICE_PLUGIN_FOLDER)
    assert hosts["pod-resources"] == mounts["pod-resources"] == str(constants.POD_RESOURCES_SOCKET.parent)
    assert (hosts["dev"], f"--dev={mounts['dev']}") == ("/dev", agent["args"][-1])
    paths = HostPaths()
    for name, path in (("run", paths.run), ("programs", paths.programs), ("cgroups", paths.cgroups)):
        assert hosts[name] == mounts[name] == str(path)
    assert paths.cgroup2.parent == paths.cgroups
    assert paths.limit_socket.parent == paths.run


def test_mps_has_a_pod_of_its_own_and_its_settings_are_those_of_both(tmp_path: Path) -> None:
    overlay = yaml.safe_load((WITH_MPS / "kustomization.yaml").read_text())
    written, patch = (yaml.safe_load(one["patch"]) for one in overlay["patches"])
    path = tmp_path / "agent.yaml"
    path.write_text(written["data"]["agent.yaml"])
    config = settings.load(AgentConfig, path, {"node_name": "n"}, command="agent")
    assert not config.mps_start
    (daemon,) = yaml.safe_load_all((WITH_MPS / "daemon.yaml").read_text())
    base = one("DaemonSet")["spec"]["template"]["spec"]
    pod = daemon["spec"]["template"]["spec"]
    assert all(pod[part] == base[part] for part in ("affinity", "tolerations"))
    assert pod["hostPID"], "or it cannot tell its clients apart"
    (keeper,) = pod["containers"]
    assert keeper["image"] == base["containers"][0]["image"]
    assert keeper["args"] == [*base["containers"][0]["args"][:2], "--mps-only"]
    for spec in (pod, patch["spec"]["template"]["spec"]):
        hosts = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
        mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
        assert hosts["mps"] == mounts["mps"] == config.mps_directory
        assert hosts["mps-logs"] == mounts["mps-logs"] == config.mps_log_directory
    (shared,) = [volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == "shm"]
    assert shared == config.mps_shared_memory
    assert Path(shared).is_relative_to(HostPaths().run), "the agent makes it, and must see it"


@pytest.mark.parametrize(
    "folder",
    [DEPLOY, WITH_MPS, pytest.param(WITH_CLAIMS, marks=pytest.mark.min_kube("1.34"))],
    ids=lambda folder: folder.name,
)
def test_a_real_api_server_takes_them(apiserver: ApiServer, folder: Path) -> None:
    strictly = ("--validate=strict", "--warnings-as-errors", "--dry-run=server")
    said = apiserver.kubectl("apply", "-k", str(folder), *strictly)
    assert "daemonset.apps/shoal-agent" in said
    assert ("daemonset.apps/shoal-mps" in said) is (folder is WITH_MPS)
    assert ("deviceclass.resource.k8s.io/shoal-gpu" in said) is (folder is WITH_CLAIMS)


def test_mounts_for_walls_work_without_any_right(new_lab: NewLab) -> None:
    """In a container as the agent's: the host's folders can be written to, and its cgroups are all there."""
    lab = new_lab("1xT4", start=False)
    spec = one("DaemonSet")["spec"]["template"]["spec"]
    (agent,) = spec["containers"]
    names = ("run", "programs", "cgroups")
    script = "touch /run/shoal/there /var/lib/shoal/there && ls /sys/fs/cgroup && echo told=all; sleep 3600"
    probe = container("main", script, securityContext=agent["securityContext"])
    probe["volumeMounts"] = [mount for mount in agent["volumeMounts"] if mount["name"] in names]
    volumes = [volume for volume in spec["volumes"] if volume["name"] in names]
    manifest = {"metadata": {"name": "probe"}, "spec": {"containers": [probe], "volumes": volumes}}
    lab.pods.create(manifest, lab.node)
    lab.pods.wait_running("probe")
    seen = lab.told("probe").split()
    assert seen[:-1] == sorted(path.name for path in HostPaths().cgroups.iterdir())
    lab.node.run(["ls", "/run/shoal/there", "/var/lib/shoal/there"])


@pytest.fixture
def rights(apiserver: ApiServer) -> None:
    """The agent's account with its rights and its fence."""
    for document in documents():
        if document["kind"] != "DaemonSet":
            apiserver.kubectl("apply", "-f", "-", input=json.dumps(document))


def kubeconfig_of(lab: RealLab, folder: Path) -> Path:
    """As the agent's pod on the node has it: a token bound to that pod, which so names the node."""
    server = lab.pods.apiserver
    path = "/api/v1/namespaces/kube-system"
    name = f"agent-of-{lab.node.name}"
    spec = {"containers": [container("main")], "nodeName": lab.node.name, "serviceAccountName": ACCOUNT}
    pod = server.request("POST", f"{path}/pods", {"metadata": {"name": name}, "spec": spec})
    bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
    asked = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    token = server.request("POST", f"{path}/serviceaccounts/{ACCOUNT}/token", asked)["status"]["token"]
    config = yaml.safe_load(server.kubeconfig().read_text())
    config["users"][0]["user"] = {"token": token}
    written = folder / "kubeconfig"
    written.touch(mode=0o600)
    written.write_text(yaml.safe_dump(config))
    return written


@pytest.mark.usefixtures("rights")
def test_rights_are_enough_and_end_at_the_own_node(new_lab: NewLab, tmp_path: Path) -> None:
    lab = new_lab("2xT4", start=False)
    assert isinstance(lab, RealLab)
    lab.kubeconfig = kubeconfig_of(lab, tmp_path)
    lab.start()
    lab.bind(memory_pod("foreign", 3))
    lab.pods.wait_running("foreign")
    assert lab.visible("foreign") == lab.written("foreign")
    wait_for(
        lambda: lab.pods.get("foreign")["metadata"]["annotations"][gpushare.ANNOTATION_ASSIGNED] == "true",
        "marked as assigned",
    )
    assert lab.pods.get("foreign")["metadata"]["annotations"][shoal.ANNOTATION_ISOLATION] == "none"
    lab.bind(memory_pod("large", 14))
    lab.pods.wait_running("large")
    lab.bind(memory_pod("late", 13))
    lab.pods.wait_event("late", lambda event: event["reason"] == "GpuRefused", "of its refusal")

    server = lab.pods.apiserver
    server.request("POST", "/api/v1/nodes", {"metadata": {"name": "elsewhere"}})
    server.request(
        "POST",
        f"/api/v1/namespaces/{lab.pods.namespace}/pods",
        {"metadata": {"name": "far"}, "spec": {"containers": [container("main")], "nodeName": "elsewhere"}},
    )
    pods = f"/api/v1/namespaces/{lab.pods.namespace}/pods"
    annotate, label = ({"metadata": {part: {"a": "b"}}} for part in ("annotations", "labels"))
    for path, change in (
        ("/api/v1/nodes/elsewhere", annotate),
        ("/api/v1/nodes/elsewhere/status", {"status": {"capacity": {gpushare.RESOURCE_COUNT: "8"}}}),
        (f"{pods}/far", annotate),
        (f"/api/v1/nodes/{lab.node.name}", label),
        (f"/api/v1/nodes/{lab.node.name}", {"spec": {"unschedulable": True}}),
        (f"{pods}/foreign", label),
    ):
        status, message = attempt(lab, "PATCH", path, change)
        assert status == 422, (path, message)
        assert "shoal-agent-own-node" in message
    # What else is refused, on the own node as well: tests/admission/test_writes.py.
    assert attempt(lab, "PATCH", f"/api/v1/nodes/{lab.node.name}", annotate)[0] == 422
    for method, path in (("DELETE", f"{pods}/foreign"), ("GET", "/api/v1/secrets"), ("POST", pods)):
        assert attempt(lab, method, path)[0] == 403
    server.request("DELETE", "/api/v1/nodes/elsewhere")


def attempt(lab: RealLab, method: str, path: str, body: object = None) -> tuple[int, str]:
    """What the API server says to the agent's account."""
    server = lab.pods.apiserver
    token = yaml.safe_load(lab.kubeconfig.read_text())["users"][0]["user"]["token"]
    context = ssl.create_default_context(cafile=str(server.ca))
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60)
    headers = {"Content-Type": "application/merge-patch+json", "Authorization": f"Bearer {token}"}
    try:
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()
