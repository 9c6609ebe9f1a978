"""The CustomResourceDefinition of the ClusterPolicy, made from the structs of policy and status. Pure.

`python -m shoal.operator.crd FOLDER` writes it; `charts/shoal/crds` has it, and a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from shoal.model.contract.operator import GROUP, KIND, PLURAL, SHORT_NAME, VERSION
from shoal.operator.fields import FieldType, Rule, field_type, fields_of, rules_of
from shoal.operator.policy import ClusterPolicySpec
from shoal.operator.policy_status import ClusterPolicyStatus

NAME: Final = f"{PLURAL}.{GROUP}"
FILE: Final = f"{NAME}.yaml"
#: `kubectl get shoal` lists all of Shoal's kinds.
CATEGORY: Final = "shoal"

Schema = dict[str, Any]

_COLUMNS: Final = (
    ("Status", ".status.state", "string", "Whether every GPU node serves."),
    ("Ready", ".status.ready", "string", "GPU nodes that serve, of all."),
    ("Waiting-for", ".status.waitingFor", "string", "What is waited for."),
    ("Age", ".metadata.creationTimestamp", "date", "Since when the policy is there."),
)

#: Lists whose entries have a name of their own, so that several writers can each have some: field, key.
_MAPS: Final = {"conditions": "type", "components": "name", "nodes": "name"}


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    columns = [
        {"name": name, "jsonPath": path, "type": kind, "description": words} for name, path, kind, words in _COLUMNS
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _whole()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": "shoal"}},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def _whole() -> Schema:
    spec = _struct(field_type(ClusterPolicySpec), defaults=True, loose=False)
    spec |= {"description": "What is wished of the cluster's GPU nodes.", "default": {}}
    status = _struct(field_type(ClusterPolicyStatus), defaults=False, loose=False)
    status["description"] = "How things stand; the operator writes it."
    del status["required"]
    return {
        "description": "The wish for a cluster's GPU nodes: which components run there, and how. Of several the oldest "
        "is in force.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{KIND}."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _schema(kind: FieldType, name: str, *, defaults: bool, loose: bool) -> Schema:
    """The schema of a value."""
    described: Schema = {}
    if kind.description:
        described["description"] = kind.description
    if kind.struct is not None:
        return described | _struct(kind, defaults=defaults, loose=loose or kind.loose)
    if kind.kind is tuple:
        return described | _list(kind, name, defaults=defaults, loose=loose)
    if kind.kind is dict:
        values = _schema(kind.entries[1], "", defaults=defaults, loose=loose)
        return described | {
            "type": "object",
            "maxProperties": kind.longest,
            "additionalProperties": values,
        }
    return described | _leaf(kind, loose=loose)


def _leaf(kind: FieldType, *, loose: bool) -> Schema:
    made: Schema
    if kind.is_int_or_string:
        made = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    elif kind.choices:
        made = {"type": "string", "enum": list(kind.choices)}
    else:
        made = {"type": {str: "string", bool: "boolean", int: "integer", float: "number"}[kind.kind]}
        if kind.kind is int:
            made["format"] = "int64"
    for name, bound in (("maxLength", kind.longest), ("minimum", kind.least), ("maximum", kind.most)):
        if bound is not None:
            made[name] = bound
    rule = kind.notes.rule
    if rule is not None and rule.pattern and not loose:
        made["pattern"] = rule.pattern
        made["minimum"], made["maximum"] = rule.numbers
    elif rule is not None and not loose:
        validation = _validation(rule)
        if kind.kind is not bool and not kind.notes.secret:
            # Kubernetes 1.32 tells the type of a value, 1.36 the value itself.
            validation["messageExpression"] = _with_value(kind, rule.words)
        if kind.is_int_or_string:
            least, most = rule.numbers
            validation["rule"] = f"type(self) == int ? (self >= {least} && self <= {most}) : ({rule.cel})"
        made["x-kubernetes-validations"] = [validation]
    return made


def _with_value(kind: FieldType, words: str) -> str:
    """The words with the value before them, in CEL."""
    value = "string(self)" if kind.is_int_or_string else "self"
    return f'"\'" + {value} + "\' {words}"'


def _list(kind: FieldType, name: str, *, defaults: bool, loose: bool) -> Schema:
    made: Schema = {
        "type": "array",
        "maxItems": kind.longest,
        "items": _schema(kind.entries[0], "", defaults=defaults, loose=loose),
    }
    if not defaults and name in _MAPS:
        made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [_MAPS[name]]}
    return made


def _struct(kind: FieldType, *, defaults: bool, loose: bool) -> Schema:
    struct = kind.struct
    assert struct is not None
    properties: Schema = {}
    required = []
    for field in fields_of(struct):
        schema = _schema(field.type, field.key, defaults=defaults, loose=loose)
        if field.default is msgspec.NODEFAULT:
            required.append(field.key)
        elif defaults:
            schema["default"] = _default(field.default)
        properties[field.key] = schema
    made: Schema = {"type": "object", "properties": properties}
    if required:
        made["required"] = required
    validations = [_validation(rule) for rule in rules_of(struct) if rule.cel and not loose]
    if validations:
        made["x-kubernetes-validations"] = validations
    return made


def _default(value: object) -> Any:
    """As the API server is told it. It fills the fields of an empty object itself."""
    if isinstance(value, msgspec.Struct) and value == type(value)():
        return {}
    return msgspec.json.decode(msgspec.json.encode(value))


def _validation(rule: Rule) -> Schema:
    made: Schema = {"rule": rule.cel, "message": rule.words}
    if rule.expression:
        made["messageExpression"] = rule.expression
    return made


class _Dumper(yaml.SafeDumper):
    """Without anchors: each field is written out."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def text() -> str:
    """The definition as a file of the chart."""
    head = "# Made by `make crds` from src/shoal/operator/policy.py: change that instead.\n"
    return head + yaml.dump(definition(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


if __name__ == "__main__":
    (Path(sys.argv[1]) / FILE).write_text(text(), encoding="utf-8")
