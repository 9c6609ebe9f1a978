"""Carries out actions on an API server, one write each. Each can be repeated.

What an action was meant for may be gone, or be another object of the same name: then there is nothing to do, and the
next look at the world tells what is. Other refusals are raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.events import Recorder
from shoal.kube.objects.meta import ObjectReference
from shoal.kube.objects.node import Node
from shoal.kube.resources import CONFIG_MAPS, NODES, PODS, RawObject, Resource, meta_of
from shoal.model.contract import operator
from shoal.model.contract.operator import FINALIZER, NAME_OPERATOR
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

POLICIES: Final[Resource[RawObject]] = Resource(
    operator.GROUP, operator.VERSION, operator.PLURAL, operator.KIND, dict, namespaced=False, whole=True
)
DAEMON_SETS: Final[Resource[RawObject]] = Resource("apps", "v1", "daemonsets", "DaemonSet", dict, whole=True)
DEPLOYMENTS: Final[Resource[RawObject]] = Resource("apps", "v1", "deployments", "Deployment", dict, whole=True)
RUNTIME_CLASSES: Final[Resource[RawObject]] = Resource(
    "node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", dict, namespaced=False, whole=True
)
#: The kinds that the operator makes and removes.
KINDS: Final[Mapping[tuple[str, str], Resource[RawObject]]] = {
    (one.api_version, one.kind): one for one in (DAEMON_SETS, DEPLOYMENTS, CONFIG_MAPS.raw, RUNTIME_CLASSES)
}


class Writes:
    """Carries out actions with the rights of a client. Events go by the recorder."""

    def __init__(self, client: Client, recorder: Recorder, *, manager: str = NAME_OPERATOR) -> None:
        self._client = client
        self._recorder = recorder
        self._manager = manager

    async def carry_out(self, action: Action) -> bool:
        """Do it. False: what it was meant for is gone, or has changed since it was looked at. Raises KubeError."""
        return await self.write(action) is not None

    async def write(self, action: Action) -> str | None:
        """Do it; the version that the object has now, empty where there is none to tell.

        None: what it was meant for is gone, or has changed since it was looked at. Raises KubeError.
        """
        try:
            return await self._write(action)
        except (NotFoundError, ConflictError):
            return None

    async def _write(self, action: Action) -> str:
        written: object = None
        match action:
            case Apply(manifest):
                resource = kind_of(manifest.get("apiVersion", ""), manifest.get("kind", ""))
                written = await self._client.apply(resource, dict(manifest), field_manager=self._manager, force=True)
            case Delete(api_version, kind, name, namespace, uid):
                await self._client.delete(
                    kind_of(api_version, kind), name, namespace=namespace, uid=uid, propagation="Background"
                )
            case PatchNode():
                written = await self._patch_node(action)
            case Evict(name, namespace, uid):
                await self._client.evict(name, namespace=namespace, uid=uid)
            case DeletePod(name, namespace, uid):
                await self._client.delete(PODS, name, namespace=namespace, uid=uid)
            case Tell():
                self._recorder.record(
                    _reference(action), "Warning" if action.warning else "Normal", action.reason, action.message
                )
            case SetStatus(policy, uid, status):
                written = await self._client.patch(
                    POLICIES, policy, {"metadata": {"uid": uid}, "status": dict(status)}, subresource="status"
                )
            case SetFinalizer():
                written = await self._finalizer(action)
            case _:
                assert_never(action)
        return "" if written is None else meta_of(written).resource_version

    async def _patch_node(self, action: PatchNode) -> Node | None:
        """Taints are written whole, so they are read first, with all their fields."""
        if not action.remove_taints:
            return await self._client.patch(NODES, action.name, node_patch(action))
        for last in (False, False, True):
            found = await self._client.get(NODES.raw, action.name)
            patch = node_patch(action)
            patch["metadata"].setdefault("resourceVersion", found["metadata"]["resourceVersion"])
            taints = (found.get("spec") or {}).get("taints") or []
            kept = [taint for taint in taints if taint.get("key") not in action.remove_taints]
            patch.setdefault("spec", {})["taints"] = kept or None
            try:
                return await self._client.patch(NODES, action.name, patch)
            except ConflictError:
                if last or action.resource_version or found["metadata"]["uid"] != action.uid:
                    raise
        return None

    async def _finalizer(self, action: SetFinalizer) -> RawObject | None:
        """Change one finalizer of possibly several, if the policy is as it was read."""
        found = await self._client.get(POLICIES, action.policy)
        meta = found["metadata"]
        finalizers: list[str] = meta.get("finalizers") or []
        if meta["uid"] != action.uid or (FINALIZER in finalizers) == action.present:
            return None
        kept = [name for name in finalizers if name != FINALIZER]
        changed = {
            "uid": action.uid,
            "resourceVersion": meta["resourceVersion"],
            "finalizers": [*kept, FINALIZER] if action.present else kept,
        }
        return await self._client.patch(POLICIES, action.policy, {"metadata": changed})


def node_patch(action: PatchNode) -> dict[str, Any]:
    """The merge patch of a node, but for its taints: what it does not name stays."""
    metadata: dict[str, Any] = {"uid": action.uid}
    if action.resource_version:
        metadata["resourceVersion"] = action.resource_version
    if action.labels:
        metadata["labels"] = dict(action.labels)
    if action.annotations:
        metadata["annotations"] = dict(action.annotations)
    spec: dict[str, Any] = {}
    if action.unschedulable is not None:
        spec["unschedulable"] = action.unschedulable or None
    return {"metadata": metadata, **({"spec": spec} if spec else {})}


def kind_of(api_version: str, kind: str) -> Resource[RawObject]:
    """The kind of an object that the operator may have made."""
    if (found := KINDS.get((api_version, kind))) is None:
        known = ", ".join(sorted(name for _, name in KINDS))
        raise KubeError(f"{kind} of {api_version} is nothing that the operator makes: use one of {known}")
    return found


def _reference(action: Tell) -> ObjectReference:
    api_version = NODES.api_version if action.kind == NODES.kind else POLICIES.api_version
    return ObjectReference(api_version=api_version, kind=action.kind, name=action.name, uid=action.uid)
