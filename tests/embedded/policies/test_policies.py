"""What policies of any kind do on the embedded API server: matching, failing, telling."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import NAMESPACES, POLICIES, POLICY_BINDINGS, Kind
from shoal.embedded.policies.cel import CelEnvironment, Evaluation, with_variables
from shoal.embedded.policies.errors import CelError
from shoal.embedded.registry import Registry

Object = dict[str, Any]
MAPS = {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}]}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return EmbeddedApi(tmp_path).registry


def maps(registry: Registry) -> Kind:
    kind = registry.catalogue.find("", "v1", "configmaps")
    assert kind is not None
    return kind


def install(registry: Registry, spec: Object, **binding: Any) -> None:
    registry.create(
        POLICIES, "", {"metadata": {"name": "p"}, "spec": {"matchConstraints": MAPS, "failurePolicy": "Fail", **spec}}
    )
    bound = {"policyName": "p", "validationActions": ["Deny"], **binding}
    registry.create(POLICY_BINDINGS, "", {"metadata": {"name": "b"}, "spec": bound})


def told(registry: Registry, data: Object | None = None, **metadata: Any) -> str:
    """What is said to a new ConfigMap: reason and words; empty when it is taken."""
    obj = {"metadata": {"name": "m", **metadata}, "data": data or {}}
    try:
        registry.create(maps(registry), "default", obj, dry_run=True)
    except ApiStatus as status:
        head, _, words = status.message.partition(" denied request: ")
        whose = head == "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b'"
        return f"{status.code} {status.reason} {words if whose else status.message}"
    return ""


#: A policy's spec, what it says to a ConfigMap with data a=1.
SPECS: list[tuple[str, Object, str]] = [
    ("holds", {"validations": [{"expression": "object.data.a == '1'"}]}, ""),
    ("default reason", {"validations": [{"expression": "false", "message": "no"}]}, "422 Invalid no"),
    ("reason", {"validations": [{"expression": "false", "message": "no", "reason": "Forbidden"}]}, "403 Forbidden no"),
    ("no message", {"validations": [{"expression": " 1 > 2 "}]}, "422 Invalid failed expression: 1 > 2"),
    (
        "message by expression",
        {"validations": [{"expression": "false", "message": "no", "messageExpression": "'a is ' + object.data.a"}]},
        "422 Invalid a is 1",
    ),
    (
        "message that cannot be told",
        {"validations": [{"expression": "false", "message": "no", "messageExpression": "object.data.b"}]},
        "422 Invalid no",
    ),
    (
        "the first that fails",
        {"validations": [{"expression": "true"}, {"expression": "false", "message": "2"}, {"expression": "false"}]},
        "422 Invalid 2",
    ),
    (
        "an error",
        {"validations": [{"expression": "object.data.b == '1'"}]},
        "422 Invalid expression 'object.data.b == '1'' resulted in error: no such key: b",
    ),
    ("an error to ignore", {"failurePolicy": "Ignore", "validations": [{"expression": "object.data.b == '1'"}]}, ""),
    (
        "a condition that does not hold",
        {"matchConditions": [{"name": "c", "expression": "false"}], "validations": [{"expression": "false"}]},
        "",
    ),
    (
        "a condition that cannot be evaluated, and one that does not hold",
        {
            "matchConditions": [
                {"name": "c", "expression": "object.data.b == '1'"},
                {"name": "d", "expression": "false"},
            ],
            "validations": [{"expression": "false"}],
        },
        "",
    ),
    (
        "a variable that is not needed",
        {
            "variables": [{"name": "bad", "expression": "object.data.b + 'x'"}],
            "validations": [{"expression": "true || variables.bad == 'x'"}],
        },
        "",
    ),
    (
        "a variable of a variable",
        {
            "variables": [
                {"name": "data", "expression": "object.data"},
                {"name": "one", "expression": "variables.data.map(k, k + '=' + variables.data[k])"},
            ],
            "validations": [{"expression": "variables.one.size() > 1", "messageExpression": "variables.one.join(',')"}],
        },
        "422 Invalid a=1",
    ),
    (
        "quantities",
        {
            "validations": [
                {
                    "expression": "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1k').asInteger() == 1000"
                    " && isQuantity('1.5') && !isQuantity('x') && quantity('2').compareTo(quantity('3')) == -1"
                    " && !quantity('1500m').isInteger() && quantity('-1').sign() == -1"
                }
            ]
        },
        "",
    ),
    (
        "texts and lists",
        {
            "validations": [
                {
                    "expression": "'a1 b2'.findAll('[a-z][0-9]') == ['a1', 'b2'] && 'a1 b2'.find('[0-9]') == '1'"
                    " && 'a1 b2'.findAll('[0-9]', 1) == ['1'] && [3, 1].min() == 1 && ['a', 'b'].max() == 'b'"
                }
            ]
        },
        "",
    ),
    (
        "who asks",
        {
            "validations": [
                {
                    "expression": "request.userInfo.username == 'admin' && request.operation == 'CREATE'"
                    " && request.resource.resource == 'configmaps' && request.dryRun"
                    " && namespaceObject.metadata.name == 'default'"
                    " && authorizer.group('').resource('pods').namespace('a').check('create').allowed()"
                }
            ]
        },
        "",
    ),
    ("another resource", {"matchConstraints": {"resourceRules": []}, "validations": [{"expression": "true"}]}, ""),
]


@pytest.mark.parametrize(("spec", "expected"), [one[1:] for one in SPECS], ids=[one[0] for one in SPECS])
def test_what_a_policy_says(registry: Registry, spec: Object, expected: str) -> None:
    install(registry, spec)
    assert told(registry, {"a": "1"}) == expected


NO = {"validations": [{"expression": "false", "message": "no"}]}


@pytest.mark.parametrize(
    ("constraints", "binding", "refused"),
    [
        ({}, {}, True),
        ({"objectSelector": {"matchLabels": {"a": "b"}}}, {}, True),
        ({"objectSelector": {"matchLabels": {"a": "c"}}}, {}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, {}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, {}, False),
        ({"excludeResourceRules": MAPS["resourceRules"]}, {}, False),
        ({"resourceRules": [{**MAPS["resourceRules"][0], "resourceNames": ["other"]}]}, {}, False),
        ({"resourceRules": [{**MAPS["resourceRules"][0], "operations": ["UPDATE"]}]}, {}, False),
        ({"resourceRules": [{**MAPS["resourceRules"][0], "resources": ["*"]}]}, {}, True),
        ({"resourceRules": [{**MAPS["resourceRules"][0], "resources": ["configmaps/status"]}]}, {}, False),
        ({"resourceRules": [{**MAPS["resourceRules"][0], "scope": "Cluster"}]}, {}, False),
        ({}, {"validationActions": ["Warn"]}, False),
        ({}, {"policyName": "none"}, False),
        ({}, {"matchResources": {"objectSelector": {"matchLabels": {"a": "c"}}}}, False),
    ],
)
def test_what_a_policy_is_about(registry: Registry, constraints: Object, binding: Object, refused: bool) -> None:
    install(registry, {**NO, "matchConstraints": {**MAPS, **constraints}}, **binding)
    assert told(registry, labels={"a": "b"}) == ("422 Invalid no" if refused else "")


def test_a_policy_comes_changes_and_goes(registry: Registry) -> None:
    assert told(registry) == ""
    install(registry, NO)
    assert told(registry) == "422 Invalid no"
    changed = {**registry.get(POLICIES, "", "p"), "spec": {"matchConstraints": MAPS, "validations": [
        {"expression": "false", "message": "never"}]}}  # fmt: skip
    registry.update(POLICIES, "", "p", changed)
    assert told(registry) == "422 Invalid never"
    binding = registry.get(POLICY_BINDINGS, "", "b")
    registry.remove(POLICY_BINDINGS, binding, binding)
    assert told(registry) == ""


def test_a_policy_about_namespaces_looks_at_their_own_labels(registry: Registry) -> None:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["namespaces"]}]
    selector = {"matchLabels": {"a": "b"}}
    install(registry, {**NO, "matchConstraints": {"resourceRules": rules, "namespaceSelector": selector}})
    registry.create(NAMESPACES, "", {"metadata": {"name": "free"}})
    with pytest.raises(ApiStatus, match="denied request: no"):
        registry.create(NAMESPACES, "", {"metadata": {"name": "kept", "labels": {"a": "b"}}})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"validations": [{"expression": "nothing(1)"}]},
            r"validations\[0\]\.expression: Invalid value: \"nothing\(1\)\": compilation failed: ERROR: .*'nothing'",
        ),
        ({"validations": [{"expression": "unknown == 1"}]}, "undeclared reference to 'unknown'"),
        (
            {"variables": [{"name": "v", "expression": "1 +"}]},
            r"spec\.variables\[0\]\.expression: Invalid value: \"1 \+\": compilation failed",
        ),
        ({"matchConditions": [{"name": "c", "expression": ")"}]}, r"spec\.matchConditions\[0\]\.expression: "),
        ({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}, "knows no parameters"),
    ],
)
def test_a_policy_that_cannot_be_evaluated_is_not_taken(registry: Registry, spec: Object, words: str) -> None:
    with pytest.raises(ApiStatus, match=f"(?s){words}") as refused:
        install(registry, spec)
    assert refused.value.code == 422
    assert told(registry) == ""


def test_names_of_variables_in_texts_are_texts() -> None:
    written = """variables.a + 'variables.a' + "it's variables.b" + x.variables.c + variables.d.e"""
    assert with_variables(written, {"d": "object"}) == (
        """variable("a") + 'variables.a' + "it's variables.b" + x.variables.c + (object).e"""
    )


def test_a_value_that_python_cannot_hold_is_told() -> None:
    environment = CelEnvironment()
    evaluation = Evaluation(environment, environment.seen({"object": {}}), {}, lambda asked: False)
    with pytest.raises(CelError, match="none that can be kept here"):
        evaluation.of(environment.compile("optional.of(1)"))


def test_without_a_runtime_a_bare_server_starts_and_another_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['cel_expr_python'] = None\n"
        "from pathlib import Path\n"
        "from shoal.embedded.app import EmbeddedApi\n"
        "from shoal.model.contract.gpushare import MemoryUnit\n"
        "unit = MemoryUnit.GIB if sys.argv[2] else None\n"
        "EmbeddedApi(Path(sys.argv[1]), admission=unit)\n"
    )
    run = lambda admission: subprocess.run(  # noqa: E731
        [sys.executable, "-c", script, str(tmp_path / "api"), admission], capture_output=True, text=True, check=False
    )
    assert run("").returncode == 0
    assert "pip install 'shoal[embedded]'" in run("yes").stderr
