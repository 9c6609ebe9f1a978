"""World in, actions out: what brings a cluster nearer to what its policy wishes. Pure.

One policy is in force: the oldest that is not being deleted, of equal age the one with the lowest name. The others are
told so. When all are being deleted, everything is taken away.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.kube.resources import RawObject, meta_of
from shoal.model.contract.operator import FINALIZER
from shoal.operator import nodes, status, uninstall, upgrade
from shoal.operator.actions import Action, Apply, Delete, PatchNode, SetFinalizer
from shoal.operator.components import FILES, Component, steps_of, wanted
from shoal.operator.nvidia import NvidiaOperator, nvidia_operator
from shoal.operator.operands import desired, identity, missing, needs_write
from shoal.operator.policy import ClusterPolicySpec, UpgradePolicyFields, evicts_at_restart, read_policy
from shoal.operator.world import World

#: While something is waited for that no watch tells of, the world is looked at again after so many seconds.
_LOOK_SECONDS = 5.0


def in_force(policies: tuple[RawObject, ...]) -> RawObject | None:
    """The policy that counts; None if there is none, or all are being deleted."""
    living = [policy for policy in policies if meta_of(policy).deletion_timestamp is None]
    return min(living, key=lambda one: (meta_of(one).creation_timestamp or "", meta_of(one).name), default=None)


def reconcile(world: World) -> list[Action]:
    """The next writes, in order. Nothing when the world is as it is wished."""
    if uninstall.is_due(world):
        return list(_uninstall(world))
    policy = in_force(world.policies)
    if policy is None:
        return []
    reading = read_policy(policy)
    beside = nvidia_operator(world.nvidia_policies)
    actions: list[Action] = [*uninstall.released(world)]
    if FINALIZER not in meta_of(policy).finalizers:
        actions.append(SetFinalizer(meta_of(policy).name, meta_of(policy).uid, present=True))
    objects = list(_objects(world, policy, reading.spec, beside))
    actions += [one for one in objects if not _is_daemon_set(one)]
    components = wanted(reading.spec, beside)
    steps = steps_of(components, beside)
    labels = nodes.plan(
        world.nodes.values(),
        beside_nvidia=beside.is_there,
        lift=reading.spec.operator.startup_taint,
        steps=steps,
    )
    upgrades = upgrade.plan(
        world,
        _upgrades(reading.spec, components),
        evict_at_restart=evicts_at_restart(reading.spec.driver.manager),
    )
    actions += merged([*labels, *upgrades])
    # Nodes are labelled first: a DaemonSet then makes its pods all at once, and not node by node.
    actions += [one for one in objects if _is_daemon_set(one)]
    for other in world.policies:
        if other is not policy and meta_of(other).deletion_timestamp is None:
            actions += status.ignored(world, other, policy)
    actions += status.plan(world, policy, reading, beside)
    return actions


def refused(world: World) -> list[Action]:
    """The status of all policies while no manifests of operands can be used. Nothing else is written."""
    return [action for policy in world.policies for action in status.refused(world, policy)]


def _is_daemon_set(action: Action) -> bool:
    return isinstance(action, Apply) and action.manifest.get("kind") == "DaemonSet"


def _joined(actions: list[Action]) -> list[Action]:
    """One write for what may be written to a node at once: labels first, and what an upgrade says beside them."""
    joined: list[Action] = []
    places: dict[str, int] = {}
    for action in actions:
        if not isinstance(action, PatchNode) or action.resource_version:
            if isinstance(action, PatchNode):
                places.pop(action.name, None)
            joined.append(action)
            continue
        place = places.get(action.name)
        first = None if place is None else joined[place]
        if place is None or not isinstance(first, PatchNode):
            places[action.name] = len(joined)
            joined.append(action)
            continue
        joined[place] = PatchNode(
            action.name,
            action.uid,
            labels={**first.labels, **action.labels},
            annotations={**first.annotations, **action.annotations},
            remove_taints=tuple(dict.fromkeys((*first.remove_taints, *action.remove_taints))),
            unschedulable=first.unschedulable if action.unschedulable is None else action.unschedulable,
        )
    return joined


def due(world: World) -> float | None:
    """Seconds after which to look again though nothing has changed; None: there is no need."""
    if uninstall.is_due(world):
        return _LOOK_SECONDS
    policy = in_force(world.policies)
    if policy is None:
        return None
    spec = read_policy(policy).spec
    return upgrade.due(world, _upgrades(spec, wanted(spec, nvidia_operator(world.nvidia_policies))))


def _upgrades(spec: ClusterPolicySpec, components: tuple[Component, ...]) -> UpgradePolicyFields | None:
    """How drivers are upgraded; None where the driver is not the operator's."""
    has_driver = any(component.operand == "driver" for component in components)
    return spec.driver.upgrade_policy if has_driver else None


def merged(actions: list[Action]) -> list[Action]:
    """The actions, with the first writes of a node as one where neither depends on what the node was."""
    first: dict[str, int] = {}
    result: list[Action] = []
    for action in actions:
        if not isinstance(action, PatchNode):
            result.append(action)
            continue
        place = first.setdefault(action.name, len(result))
        before = result[place] if place < len(result) else None
        if not isinstance(before, PatchNode) or before.resource_version or action.resource_version:
            result.append(action)
            continue
        result[place] = PatchNode(
            action.name,
            action.uid,
            labels={**before.labels, **action.labels},
            annotations={**before.annotations, **action.annotations},
            remove_taints=(*before.remove_taints, *action.remove_taints),
            unschedulable=before.unschedulable if action.unschedulable is None else action.unschedulable,
        )
    return result


def needs_all_pods(world: World) -> bool:
    """Whether the pods of all namespaces are to be read: a driver upgrade evicts some, an uninstall tells of them."""
    if uninstall.is_due(world):
        return True
    policy = in_force(world.policies)
    if policy is None:
        return False
    components = wanted(read_policy(policy).spec, nvidia_operator(world.nvidia_policies))
    return any(component.operand == "driver" for component in components)


def _objects(world: World, policy: RawObject, spec: ClusterPolicySpec, beside: NvidiaOperator) -> Iterator[Action]:
    """What is wanted and not so; what is not wanted any more."""
    manifests = desired(world, policy, spec, beside)
    for manifest in manifests:
        if needs_write(world.owned.get(identity(manifest)), manifest):
            yield Apply(manifest)
    names = {identity(manifest) for manifest in manifests}
    # What the policy enables and the chart has no manifest of stays as it is; the status says so.
    names |= {
        (kind, FILES[operand][0]) for operand in missing(world, spec, beside) for kind in ("DaemonSet", "ConfigMap")
    }
    for key, found in world.owned.items():
        if key in names or meta_of(found).deletion_timestamp is not None:
            continue
        if key[0] == "RuntimeClass" and beside.is_there:
            continue  # NVIDIA's operator uses it
        meta = meta_of(found)
        yield Delete(str(found.get("apiVersion", "")), key[0], meta.name, meta.namespace, meta.uid)


def _uninstall(world: World) -> Iterator[Action]:
    step = uninstall.plan(world)
    yield from step.actions
    if step.waiting:
        for policy in world.policies:
            yield from status.leaving(world, policy, step.waiting)
