"""Lists: selectors, pages that hold together as of one version, and versions a client may ask for."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.embedded.errors import ApiStatus, FieldError, bad_request, forbidden_value, invalid
from shoal.embedded.http.bodies import json_error
from shoal.embedded.kinds import Kind
from shoal.embedded.selectors import Test, both, demanded_value, everything, field_selector, label_selector
from shoal.embedded.store import SLICED, Key, Object, ObjectStore, key_of

_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_TRUE: Final = ("true", "1", "t", "T", "TRUE", "True")


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What a list or watch asks for."""

    test: Test = everything
    #: All that can pass the test is in this slice of the kind; None if it can be anywhere.
    slice: str | None = None
    limit: int = 0
    continue_: str = ""
    version: str = ""
    match: str = ""


def truth(query: Mapping[str, str], name: str) -> bool:
    """A flag of the query."""
    return query.get(name, "") in _TRUE


def read_options(query: Mapping[str, str], kind: Kind, name: str = "") -> ListOptions:
    """The options of a list; a name in the path selects by it."""
    limit = query.get("limit", "") or "0"
    if not limit.lstrip("+-").isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{limit}": invalid syntax')
    fields = field_selector(query.get("fieldSelector", ""), kind)
    if name:
        fields = both(fields, lambda obj: bool(obj["metadata"]["name"] == name))
    options = ListOptions(
        both(label_selector(query.get("labelSelector", "")), fields),
        demanded_value(query.get("fieldSelector", ""), ".".join(SLICED[kind.key])) if kind.key in SLICED else None,
        max(0, int(limit)),
        query.get("continue", ""),
        query.get("resourceVersion", ""),
        query.get("resourceVersionMatch", ""),
    )
    _check(options, watching=truth(query, "watch"), initial="sendInitialEvents" in query)
    return options


def list_objects(
    store: ObjectStore, kind: Kind, namespace: str, options: ListOptions
) -> tuple[list[Object], dict[str, Any]]:
    """One page of objects and the metadata of the list."""
    version, start = store.version, None
    if options.continue_:
        version, start = _read_token(options.continue_, store.version)
    elif _exact(options):
        version = parse_version(options.version)
    wanted = parse_version(options.version) if options.version else 0
    if wanted > store.version:
        raise too_large(wanted, store.version)
    objects = _objects_at(store, kind, namespace, version, start)
    rest = [obj for obj in objects if start is None or key_of(obj) > start]
    selected = rest if options.test is everything else [obj for obj in rest if options.test(obj)]
    meta: dict[str, Any] = {"resourceVersion": str(version)}
    if options.limit and len(selected) > options.limit:
        page = selected[: options.limit]
        meta["continue"] = _token(version, key_of(page[-1]))
        if options.test is everything:
            meta["remainingItemCount"] = len(selected) - len(page)
        return page, meta
    return selected, meta


def parse_version(text: str) -> int:
    """A resourceVersion of a list."""
    if not text.isdigit():
        why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: {why}")
    return int(text)


def too_large(wanted: int, present: int) -> ApiStatus:
    """504 for a version that is still to come."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {wanted}, current: {present}"
    return ApiStatus(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def _objects_at(store: ObjectStore, kind: Kind, namespace: str, version: int, start: Key | None) -> list[Object]:
    if version >= store.version:
        return store.objects(kind.key, namespace)
    try:
        return store.objects_at(kind.key, namespace, version)
    except ApiStatus as error:
        if start is None:
            raise
        expired = ApiStatus(410, "Expired", _TOO_OLD)
        expired.continue_token = _token(-1, start)
        raise expired from error


def _exact(options: ListOptions) -> bool:
    """Whether the version asked for is meant to the letter."""
    if options.version in ("", "0"):
        return False
    return options.match == "Exact" or (not options.match and options.limit > 0)


def _check(options: ListOptions, *, watching: bool, initial: bool) -> None:
    errors: list[FieldError] = []
    name = "resourceVersionMatch"
    if initial and not watching:
        errors.append(forbidden_value("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    elif watching:
        errors += _watch_errors(options, initial=initial)
    elif options.match:
        if not options.version:
            errors.append(forbidden_value(name, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        elif options.continue_:
            errors.append(forbidden_value(name, "resourceVersionMatch is forbidden when continue is provided"))
        elif options.match not in ("Exact", "NotOlderThan"):
            words = 'supported values: "Exact", "NotOlderThan", ""'
            errors.append(FieldError("FieldValueNotSupported", name, f'Unsupported value: "{options.match}": {words}'))
        elif options.match == "Exact" and options.version == "0":
            why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            errors.append(forbidden_value(name, why))
    if errors:
        raise invalid("ListOptions", "meta.k8s.io", "", errors)
    if options.continue_ and options.version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")


def _watch_errors(options: ListOptions, *, initial: bool) -> list[FieldError]:
    name = "resourceVersionMatch"
    errors = []
    if initial and not options.match:
        errors.append(forbidden_value(name, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
    elif options.match:
        if not initial:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            errors.append(forbidden_value(name, why))
        if options.match != "NotOlderThan":
            why = f'Unsupported value: "{options.match}": supported values: "NotOlderThan"'
            errors.append(FieldError("FieldValueNotSupported", name, why))
    return errors


def _token(version: int, key: Key) -> str:
    content = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": list(key)}, separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def _read_token(token: str, present: int) -> tuple[int, Key]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("latin-1"))
        version, (namespace, name) = int(content["rv"]), content["start"]
    except (ValueError, KeyError, TypeError) as error:
        why = json_error(error, token.encode())
        raise bad_request(f"invalid continue token: continue key is not valid: {why}") from error
    return (present if version < 0 else version), (str(namespace), str(name))
