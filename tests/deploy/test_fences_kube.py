"""What accounts of the chart may write: to nodes what is theirs, and nothing that reaches pods of other nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from deploy import generate
from shoal.model.contract import nvidia
from shoal.model.contract.operator import (
    ANNOTATION_UPGRADE,
    ANNOTATION_VALIDATION,
    LABEL_CLEANUP,
    MAX_VALIDATION,
    TAINT_STARTING,
)
from shoal.operator.components import FILES
from shoal.operator.nodes import LABELS_DEPLOY
from tests.suites.connection import Connection
from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer
from tests.testbed.waiting import wait_for

NAMESPACE = "gpu-operator"
OWN = "own"
FAR = "far"
STARTING = {"key": TAINT_STARTING, "effect": "NoSchedule"}
DRIVER = {
    "driver.enabled": "true",
    "driver.repository": "registry.example/nvidia",
    "driver.version": "570.124.06-ubuntu22.04",
}
THEIRS = {"key": "theirs", "effect": "NoSchedule"}
#: Rights with which a token that was taken from one node would reach what is on others.
REACHES_OTHERS = (
    *(("create", "pods/eviction"), ("delete", "pods"), ("deletecollection", "pods"), ("create", "pods")),
    *(("create", "pods/binding"), ("create", "pods/exec"), ("get", "pods/log"), ("get", "nodes/proxy")),
    *(("get", "secrets"), ("list", "secrets"), ("create", "serviceaccounts/token"), ("patch", "configmaps")),
    *(("patch", "apps|daemonsets"), ("patch", "apps|deployments"), ("delete", "nodes"), ("create", "nodes")),
    *(("create", "rbac.authorization.k8s.io|clusterrolebindings"), ("patch", "shoal.dev|clusterpolicies")),
    ("impersonate", "users"),
)


class Fenced:
    """A server with the chart's accounts and fences, and two nodes with two taints each."""

    def __init__(self, api: ApiServer) -> None:
        self.connection = Connection(api.kubeconfig())
        for name in (NAMESPACE, "shoal-load", "shoal-history"):
            api.create_namespace(name)
        api.kubectl("apply", "--server-side", "-f", str(generate.CHART / "crds"))
        wait_for(lambda: api.try_request("GET", "/apis/shoal.dev/v1/clusterpolicies")[0] == 200, "policies served")
        text = generate.render(
            binaries.find("helm"),
            DRIVER,
            namespace=NAMESPACE,
            kube_version=binaries.kube_version(),
            arguments=("--no-hooks",),
        )
        api.kubectl("apply", "-f", "-", input=text)
        for name in (OWN, FAR):
            node = {"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"taints": [STARTING, THEIRS]}}
            api.request("POST", "/api/v1/nodes", node)
        for account in ("shoal-operator", "shoal-validator", "shoal-driver"):
            wait_for(partial(self._is_fenced, account), f"the fence of {account} in force")

    def _is_fenced(self, account: str) -> bool:
        return "ValidatingAdmissionPolicy" in self.write(account, {"metadata": {"labels": {"probe": "x"}}}, dry=True)

    def may(self, user: str, verb: str, resource: str, namespace: str) -> bool:
        """Whether a user has a right, as the server says (SubjectAccessReview)."""
        group, _, name = resource.rpartition("|")
        what, _, sub = name.partition("/")
        attributes = {"verb": verb, "group": group, "resource": what, "subresource": sub, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        headers = {"Content-Type": "application/json"}
        answer = self.connection.request("POST", path, json.dumps(review).encode(), headers)
        assert answer.status == 201, answer.body
        return bool(answer.body["status"]["allowed"])

    def change(self, user: str, config_map: str, method: str = "PATCH", body: dict[str, Any] | None = None) -> str:
        """What a user is told who writes a ConfigMap of the operator's namespace; empty if it was written."""
        headers = {
            "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json",
            "Impersonate-User": user,
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        path += f"/{config_map}" if method != "POST" else ""
        sent = json.dumps(body or {"metadata": {"name": config_map}, "data": {"x": "y"}}).encode()
        answer = self.connection.request(method, path, sent, headers)
        return "" if answer.status in (200, 201) else str(answer.body["message"])

    def write(self, account: str, patch: dict[str, Any], node: str = OWN, at: str = OWN, *, dry: bool = False) -> str:
        """What an account that runs on a node is told when it writes to one; empty if it was written."""
        headers = {
            "Content-Type": "application/merge-patch+json",
            "Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{account}",
        }
        if at:
            headers["Impersonate-Extra-Authentication.kubernetes.io%2Fnode-Name"] = at
        path = f"/api/v1/nodes/{node}{'?dryRun=All' if dry else ''}"
        answer = self.connection.request("PATCH", path, json.dumps(patch).encode(), headers)
        return "" if answer.status == 200 else str(answer.body["message"])


@pytest.fixture
def fenced(new_apiserver: Callable[[], ApiServer]) -> Fenced:
    return Fenced(new_apiserver())


def labels(**values: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": values}}


def annotated(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


def test_accounts_write_to_nodes_what_is_theirs_and_nothing_else(fenced: Fenced) -> None:
    """One server for all of it, since it takes a while to start."""
    write = fenced.write
    # The operator: its labels and annotations, cordoning, and the taint of nodes that start.
    for key in (*LABELS_DEPLOY, nvidia.LABEL_UPGRADE_STATE, LABEL_CLEANUP):
        assert write("shoal-operator", labels(**{key: "true"})) == ""
        assert write("shoal-operator", labels(**{key: None})) == ""
    assert write("shoal-operator", annotated(ANNOTATION_UPGRADE, "{}")) == ""
    assert write("shoal-operator", {"spec": {"unschedulable": True}}) == ""
    assert write("shoal-operator", {"spec": {"unschedulable": None}}) == ""
    assert "label a of a node is not for the operator" in write("shoal-operator", labels(a="c"))
    assert "label nvidia.com/gpu.present" in write("shoal-operator", labels(**{nvidia.LABEL_PRESENT: "true"}))
    assert "annotation x of a node" in write("shoal-operator", annotated("x", "y"))
    taints = fenced.connection.request("GET", f"/api/v1/nodes/{OWN}").body["spec"]["taints"]
    more = {"spec": {"taints": [*taints, {"key": "new", "effect": "NoExecute"}]}}
    assert "takes the taint shoal.dev/starting" in write("shoal-operator", more)
    assert "leaves the others" in write("shoal-operator", {"spec": {"taints": [STARTING]}})
    assert write("shoal-operator", {"spec": {"taints": [one for one in taints if one != STARTING]}}) == ""
    # The validator: one annotation of its own node, within its bound.
    assert write("shoal-validator", annotated(ANNOTATION_VALIDATION, "{}")) == ""
    assert "its own node only" in write("shoal-validator", annotated(ANNOTATION_VALIDATION, "{ }"), node=FAR)
    assert "does not say on which node" in write("shoal-validator", annotated(ANNOTATION_VALIDATION, "{ }"), at="")
    long = annotated(ANNOTATION_VALIDATION, "x" * (MAX_VALIDATION + 1))
    assert f"more than {MAX_VALIDATION}" in write("shoal-validator", long)
    assert "not for the validator" in write("shoal-validator", annotated("x", "y"))
    assert "annotations of a node only" in write("shoal-validator", labels(**{LABELS_DEPLOY[0]: "true"}))
    # NVIDIA's driver manager: deploy labels of its own node.
    assert write("shoal-driver", labels(**{LABELS_DEPLOY[0]: "paused-for-driver-upgrade"})) == ""
    assert "labels of a node only" in write("shoal-driver", {"spec": {"unschedulable": True}})
    assert "its own node only" in write("shoal-driver", labels(**{LABELS_DEPLOY[0]: "x"}), node=FAR)
    assert "does not say on which node" in write("shoal-driver", labels(**{LABELS_DEPLOY[0]: "x"}), at="")
    assert "label a of a node is not for the driver manager" in write("shoal-driver", labels(a="c"))
    assert "labels of a node only" in write("shoal-driver", annotated("x", "y"))
    assert "labels of a node only" in write("shoal-driver", more)
    # No account whose token is on nodes reaches pods of others, accounts or Secrets: root of a node finds its tokens.
    for account in sorted({account for _, account in FILES.values() if account}):
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        for verb, resource in REACHES_OTHERS:
            for namespace in ("", NAMESPACE, "default"):
                assert not fenced.may(user, verb, resource, namespace), (account, verb, resource, namespace)
    # What pods on nodes run from is written by those who may write DaemonSets there, not by who edits ConfigMaps.
    guarded_config_maps(fenced)


def bind(fenced: Fenced, user: str, rules: list[dict[str, Any]]) -> None:
    """Give a user rights in the operator's namespace."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    role = {"metadata": {"name": user}, "rules": rules}
    binding = {"metadata": {"name": user}, "subjects": [subject], "roleRef": reference}
    for resource, body in (("roles", role), ("rolebindings", binding)):
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/{resource}"
        headers = {"Content-Type": "application/json"}
        assert fenced.connection.request("POST", path, json.dumps(body).encode(), headers).status == 201


def guarded_config_maps(fenced: Fenced) -> None:
    operator, editor = f"system:serviceaccount:{NAMESPACE}:shoal-operator", "editor"
    configmaps = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}
    bind(fenced, editor, [configmaps])
    wait_for(lambda: fenced.change(editor, "theirs", "POST") == "", "the editor's rights in force")
    assert fenced.change(editor, "theirs") == ""
    assert "only by those who may patch DaemonSets" in fenced.change(editor, "shoal-operands")
    assert "only by those who may delete DaemonSets" in fenced.change(editor, "shoal-operands", "DELETE")
    # Scripts of privileged containers, once the operator has made them.
    assert "only by those who may patch DaemonSets" in fenced.change(editor, "shoal-toolkit", "POST")
    assert fenced.change(operator, "shoal-toolkit", "POST") == ""
    assert "only by those who may patch DaemonSets" in fenced.change(editor, "shoal-toolkit")
    assert fenced.change(operator, "shoal-toolkit") == ""
    assert fenced.change(operator, "shoal-toolkit", "DELETE") == ""
    # Who may change the operator itself may: helm, under whatever account, has no DaemonSets of its own to write.
    rule = {
        "apiGroups": ["apps"],
        "resources": ["deployments"],
        "resourceNames": ["shoal-operator"],
        "verbs": ["patch"],
    }
    bind(fenced, "deployer", [rule, configmaps])
    wait_for(lambda: fenced.change("deployer", "shoal-operands") == "", "the deployer's rights in force")
