"""Mutating policies where the embedded API server differs from a real one, and its parts.

What both do is in `tests/suites/api/cases/mutations.yaml`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.deletion import Deletion
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import DEFINITIONS, DEPLOYMENTS, MUTATING_BINDINGS, MUTATING_POLICIES, NAMESPACES, PODS
from shoal.embedded.patch.json_patch import MOST_COPIED, PatchError, applied
from shoal.embedded.policies.cel import CelEnvironment, Evaluation
from shoal.embedded.policies.errors import CelError
from shoal.embedded.policies.initialisers import as_calls, configuration, operations
from shoal.embedded.registry import Registry
from shoal.embedded.subresources import bind, evict, rescale
from tests.suites.api.policies import policy_spec

Object = dict[str, Any]
POD: Object = {
    "metadata": {"name": "p", "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "main", "image": "x"}]},
}


@pytest.fixture
def api(tmp_path: Path) -> EmbeddedApi:
    return EmbeddedApi(tmp_path)


@pytest.fixture
def registry(api: EmbeddedApi) -> Registry:
    return api.registry


def install(registry: Registry, name: str = "p", **spec: Any) -> None:
    spec.setdefault("patches", [{"json": "[JSONPatch{op: 'add', path: '/metadata/labels/x', value: 'y'}]"}])
    policy = {"metadata": {"name": name}, "spec": policy_spec(spec, "default")}
    registry.create(MUTATING_POLICIES, "", policy)
    registry.create(MUTATING_BINDINGS, "", {"metadata": {"name": name}, "spec": {"policyName": name}})


def labels(registry: Registry) -> Object:
    made: Object = registry.create(PODS, "default", POD, dry_run=True)["metadata"]["labels"]
    return made


def refusal(registry: Registry) -> str:
    with pytest.raises(ApiStatus) as status:
        registry.create(PODS, "default", POD, dry_run=True)
    return status.value.message


def says(name: str) -> Object:
    """A mutation that adds a label: how many there were."""
    how_many = "string(object.metadata.labels.size())"
    return {"json": f"[JSONPatch{{op: 'add', path: '/metadata/labels/{name}', value: {how_many}}}]"}


def test_policies_go_by_their_names(registry: Registry) -> None:
    for name in ("z", "x", "y"):
        install(registry, name, patches=[says(name)])
    assert labels(registry) == {"a": "b", "x": "1", "y": "2", "z": "3"}


def test_a_policy_comes_changes_and_goes(registry: Registry) -> None:
    install(registry)
    assert labels(registry) == {"a": "b", "x": "y"}
    policy = registry.get(MUTATING_POLICIES, "", "p")
    spec = policy_spec({"patches": [says("z")]}, "default")
    registry.update(MUTATING_POLICIES, "", "p", {**policy, "spec": spec})
    assert labels(registry) == {"a": "b", "z": "1"}
    binding = registry.get(MUTATING_BINDINGS, "", "p")
    registry.remove(MUTATING_BINDINGS, binding, binding)
    assert labels(registry) == {"a": "b"}


def test_two_rounds_and_no_third(registry: Registry) -> None:
    install(registry, reinvocationPolicy="IfNeeded", patches=[says("n' + string(object.metadata.labels.size()) + '")])
    assert labels(registry) == {"a": "b", "n1": "1", "n2": "2"}


def test_a_tenant_of_another_namespace_is_left_alone(registry: Registry) -> None:
    install(registry)
    registry.create(NAMESPACES, "", {"metadata": {"name": "other"}})
    assert registry.create(PODS, "other", POD)["metadata"]["labels"] == {"a": "b"}


def test_a_write_that_is_mutated_leaves_the_stored_state_alone(registry: Registry) -> None:
    before = registry.create(PODS, "default", POD)
    install(
        registry,
        matchConstraints={"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                                             "resources": ["pods"]}]},
    )  # fmt: skip
    told = {**before, "metadata": {**before["metadata"], "labels": {"a": "c"}}}
    after, _ = registry.update(PODS, "default", "p", told, dry_run=True)
    assert after["metadata"]["labels"] == {"a": "c", "x": "y"}
    assert registry.get(PODS, "default", "p") == before
    assert before["metadata"]["labels"] == {"a": "b"}


def test_records_of_managers_are_not_for_policies(registry: Registry) -> None:
    install(registry, patches=[{"json": "[JSONPatch{op: 'remove', path: '/metadata/managedFields'}]"}])
    assert "lets no policy change metadata.managedFields" in refusal(registry)


def test_a_patch_cannot_make_another_kind(registry: Registry) -> None:
    install(registry, patches=[{"json": "[JSONPatch{op: 'replace', path: '/kind', value: 'Node'}]"}])
    assert refusal(registry) == "Internal error occurred: kind may not be changed to 'Node'"


def test_a_list_of_objects_is_refused_where_the_real_server_breaks(registry: Registry) -> None:
    gates = "[JSONPatch{op: 'add', path: '/spec/schedulingGates', value: [Object.spec.schedulingGates{name: 'a'}]}]"
    install(registry, patches=[{"json": gates}])
    assert "write a map {...} there" in refusal(registry)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"patches": [{"apply": "Object{spec: Object.spec{schedulingGates: [{'name': 'a'}]}}"}]},
            "write an initialiser",
        ),
        ({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}, "knows no parameters"),
        ({"patches": [{"json": "[JSONPatch{op: 'add', jump: 1}]"}]}, "undefined field 'jump' in type 'JSONPatch'"),
        ({"patches": [{"json": "[JSONPatch{op: 'add', path: ip('1.2.3.4')}]"}]}, "undeclared reference to 'ip'"),
        ({"patches": [{"apply": "Object{"}]}, "compilation failed"),
        ({"patches": [{"apply": "Object{}}"}]}, "compilation failed"),
    ],
)
def test_what_is_not_there_is_refused_with_the_policy(registry: Registry, spec: Object, words: str) -> None:
    with pytest.raises(ApiStatus) as status:
        install(registry, **spec)
    assert status.value.code == 422
    assert words in status.value.message
    assert labels(registry) == {"a": "b"}


PLACES = {
    "pods/binding": lambda api: bind(api.registry, "default", "p", {"target": {"name": "n"}}),
    "bindings": lambda api: bind(api.registry, "default", "p", {"target": {"name": "n"}}, older=True),
    "pods/eviction": lambda api: evict(api.registry, api.deletion, "default", "p", {}),
    "deployments/scale": lambda api: rescale(api.registry, DEPLOYMENTS, "default", "d", {"spec": {"replicas": 2}}),
    "serviceaccounts/token": lambda api: api.gate.tokens.request("default", "default", {}),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_mutated_is_refused(api: EmbeddedApi, place: str) -> None:
    assert isinstance(api.deletion, Deletion)
    api.registry.create(PODS, "default", POD)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    api.registry.create(DEPLOYMENTS, "default", {"metadata": {"name": "d"}, "spec": spec})
    rule = {"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": [place]}
    install(api.registry, matchConstraints={"resourceRules": [rule]})
    with pytest.raises(ApiStatus) as status:
        PLACES[place](api)
    assert status.value.message == (
        f"the embedded API server does not mutate {place}, and policy 'p' with binding 'p' is about it"
    )
    binding = api.registry.get(MUTATING_BINDINGS, "", "p")
    api.registry.remove(MUTATING_BINDINGS, binding, binding)
    PLACES[place](api)


CUSTOM: Object = {
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer"},
                                    "parts": {"type": "array", "items": {"type": "string"}},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.mark.parametrize(
    ("patch", "spec", "words"),
    [
        ({"json": "[JSONPatch{op: 'add', path: '/spec/size', value: 2}]"}, {"size": 2}, ""),
        ({"apply": "Object{spec: Object.spec{size: 2}}"}, {"size": 2}, ""),
        (
            {"json": "[JSONPatch{op: 'add', path: '/spec/sise', value: 2}]"},
            {},
            'Internal error occurred: strict decoding error: unknown field "spec.sise"',
        ),
        ({"apply": "Object{spec: Object.spec{sise: 2}}"}, {}, ".spec.sise: field not declared in schema"),
        ({"apply": "Object{spec: Object.spec{parts: ['a']}}"}, {}, "may not mutate atomic arrays, maps or structs"),
        ({"json": "[JSONPatch{op: 'add', path: '/spec/size', value: 'x'}]"}, {}, "spec.size: Invalid value"),
    ],
)
def test_custom_kinds(registry: Registry, patch: Object, spec: Object, words: str) -> None:
    registry.create(DEFINITIONS, "", CUSTOM)
    kind = registry.catalogue.find("example.com", "v1", "things")
    assert kind is not None
    rule = {"apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}
    install(registry, matchConstraints={"resourceRules": [rule]}, patches=[patch])
    thing = {"metadata": {"name": "t"}, "spec": {"size": 1}}
    if not words:
        assert registry.create(kind, "default", thing)["spec"] == spec
        return
    with pytest.raises(ApiStatus) as status:
        registry.create(kind, "default", thing)
    assert words in status.value.message


def value(expression: str, wanted: str = "Object", **obj: Any) -> Any:
    environment = CelEnvironment()
    evaluation = Evaluation(environment, environment.seen({"object": obj}), {}, lambda asked: False)
    return evaluation.of(environment.compile_mutation(expression, wanted))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("Object{}", {}),
        ("Object { a : 1 , b: 'x', }", {"a": 1, "b": "x"}),
        ("Object{a: Object . a {b: [Object.a.b{c: {'d': true}}]}}", {"a": {"b": [{"c": {"d": True}}]}}),
        ("Object{?a: object.?x, ?b: object.?y}", {"a": 1}),
        (
            "Object{a: object.x == 1 ? 'Object{b: 1}' : \"}\", b: r'\\d'} // it's Object{\n",
            {"a": "Object{b: 1}", "b": "\\d"},
        ),
        ("Object{a: [object.x, 2].map(i, i + 1), b: {'c': 'd'}.c}", {"a": [2, 3], "b": "d"}),
        ("true ? Object{a: 1.5} : Object{}", {"a": 1.5}),
    ],
)
def test_initialisers(expression: str, expected: Object) -> None:
    assert configuration(value(expression, x=1)) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("b'ab'", "YWI="),
        ("9007199254740993", "9007199254740993"),
        ("7", 7),
        ("2.0", 2),
        ("timestamp('2026-01-02T03:04:05Z')", "2026-01-02T03:04:05Z"),
        ("duration('90s')", "90s"),
        ("null", None),
        ("{'a': [1]}", {"a": [1]}),
        ("Object.a{b: [Object.a.b{c: 1}]}", {"b": [{"c": 1}]}),
    ],
)
def test_values_become_json(told: str, expected: Any) -> None:
    (made,) = operations(value(f"[JSONPatch{{op: 'add', path: '/x', value: {told}}}]", "list(JSONPatch)"))
    assert made == {"op": "add", "path": "/x", "value": expected}
    assert type(made["value"]) is type(expected)


@pytest.mark.parametrize(
    "expression", ["[JSONPatch{op: 'add', path: object.x}]", "[JSONPatch{op: 'add', path: '', value: {1: 'a'}}]"]
)
def test_what_is_no_patch_is_told(expression: str) -> None:
    with pytest.raises(CelError, match=r"unexpected type int for JSONPatchType 'path' field|not string"):
        operations(value(expression, "list(JSONPatch)", x=1))


def test_a_tenant_cannot_write_an_initialiser() -> None:
    """The key that marks them is not one that an object could have."""
    typed = value("Object{a: Object.a{}}")["a"]
    (mark,) = typed
    assert value("Object{}")[mark] == "Object"
    assert len(mark) > 16
    assert mark not in as_calls("Object{a: 1}")


def test_copies_do_not_grow_without_end() -> None:
    doubled = [{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(40)]
    with pytest.raises(PatchError, match=f"exceeding the limit {MOST_COPIED}"):
        applied({"a": {"b": "x" * 1000}}, doubled)
