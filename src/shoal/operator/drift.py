"""Whether an object of the operator's own is as it wants it.

Two questions. Is what was wanted last what is wanted now? A hash of the manifest stands in an annotation of the object,
so that a field that is not named any more is noticed. And does the object still hold all that the manifest names? What
the API server adds by itself, and what others add beside it, is left alone, as server-side apply leaves it alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shoal.kube.resources import RawObject
from shoal.model import quantity
from shoal.model.errors import QuantityError

#: On every object of the operator's own: the hash of the manifest that was applied last.
ANNOTATION_APPLIED: Final = "shoal.dev/applied"
#: Lists whose entries are known by a field, as the API server merges them.
_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "ownerReferences": "uid",
}
_AMOUNTS: Final = ("limits", "requests")


def digest(document: object) -> str:
    """A short hash of a document, whatever the order of its fields."""
    return hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()[:16]


def stamped(manifest: RawObject) -> RawObject:
    """The manifest with its own hash in it."""
    metadata = manifest.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION_APPLIED: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def is_as_wanted(found: RawObject, wanted: RawObject) -> bool:
    """Whether an object holds all that a manifest names."""
    return _holds(found, wanted, "")


def _holds(found: Any, wanted: Any, name: str) -> bool:
    if isinstance(wanted, Mapping):
        if not wanted and found is None:
            return True
        if not isinstance(found, Mapping):
            return False
        if name in _AMOUNTS:
            return all(key in found and _equal_amounts(found[key], value) for key, value in wanted.items())
        return all(_holds(found.get(key), value, key) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        if not wanted and found is None:
            return True
        return isinstance(found, list | tuple) and _holds_all(found, wanted, name)
    if isinstance(wanted, bool) or isinstance(found, bool):
        return bool(wanted) is bool(found) if found is None or isinstance(found, bool) else False
    return found == wanted or (found is None and not wanted)


def _holds_all(found: list[Any] | tuple[Any, ...], wanted: list[Any] | tuple[Any, ...], name: str) -> bool:
    key = _KEYS.get(name)
    if key is None:
        return len(found) == len(wanted) and all(_holds(a, b, "") for a, b in zip(found, wanted, strict=True))
    known = {one.get(key): one for one in found if isinstance(one, Mapping)}
    return all(one.get(key) in known and _holds(known[one.get(key)], one, "") for one in wanted)


def _equal_amounts(found: object, wanted: object) -> bool:
    if found == wanted:
        return True
    try:
        return quantity.parse(found) == quantity.parse(wanted)
    except QuantityError:
        return False
