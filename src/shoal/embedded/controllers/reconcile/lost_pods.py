"""Pods of nodes that are gone: marked as failed and deleted once the node has been away for a while."""

from __future__ import annotations

from datetime import datetime

from shoal.embedded.controllers.actions import Action, Delete, Update
from shoal.embedded.controllers.reconcile import conditions, pods
from shoal.embedded.kinds import PODS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.store import Object


def reconcile(pod: Object, now: datetime) -> list[Action]:
    """What to do about a pod whose node is gone."""
    actions: list[Action] = []
    if not pods.is_finished(pod):
        failed: Object = copied(pod)
        failed["status"]["phase"] = "Failed"
        text = ("DisruptionTarget", "True", "DeletionByPodGC", "PodGC: node no longer exists")
        others = conditions.without(failed["status"].get("conditions") or (), "DisruptionTarget")
        failed["status"]["conditions"] = [*others, conditions.made(*text, now)]
        actions.append(Update(PODS, failed, subresource="status"))
    return [*actions, Delete(PODS, pod, grace_seconds=0)]
