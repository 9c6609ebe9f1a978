"""Nodes and pods as the original stack and Shoal leave them, and the command that shows them."""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.model.contract import shoal
from shoal.model.gpu import Gpu
from tests.suites.connection import Connection
from tests.testbed.cluster import Api

Object = dict[str, Any]

_MERGE = "application/merge-patch+json"


class Cluster:
    """An API server and what a test has put there."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._connection = Connection(api.kubeconfig())
        there = self.demand("GET", "/api/v1/namespaces")["items"]
        self._namespaces = {one["metadata"]["name"] for one in there} | {"default"}
        # No controller makes it here, and pods need it.
        body = json.dumps({"metadata": {"name": "default"}}).encode()
        path = "/api/v1/namespaces/default/serviceaccounts"
        answer = self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        assert answer.status in (201, 409), answer

    @property
    def kubeconfig(self) -> Path:
        """How to reach it."""
        return self.api.kubeconfig()

    def put(self, objects: Sequence[Object]) -> None:
        """Make nodes and pods, as they are: bound and with their status."""
        for made in objects:
            if made["kind"] == "Node":
                self.demand("POST", "/api/v1/nodes", made)
                continue
            namespace = made["metadata"]["namespace"]
            if namespace not in self._namespaces:
                self.api.create_namespace(namespace)
                self._namespaces.add(namespace)
            path = f"/api/v1/namespaces/{namespace}/pods"
            self.demand("POST", path, made)
            status = {"status": made["status"]}
            self.demand("PATCH", f"{path}/{made['metadata']['name']}/status", status, _MERGE)

    def demand(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """A request that must be granted."""
        data = None if body is None else json.dumps(body).encode()
        answer = self._connection.request(method, path, data, {"Content-Type": kind})
        assert answer.status in (200, 201, 202), f"{method} {path}: {answer}"
        return answer.body

    def clear(self) -> None:
        """Delete all pods and nodes."""
        for pod in self.demand("GET", "/api/v1/pods")["items"]:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            self.demand("DELETE", path, {"gracePeriodSeconds": 0})
        for node in self.demand("GET", "/api/v1/nodes")["items"]:
            self.demand("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")
        # No controller collects what belonged to the nodes.
        leases = "/apis/coordination.k8s.io/v1/namespaces/shoal-history/leases"
        for lease in self.demand("GET", leases)["items"]:
            self.demand("DELETE", f"{leases}/{lease['metadata']['name']}")

    def apply(self, path: Path) -> None:
        """Make the objects of a manifest that are not there yet, and the namespaces they are in."""
        for made in yaml.safe_load_all(path.read_text()):
            if made["kind"] == "Namespace":
                self._namespaces.add(made["metadata"]["name"])
            group, _, version = made["apiVersion"].rpartition("/")
            namespace = made["metadata"].get("namespace", "")
            if namespace and namespace not in self._namespaces:
                self.api.create_namespace(namespace)
                self._namespaces.add(namespace)
            root = f"/apis/{group}/{version}" if group else f"/api/{version}"
            where = f"{root}/namespaces/{namespace}" if namespace else root
            plural = re.sub("y$", "ie", made["kind"].lower()) + "s"
            body, kind = json.dumps(made).encode(), {"Content-Type": "application/json"}
            answer = self._connection.request("POST", f"{where}/{plural}", body, kind)
            assert answer.status in (201, 409), answer

    def viewer(self) -> Path:
        """Somebody who may list and watch nodes and pods and do nothing else; for clusters that know rights."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        name = f"viewer-{uuid.uuid4().hex[:6]}"
        rules = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]}]
        self.demand("POST", f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        subject = {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
        self.demand("POST", f"{rbac}/clusterrolebindings", binding)
        return self.api.kubeconfig(name)

    def inspect(self, *arguments: str) -> Result:
        """What the command says of it."""
        return CliRunner().invoke(main, ["inspect", "--kubeconfig", str(self.kubeconfig), *arguments])


def node(name: str, spec: Mapping[str, Any]) -> Object:
    """A node from shorthand: `mem` and `count` as gpushare counts them, `cards` for Shoal's inventory in MiB by index,
    `uncounted` for a further resource.
    """
    amounts = {"aliyun.com/gpu-mem": spec.get("mem"), "aliyun.com/gpu-count": spec.get("count")}
    offered = {"cpu": "8", "memory": "64Gi", "pods": "110"} | {k: str(v) for k, v in amounts.items() if v is not None}
    offered |= {key: str(value) for key, value in spec.get("offers", {}).items()}
    annotations = {}
    if "cards" in spec:
        annotations[shoal.ANNOTATION_GPUS] = shoal.encode_gpus(card(name, int(k), v) for k, v in spec["cards"].items())
    annotations |= spec.get("annotations", {})
    address = spec.get("address", "10.0.0.1")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": spec.get("labels", {}), "annotations": annotations},
        "spec": {"unschedulable": spec.get("cordoned", False)},
        "status": {
            "capacity": offered | {key: str(value) for key, value in spec.get("capacity", {}).items()},
            "allocatable": offered,
            "addresses": [{"type": "Hostname", "address": name}]
            + ([{"type": "InternalIP", "address": address}] if address else []),
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
        },
    }


def card(node_name: str, index: int, spec: int | Mapping[str, Any]) -> Gpu:
    """A card from its size, or from the arguments of `Gpu`."""
    given = {"memory_mib": spec} if isinstance(spec, int) else spec
    return Gpu(uuid=f"GPU-{node_name}-{index}", index=index, **given)


def pod(name: str, spec: Mapping[str, Any]) -> Object:
    """A pod from shorthand: `mem` of each container, its `node`, `index` and more of the original's annotations."""
    amounts = spec.get("mem", [])
    containers = [
        {"name": f"c{number}", "image": "x", "resources": {"limits": _limits(one)}}
        for number, one in enumerate(amounts if isinstance(amounts, list) else [amounts])
    ]
    annotations = dict(spec.get("annotations", {}))
    if "index" in spec:
        annotations |= {
            "ALIYUN_COM_GPU_MEM_IDX": str(spec["index"]),
            "ALIYUN_COM_GPU_MEM_DEV": str(spec.get("dev", 10)),
            "ALIYUN_COM_GPU_MEM_POD": str(sum(amounts) if isinstance(amounts, list) else amounts),
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
        }
    placed = {"nodeName": spec["node"]} if "node" in spec else {}
    status: Object = {"phase": spec.get("phase", "Running" if placed else "Pending")}
    if "why" in spec:
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": spec["why"]}
        ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": spec.get("namespace", "default"),
            "labels": spec.get("labels", {}),
            "annotations": annotations,
        },
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 0, **placed},
        "status": status,
    }


def objects(nodes: Mapping[str, Any], pods: Mapping[str, Any]) -> list[Object]:
    """All objects of a case."""
    return [node(name, spec) for name, spec in nodes.items()] + [pod(name, spec) for name, spec in pods.items()]


def _limits(amount: int | str | Mapping[str, Any]) -> dict[str, str]:
    limits = amount if isinstance(amount, Mapping) else {"aliyun.com/gpu-mem": amount}
    return {resource: str(value) for resource, value in limits.items()}
