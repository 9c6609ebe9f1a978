"""Driver upgrades, node by node: which nodes may begin, and what each needs next. Pure.

The driver's DaemonSet is OnDelete: a changed template changes no node until the driver's pod there is deleted. Each
node goes through NVIDIA's states, in its label; `docs/upgrades.md` tells them. All memory is on the nodes.

The promise: the nodes with a driver of the operator's that are cordoned, not ready, in the midst of an upgrade or lost
by one are never brought beyond `maxUnavailable`. It is kept for what `world.nodes` shows: whoever carries out the
actions must have seen his own writes before he asks again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shoal.model.contract import nvidia
from shoal.model.contract.operator import NAME_DRIVER
from shoal.operator.actions import Action, PatchNode, Tell
from shoal.operator.policy import UpgradePolicyFields, unavailable_nodes
from shoal.operator.upgrade_node import (
    ACTIVE,
    DONE,
    DRAIN,
    FAILED,
    JOBS,
    PODS,
    REQUIRED,
    RESTART,
    RESTART_SECONDS,
    RETRY_SECONDS,
    REVERSIBLE,
    SETTLE_SECONDS,
    VALIDATION,
    VALIDATION_SECONDS,
    NodeUpgrade,
    begin,
    enter,
    finish,
    is_managed,
    returned,
    seen,
    step,
    to_evict,
)
from shoal.operator.world import World

#: How often refused evictions are tried again.
_ASK_SECONDS: Final = 5.0
#: Names that one sentence holds.
_MOST_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class UpgradeCount:
    """How an upgrade stands, for a status."""

    #: Nodes with a driver of the operator's.
    nodes: int = 0
    #: Of them: to be upgraded and not begun, begun, and failed.
    waiting: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    #: Nodes that count against `maxUnavailable`, and how many may.
    unavailable: tuple[str, ...] = ()
    limit: int = 0


def plan(world: World, policy: UpgradePolicyFields | None, *, evict_at_restart: bool = True) -> list[Action]:
    """What brings the nodes nearer to the newest driver. Without a policy nothing of an upgrade stays on a node.

    A driver's pod that restarts outside an upgrade cannot unload the driver while pods use it. With `evict_at_restart`
    such a node is emptied as in an upgrade, whatever `maxUnavailable` says: its driver is down already.
    """
    known = seen(world)
    if policy is None or ("DaemonSet", NAME_DRIVER) not in world.owned:
        return [] if world.nvidia_policies else _removed(known)
    managed = [one for one in known if is_managed(one.node)]
    actions: list[Action] = _removed([one for one in known if not is_managed(one.node)])
    restarting: list[NodeUpgrade] = []
    others: list[NodeUpgrade] = []
    for one in managed:
        (restarting if evict_at_restart and _is_held_up(one, world) else others).append(one)
    for one in managed:
        actions += _switched(one, policy)
    for one in others:
        actions += _next(one, world, policy)
    for one in (*restarting, *(_starting(others, managed, world, policy) if policy.auto_upgrade else ())):
        actions += begin(one, world.now)
    # Writes that can be carried out together stand together.
    return sorted(actions, key=lambda action: isinstance(action, Tell))


def count(world: World, policy: UpgradePolicyFields) -> UpgradeCount:
    """How the upgrade stands."""
    if ("DaemonSet", NAME_DRIVER) not in world.owned:
        return UpgradeCount()
    managed = [one for one in seen(world) if is_managed(one.node)]
    return UpgradeCount(
        len(managed),
        tuple(one.name for one in managed if one.state == REQUIRED or (one.outdated and one.state in ("", DONE))),
        tuple(one.name for one in managed if one.state in ACTIVE),
        tuple(one.name for one in managed if one.state == FAILED),
        tuple(one.name for one in managed if one.unavailable),
        unavailable_nodes(policy.max_unavailable, len(managed)),
    )


def stuck(world: World, policy: UpgradePolicyFields) -> str:
    """Why nodes wait that no upgrade under way makes room for, and what to do; empty if none do."""
    found = count(world, policy)
    if not policy.auto_upgrade or not found.waiting or found.begun or len(found.unavailable) < found.limit:
        return ""
    names = ", ".join(found.unavailable[:_MOST_NAMES]) + (" and more" if len(found.unavailable) > _MOST_NAMES else "")
    return (
        f"the upgrade waits: maxUnavailable lets {found.limit} of {found.nodes} nodes be down, and {names} are: repair "
        f"them, raise maxUnavailable, or set {nvidia.LABEL_UPGRADE_SKIP}=true on those whose upgrade failed"
    )


def due(world: World, policy: UpgradePolicyFields | None) -> float | None:
    """Seconds after which `plan` shall be asked again though nothing has changed; None: it need not."""
    if policy is None or ("DaemonSet", NAME_DRIVER) not in world.owned:
        return None
    waits = {
        JOBS: float(policy.wait_for_completion.timeout_seconds) or math.inf,
        PODS: 0.0,
        DRAIN: 0.0,
        RESTART: float(RESTART_SECONDS),
        FAILED: float(RETRY_SECONDS),
    }
    times = []
    for one in seen(world):
        if not is_managed(one.node) or one.state not in ACTIVE | {FAILED}:
            continue
        elapsed = one.elapsed(world.now)
        wait = waits.get(one.state, 0.0)
        if one.state == RESTART and one.outdated:
            wait = 0.0
        if one.state == VALIDATION:
            wait = float(SETTLE_SECONDS if elapsed < SETTLE_SECONDS else VALIDATION_SECONDS)
        times.append(max(wait - elapsed, _ASK_SECONDS))
    soonest = min(times, default=math.inf)
    return None if math.isinf(soonest) else soonest


def _is_held_up(one: NodeUpgrade, world: World) -> bool:
    """Whether pods keep a driver loaded that shall be unloaded, outside an upgrade."""
    return one.state not in ACTIVE and one.unloading and bool(to_evict(world.gpu_pods.get(one.name, ())))


def _starting(
    others: list[NodeUpgrade], managed: list[NodeUpgrade], world: World, policy: UpgradePolicyFields
) -> list[NodeUpgrade]:
    """The nodes that begin now: those that are down anyway, then the others, the longest waiting first."""
    free = unavailable_nodes(policy.max_unavailable, len(managed)) - sum(one.unavailable for one in managed)
    at_once = policy.max_parallel_upgrades or len(managed)
    at_once -= sum(one.state in ACTIVE for one in managed)
    starting = []
    for one in sorted(others, key=lambda one: (not one.unavailable, one.mark.since if one.mark else 0, one.name)):
        if at_once <= 0 or not _may_begin(one, world):
            continue
        if not one.node.spec.unschedulable:  # else nothing is taken from anybody
            cost = 0 if one.unavailable else 1
            if free < cost:
                continue
            free -= cost
        at_once -= 1
        starting.append(one)
    return starting


def _may_begin(one: NodeUpgrade, world: World) -> bool:
    """Whether a node has an upgrade before it and is well enough for it."""
    if not one.outdated or one.skipped or not one.ready or one.mark is None or one.mark.state != one.state:
        return False
    if one.state == FAILED and one.mark.failed == "pods":
        return one.elapsed(world.now) >= RETRY_SECONDS
    return one.state in (REQUIRED, FAILED)


def _next(one: NodeUpgrade, world: World, policy: UpgradePolicyFields) -> list[Action]:
    """What a node needs that does not begin now."""
    if not policy.auto_upgrade:
        settled = one.state not in ACTIVE and not one.lost and not one.cordoned
        return list(_removed([one])) if settled or _can_go_back(one) else step(one, world, policy)
    if one.skipped and _can_go_back(one):
        # Into service with the old driver, to be upgraded when nobody wants the node skipped any more.
        return [returned(one, enter(one, REQUIRED, world.now, cordoned=False))]
    return step(one, world, policy)


def _can_go_back(one: NodeUpgrade) -> bool:
    """Whether an upgrade is under way that has not touched the driver yet."""
    if one.beginning:
        return False
    if one.state in REVERSIBLE:
        return not one.current
    deleted = one.mark is not None and one.mark.pod != ""
    return one.outdated and (one.cordoned or one.state == RESTART) and not deleted and not one.lost


def _switched(one: NodeUpgrade, policy: UpgradePolicyFields) -> list[Action]:
    """Who empties the node: with `autoUpgrade` not NVIDIA's driver manager."""
    present = one.node.metadata.annotations.get(nvidia.ANNOTATION_UPGRADE_ENABLED)
    wanted = "true" if policy.auto_upgrade else None
    if present == wanted:
        return []
    return [PatchNode(one.name, one.node.metadata.uid, annotations={nvidia.ANNOTATION_UPGRADE_ENABLED: wanted})]


def _removed(nodes: list[NodeUpgrade]) -> list[Action]:
    """Take everything of an upgrade off nodes, the operator's cordon too."""
    patches = (finish(one, None, enabled=False) for one in nodes)
    return [patch for patch in patches if patch is not None]
