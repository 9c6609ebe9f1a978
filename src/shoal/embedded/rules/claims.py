"""Dynamic resource allocation: which claims a pod has; defaults and validation of claims, templates and slices.

Expressions are not compiled: what is wrong with one is told by the scheduler that evaluates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from shoal.embedded.errors import FieldError, forbidden_value, invalid_value, required, unsupported_value
from shoal.embedded.kinds import Kind
from shoal.embedded.names import label_errors, subdomain_errors
from shoal.embedded.rules.shapes import canonical_quantities

Object = dict[str, Any]

_EXACT: Final = "ExactCount"
_MODES: Final = ("All", _EXACT)
_ONE_KIND: Final = "exactly one of `exactly` or `firstAvailable` is required"
_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)
_PLACES: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")

# Which claims a pod has


def has_claims(pod: Mapping[str, Any]) -> bool:
    """Whether a pod names claims, or a scheduler made one of its extended resources."""
    return bool(pod["spec"].get("resourceClaims")) or extended(pod) is not None


def claim_names(pod: Mapping[str, Any]) -> list[str]:
    """The claims of a pod, as far as they are known."""
    found = [name for one in pod["spec"].get("resourceClaims") or () if (name := claim_name(pod, one))]
    made = extended(pod)
    return found if made is None else [*found, str(made["resourceClaimName"])]


def claim_name(pod: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The claim behind an entry of a pod's `resourceClaims`; nothing while it is not made, or where none is needed."""
    if "resourceClaimName" in entry:
        return str(entry["resourceClaimName"])
    made = status_of(pod, entry["name"])
    return "" if made is None else str(made.get("resourceClaimName", ""))


def status_of(pod: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """What the status says of an entry with a template; None while nothing was made of it."""
    statuses: Iterable[Mapping[str, Any]] = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return next((one for one in statuses if one["name"] == name), None)


def extended(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The claim that a scheduler made of the pod's extended resources, with the containers that use it."""
    found: Mapping[str, Any] | None = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    return found


def served_by_claim(pod: Mapping[str, Any], container: str) -> frozenset[str]:
    """The extended resources of a container that a claim serves in the place of a device plugin."""
    mappings: Iterable[Mapping[str, Any]] = (extended(pod) or {}).get("requestMappings") or ()
    return frozenset(str(one["resourceName"]) for one in mappings if one["containerName"] == container)


# What is filled in


def default_claim(claim: Object, kind: Kind) -> None:
    """Fill in a claim."""
    _default_spec(claim.setdefault("spec", {}), kind)
    for result in _results(claim.setdefault("status", {})):
        if "consumedCapacity" in result:
            result["consumedCapacity"] = canonical_quantities(result["consumedCapacity"], kind)


def default_template(template: Object, kind: Kind) -> None:
    """Fill in a template of claims."""
    outer = template.setdefault("spec", {})
    outer.setdefault("metadata", {})
    _default_spec(outer.setdefault("spec", {}), kind)


def _default_spec(spec: Object, kind: Kind) -> None:
    for _, request in _exact_requests(spec.setdefault("devices", {})):
        request.setdefault("allocationMode", _EXACT)
        if request["allocationMode"] == _EXACT:
            request["count"] = request.get("count") or 1
        capacity = request.get("capacity") or {}
        if "requests" in capacity:
            capacity["requests"] = canonical_quantities(capacity["requests"], kind)


def default_slice(slice_: Object, kind: Kind) -> None:
    """Fill in a slice: amounts as the server writes them."""
    for device in slice_.setdefault("spec", {}).get("devices") or ():
        for capacity in (device.get("capacity") or {}).values():
            if "value" in capacity:
                capacity |= canonical_quantities({"value": capacity["value"]}, kind)
            policy = capacity.get("requestPolicy") or {}
            if "default" in policy:
                policy |= canonical_quantities({"default": policy["default"]}, kind)
            if "validRange" in policy:
                policy["validRange"] = canonical_quantities(policy["validRange"], kind)


def _exact_requests(devices: Object) -> Iterator[tuple[str, Object]]:
    """All requests and alternatives of a claim, with their paths."""
    for number, request in enumerate(devices.get("requests") or ()):
        path = f"devices.requests[{number}]"
        if isinstance(request.get("exactly"), dict):
            yield f"{path}.exactly", request["exactly"]
        for place, one in enumerate(request.get("firstAvailable") or ()):
            yield f"{path}.firstAvailable[{place}]", one


def _results(status: Object) -> list[Object]:
    return list(((status.get("allocation") or {}).get("devices") or {}).get("results") or ())


# What is refused


def claim_errors(claim: Object) -> list[FieldError]:
    """What is wrong with a new claim."""
    return _spec_errors(claim["spec"], "spec")


def template_errors(template: Object) -> list[FieldError]:
    """What is wrong with a new template."""
    return _spec_errors(template["spec"]["spec"], "spec.spec")


def _spec_errors(spec: Object, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    devices = spec["devices"]
    seen: set[str] = set()
    for number, request in enumerate(devices.get("requests") or ()):
        place = f"{path}.devices.requests[{number}]"
        errors += _name_errors(request, place, seen)
        kinds = [name for name in ("exactly", "firstAvailable") if request.get(name) is not None]
        if not kinds:
            errors.append(required(place, _ONE_KIND))
        elif len(kinds) > 1:
            errors.append(invalid_value(place, None, f"{_ONE_KIND}, but multiple fields are set"))
        inner: set[str] = set()
        for other, one in enumerate(request.get("firstAvailable") or ()):
            errors += _name_errors(one, f"{place}.firstAvailable[{other}]", inner)
    for place, request in _exact_requests(devices):
        errors += _request_errors(request, f"{path}.{place}")
    for number, constraint in enumerate(devices.get("constraints") or ()):
        errors += _reference_errors(constraint, f"{path}.devices.constraints[{number}]", devices)
    for number, config in enumerate(devices.get("config") or ()):
        errors += _reference_errors(config, f"{path}.devices.config[{number}]", devices)
    return errors


def _name_errors(request: Object, path: str, seen: set[str]) -> list[FieldError]:
    name = request.get("name", "")
    if not name:
        return [required(f"{path}.name")]
    errors = [invalid_value(f"{path}.name", name, why) for why in label_errors(name)]
    if name in seen:
        errors.append(FieldError("FieldValueDuplicate", path, f'Duplicate value: "{name}"'))
    seen.add(name)
    return errors


def _request_errors(request: Object, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    name = request.get("deviceClassName", "")
    if not name:
        errors.append(required(f"{path}.deviceClassName"))
    else:
        errors += [invalid_value(f"{path}.deviceClassName", name, why) for why in subdomain_errors(name)]
    mode, count = request["allocationMode"], request.get("count", 0)
    if mode not in _MODES:
        errors.append(unsupported_value(f"{path}.allocationMode", mode, _MODES))
    elif mode == _EXACT and count <= 0:
        errors.append(invalid_value(f"{path}.count", count, "must be greater than zero"))
    elif mode != _EXACT and count:
        why = f"must not be specified when allocationMode is '{mode}'"
        errors.append(invalid_value(f"{path}.count", count, why))
    return errors


def _reference_errors(part: Object, path: str, devices: Object) -> list[FieldError]:
    """Requests that a constraint or a configuration names, and the claim does not have."""
    known = _request_names(devices)
    return [
        invalid_value(f"{path}.requests[{number}]", name, _REFERENCE)
        for number, name in enumerate(part.get("requests") or ())
        if name not in known
    ]


def _request_names(devices: Object) -> set[str]:
    known = set()
    for request in devices.get("requests") or ():
        known.add(request.get("name", ""))
        known |= {f"{request.get('name', '')}/{one.get('name', '')}" for one in request.get("firstAvailable") or ()}
    return known


def status_errors(claim: Object, old: Object) -> list[FieldError]:
    """What is wrong with a new status of a claim."""
    status, before = claim.get("status") or {}, old.get("status") or {}
    users = status.get("reservedFor") or []
    errors = [
        required(f"status.reservedFor[{number}].{name}")
        for number, one in enumerate(users)
        for name in ("resource", "name", "uid")
        if not one.get(name)
    ]
    if users and "allocation" not in status:
        errors.append(forbidden_value("status.reservedFor", "may not be specified when `allocated` is not set"))
    elif "deletionTimestamp" in old["metadata"] and any(one not in (before.get("reservedFor") or []) for one in users):
        why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        errors.append(forbidden_value("status.reservedFor", why))
    if "allocation" in before and "allocation" in status and status["allocation"] != before["allocation"]:
        errors.append(invalid_value("status.allocation", status["allocation"], "field is immutable"))
    elif "allocation" in status and "allocation" not in before:
        known = _request_names(claim["spec"]["devices"])
        for number, result in enumerate(_results(status)):
            errors += _result_errors(result, f"status.allocation.devices.results[{number}]", known)
    return errors


def _result_errors(result: Object, path: str, known: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    if result.get("request", "") not in known:
        errors.append(invalid_value(f"{path}.request", result.get("request", ""), _REFERENCE))
    return errors + [required(f"{path}.{name}") for name in ("driver", "pool", "device") if not result.get(name)]


def slice_errors(slice_: Object, old: Object | None) -> list[FieldError]:
    """What is wrong with a slice."""
    spec = slice_["spec"]
    errors = [] if spec.get("driver") else [required("spec.driver")]
    pool = spec.get("pool") or {}
    if not pool.get("name"):
        errors.append(required("spec.pool.name"))
    if pool.get("resourceSliceCount", 0) <= 0:
        count = pool.get("resourceSliceCount", 0)
        errors.append(invalid_value("spec.pool.resourceSliceCount", count, "must be greater than zero"))
    before = old["spec"] if old is not None else spec
    errors += [
        invalid_value(f"spec.{'.'.join(path)}", _at(spec, path), "field is immutable")
        for path in (("pool", "name"), ("driver",), ("nodeName",))
        if _at(spec, path) != _at(before, path)
    ]
    places = ", ".join(f"`{name}`" for name in _PLACES)
    given = [name for name in _PLACES if spec.get(name)]
    if not given:
        errors.append(required("spec", f"exactly one of {places} is required"))
    elif len(given) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in given) + "}"
        why = f"exactly one of {places} is required, but multiple fields are set"
        errors.append(FieldError("FieldValueInvalid", "spec", f"Invalid value: {shown}: {why}"))
    return errors


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = (value or {}).get(name)
    return value


def pod_errors(spec: Mapping[str, Any], path: str) -> list[FieldError]:
    """What is wrong with the claims of a pod specification."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, entry in enumerate(spec.get("resourceClaims") or ()):
        place, name = f"{path}.resourceClaims[{number}]", entry.get("name", "")
        if not name:
            errors.append(required(f"{place}.name"))
        elif name in seen:
            errors.append(FieldError("FieldValueDuplicate", f"{place}.name", f'Duplicate value: "{name}"'))
        else:
            errors += [invalid_value(f"{place}.name", name, why) for why in label_errors(name)]
        seen.add(name)
        sources = [one for one in ("resourceClaimName", "resourceClaimTemplateName") if one in entry]
        if len(sources) > 1:
            why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.append(invalid_value(place, _go_entry(entry), why))
        elif not sources:
            why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            errors.append(invalid_value(place, _go_entry(entry), why))
        for source in sources:
            value = entry[source]
            errors += [invalid_value(f"{place}.{source}", value, why) for why in subdomain_errors(value)]
    for group in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(group) or ()):
            errors += _use_errors(container, f"{path}.{group}[{number}].resources.claims", seen)
    return errors


def _go_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "Name": entry.get("name", ""),
        "ResourceClaimName": entry.get("resourceClaimName"),
        "ResourceClaimTemplateName": entry.get("resourceClaimTemplateName"),
    }


def _use_errors(container: Mapping[str, Any], path: str, known: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, use in enumerate((container.get("resources") or {}).get("claims") or ()):
        name = use.get("name", "")
        if not name:
            errors.append(required(f"{path}[{number}]"))
            continue
        key = f"{name}/{use['request']}" if use.get("request") else name
        overlaps = {name, key} & seen or (key == name and any(one.startswith(f"{name}/") for one in seen))
        if overlaps:
            shown = name if name in seen or key == name else key
            errors.append(FieldError("FieldValueDuplicate", f"{path}[{number}]", f'Duplicate value: "{shown}"'))
        seen.add(key)
        if name not in known:
            listed = f": {', '.join(sorted(known))}" if known else " which is empty"
            why = f"must be one of the names in pod.spec.resourceClaims{listed}"
            errors.append(FieldError("FieldValueNotFound", f"{path}[{number}]", f'Not found: "{name}": {why}'))
    return errors
