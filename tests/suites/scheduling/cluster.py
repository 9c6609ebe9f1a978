"""What a scenario does to a cluster, over plain HTTP, and what it leaves: nothing."""

import json
import time
from collections.abc import Callable
from typing import Any

from tests.suites.api.play import TYPES
from tests.suites.connection import Connection
from tests.suites.scheduling.shorthand import Object
from tests.testbed.cluster import Api

#: Seconds to wait for what must come. Generous: it only ends what would hang.
PATIENCE = 300.0
PAUSE = 0.05
#: Where objects of a kind lie.
COLLECTIONS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Node": "/api/v1/nodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
}


class Cluster:
    """One scenario's hands on a cluster: it remembers what it made."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._connection = Connection(api.kubeconfig())
        self._made: list[str] = []
        self.namespace = namespace
        self.namespaces = [namespace]
        api.create_namespace(namespace)

    def create(self, manifest: Object) -> None:
        """Make an object; one that names no namespace goes to the scenario's own."""
        kind, meta = manifest["kind"], manifest["metadata"]
        if kind == "Namespace":
            self._enter(meta["name"])
            return
        path = COLLECTIONS[kind].format(meta.get("namespace", self.namespace))
        self.demand("POST", path, manifest)
        self._made.append(f"{path}/{meta['name']}")

    def patch(self, path: str, patch: Object, kind: str = "merge") -> None:
        """Change an object."""
        self.demand("PATCH", path, patch, TYPES[kind])

    def delete(self, path: str, **options: object) -> None:
        """Delete an object that may be gone."""
        answer = self.request("DELETE", path, options)
        assert answer[0] in (200, 202, 404, 409), answer

    def demand(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """A request that must be granted."""
        status, answer = self.request(method, path, body, kind)
        assert status in (200, 201, 202), f"{method} {path}: {status} {answer}"
        return answer

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        """Any request."""
        data = None if body is None else json.dumps(body).encode()
        answer = self._connection.request(method, path, data, {"Content-Type": kind})
        return answer.status, answer.body

    def pod_path(self, name: str) -> str:
        """Where a pod of the scenario's own namespace lies."""
        return f"{COLLECTIONS['Pod'].format(self.namespace)}/{name}"

    def pods(self) -> dict[str, Object]:
        """The pods of all namespaces that the scenario has entered, by name."""
        found: dict[str, Object] = {}
        for namespace in self.namespaces:
            items = self.demand("GET", COLLECTIONS["Pod"].format(namespace))["items"]
            found |= {pod["metadata"]["name"]: pod for pod in items}
        return found

    def events(self, namespace: str) -> list[Object]:
        """What was told in a namespace."""
        items: list[Object] = self.demand("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return items

    def wait(self, wrong: Callable[[], str]) -> None:
        """Until nothing is wrong."""
        end = time.monotonic() + PATIENCE
        while found := wrong():
            assert time.monotonic() < end, found
            time.sleep(PAUSE)

    def close(self) -> None:
        """Remove all that was made, workloads before their pods, nodes last."""
        nodes = [path for path in self._made if path.startswith(COLLECTIONS["Node"])]
        for path in reversed([path for path in self._made if path not in nodes]):
            self.delete(path, gracePeriodSeconds=0, propagationPolicy="Background")

        def left() -> str:
            pods = self.pods()
            for name, pod in pods.items():
                path = f"{COLLECTIONS['Pod'].format(pod['metadata']['namespace'])}/{name}"
                if pod["metadata"].get("finalizers"):
                    self.request("PATCH", path, {"metadata": {"finalizers": None}}, TYPES["merge"])
                self.delete(path, gracePeriodSeconds=0)
            return f"pods are left: {sorted(pods)}" if pods else ""

        self.wait(left)
        for path in nodes:
            self.delete(path)

    def _enter(self, namespace: str) -> None:
        if self.request("GET", f"/api/v1/namespaces/{namespace}")[0] == 404:
            self._api.create_namespace(namespace)
        self.namespaces.append(namespace)
