"""Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs: the fields the server fills in, and what it refuses."""

from __future__ import annotations

import json
from typing import Any, Final

from shoal.embedded.errors import FieldError, invalid_value, required, unsupported_value
from shoal.embedded.kinds import Kind
from shoal.embedded.rules import pods
from shoal.embedded.selectors import matches_selector

Object = dict[str, Any]
WORKLOADS: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"})
_TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"
_ROLLING: Final = {"maxUnavailable": "25%", "maxSurge": "25%"}


def default_workload(obj: Object, kind: Kind) -> None:
    """Fill in what a controller's object has; safe to repeat."""
    spec = obj.setdefault("spec", {})
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pods.default_spec(template.setdefault("spec", {}), kind)
    _DEFAULTS[kind.kind](obj, spec)


def workload_errors(obj: Object, kind: Kind) -> list[FieldError]:
    """What is wrong with a controller's object."""
    spec, errors = obj["spec"], []
    labels = spec["template"]["metadata"].get("labels") or {}
    selector = spec.get("selector")
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        errors.append(
            required("spec.selector")
            if selector is None
            else invalid_value("spec.selector", "{}", f"empty selector is invalid for {kind.kind.lower()}")
        )
    if not selector or not matches_selector(selector, labels):
        shown = json.dumps(labels, separators=(",", ":"), sort_keys=True)
        why = "`selector` does not match template `labels`"
        errors.append(
            FieldError("FieldValueInvalid", "spec.template.metadata.labels", f"Invalid value: {shown}: {why}")
        )
    if spec.get("replicas", 0) < 0:
        errors.append(invalid_value("spec.replicas", spec["replicas"], "must be greater than or equal to 0"))
    # The volumes of a StatefulSet's claims come into its pods later: they may be mounted already.
    claims = [claim["metadata"] for claim in spec.get("volumeClaimTemplates") or ()]
    pod_spec = spec["template"]["spec"]
    whole = {**pod_spec, "volumes": [*pod_spec.get("volumes", ()), *claims]} if claims else pod_spec
    errors += pods.spec_errors(whole, "spec.template.spec")
    return errors + _restart_errors(spec["template"]["spec"].get("restartPolicy", ""), kind)


def count_template(new: Object, old: Object) -> None:
    """Count, in an annotation, the templates that a DaemonSet had; what a client writes there does not matter."""
    before = old["metadata"].get("annotations", {}).get(_TEMPLATE_GENERATION, "1")
    changed = new["spec"]["template"] != old["spec"]["template"]
    count = int(before) + changed if before.isdigit() else 1
    new["metadata"].setdefault("annotations", {})[_TEMPLATE_GENERATION] = str(count)


def _restart_errors(policy: str, kind: Kind) -> list[FieldError]:
    path = "spec.template.spec.restartPolicy"
    if kind.kind == "Job":
        return [required(path, 'valid values: "OnFailure", "Never"')] if policy == "Always" else []
    return [unsupported_value(path, policy, ["Always"])] if policy in ("OnFailure", "Never") else []


def _default_deployment(obj: Object, spec: Object) -> None:
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy["rollingUpdate"] = {**_ROLLING, **strategy.get("rollingUpdate", {})}
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    obj.setdefault("status", {})


def _default_replica_set(obj: Object, spec: Object) -> None:
    spec.setdefault("replicas", 1)
    obj.setdefault("status", {}).setdefault("replicas", 0)


def _default_stateful_set(obj: Object, spec: Object) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("serviceName", "")
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    status = obj.setdefault("status", {})
    status.setdefault("replicas", 0)
    status.setdefault("availableReplicas", 0)


def _default_daemon_set(obj: Object, spec: Object) -> None:
    annotations = obj["metadata"].setdefault("annotations", {})
    annotations.setdefault(_TEMPLATE_GENERATION, "1")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy["rollingUpdate"] = {"maxUnavailable": 1, "maxSurge": 0, **strategy.get("rollingUpdate", {})}
    spec.setdefault("revisionHistoryLimit", 10)
    status = obj.setdefault("status", {})
    for name in ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"):
        status.setdefault(name, 0)


def _default_job(obj: Object, spec: Object) -> None:
    uid, name = obj["metadata"].get("uid", ""), obj["metadata"].get("name", "")
    # Before a Job is stored it has no identity to select by; policies see it like that.
    if uid and not spec.get("manualSelector"):
        labels = {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
        template = spec["template"]["metadata"]
        template["labels"] = {**template.get("labels", {}), **labels}
        spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
        spec["manualSelector"] = False
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(template["labels"])
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    obj.setdefault("status", {})


_DEFAULTS: Final = {
    "Deployment": _default_deployment,
    "ReplicaSet": _default_replica_set,
    "StatefulSet": _default_stateful_set,
    "DaemonSet": _default_daemon_set,
    "Job": _default_job,
}
