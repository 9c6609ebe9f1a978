"""Pods and pod templates: the fields the server fills in, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from shoal.embedded.errors import FieldError, forbidden_value, invalid_value, required
from shoal.embedded.kinds import Kind
from shoal.embedded.names import label_errors, label_key_errors
from shoal.embedded.rules import claims
from shoal.embedded.rules.shapes import canonical_quantities
from shoal.model.quantity import parse

Object = dict[str, Any]

_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})
_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_GATED: Final = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "lastTransitionTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_RESTART: Final = ("Always", "OnFailure", "Never")
_IMMUTABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def default_spec(spec: Object, kind: Kind) -> None:
    """Fill in what every pod specification has, also inside a template."""
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or ():
            _default_container(container, kind)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in spec:
        spec["serviceAccount"] = spec["serviceAccountName"]
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def default_pod(pod: Object, kind: Kind) -> None:
    """Fill in a pod that is created: what its template has, what admission adds, and its first status."""
    spec = pod.setdefault("spec", {})
    default_spec(spec, kind)
    for container in containers(spec):
        resources = container["resources"]
        if resources.get("limits"):
            # A request that is not there equals the limit. In a template it stays open until the pod is made.
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("enableServiceLinks", True)
    tolerations = spec.setdefault("tolerations", [])
    for key in _TOLERATED:
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        pod["status"]["conditions"] = [dict(_GATED)]


def qos_class(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, by CPU and memory of all containers."""
    resources = [container.get("resources") or {} for container in containers(spec)]
    pairs = [((r.get("requests") or {}), (r.get("limits") or {})) for r in resources]
    used = [
        (requests.get(name), limits.get(name))
        for requests, limits in pairs
        for name in ("cpu", "memory")
        if parse(requests.get(name, 0)) or parse(limits.get(name, 0))
    ]
    if not used:
        return "BestEffort"
    equal = all(request is not None and limit is not None and parse(request) == parse(limit) for request, limit in used)
    return "Guaranteed" if equal and len(used) == 2 * len(pairs) else "Burstable"


def containers(spec: Object) -> Iterator[Object]:
    """Init containers and containers."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def spec_errors(spec: Object, path: str) -> list[FieldError]:
    """What is wrong with a pod specification."""
    errors = []
    if not spec.get("containers"):
        errors.append(required(f"{path}.containers"))
    seen: set[str] = set()
    for group in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(group) or ()):
            errors += _container_errors(container, f"{path}.{group}[{number}]", seen)
            errors += _mount_errors(container, f"{path}.{group}[{number}]", spec)
    errors += claims.pod_errors(spec, path)
    policy = spec.get("restartPolicy")
    if policy not in _RESTART:
        words = ", ".join(f'"{word}"' for word in _RESTART)
        errors.append(
            FieldError(
                "FieldValueNotSupported",
                f"{path}.restartPolicy",
                f'Unsupported value: "{policy}": supported values: {words}',
            )
        )
    return errors


def gate_errors(pod: Object) -> list[FieldError]:
    """What is wrong with the scheduling gates of a new pod."""
    errors = []
    seen: set[str] = set()
    gates = pod["spec"].get("schedulingGates") or ()
    for number, gate in enumerate(gates):
        name, path = gate.get("name", ""), f"spec.schedulingGates[{number}]"
        errors += [invalid_value(path, name, error) for error in label_key_errors(name)]
        if name in seen:
            errors.append(FieldError("FieldValueDuplicate", path, f'Duplicate value: "{name}"'))
        seen.add(name)
    if gates and pod["spec"].get("nodeName"):
        errors.append(forbidden_value("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return errors


def _new_gate_errors(new: Object, old: Object) -> list[FieldError]:
    """Gates are set when a pod is made; later they can only be taken away."""
    before = {gate.get("name") for gate in old["spec"].get("schedulingGates") or ()}
    return [
        forbidden_value(
            f"spec.schedulingGates[{number}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'",
        )
        for number, gate in enumerate(new["spec"].get("schedulingGates") or ())
        if gate.get("name") not in before
    ]


def change_errors(new: Object, old: Object) -> list[FieldError]:
    """What of a pod's specification may not be changed."""
    return [*_new_gate_errors(new, old), *_fixed_errors(new, old)]


def _fixed_errors(new: Object, old: Object) -> list[FieldError]:
    if _fixed(new["spec"]) == _fixed(old["spec"]):
        return []
    lines = "\n".join(_changes(_fixed(old["spec"]), _fixed(new["spec"]), ""))
    return [forbidden_value("spec", f"{_IMMUTABLE}\n{lines}\n")]


def _changes(old: Any, new: Any, path: str) -> Iterator[str]:
    """What differs, a line for each side. The real server prints Go's structs here."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _changes(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _changes(one, other, f"{path}[{number}]")
    else:
        yield f"- {path}: {json.dumps(old)}"
        yield f"+ {path}: {json.dumps(new)}"


def _default_container(container: Object, kind: Kind) -> None:
    resources = container.setdefault("resources", {})
    for name in ("limits", "requests"):
        if name in resources:
            resources[name] = canonical_quantities(resources[name], kind)
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if isinstance(reference, dict):
            reference.setdefault("apiVersion", "v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(name), dict):
            _default_probe(container[name])


def _default_probe(probe: Object) -> None:
    for name, value in {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}.items():
        probe.setdefault(name, value)
    if isinstance(probe.get("httpGet"), dict):
        probe["httpGet"].setdefault("path", "/")
        probe["httpGet"].setdefault("scheme", "HTTP")


def _default_volume(volume: Object) -> None:
    for name in ("configMap", "secret", "projected", "downwardAPI"):
        if isinstance(volume.get(name), dict):
            volume[name].setdefault("defaultMode", 0o644)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    tag = name.partition(":")[2]
    return "Always" if "@" not in name and tag in ("", "latest") else "IfNotPresent"


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _container_errors(container: Object, path: str, seen: set[str]) -> list[FieldError]:
    errors = []
    name = container.get("name", "")
    if not name:
        errors.append(required(f"{path}.name"))
    elif name in seen:
        errors.append(FieldError("FieldValueDuplicate", f"{path}.name", f'Duplicate value: "{name}"'))
    else:
        errors += [invalid_value(f"{path}.name", name, error) for error in label_errors(name)]
    seen.add(name)
    if not container.get("image"):
        errors.append(required(f"{path}.image"))
    return errors + _resource_errors(container.get("resources") or {}, f"{path}.resources")


def _mount_errors(container: Object, path: str, spec: Object) -> list[FieldError]:
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    return [
        FieldError("FieldValueNotFound", f"{path}.volumeMounts[{number}].name", f'Not found: "{mount.get("name")}"')
        for number, mount in enumerate(container.get("volumeMounts") or ())
        if mount.get("name") not in volumes
    ]


def _resource_errors(resources: Object, path: str) -> list[FieldError]:
    errors = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in sorted(quantities.items()):
            errors += _quantity_errors(name, quantity, f"{path}.{part}[{name}]")
    for name, request in sorted(requests.items()):
        extended = is_extended(name) or name.startswith("hugepages-")
        if name not in limits:
            if extended:
                errors.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif extended and parse(request) != parse(limits[name]):
            errors.append(
                invalid_value(f"{path}.requests", request, f"must be equal to {name} limit of {limits[name]}")
            )
        elif parse(request) > parse(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            errors.append(invalid_value(f"{path}.requests", request, why))
    return errors


def _quantity_errors(name: str, quantity: str, path: str) -> list[FieldError]:
    errors = [invalid_value(path, name, error) for error in label_key_errors(name)]
    if "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
        errors.append(invalid_value(path, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid_value(path, name, "must be a standard resource for containers"))
    value = parse(quantity)
    if value < 0:
        errors.append(invalid_value(path, quantity, "must be greater than or equal to 0"))
    if is_extended(name) and value.denominator != 1:
        errors.append(invalid_value(path, quantity, "must be an integer"))
    return errors


def is_extended(name: str) -> bool:
    """Whether a resource is one that Kubernetes itself does not know."""
    return "/" in name and not name.startswith("requests.") and "kubernetes.io/" not in name


def _fixed(spec: Object) -> Object:
    """The part of a specification that stays as it was made."""
    rest = {
        name: value
        for name, value in spec.items()
        if name not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    }
    for group in ("containers", "initContainers"):
        if group in rest:
            rest[group] = [{key: v for key, v in container.items() if key != "image"} for container in rest[group]]
    return rest
