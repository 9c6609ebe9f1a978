"""A cluster with every policy of `deploy/` in force, and people with rights on it: the embedded one, or a real one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.suites.connection import Answer, Connection
from tests.testbed.control_plane import ControlPlane
from tests.testbed.waiting import wait_for

Object = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SYSTEM = "/api/v1/namespaces/kube-system"
#: Where collectors tell what is used.
LEASES = "/apis/coordination.k8s.io/v1/namespaces/shoal-load/leases"
#: What a tenant's administrator gets: everything, in one namespace.
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
MAKES_CLAIMS = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create"]}
#: Stands for kubelets and controllers, which may write to pods and know nothing of decisions.
REPORTS = [
    {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["create", "patch", "update"]},
    MAKES_CLAIMS,
]
#: Stands for DRA drivers and schedulers of others, before Kubernetes 1.36 has rights for parts of a claim's status.
CLAIM_STATUS = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
]
#: Stands for another scheduler, such as kube-scheduler.
BINDS = [{"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}, MAKES_CLAIMS]
#: Stands for a controller with rights to all Leases.
LEASE_RIGHTS = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]
_PLURALS = {
    "ServiceAccount": "serviceaccounts",
    "Namespace": "namespaces",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}
#: An allocation of Shoal's driver that no scheduler made.
ALLOCATED = {
    "status": {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "gpu.shoal.dev", "pool": "n", "device": "gpu-0"}]}
        }
    }
}
NODE = "guarded-node"
FAR = "far-node"


@dataclass
class Guarded:
    """The cluster. Its people: admin, tenant, reporter, binder, shoal-scheduler, shoal-agent and shoal-metrics (of
    `NODE`).
    """

    connection: Connection
    new_namespace: Callable[[str], None]
    real: bool
    #: Of a real cluster.
    plane: ControlPlane | None = None

    def __post_init__(self) -> None:
        self.tokens: dict[str, str] = {}

    def ask(self, who: str, method: str, path: str, body: object = None) -> Answer:
        """One request by somebody; PATCH is a strategic merge. The administrator impersonates `system:` users."""
        kind = "strategic-merge-patch+json" if method == "PATCH" else "json"
        data = None if body is None else json.dumps(body).encode()
        impersonated = {"Impersonate-User": who} if who.startswith("system:") else {}
        token = None if who == "admin" or impersonated else self.tokens[who]
        headers = {"Content-Type": f"application/{kind}", **impersonated}
        return self.connection.request(method, path, data, headers, token=token)

    def must(self, method: str, path: str, body: object = None) -> Any:
        """A request of the administrator, which succeeds."""
        answer = self.ask("admin", method, path, body)
        assert answer.status < 300, (method, path, answer.body)
        return answer.body

    def prepare(self) -> None:
        """The accounts of Shoal's components with the roles of `deploy/`, a reporter, and two nodes."""
        for file in ("scheduler/rbac.yaml", "scheduler-claims/rbac.yaml", "agent/rbac.yaml"):
            for obj in yaml.safe_load_all((DEPLOY / file).read_text()):
                self._create(obj)
        accounts = {
            "reporter": REPORTS,
            "binder": BINDS,
            "other-driver": CLAIM_STATUS,
            "other-scheduler": CLAIM_STATUS,
        }
        for account, rules in accounts.items():
            self._create({"kind": "ServiceAccount", "metadata": {"name": account, "namespace": "kube-system"}})
            self._grant(account, "kube-system", rules)
        self._bind("shoal-claims-allocator", "other-scheduler", "kube-system")
        for name in (NODE, FAR):
            self.must("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        self._prepare_collectors()
        for account in ("shoal-scheduler", *accounts):
            self.tokens[account] = self._token("kube-system", account)
        self.must("POST", f"{SYSTEM}/pods", pod("agent", nodeName=NODE, serviceAccountName="shoal-agent"))
        self.tokens["shoal-agent"] = self._token("kube-system", "shoal-agent", "agent")
        self.tokens["homeless"] = self._token("kube-system", "shoal-agent")

    def _prepare_collectors(self) -> None:
        """Live load's namespace and rights, a collector on each node, and one whose token tells no node."""
        for obj in yaml.safe_load_all((DEPLOY / "metrics" / "live-load.yaml").read_text()):
            if self.real:  # the embedded server has them from its start
                self._create(obj)
        self._create({"kind": "ServiceAccount", "metadata": {"name": "shoal-metrics", "namespace": "kube-system"}})
        for token, name, node in (("shoal-metrics", "collector", NODE), ("far-metrics", "far-collector", FAR)):
            self.must("POST", f"{SYSTEM}/pods", pod(name, nodeName=node, serviceAccountName="shoal-metrics"))
            self.tokens[token] = self._token("kube-system", "shoal-metrics", name)
        self.tokens["homeless-metrics"] = self._token("kube-system", "shoal-metrics")
        self._create({"kind": "ServiceAccount", "metadata": {"name": "lease-writer", "namespace": "kube-system"}})
        self._grant("lease-writer", "kube-system", LEASE_RIGHTS)
        self.tokens["lease-writer"] = self._token("kube-system", "lease-writer")

    def room(self) -> str:
        """A namespace of a tenant who may do everything in it, as `tenant`."""
        name = f"team-{uuid.uuid4().hex[:10]}"
        self.new_namespace(name)
        self._create({"kind": "ServiceAccount", "metadata": {"name": "tenant", "namespace": name}})
        self._create({"kind": "Role", "metadata": {"name": "all", "namespace": name}, "rules": EVERYTHING})
        subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": name}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"}
        metadata = {"name": "all", "namespace": name}
        self._create({"kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": [subject]})
        self.tokens["tenant"] = self._token(name, "tenant")
        wait_for(lambda: self.ask("tenant", "GET", f"/api/v1/namespaces/{name}/pods").status == 200, "allowed")
        return name

    def claim_status(self, room: str) -> str:
        """The path of the status of a new claim in a namespace."""
        claims = f"/apis/resource.k8s.io/v1/namespaces/{room}/resourceclaims"
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]
        name = f"claim-{uuid.uuid4().hex[:6]}"
        self.must("POST", claims, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
        return f"{claims}/{name}/status"

    def _grant(self, account: str, namespace: str, rules: list[Object]) -> None:
        self._create({"kind": "ClusterRole", "metadata": {"name": account}, "rules": rules})
        self._bind(account, account, namespace)

    def _bind(self, role: str, account: str, namespace: str) -> None:
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        metadata = {"name": f"{role}-{account}"}
        self._create({"kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": reference, "subjects": [subject]})

    def _create(self, obj: Object) -> None:
        base = "/api/v1" if obj["kind"] in ("ServiceAccount", "Namespace") else RBAC
        namespace = obj["metadata"].get("namespace")
        where = f"{base}/namespaces/{namespace}" if namespace else base
        self.must("POST", f"{where}/{_PLURALS[obj['kind']]}", obj)

    def _token(self, namespace: str, account: str, pod_name: str = "") -> str:
        where = f"/api/v1/namespaces/{namespace}"
        spec: Object = {"expirationSeconds": 3600}
        if pod_name:
            uid = self.must("GET", f"{where}/pods/{pod_name}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": uid}
        return str(self.must("POST", f"{where}/serviceaccounts/{account}/token", {"spec": spec})["status"]["token"])


def pod(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    env: list[Object] | None = None,
    **spec: Any,
) -> Object:
    """A pod with one container."""
    container = {"name": "main", "image": "x", "resources": {"limits": dict(limits or {})}, "env": env or []}
    metadata = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def binding(name: str, annotations: Mapping[str, str] | None = None) -> Object:
    """A Binding of a pod to `NODE`."""
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": NODE}}


def deployment(
    annotations: Mapping[str, str] | None = None, *, env: list[Object] | None = None, replicas: int = 0
) -> Object:
    """A Deployment, or with its selector as good a ReplicaSet."""
    template = pod("", labels={"app": "web"}, annotations=annotations, env=env)
    del template["metadata"]["name"]
    selector = {"matchLabels": {"app": "web"}}
    return {"metadata": {"name": "web"}, "spec": {"replicas": replicas, "selector": selector, "template": template}}


def cron_job(annotations: Mapping[str, str] | None = None, *, env: list[Object] | None = None) -> Object:
    """A CronJob."""
    template = pod("", annotations=annotations, env=env, restartPolicy="Never")
    del template["metadata"]["name"]
    job = {"spec": {"template": template}}
    return {"metadata": {"name": "web"}, "spec": {"schedule": "@yearly", "jobTemplate": job}}


def claim(annotations: Mapping[str, str]) -> Object:
    """A ResourceClaim of one device."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "shoal-gpu"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "new", "annotations": dict(annotations)},
        "spec": {"devices": {"requests": requests}},
    }


def event(name: str, namespace: str, about: Object, **changes: Any) -> Object:
    """An event as the agent of `NODE` writes them."""
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about,
        "reason": "GpuRefused",
        "message": "told",
        "type": "Warning",
        "source": {"component": "shoal-agent", "host": NODE},
        "reportingComponent": "shoal-agent",
        "reportingInstance": NODE,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    } | changes


def lease(node: str, digest: str = '{"version":1}', **metadata: Any) -> Object:
    """The Lease of a node's load, as its collector writes it."""
    annotations = {"shoal.dev/load": digest}
    return {
        "metadata": {"name": node, "namespace": "shoal-load", "annotations": annotations, **metadata},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 180, "renewTime": "2026-01-01T00:00:00.000000Z"},
    }


def refusals(answer: Answer) -> Iterator[str]:
    """What policies said to a request: name and words."""
    for cause in (answer.body.get("details") or {}).get("causes") or ():
        message = str(cause.get("message", ""))
        if message.startswith("ValidatingAdmissionPolicy"):
            yield message
