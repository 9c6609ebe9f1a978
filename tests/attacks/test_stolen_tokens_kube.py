"""What the token of a node's service can write on a real API server with the chart's rights and policies.

`tests/deploy/rights.txt` lists what RBAC allows each account. The policies confine that further, so each write here is
one that RBAC allows: its own permitted change, with something else smuggled in, as a patch and as a forced apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from deploy import generate
from shoal.model.contract import discovery, dra, nvidia, shoal
from shoal.model.contract.operator import ANNOTATION_VALIDATION
from tests.suites.connection import Answer, Connection
from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

Object = dict[str, Any]
NAMESPACE = "gpu-operator"
OWN = "own"
FAR = "far"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
#: Of each account the change that it is there for.
PERMITTED: dict[str, Object] = {
    "shoal-agent": {"annotations": {shoal.ANNOTATION_GPUS: "{}"}},
    "shoal-discovery-worker": {"annotations": {discovery.ANNOTATION_FACTS: "{}"}},
    "shoal-discovery": {"labels": {nvidia.LABEL_PRESENT: "true"}},
    "shoal-validator": {"annotations": {ANNOTATION_VALIDATION: "{}"}},
}
#: What is smuggled in: of the metadata, and of the rest.
SMUGGLED: dict[str, tuple[Object, Object]] = {
    "another label": ({"labels": {"node-role.kubernetes.io/control-plane": ""}}, {}),
    "a label that places pods": ({"labels": {"nvidia.com/gpu.deploy.driver": "true"}}, {}),
    "another annotation": ({"annotations": {"a": "b"}}, {}),
    "a finalizer": ({"finalizers": ["a.b/c"]}, {}),
    "an owner": ({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": FAR, "uid": "1"}]}, {}),
    "a taint": ({}, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
    "no pods any more": ({}, {"spec": {"unschedulable": True}}),
    "another machine": ({}, {"spec": {"providerID": "a://b"}}),
}
#: A value for each field of a node's status, of which the agent changes the first two.
STATUS: Object = {
    "capacity": {"cpu": "96"},
    "allocatable": {"pods": "0"},
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "conditions": [{"type": "Ready", "status": "True"}],
    "config": {"error": "a"},
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    "declaredFeatures": ["A"],
    "features": {"supplementalGroupsPolicy": True},
    "images": [{"names": ["a"], "sizeBytes": 1}],
    "nodeInfo": {"kubeletVersion": "v1.0.0"},
    "phase": "Running",
    "runtimeHandlers": [{"name": "a"}],
    "volumesAttached": [{"name": "a", "devicePath": "b"}],
    "volumesInUse": ["a"],
}


class Stolen:
    """The server, and the accounts of the chart as somebody has them who is root on `OWN`."""

    def __init__(self, api: ApiServer) -> None:
        self.connection = Connection(api.kubeconfig())
        for name in (NAMESPACE, "shoal-load", "shoal-history", "tenant"):
            api.create_namespace(name)
        api.kubectl("apply", "--server-side", "-f", str(generate.CHART / "crds"))
        wait_for(lambda: api.try_request("GET", "/apis/shoal.dev/v1/clusterpolicies")[0] == 200, "policies served")
        text = generate.render(
            binaries.find("helm"),
            {"sharing.claims": "true"},
            namespace=NAMESPACE,
            kube_version=binaries.kube_version(),
            arguments=("--no-hooks",),
        )
        api.kubectl("apply", "-f", "-", input=text)
        for name in (OWN, FAR):
            api.request("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        for who in PERMITTED:
            wait_for(partial(self._confined, who), f"the policy of {who} in force")
        probe = resource_slice("probe", FAR)
        wait_for(lambda: self.write("shoal-agent", "POST", f"{SLICES}?dryRun=All", probe).status == 422, "in force")

    def _confined(self, who: str) -> bool:
        taint = {"spec": {"taints": [{"key": "probe", "effect": "NoSchedule"}]}}
        return self.write(who, "PATCH", f"/api/v1/nodes/{OWN}?dryRun=All", taint).status == 422

    def write(self, who: str, method: str, path: str, body: object = None, kind: str = MERGE) -> Answer:
        """A request by an account whose token says that it runs on `OWN`."""
        headers = {
            "Content-Type": "application/json" if method == "POST" else kind,
            "Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{who}",
            "Impersonate-Extra-Authentication.kubernetes.io%2Fnode-Name": OWN,
        }
        return self.connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)

    def node(self, name: str) -> Object:
        """A node, without what changes with every write."""
        found: Object = self.connection.request("GET", f"/api/v1/nodes/{name}").body
        kept = {
            key: value for key, value in found["metadata"].items() if key not in ("resourceVersion", "managedFields")
        }
        return {**found, "metadata": kept}


@pytest.fixture(scope="module")
def stolen(testbed_run: Run) -> Iterator[Stolen]:
    server = ApiServer(testbed_run, "stolen-tokens")
    yield Stolen(server)
    server.stop()


def resource_slice(name: str, node: str, *, driver: str = dra.DRIVER, pool: str = "", **more: Any) -> Object:
    """A ResourceSlice without devices, as an agent writes it."""
    place = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": place, "nodeName": node, "devices": []}
    metadata = {"name": name, **more.pop("metadata", {})}
    kept = {key: value for key, value in {**spec, **more}.items() if value is not None}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": kept}


def applied(patch: Object, node: str) -> tuple[str, Object]:
    """A patch as a forced apply of the same content: path and body."""
    body = {"apiVersion": "v1", "kind": "Node", **patch, "metadata": {"name": node, **patch["metadata"]}}
    return f"/api/v1/nodes/{node}?fieldManager=x&force=true", body


@pytest.mark.parametrize("who", PERMITTED)
def test_nothing_else_of_a_node_is_written_along(stolen: Stolen, who: str) -> None:
    own = PERMITTED[who]
    assert stolen.write(who, "PATCH", f"/api/v1/nodes/{OWN}?dryRun=All", {"metadata": own}).status == 200
    before = stolen.node(OWN), stolen.node(FAR)
    for what, (metadata, rest) in SMUGGLED.items():
        merged = {
            key: {**own.get(key, {}), **metadata[key]} if isinstance(metadata[key], dict) else metadata[key]
            for key in metadata
        }
        patch = {"metadata": {**own, **merged}, **rest}
        assert stolen.write(who, "PATCH", f"/api/v1/nodes/{OWN}", patch).status == 422, what
        path, body = applied(patch, OWN)
        assert stolen.write(who, "PATCH", path, body, APPLY).status == 422, f"{what}, applied"
    if who != "shoal-discovery":  # which labels all nodes
        assert stolen.write(who, "PATCH", f"/api/v1/nodes/{FAR}", {"metadata": own}).status == 422
        path, body = applied({"metadata": own}, FAR)
        assert stolen.write(who, "PATCH", path, body, APPLY).status == 422
    assert (stolen.node(OWN), stolen.node(FAR)) == before


def test_of_a_nodes_status_an_agent_counts_gpus_only(stolen: Stolen) -> None:
    described = stolen.connection.request("GET", "/openapi/v3/api/v1").body
    fields = described["components"]["schemas"]["io.k8s.api.core.v1.NodeStatus"]["properties"]
    assert set(fields) <= set(STATUS), "a field that this Kubernetes has anew: the policy has to compare it too"
    before = stolen.node(OWN)
    status = f"/api/v1/nodes/{OWN}/status"
    for field in fields:
        stolen.write("shoal-agent", "PATCH", status, {"status": {field: STATUS[field]}})
        assert stolen.node(OWN) == before, field
    for who in ("shoal-discovery-worker", "shoal-discovery", "shoal-validator"):
        assert stolen.write(who, "PATCH", status, {"status": {"capacity": {"a.b/c": "1"}}}).status == 403


SLICES_OF_OTHERS = {
    "of another node": resource_slice("s", FAR),
    "of another driver": resource_slice("s", OWN, driver="gpu.nvidia.com"),
    "of another pool": resource_slice("s", OWN, pool=FAR),
    "for all nodes": resource_slice("s", OWN, nodeName=None, allNodes=True),
    "for chosen nodes": resource_slice(
        "s",
        OWN,
        nodeName=None,
        nodeSelector={
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [FAR]}]}]
        },
    ),
    "with devices that choose nodes": resource_slice("s", OWN, nodeName=None, perDeviceNodeSelection=True),
    "with a finalizer": resource_slice("s", OWN, metadata={"finalizers": ["a.b/c"]}),
    "with a label": resource_slice("s", OWN, metadata={"labels": {"a": "b"}}),
    "with an owner": resource_slice(
        "s", OWN, metadata={"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": FAR, "uid": "1"}]}
    ),
}


def test_an_agent_writes_slices_of_its_own_node_and_driver_only(stolen: Stolen) -> None:
    for what, body in SLICES_OF_OTHERS.items():
        assert stolen.write("shoal-agent", "POST", SLICES, body).status == 422, what
    for name, body in (("far", resource_slice("far", FAR)), ("theirs", resource_slice("theirs", OWN, driver="a.org"))):
        created = stolen.connection.request(
            "POST", SLICES, json.dumps(body).encode(), {"Content-Type": "application/json"}
        ).body
        taken = resource_slice(name, OWN, metadata={"resourceVersion": created["metadata"]["resourceVersion"]})
        answer = stolen.write("shoal-agent", "PUT", f"{SLICES}/{name}", taken, "application/json")
        assert answer.status == 422, "taken over"
        assert stolen.write("shoal-agent", "DELETE", f"{SLICES}/{name}").status in (403, 422)
        assert stolen.connection.request("GET", f"{SLICES}/{name}").body["spec"] == created["spec"]
    assert stolen.write("shoal-agent", "DELETE", SLICES).status == 403, "all at once"
    assert stolen.write("shoal-agent", "POST", SLICES, resource_slice("mine", OWN)).status == 201
    assert stolen.write("shoal-agent", "DELETE", f"{SLICES}/mine").status == 200


def test_an_agents_events_say_where_they_come_from(stolen: Stolen) -> None:
    """They may be about any pod: a policy does not see on which node that is. docs/security.md says so."""
    for group, path in (("v1", "/api/v1"), ("events.k8s.io/v1", "/apis/events.k8s.io/v1")):
        event = {
            "apiVersion": group,
            "kind": "Event",
            "metadata": {"name": f"e.{len(path)}", "namespace": "tenant"},
            "involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": "tenant", "name": "elsewhere"},
            "reason": "GPURefused",
            "source": {"component": "shoal-agent", "host": FAR},
            "reportingComponent": "shoal-agent",
            "reportingInstance": FAR,
        }
        answer = stolen.write("shoal-agent", "POST", f"{path}/namespaces/tenant/events", event)
        assert answer.status in (403, 422), answer.body
