"""Subresources with a meaning of their own: binding, eviction, scale."""

from __future__ import annotations

from typing import Any, Final

from shoal.embedded.deletion import Deletion, read_options
from shoal.embedded.errors import ApiStatus, bad_request, conflict, forbidden, invalid, invalid_value
from shoal.embedded.kinds import BUDGETS, PODS, Kind
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import MODIFIED, Registry, uid_conflict
from shoal.embedded.selectors import matches_selector
from shoal.embedded.store import Object
from shoal.embedded.writes import Write
from shoal.model.contract import kubernetes

# Does a pod's disruption budget allow its eviction? What the eviction subresource asks before it deletes.


_NOT_NOW: Final = "Cannot evict pod as it would violate the pod's disruption budget."
_MANY: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_RETRY_SECONDS: Final = 10


def ask_budget(registry: Registry, pod: Object, *, dry_run: bool) -> None:
    """Take one disruption of the pod's budget, or raise; a pod that serves nobody needs none."""
    if pod["status"].get("phase") in (*kubernetes.FINISHED_PHASES, "Pending") or "deletionTimestamp" in pod["metadata"]:
        return
    labels = pod["metadata"].get("labels") or {}
    budgets = [
        budget
        for budget in registry.store.objects(BUDGETS.key, pod["metadata"]["namespace"])
        if matches_selector(budget["spec"].get("selector"), labels)
    ]
    if len(budgets) > 1:
        raise ApiStatus(500, "", _MANY)
    if budgets and not (_is_unready(pod) and _may_go_unready(budgets[0])):
        _take(registry, budgets[0], pod["metadata"]["name"], dry_run=dry_run)


def _is_unready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return not any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _may_go_unready(budget: Object) -> bool:
    """Whether a pod that is not ready may go: always, if so asked, else while enough others are healthy."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _take(registry: Registry, budget: Object, pod: str, *, dry_run: bool) -> None:
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _not_now(f"The disruption budget {name} is still being processed by the server.", retry=True)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise forbidden(BUDGETS.plural, BUDGETS.group, name, "pdb disruptions allowed is negative")
    if allowed == 0:
        needed, present = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _not_now(f"The disruption budget {name} needs {needed} healthy pods and has {present} currently")
    if dry_run:
        return
    new: Object = copied(budget)
    new["status"]["disruptionsAllowed"] = allowed - 1
    new["status"].setdefault("disruptedPods", {})[pod] = registry.now()
    registry.write(BUDGETS, new, budget)


def _not_now(why: str, *, retry: bool = False) -> ApiStatus:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry:
        details["retryAfterSeconds"] = _RETRY_SECONDS
    return ApiStatus(429, "TooManyRequests", _NOT_NOW, details)


_SCALE_PATHS: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}
SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(
    registry: Registry, namespace: str, name: str, binding: Object, *, dry_run: bool = False, older: bool = False
) -> dict[str, Any]:
    """Give a pod its node, with the annotations and labels of the binding in the same write.

    `older` is for one that was sent to the namespace's bindings instead of the pod's.
    """
    meta = binding.get("metadata") or {}
    if meta.get("name", name) != name:
        raise bad_request("name in URL does not match name in Binding object")
    target = binding.get("target") or {}
    if target.get("kind", "") not in ("", "Node"):
        message = f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise ApiStatus(500, "", message)
    if not target.get("name"):
        raise ApiStatus(500, "", "target.name: Required value")
    asked = {"kind": "Binding", **binding, "metadata": {**meta, "name": name, "namespace": namespace}}
    place = {"resource": "bindings"} if older else {"subresource": "binding"}
    write = Write(PODS, None, asked, dry_run=dry_run, **place)
    registry.refuse_mutation(write)
    registry.validate(write)
    old = registry.get(PODS, namespace, name)
    if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        raise uid_conflict(PODS, old, meta["uid"])
    if meta.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
        raise conflict("pods", "", name, MODIFIED)
    if "deletionTimestamp" in old["metadata"]:
        raise conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if old["spec"].get("nodeName"):
        why = f'pod {name} is already assigned to node "{old["spec"]["nodeName"]}"'
        raise conflict("pods/binding", "", name, why)
    if old["spec"].get("schedulingGates"):
        raise conflict("pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates")
    if not dry_run:
        registry.write(PODS, _bound(registry, old, target["name"], meta), old)
    return dict(SUCCESS)


def _bound(registry: Registry, old: Object, node: str, meta: dict[str, Any]) -> Object:
    new: Object = copied(old)
    new["spec"]["nodeName"] = node
    for part in ("annotations", "labels"):
        if meta.get(part):
            new["metadata"][part] = {**new["metadata"].get(part, {}), **meta[part]}
    conditions = new["status"].setdefault("conditions", [])
    conditions[:] = [condition for condition in conditions if condition.get("type") != "PodScheduled"]
    conditions.append(
        {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": registry.now(),
        }
    )
    return new


def evict(
    registry: Registry, deletion: Deletion, namespace: str, name: str, eviction: Object, *, dry_run: bool = False
) -> dict[str, Any]:
    """Delete a pod as a drain does, if its budget allows it."""
    if (eviction.get("metadata") or {}).get("name", name) != name:
        raise bad_request("name in URL does not match name in Eviction object")
    old = registry.get(PODS, namespace, name)
    asked = {**eviction, "metadata": {"name": name, "namespace": namespace, **(eviction.get("metadata") or {})}}
    registry.refuse_mutation(Write(PODS, None, asked, "eviction", dry_run=dry_run))
    options = read_options(eviction.get("deleteOptions") or {}, {"dryRun": "All"} if dry_run else {})
    ask_budget(registry, old, dry_run=dry_run or options.dry_run)
    if old["spec"].get("nodeName") and not dry_run:
        _set_condition(
            registry,
            old,
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            },
        )
    deletion.delete(PODS, namespace, name, options)
    return dict(SUCCESS)


def _set_condition(registry: Registry, old: Object, condition: dict[str, Any]) -> None:
    new: Object = copied(old)
    conditions = new["status"].setdefault("conditions", [])
    conditions[:] = [present for present in conditions if present.get("type") != condition["type"]]
    conditions.append({**condition, "lastProbeTime": None, "lastTransitionTime": registry.now()})
    registry.write(PODS, new, old)


def scale_of(obj: Object, kind: Kind) -> Object:
    """The Scale of a workload."""
    meta = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    paths = (kind.served.get("subresources") or {}).get("scale") or _SCALE_PATHS
    replicas = _at(obj, paths["specReplicasPath"]) or 0
    scale_status: dict[str, Any] = {"replicas": _at(obj, paths["statusReplicasPath"]) or 0}
    selector = _at(obj, paths.get("labelSelectorPath", ""))
    if selector:
        scale_status["selector"] = selector if isinstance(selector, str) else selector_text(selector)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in names if name in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": scale_status,
    }


def rescale(
    registry: Registry, kind: Kind, namespace: str, name: str, scale: Object, *, dry_run: bool = False
) -> Object:
    """Set the number of replicas that a Scale asks for."""
    old = registry.get(kind, namespace, name)
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        why = "must be greater than or equal to 0"
        raise invalid("Scale", "autoscaling", name, [invalid_value("spec.replicas", replicas, why)])
    version = (scale.get("metadata") or {}).get("resourceVersion", "")
    if version and version != old["metadata"]["resourceVersion"]:
        raise conflict(kind.plural, kind.group, name, MODIFIED)
    present = scale_of(old, kind)
    asked = {**scale, "metadata": {**present["metadata"], **(scale.get("metadata") or {})}}
    registry.refuse_mutation(Write(kind, present, asked, "scale", dry_run=dry_run))
    new: Object = copied(old)
    paths = (kind.served.get("subresources") or {}).get("scale") or _SCALE_PATHS
    *parents, last = paths["specReplicasPath"].strip(".").split(".")
    holder = new
    for parent in parents:
        holder = holder.setdefault(parent, {})
    holder[last] = replicas
    stored, _ = registry.update(kind, namespace, name, new, dry_run=dry_run)
    return scale_of(stored, kind)


def _at(obj: Object, path: str) -> Any:
    """What a simple path such as `.spec.replicas` leads to."""
    value: Any = obj if path else None
    for name in path.strip(".").split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def selector_text(selector: dict[str, Any]) -> str:
    """A selector of an object in the form that `labelSelector` takes."""
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        values = ",".join(sorted(expression.get("values") or ()))
        key = expression["key"]
        form = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        terms.append(form.get(expression["operator"], f"!{key}"))
    return ",".join(sorted(terms))
