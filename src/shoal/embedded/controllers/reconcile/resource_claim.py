"""ResourceClaims of pods: made from templates, reserved for pods that are bound, given back when their pods have ended.

Allocating them is for a scheduler, preparing them for kubelet and a driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from shoal.embedded.controllers.execute import Action, Create, DropFinalizer, EventAction, Owned, Removal, Update
from shoal.embedded.controllers.reconcile import pods
from shoal.embedded.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_TEMPLATES, ResourceKey
from shoal.embedded.patch.json_values import copied
from shoal.embedded.rules.claims import claim_name, claim_names, status_of
from shoal.embedded.store import Key, Object
from shoal.model.contract import dra

#: The longest beginning of a generated name: a hyphen and five letters follow.
_LONGEST_BASE: Final = 57
_NOT_MADE: Final = "FailedResourceClaimCreation"


# Which claims a pod has


def named_by(pod: Mapping[str, Any]) -> Iterator[tuple[ResourceKey, Key]]:
    """The claims and the templates that a pod names."""
    namespace = pod["metadata"]["namespace"]
    for one in pod["spec"].get("resourceClaims") or ():
        if "resourceClaimTemplateName" in one:
            yield RESOURCE_TEMPLATES.key, (namespace, one["resourceClaimTemplateName"])
    for name in claim_names(pod):
        yield RESOURCE_CLAIMS.key, (namespace, name)


def is_done(pod: Object) -> bool:
    """Whether no container of a pod runs or ever will."""
    return pods.is_finished(pod) or (pods.is_deleted(pod) and not pod["spec"].get("nodeName"))


# Pods


def reconcile_pod(pod: Object, owned: Owned, now: datetime) -> list[Action]:
    """What to do about the claims of one pod; `owned` has the claims that it names or owns, and the templates."""
    if pods.is_deleted(pod) or pods.is_finished(pod):
        return []
    actions: list[Action] = []
    made: dict[str, str] = {}
    for entry in pod["spec"].get("resourceClaims") or ():
        if not _needs_claim(pod, entry, owned):
            continue
        found = _made_for(pod, entry["name"], owned)
        if found is not None:
            made[entry["name"]] = found["metadata"]["name"]
        elif owned.failure is None:
            actions.append(_generated(pod, entry, owned))
            if isinstance(actions[-1], EventAction):
                break
    if made:
        actions.append(Update(PODS, _with_statuses(pod, made), subresource="status"))
    if pod["spec"].get("nodeName") and owned.failure is None:
        actions += _reservations(pod, owned)
    return actions


def _needs_claim(pod: Object, entry: Object, owned: Owned) -> bool:
    """Whether a claim must still be made from the entry's template, or its name written down."""
    if "resourceClaimTemplateName" not in entry:
        return False
    status = status_of(pod, entry["name"])
    if status is None:
        return True
    name = status.get("resourceClaimName")
    if name is None:
        return False  # somebody decided that none is needed
    claim = _claim(owned, name)
    return claim is None or not _is_of(claim, pod)


def _made_for(pod: Object, name: str, owned: Owned) -> Object | None:
    """The claim that was made for an entry of a pod."""
    for claim in owned.resource_claims:
        annotations = claim["metadata"].get("annotations") or {}
        if _is_of(claim, pod) and annotations.get(dra.ANNOTATION_POD_CLAIM) == name:
            return claim
    return None


def _generated(pod: Object, entry: Object, owned: Owned) -> Action:
    name = entry["resourceClaimTemplateName"]
    template = next((one for one in owned.templates if one["metadata"]["name"] == name), None)
    if template is None:
        why = f'resource claim template "{name}": resourceclaimtemplate.resource.k8s.io "{name}" not found'
        return EventAction(_NOT_MADE, f"PodResourceClaim {entry['name']}: {why}", warning=True)
    given = template["spec"].get("metadata") or {}
    owner = pods.owner_reference(pod)
    del owner["blockOwnerDeletion"]
    metadata: Object = {
        "generateName": generate_name(pod["metadata"]["name"], entry["name"]),
        "annotations": {**(given.get("annotations") or {}), dra.ANNOTATION_POD_CLAIM: entry["name"]},
        "ownerReferences": [owner],
    }
    if given.get("labels"):
        metadata["labels"] = dict(given["labels"])
    refused = f"PodResourceClaim {entry['name']}: create ResourceClaim : {{error}}"
    return Create(
        RESOURCE_CLAIMS,
        {"metadata": metadata, "spec": copied(template["spec"]["spec"])},
        failure=EventAction(_NOT_MADE, refused, warning=True),
    )


def generate_name(pod: str, claim: str) -> str:
    """How the name of a pod's claim begins; long names are cut, each by its part."""
    base = f"{pod}-{claim}-"
    if len(base) <= _LONGEST_BASE:
        return base
    short = pod[: len(pod) * _LONGEST_BASE // len(base)]
    return f"{short}-{claim[: len(claim) * _LONGEST_BASE // len(base)]}"


def _with_statuses(pod: Object, made: Mapping[str, str]) -> Object:
    status = pod.get("status") or {}
    entries = {one["name"]: one for one in status.get("resourceClaimStatuses") or ()}
    entries |= {name: {"name": name, "resourceClaimName": claim} for name, claim in made.items()}
    return {**pod, "status": {**status, "resourceClaimStatuses": list(entries.values())}}


def _reservations(pod: Object, owned: Owned) -> Iterator[Action]:
    """A pod that was bound with an allocated claim uses it, also if its scheduler did not write that down."""
    uid = pod["metadata"]["uid"]
    for entry in pod["spec"].get("resourceClaims") or ():
        claim = _claim(owned, claim_name(pod, entry))
        if claim is None or ("resourceClaimTemplateName" in entry and not _is_of(claim, pod)):
            continue
        status = claim.get("status") or {}
        users = status.get("reservedFor") or []
        if "allocation" in status and all(one.get("uid") != uid for one in users):
            mine = {"resource": PODS.plural, "name": pod["metadata"]["name"], "uid": uid}
            fresh = {**claim, "status": {**status, "reservedFor": [*users, mine]}}
            yield Update(RESOURCE_CLAIMS, fresh, subresource="status")


def _claim(owned: Owned, name: str) -> Object | None:
    return next((one for one in owned.resource_claims if one["metadata"]["name"] == name), None)


def _is_of(claim: Object, pod: Object) -> bool:
    owner = pods.controller_of(claim)
    return owner is not None and bool(owner["uid"] == pod["metadata"]["uid"])


# Claims


def reconcile_claim(claim: Object, owned: Owned, now: datetime) -> list[Action]:
    """What to do about one claim; `owned` has the pods it is reserved for and the one it was made for."""
    if owned.failure is not None:
        return []
    status = claim.get("status") or {}
    present = {pod["metadata"]["name"]: pod for pod in owned.pods}
    users = status.get("reservedFor") or []
    left = [one for one in users if _uses(one, present)]
    protected = dra.FINALIZER in (claim["metadata"].get("finalizers") or ())
    actions: list[Action] = []
    if len(left) < len(users) or (protected and pods.is_deleted(claim) and not left):
        fresh = {name: value for name, value in status.items() if name != "reservedFor"}
        if left:
            fresh["reservedFor"] = left
        elif protected:
            # Whoever comes next may get it elsewhere.
            fresh.pop("allocation", None)
        if fresh != status:
            actions.append(Update(RESOURCE_CLAIMS, {**claim, "status": fresh}, subresource="status"))
        if protected and "allocation" not in fresh:
            actions.append(DropFinalizer(RESOURCE_CLAIMS, claim, dra.FINALIZER))
    if not left and _is_left(claim, present) and not pods.is_deleted(claim):
        actions.append(Removal(RESOURCE_CLAIMS, claim))
    return actions


def _uses(entry: Object, present: Mapping[str, Object]) -> bool:
    """Whether a user of a claim still uses it; of those that are no pods nothing is known."""
    if entry.get("apiGroup") or entry["resource"] != PODS.plural:
        return True
    pod = present.get(entry["name"])
    return pod is not None and pod["metadata"]["uid"] == entry["uid"] and not is_done(pod)


def _is_left(claim: Object, present: Mapping[str, Object]) -> bool:
    """Whether the pod that a claim was made for will not need it. One that is gone takes its claim along by itself."""
    owner = pods.controller_of(claim)
    if owner is None or (owner["apiVersion"], owner["kind"]) != (PODS.api_version, PODS.kind):
        return False
    pod = present.get(owner["name"])
    return pod is not None and (pod["metadata"]["uid"] != owner["uid"] or is_done(pod))
