"""Which rules hold for which kind, in the three moments of a write: defaults, checks, and checks of a change."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from shoal.embedded.definitions import fill_in, prune, schema_errors, status_errors, structural_errors
from shoal.embedded.errors import (
    FieldError,
    bad_request,
    forbidden_value,
    invalid_value,
    required,
    unsupported_value,
)
from shoal.embedded.kinds import Kind
from shoal.embedded.names import config_key_errors
from shoal.embedded.rules import claims, events, pods, policies
from shoal.embedded.rules.shapes import canonical_quantities
from shoal.embedded.rules.workloads import WORKLOADS, count_template, default_workload, workload_errors
from shoal.model.quantity import parse

Object = dict[str, Any]
_NODE_INFO: Final = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
    *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
)
_MOST_DATA: Final = 1024 * 1024
_SCOPES: Final = ("Cluster", "Namespaced")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Kinds of which the specification is checked when they are made, and never changes.
_NEW_CLAIMS: Final = {"ResourceClaim": claims.claim_errors, "ResourceClaimTemplate": claims.template_errors}
_NOT_READY: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def default(obj: Object, kind: Kind, old: Object | None) -> None:
    """Fill in, in place, what the server adds to an object of this kind. `old` is its state before, if it has one."""
    created = old is None
    if kind.custom:
        prune(obj, kind.schema)
        fill_in(obj, kind.schema)
        return
    if kind.kind in WORKLOADS:
        if created:
            obj.pop("status", None)
        default_workload(obj, kind)
    elif kind.kind == "Pod":
        if old is None:
            pods.default_pod(obj, kind)
        else:
            if obj.get("spec") is not old["spec"]:
                pods.default_spec(obj.setdefault("spec", {}), kind)
            _default_times(obj.setdefault("status", {}), "lastProbeTime")
    elif kind.kind == "Node":
        _default_node(obj, kind, created=created)
    elif kind.kind == "Namespace":
        _default_namespace(obj, created=created)
    elif kind.kind == "Secret":
        _default_secret(obj)
    elif kind.kind == "Event":
        events.default_event(obj)
    elif kind.kind == "CronJob":
        _default_cron_job(obj, kind)
    elif kind.kind == "CustomResourceDefinition":
        _default_definition(obj)
    elif kind.kind == "Service":
        _default_service(obj)
    elif kind.kind == "PodDisruptionBudget":
        obj.setdefault("spec", {})
        counters = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
        obj["status"] = {**dict.fromkeys(counters, 0), **obj.get("status", {})}
    elif kind.kind == "MutatingAdmissionPolicy":
        policies.default_mutating_policy(obj)
    elif kind.kind == "MutatingAdmissionPolicyBinding":
        policies.default_mutating_binding(obj)
    elif kind.kind == "ResourceClaim":
        claims.default_claim(obj, kind)
    elif kind.kind == "ResourceClaimTemplate":
        claims.default_template(obj, kind)
    elif kind.kind == "ResourceSlice":
        claims.default_slice(obj, kind)
    elif kind.kind in ("ValidatingAdmissionPolicyBinding", "Lease", "DeviceClass"):
        obj.setdefault("spec", {})


def errors(obj: Object, kind: Kind, old: Object | None, subresource: str = "") -> list[FieldError]:
    """What is wrong with an object of this kind, beyond its metadata. `old` is its state before, if it has one."""
    if kind.custom:
        return status_errors(obj, kind.schema) if subresource == "status" else schema_errors(obj, kind.schema)
    if kind.kind in WORKLOADS:
        return workload_errors(obj, kind)
    if kind.kind == "Pod":
        return pods.spec_errors(obj["spec"], "spec") if old is None or obj["spec"] is not old["spec"] else []
    if kind.kind == "Node":
        return _node_errors(obj)
    if kind.kind == "CustomResourceDefinition":
        return _definition_errors(obj)
    if kind.kind in ("ConfigMap", "Secret"):
        return _data_errors(obj, kind)
    if kind.kind == "Lease":
        return _lease_errors(obj["spec"])
    if kind.kind == "Event":
        return events.event_errors(obj, new=kind.home is not None)
    if kind.kind == "PodDisruptionBudget":
        return _budget_errors(obj["spec"])
    if kind.kind == "MutatingAdmissionPolicy":
        return policies.mutating_policy_errors(obj)
    if kind.kind == "MutatingAdmissionPolicyBinding":
        return policies.mutating_binding_errors(obj)
    if kind.kind == "ResourceSlice":
        return claims.slice_errors(obj, old)
    if kind.kind == "ResourceClaim" and old is not None:
        return claims.status_errors(obj, old) if subresource == "status" else []
    if kind.kind in _NEW_CLAIMS and old is None:
        return _NEW_CLAIMS[kind.kind](obj)
    return []


def _data_errors(obj: Object, kind: Kind) -> list[FieldError]:
    """Keys that cannot be file names, and too much in all."""
    faults, size = [], 0
    for part in ("data", "binaryData"):
        for key, value in (obj.get(part) or {}).items():
            faults += [invalid_value(f"{part}[{key}]", key, why) for why in config_key_errors(key)]
            text = value or ""
            size += len(text) * 3 // 4 if kind.kind == "Secret" or part == "binaryData" else len(text.encode())
    if size > _MOST_DATA:
        why = f"Too long: may not be more than {_MOST_DATA} bytes"
        faults.append(FieldError("FieldValueTooLong", "data" if kind.kind == "Secret" else "[]", why))
    return faults


def _lease_errors(spec: Object) -> list[FieldError]:
    faults = []
    if spec.get("leaseDurationSeconds", 1) <= 0:
        faults.append(
            invalid_value("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
        )
    if spec.get("leaseTransitions", 0) < 0:
        why = "must be greater than or equal to 0"
        faults.append(invalid_value("spec.leaseTransitions", spec["leaseTransitions"], why))
    return faults


def _budget_errors(spec: Object) -> list[FieldError]:
    if "minAvailable" in spec and "maxUnavailable" in spec:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        why = "minAvailable and maxUnavailable cannot be both set"
        text = json.dumps(shown, separators=(",", ":"))
        return [FieldError("FieldValueInvalid", "spec", f"Invalid value: {text}: {why}")]
    return [
        invalid_value(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in ("minAvailable", "maxUnavailable")
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]


def _definition_errors(definition: Object) -> list[FieldError]:
    """What a definition must say for its kind to be served."""
    spec = definition["spec"]
    faults = [required(f"spec.{name}") for name in ("group", "scope") if not spec.get(name)]
    if not (spec.get("versions") and all(isinstance(v, dict) and v.get("name") for v in spec["versions"])):
        faults.append(required("spec.versions", "must have at least one version with a name"))
    faults += [required(f"spec.names.{name}") for name in ("plural", "kind") if not spec["names"].get(name)]
    if spec.get("scope") and spec["scope"] not in _SCOPES:
        faults.append(unsupported_value("spec.scope", spec["scope"], _SCOPES))
    if not faults:
        faults += _version_errors(spec["versions"])
    wanted = f"{spec['names'].get('plural')}.{spec.get('group')}"
    if not faults and definition["metadata"]["name"] != wanted:
        why = 'must be spec.names.plural+"."+spec.group'
        faults.append(invalid_value("metadata.name", definition["metadata"]["name"], why))
    return faults


def _version_errors(versions: list[Object]) -> list[FieldError]:
    """Every version has a schema, and the schema says of each field what it is."""
    faults: list[FieldError] = []
    for number, version in enumerate(versions):
        path = f"spec.versions[{number}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            faults.append(required(path))
        else:
            # With one version the real server speaks of an older place for the same.
            shown = "spec.validation.openAPIV3Schema" if len(versions) == 1 else path
            faults += structural_errors(schema, shown)
    return faults


def _node_errors(node: Object) -> list[FieldError]:
    """Taints with an effect nobody knows, extended resources in parts."""
    errors = []
    for number, taint in enumerate(node["spec"].get("taints") or ()):
        if taint.get("effect") not in _EFFECTS:
            words = ", ".join(f'"{word}"' for word in _EFFECTS)
            message = f'Unsupported value: "{taint.get("effect", "")}": supported values: {words}'
            errors.append(FieldError("FieldValueNotSupported", f"metadata.taints[{number}].effect", message))
    for part in ("capacity", "allocatable"):
        for name, quantity in (node["status"].get(part) or {}).items():
            if pods.is_extended(name) and parse(quantity).denominator != 1:
                errors.append(invalid_value(f"status.{part}.{name}", quantity, "must be an integer"))
    return errors


def note_change(new: Object, old: Object, kind: Kind) -> None:
    """Set, in place, what the server itself writes down about a change."""
    if kind.key == ("apps", "daemonsets"):
        count_template(new, old)


def creation_errors(obj: Object, kind: Kind) -> list[FieldError]:
    """What may not be in a new object, though it may be in one that is there."""
    if kind.key == ("", "pods"):
        return pods.gate_errors(obj)
    return events.creation_errors(obj) if kind.kind == "Event" and kind.home is not None else []


def change_errors(new: Object, old: Object, kind: Kind) -> list[FieldError]:
    """What of an object may not be changed in this way."""
    if kind.custom:
        return []
    if kind.kind == "Pod":
        return pods.change_errors(new, old)
    if kind.kind == "Event" and kind.home is not None:
        return events.change_errors(new, old)
    if kind.kind in _NEW_CLAIMS and new["spec"] != old["spec"]:
        return [invalid_value("spec", new["spec"], "field is immutable")]
    if kind.kind == "Secret" and new.get("type") != old.get("type"):
        return [invalid_value("type", new.get("type"), "field is immutable")]
    if kind.kind in ("ConfigMap", "Secret") and old.get("immutable"):
        return [
            forbidden_value(name, "field is immutable when `immutable` is set")
            for name in ("data", "binaryData", "immutable")
            if new.get(name) != old.get(name)
        ]
    if kind.kind in ("Deployment", "DaemonSet", "ReplicaSet") and new["spec"]["selector"] != old["spec"]["selector"]:
        return [FieldError("FieldValueInvalid", "spec.selector", f"Invalid value: {_go(new)}: field is immutable")]
    return []


def _go(obj: Object) -> str:
    return json.dumps(obj["spec"]["selector"], separators=(",", ":"))


def _default_node(node: Object, kind: Kind, *, created: bool) -> None:
    spec = node.setdefault("spec", {})
    status = node.setdefault("status", {})
    for name in ("capacity", "allocatable"):
        if name in status:
            status[name] = canonical_quantities(status[name], kind)
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))
    _default_times(status, "lastHeartbeatTime")
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = {**dict.fromkeys(_NODE_INFO, ""), **status.get("nodeInfo", {})}
    if created and not any(taint.get("key") == _NOT_READY["key"] for taint in spec.get("taints", ())):
        spec["taints"] = [*spec.get("taints", ()), dict(_NOT_READY)]


def _default_namespace(namespace: Object, *, created: bool) -> None:
    metadata = namespace["metadata"]
    if "name" in metadata:
        metadata["labels"] = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": metadata["name"]}
    if created:
        namespace["spec"] = {"finalizers": ["kubernetes"]}
        namespace["status"] = {"phase": "Active"}


def _default_secret(secret: Object) -> None:
    for name, value in (secret.pop("stringData", None) or {}).items():
        secret.setdefault("data", {})[name] = base64.b64encode(value.encode()).decode()
    secret.setdefault("type", "Opaque")
    for value in (secret.get("data") or {}).values():
        try:
            base64.b64decode(value, validate=True)
        except ValueError as error:
            why = "illegal base64 data at input byte 0"
            raise bad_request(f'Secret in version "v1" cannot be handled as a Secret: {why}') from error


def _default_cron_job(job: Object, kind: Kind) -> None:
    spec = job.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    template = spec.get("jobTemplate", {}).get("spec", {}).get("template", {})
    if isinstance(template.get("spec"), dict):
        pods.default_spec(template["spec"], kind)
    job.setdefault("status", {})


def _default_definition(definition: Object) -> None:
    spec = definition.setdefault("spec", {})
    names = spec.setdefault("names", {})
    names.setdefault("singular", str(names.get("kind", "")).lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    spec.setdefault("conversion", {"strategy": "None"})


def _default_times(status: Object, *names: str) -> None:
    """Times that conditions show even when they were never set."""
    for condition in status.get("conditions") or ():
        for name in (*names, "lastTransitionTime"):
            condition.setdefault(name, None)


def _default_service(service: Object) -> None:
    """No address is given out: nothing here routes to it."""
    spec = service.setdefault("spec", {})
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    service.setdefault("status", {"loadBalancer": {}})
