"""Where attacks are played: a cluster with nodes, cards and walls, and tenants that have all rights in a namespace.

A tenant is a ServiceAccount with a Role of `*` on `*` and a real token. What containers were really given is asked of
the node: the cards their programs see, and the limits that stand at the driver.
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.suites.connection import Answer, Connection

MERGE = "application/merge-patch+json"
JSON = "application/json"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MEBIBYTE = 2**20
_BOOKED = re.compile(r'shoal_scheduler_card_memory_requested_bytes\{node="([^"]+)",card="(\d+)"\} (\d+)')

Object = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """A container that runs now: what it sees of cards, and the memory in MiB that the driver lets it have of each."""

    node: str
    namespace: str
    pod: str
    uid: str
    container: str
    #: By UUID; None where nothing limits it.
    limits: Mapping[str, int | None]


class Arena(Protocol):
    """A cluster that attacks are played on."""

    #: As its administrator.
    api: Connection
    #: The node that attacks aim at, with two cards; and all nodes.
    here: str
    nodes: Sequence[str]
    #: Whether what containers have can be asked again and again at no cost.
    watches: bool

    def container(self, name: str, *, stubborn: bool = False) -> Object:
        """A container that runs until it is told to end, or until it is killed."""

    def policies(self, *, on: bool) -> None:
        """Apply the admission policies, or take them away."""

    def given(self) -> list[Given]:
        """All containers that run and see cards."""

    def crash(self, namespace: str, pod: str) -> None:
        """Have the container `main` of a pod end with an error."""

    def restart_agents(self) -> None:
        """End the agents and start them again."""

    def booked(self) -> dict[tuple[str, int], int]:
        """What the scheduler counts as used, in MiB by node and index of the GPU."""

    def inspect(self) -> Object:
        """What `kubectl inspect gpushare -o json` says."""


def booked_of(metrics: str) -> dict[tuple[str, int], int]:
    """What a scheduler counts as used, read from its metrics."""
    return {(node, int(gpu)): int(amount) // MEBIBYTE for node, gpu, amount in _BOOKED.findall(metrics)}


class Tenant:
    """All rights in one namespace, and none elsewhere."""

    def __init__(self, api: Connection, name: str) -> None:
        self.namespace = f"{name}-{uuid.uuid4().hex[:6]}"
        self._api = api
        self._path = f"/api/v1/namespaces/{self.namespace}"
        _made(api, "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        _made(api, f"{self._path}/serviceaccounts", {"metadata": {"name": "tenant"}})
        rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        _made(api, f"{RBAC}/namespaces/{self.namespace}/roles", {"metadata": {"name": "all"}, "rules": rules})
        binding = {
            "metadata": {"name": "all"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
            "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": self.namespace}],
        }
        _made(api, f"{RBAC}/namespaces/{self.namespace}/rolebindings", binding)
        token = _made(api, f"{self._path}/serviceaccounts/tenant/token", {"spec": {"expirationSeconds": 7200}})
        self._token = token["status"]["token"]

    def send(self, method: str, path: str, body: object = None, content: str = JSON) -> Answer:
        """A request with the tenant's token; `path` is below the namespace, or a whole one."""
        whole = path if path.startswith("/") else f"{self._path}/{path}"
        text = None if body is None else json.dumps(body).encode()
        return self._api.request(method, whole, text, {"Content-Type": content}, token=self._token)

    @property
    def claims(self) -> str:
        """Where the ResourceClaims of the namespace are."""
        return f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims"

    def pod(self, name: str) -> Object | None:
        """A pod of the namespace; None if it is gone."""
        answer = self.send("GET", f"pods/{name}")
        assert answer.status in (200, 404), answer
        return dict(answer.body) if answer.status == 200 else None

    def pods(self) -> list[Object]:
        """All of them."""
        return list(self.send("GET", "pods").body["items"])

    def events(self, name: str) -> list[Object]:
        """The events of a pod."""
        return list(self.send("GET", f"events?fieldSelector=involvedObject.name%3D{name}").body["items"])

    def leave(self) -> None:
        """Delete all that makes pods, and the pods, by force."""
        for path in ("apps/v1", "batch/v1"):
            for plural in ("deployments", "replicasets", "statefulsets") if path == "apps/v1" else ("jobs",):
                answer = self.send("DELETE", f"/apis/{path}/namespaces/{self.namespace}/{plural}")
                assert answer.status in (200, 404), answer
        for pod in self.pods():
            name, meta = pod["metadata"]["name"], pod["metadata"]
            if meta.get("finalizers"):
                self.send("PATCH", f"pods/{name}", {"metadata": {"finalizers": None}}, MERGE)
        assert self.send("DELETE", "pods?gracePeriodSeconds=0").status == 200
        assert self.send("DELETE", self.claims).status == 200


def _made(api: Connection, path: str, body: object) -> Object:
    answer = api.request("POST", path, json.dumps(body).encode(), {"Content-Type": JSON})
    assert answer.status == 201, answer
    return dict(answer.body)
