"""Fake nodes and the binding of pods to them: by the test, so that both clusters do it alike."""

import json
from pathlib import Path
from typing import Any

from tests.suites.connection import Connection
from tests.testbed.fake_nodes import node

JSON = {"Content-Type": "application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Nodes:
    """The nodes of one API server, as its administrator sees them."""

    def __init__(self, kubeconfig: Path) -> None:
        self._connection = Connection(kubeconfig)
        self._bound = 0

    def add(self, name: str, labels: dict[str, str] | None = None) -> str:
        """A node that is ready, without the taint that every new node has."""
        made = node(name, 0)
        made["metadata"]["labels"] |= labels or {}
        self._demand("POST", "/api/v1/nodes", made, JSON)
        self.taint(name, [])
        return name

    def taint(self, name: str, taints: list[dict[str, str]]) -> None:
        """Have these taints, and no others."""
        self._demand("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints or None}}, MERGE)

    def label(self, name: str, labels: dict[str, str | None]) -> None:
        """Change labels."""
        self._demand("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}}, MERGE)

    def remove(self, name: str) -> None:
        """Delete the node."""
        self._demand("DELETE", f"/api/v1/nodes/{name}", {}, JSON)

    def bind(self, namespace: str, pod: dict[str, Any]) -> None:
        """Give a pod a node: the one it asks for, else the next of the workers."""
        self._bound += 1
        target = _wanted(pod) or f"worker-{self._bound % 3}"
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/binding"
        body = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": target}}
        answer = self._connection.request("POST", path, json.dumps(body).encode(), JSON)
        # It may be gone, or on its way out, by now: controllers do not wait for the test.
        assert answer.status in (201, 404, 409), answer

    def _demand(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        answer = self._connection.request(method, path, json.dumps(body).encode(), headers)
        assert answer.status in (200, 201), answer


def _wanted(pod: dict[str, Any]) -> str:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [{}]
    fields = terms[0].get("matchFields") or [{}]
    return str((fields[0].get("values") or [""])[0])
