"""A cluster in a few lines: takes the operator's actions as an API server, its controllers and kubelets would.

Only what the operator reads is played. `played` does one action; `settled` lets DaemonSets and nodes come to rest.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.kube.objects.node import Node, NodeSpec
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import meta_of
from shoal.model.contract import nvidia
from shoal.model.contract.operator import ANNOTATION_VALIDATION, FINALIZER
from shoal.operator.actions import (
    Action,
    Apply,
    Delete,
    DeletePod,
    Evict,
    PatchNode,
    SetFinalizer,
    SetStatus,
    Tell,
)
from shoal.operator.components import BY_DAEMON_SET
from shoal.operator.world import World
from tests.operator.scene import operand_pod, validation


def played(world: World, action: Action) -> World:
    """The world after one action."""
    match action:
        case Apply(manifest):
            return _applied(world, manifest)
        case Delete(_, kind, name, _, uid):
            found = world.owned.get((kind, name))
            if found is None or (uid and meta_of(found).uid != uid):
                return world
            owned = {key: one for key, one in world.owned.items() if key != (kind, name)}
            return dataclasses.replace(world, owned=owned)
        case PatchNode():
            return _patched(world, action)
        case Evict(_, _, uid) | DeletePod(_, _, uid):
            return dataclasses.replace(
                world,
                operand_pods=_without(world.operand_pods, uid),
                gpu_pods=_without(world.gpu_pods, uid),
            )
        case SetStatus(name, uid, status):
            return _policy(world, name, uid, lambda one: _merge(one.setdefault("status", {}), status))
        case SetFinalizer(name, uid, present):
            return _policy(world, name, uid, lambda one: _finalizer(one, present))
        case Tell():
            return world


def settled(world: World) -> World:
    """The world once controllers, kubelets and validators have done their part."""
    pods: dict[str, list[Pod]] = {}
    owned = dict(world.owned)
    for (kind, name), daemon_set in world.owned.items():
        if kind != "DaemonSet":
            continue
        selector = daemon_set["spec"]["template"]["spec"].get("nodeSelector") or {}
        chosen = [
            node
            for node in world.nodes.values()
            if name in BY_DAEMON_SET
            and all(node.metadata.labels.get(key) == value for key, value in selector.items())
            and (selector or node.metadata.labels.get(nvidia.LABEL_PRESENT) != "true")
        ]
        for node in chosen:
            pods.setdefault(node.metadata.name, []).append(operand_pod(name, node.metadata.name))
        count = len(chosen)
        status = {
            "desiredNumberScheduled": count,
            "numberReady": count,
            "updatedNumberScheduled": count,
            "observedGeneration": meta_of(daemon_set).generation,
        }
        owned[kind, name] = {**daemon_set, "status": status}
    nodes = {name: _validated(node, pods.get(name, [])) for name, node in world.nodes.items()}
    return dataclasses.replace(
        world, owned=owned, nodes=nodes, operand_pods={name: tuple(found) for name, found in pods.items()}
    )


def _validated(node: Node, pods: list[Pod]) -> Node:
    names = {pod.metadata.owner_references[0].name for pod in pods}
    annotations = dict(node.metadata.annotations)
    if "shoal-validator" in names:
        annotations[ANNOTATION_VALIDATION] = validation(4 if "shoal-agent" in names else 3)
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=annotations))


def _applied(world: World, manifest: Mapping[str, Any]) -> World:
    key = str(manifest["kind"]), meta_of(dict(manifest)).name
    made: dict[str, Any] = copy.deepcopy(dict(manifest))
    found = world.owned.get(key)
    generation = meta_of(found).generation if found is not None else 0
    if found is None or found.get("spec") != made.get("spec"):
        generation += 1
    made["metadata"] |= {"generation": generation, "uid": f"uid-{key[1]}"}
    if found is not None and "status" in found:
        made["status"] = found["status"]
    return dataclasses.replace(world, owned={**world.owned, key: made})


def _patched(world: World, action: PatchNode) -> World:
    node = world.nodes.get(action.name)
    if node is None or node.metadata.uid != action.uid:
        return world
    labels = {key: value for key, value in {**node.metadata.labels, **action.labels}.items() if value is not None}
    annotations = {
        key: value for key, value in {**node.metadata.annotations, **action.annotations}.items() if value is not None
    }
    spec = NodeSpec(
        unschedulable=node.spec.unschedulable if action.unschedulable is None else action.unschedulable,
        taints=tuple(taint for taint in node.spec.taints if taint.key not in action.remove_taints),
    )
    meta = msgspec.structs.replace(node.metadata, labels=labels, annotations=annotations)
    return dataclasses.replace(
        world, nodes={**world.nodes, action.name: msgspec.structs.replace(node, metadata=meta, spec=spec)}
    )


def _without(pods: Mapping[str, tuple[Pod, ...]], uid: str) -> dict[str, tuple[Pod, ...]]:
    return {name: tuple(one for one in found if one.metadata.uid != uid) for name, found in pods.items()}


def _policy(world: World, name: str, uid: str, change: Any) -> World:
    policies = []
    for policy in world.policies:
        made = copy.deepcopy(policy)
        if meta_of(made).name == name and meta_of(made).uid == uid:
            change(made)
        if not (meta_of(made).deletion_timestamp and not meta_of(made).finalizers):
            policies.append(made)
    return dataclasses.replace(world, policies=tuple(policies))


def _merge(old: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            old.pop(key, None)
        else:
            old[key] = copy.deepcopy(value)


def _finalizer(policy: dict[str, Any], present: bool) -> None:
    found = [one for one in policy["metadata"].get("finalizers") or () if one != FINALIZER]
    policy["metadata"]["finalizers"] = [*found, FINALIZER] if present else found
