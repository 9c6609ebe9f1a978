"""The controllers: what each looks after, how it decides, and what it must see to decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shoal.embedded.access.users import CLAIM_CONTROLLER, WORKLOAD_CONTROLLERS, User
from shoal.embedded.controllers.execute import Action, Owned
from shoal.embedded.controllers.object_index import ObjectIndex
from shoal.embedded.controllers.reconcile import (
    daemon_set,
    deployment,
    disruption_budget,
    job,
    pods,
    replica_set,
    resource_claim,
    stateful_set,
)
from shoal.embedded.kinds import (
    BUDGETS,
    CLAIMS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    RESOURCE_TEMPLATES,
    REVISIONS,
    STATEFUL_SETS,
    Kind,
)
from shoal.embedded.rules.claims import claim_names, has_claims
from shoal.embedded.selectors import selector_of
from shoal.embedded.store import Object


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller; its name is the one that events carry, if it tells any."""

    name: str
    kind: Kind
    #: The kinds whose free objects it adopts.
    adopts: tuple[Kind, ...]
    reconcile: Callable[[Object, Owned, datetime], list[Action]]
    gather: Callable[[ObjectIndex, Object], Owned]
    #: Whether an object is any business of its.
    concerns: Callable[[Object], bool] = lambda obj: True
    #: In whose name it writes.
    user: User = WORKLOAD_CONTROLLERS


def _of_deployment(world: ObjectIndex, obj: Object) -> Owned:
    sets = world.candidates(obj, REPLICA_SETS)
    if obj["spec"]["strategy"]["type"] != "Recreate":
        return Owned(replica_sets=sets)
    return Owned(replica_sets=sets, indirect={one["metadata"]["uid"]: world.owned(one, PODS) for one in sets})


def _of_replica_set(world: ObjectIndex, obj: Object) -> Owned:
    found = world.candidates(obj, PODS)
    if len(found) <= obj["spec"]["replicas"]:
        return Owned(pods=found)
    # Only who has too many asks which of them sit together with relatives.
    parent = pods.controller_of(obj)
    key = (obj["metadata"]["namespace"], parent["name"] if parent else "")
    above = world.get(DEPLOYMENTS, key)
    siblings = world.owned(above, REPLICA_SETS) if above else (obj,)
    return Owned(pods=found, indirect={one["metadata"]["uid"]: world.owned(one, PODS) for one in siblings})


def _of_stateful_set(world: ObjectIndex, obj: Object) -> Owned:
    claims: frozenset[str] = frozenset()
    if obj["spec"].get("volumeClaimTemplates"):
        claims = frozenset(one["metadata"]["name"] for one in world.all(CLAIMS, obj["metadata"]["namespace"]))
    return Owned(pods=world.candidates(obj, PODS), revisions=world.candidates(obj, REVISIONS), claims=claims)


def _of_daemon_set(world: ObjectIndex, obj: Object) -> Owned:
    return Owned(
        pods=world.candidates(obj, PODS), revisions=world.candidates(obj, REVISIONS), nodes=tuple(world.all(NODES))
    )


def _of_job(world: ObjectIndex, obj: Object) -> Owned:
    return Owned(pods=world.candidates(obj, PODS))


def _of_budget(world: ObjectIndex, obj: Object) -> Owned:
    namespace, selector = obj["metadata"]["namespace"], selector_of(obj["spec"].get("selector"))
    found = tuple(
        pod
        for pod in world.all(PODS, namespace)
        if selector.matches(pod["metadata"].get("labels") or {}) and not pods.is_finished(pod)
    )
    wanted = {}
    for pod in found:
        owner = _scaled_owner(world, pod)
        if owner is not None:
            wanted[owner["metadata"]["uid"]] = owner["spec"].get("replicas", 0)
    return Owned(pods=found, scale=sum(wanted.values()))


def _of_pod_with_claims(world: ObjectIndex, obj: Object) -> Owned:
    namespace = obj["metadata"]["namespace"]
    named = [world.get(RESOURCE_CLAIMS, (namespace, name)) for name in claim_names(obj)]
    found = {one["metadata"]["name"]: one for one in (*named, *world.owned(obj, RESOURCE_CLAIMS)) if one is not None}
    templates = [
        world.get(RESOURCE_TEMPLATES, (namespace, entry["resourceClaimTemplateName"]))
        for entry in obj["spec"].get("resourceClaims") or ()
        if "resourceClaimTemplateName" in entry
    ]
    return Owned(resource_claims=tuple(found.values()), templates=tuple(one for one in templates if one is not None))


def _of_resource_claim(world: ObjectIndex, obj: Object) -> Owned:
    users = (obj.get("status") or {}).get("reservedFor") or ()
    names = {one["name"] for one in users} | {(pods.controller_of(obj) or {}).get("name", "")}
    found = (world.get(PODS, (obj["metadata"]["namespace"], name)) for name in sorted(names))
    return Owned(pods=tuple(pod for pod in found if pod is not None))


def _scaled_owner(world: ObjectIndex, obj: Object) -> Object | None:
    """Who says how many of these there are: of a pod its set, of the set its Deployment."""
    reference = pods.controller_of(obj)
    kind = _SCALED.get(reference["kind"]) if reference else None
    if reference is None or kind is None:
        return None
    owner = world.get(kind, (obj["metadata"]["namespace"], reference["name"]))
    return None if owner is None else _scaled_owner(world, owner) or owner


_SCALED: Final = {kind.kind: kind for kind in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS)}
CONTROLLERS: Final = (
    Controller("deployment-controller", DEPLOYMENTS, (REPLICA_SETS,), deployment.reconcile, _of_deployment),
    Controller("replicaset-controller", REPLICA_SETS, (PODS,), replica_set.reconcile, _of_replica_set),
    Controller("statefulset-controller", STATEFUL_SETS, (PODS, REVISIONS), stateful_set.reconcile, _of_stateful_set),
    Controller("daemonset-controller", DAEMON_SETS, (PODS, REVISIONS), daemon_set.reconcile, _of_daemon_set),
    Controller("job-controller", JOBS, (PODS,), job.reconcile, _of_job),
    Controller(
        "resource_claim",
        PODS,
        (),
        resource_claim.reconcile_pod,
        _of_pod_with_claims,
        has_claims,
        user=CLAIM_CONTROLLER,
    ),
    Controller(
        "resource_claim of claims",
        RESOURCE_CLAIMS,
        (),
        resource_claim.reconcile_claim,
        _of_resource_claim,
        user=CLAIM_CONTROLLER,
    ),
    Controller("controllermanager", BUDGETS, (), disruption_budget.reconcile, _of_budget),
)
