"""What names, labels and annotations may look like, in the real server's words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from shoal.embedded.errors import FieldError, invalid_value
from shoal.embedded.kinds import Kind

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_SERVICE: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_CONFIG_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_FINALIZERS: Final = ("orphan", "foregroundDeletion", "kubernetes")
_ANNOTATION_BYTES: Final = 256 * 1024

LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_SERVICE_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_CONFIG_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def label_errors(name: str) -> list[str]:
    """What keeps a word from being a DNS label."""
    if "." in name and _SUBDOMAIN.fullmatch(name):
        return ["must not contain dots"]
    return _too_long(name, 63) + ([] if _LABEL.fullmatch(name) else [LABEL_TEXT])


def subdomain_errors(name: str) -> list[str]:
    """What keeps a word from being a DNS subdomain."""
    return _too_long(name, 253) + ([] if _SUBDOMAIN.fullmatch(name) else [SUBDOMAIN_TEXT])


def label_key_errors(key: str) -> list[str]:
    """What keeps a word from being the key of a label or an annotation."""
    parts = key.split("/")
    if len(parts) > 2:
        return [
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')"
        ]
    errors = []
    if len(parts) == 2:
        if not parts[0]:
            errors.append("prefix part must be non-empty")
        else:
            errors += [f"prefix part {error}" for error in subdomain_errors(parts[0])]
    if not parts[-1]:
        errors.append("name part must be non-empty")
    errors += [f"name part {error}" for error in _too_long(parts[-1], 63, "bytes")]
    return errors if _QUALIFIED.fullmatch(parts[-1]) else [*errors, _QUALIFIED_TEXT]


def config_key_errors(key: str) -> list[str]:
    """What keeps a word from being a key of a ConfigMap or a Secret."""
    errors = _too_long(key, 253)
    if not _CONFIG_KEY.fullmatch(key):
        errors.append(_CONFIG_KEY_TEXT)
    if key in (".", "..") or key.startswith(".."):
        errors.append(f"must not be '{key}'" if key in (".", "..") else "must not start with '..'")
    return errors


def label_value_errors(value: str) -> list[str]:
    """What keeps a word from being the value of a label."""
    return _too_long(value, 63, "bytes") + ([] if _VALUE.fullmatch(value) else [_VALUE_TEXT])


def name_errors(name: str, kind: Kind) -> list[str]:
    """What keeps a word from being the name of an object of this kind."""
    if kind.group == "rbac.authorization.k8s.io":
        return path_segment_errors(name)
    if kind.key == ("", "namespaces"):
        return label_errors(name)
    if kind.key == ("", "services"):
        return _too_long(name, 63) + ([] if _SERVICE.fullmatch(name) else [_SERVICE_TEXT])
    return subdomain_errors(name)


def path_segment_errors(name: str) -> list[str]:
    """What keeps a word from being a part of a path."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{letter}'" for letter in "/%" if letter in name]


def metadata_errors(metadata: Mapping[str, Any]) -> list[FieldError]:
    """Broken labels and annotations."""
    errors = []
    for key, value in (metadata.get("labels") or {}).items():
        errors += [invalid_value("metadata.labels", key, error) for error in label_key_errors(key)]
        errors += [invalid_value("metadata.labels", value, error) for error in label_value_errors(value)]
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        errors += [invalid_value("metadata.annotations", key, error) for error in label_key_errors(key.lower())]
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATION_BYTES:
        errors.append(
            FieldError(
                "FieldValueTooLong", "metadata.annotations", f"Too long: may not be more than {_ANNOTATION_BYTES} bytes"
            )
        )
    for number, finalizer in enumerate(metadata.get("finalizers") or ()):
        path = f"metadata.finalizers[{number}]"
        errors += [invalid_value(path, finalizer, error) for error in label_key_errors(finalizer)]
        if "/" not in finalizer and finalizer not in _FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid_value(path, finalizer, why))
    errors += _owner_errors(metadata.get("ownerReferences") or [])
    return errors


def _owner_errors(owners: list[dict[str, Any]]) -> list[FieldError]:
    path, errors = "metadata.ownerReferences", []
    for owner in owners:
        if not (owner.get("apiVersion") or "").rpartition("/")[2]:
            errors.append(invalid_value(f"{path}.apiVersion", owner.get("apiVersion", ""), "version must not be empty"))
        errors += [
            invalid_value(f"{path}.{name}", "", "must not be empty")
            for name in ("kind", "name", "uid")
            if not owner.get(name)
        ]
    controllers = [f"{owner.get('kind')}/{owner.get('name')}" for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        shown = json.dumps(owners, separators=(",", ":"))
        why = f'Found "true" in references for {controllers[0]} and {controllers[1]}'
        message = f"Invalid value: {shown}: Only one reference can have Controller set to true. {why}"
        errors.append(FieldError("FieldValueInvalid", path, message))
    return errors


def _too_long(text: str, limit: int, unit: str = "characters") -> list[str]:
    """The real server counts bytes in both cases, but says so only of labels."""
    return [f"must be no more than {limit} {unit}"] if len(text.encode()) > limit else []
