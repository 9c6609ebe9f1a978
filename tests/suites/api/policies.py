"""Mutating policies of a case, in force before its first step.

A case may have `policies`, by name; in its steps a policy and its binding are called `{ns}-NAME`, and they are about
its own namespace only. A policy is written as its `spec`, of which the runner fills in what most have: failure policy
Fail, reinvocation policy Never, rules about new pods. Its mutations may be told as `patches`, each `json: EXPRESSION`
or `apply: EXPRESSION`.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.suites.api.matching import substituted
from tests.suites.connection import Connection
from tests.testbed.waiting import wait_for

Object = dict[str, Any]
GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{GROUP}/mutatingadmissionpolicies"
BINDINGS = f"{GROUP}/mutatingadmissionpolicybindings"
PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
#: Comes last, so that all others are in force when it is.
LAST = "in-force"
MARK = f"[JSONPatch{{op: 'add', path: '/metadata/labels', value: {{'{LAST}': 'yes'}}}}]"


@contextlib.contextmanager
def in_force(connection: Connection, namespace: str, policies: Mapping[str, Object]) -> Iterator[None]:
    """Have policies in force in a namespace."""
    sentinel = {
        "patches": [{"json": MARK}],
        "matchConstraints": {"resourceRules": [{**PODS, "resources": ["secrets"]}]},
    }
    names = []
    try:
        for name, told in {**policies, LAST: sentinel}.items():
            names.append(f"{namespace}-{name}")
            spec = policy_spec(substituted(told, {"ns": namespace}), namespace)
            _must(connection, "POST", POLICIES, {"metadata": {"name": names[-1]}, "spec": spec})
            binding = {"metadata": {"name": names[-1]}, "spec": {"policyName": names[-1]}}
            _must(connection, "POST", BINDINGS, binding)
        wait_for(lambda: _is_marked(connection, namespace), f"policies in force in {namespace}")
        yield
    finally:
        for name in names:
            _request(connection, "DELETE", f"{BINDINGS}/{name}")
            _request(connection, "DELETE", f"{POLICIES}/{name}")


def policy_spec(told: Object, namespace: str) -> Object:
    """The whole spec of a policy."""
    spec = {"failurePolicy": "Fail", "reinvocationPolicy": "Never", **told}
    if "patches" in spec:
        spec["mutations"] = [_mutation(one) for one in spec.pop("patches")]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rules = {"resourceRules": [PODS], "namespaceSelector": selector}
    return {**spec, "matchConstraints": {**rules, **spec.get("matchConstraints", {})}}


def _mutation(told: Mapping[str, str]) -> Object:
    ((kind, expression),) = told.items()
    if kind == "json":
        return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def _is_marked(connection: Connection, namespace: str) -> bool:
    path = f"/api/v1/namespaces/{namespace}/secrets?dryRun=All"
    made = _must(connection, "POST", path, {"metadata": {"name": LAST}})
    return LAST in (made["metadata"].get("labels") or {})


def _must(connection: Connection, method: str, path: str, body: object) -> Any:
    status, answer = _request(connection, method, path, body)
    assert status < 300, (method, path, answer)
    return answer


def _request(connection: Connection, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    answer = connection.request(method, path, data, {"Content-Type": "application/json"})
    return answer.status, answer.body
