"""What a change of a node may make possible."""

from __future__ import annotations

from shoal.kube.objects.node import Node
from shoal.model.contract import shoal
from shoal.scheduler.queue.wake import Wake


def node_news(old: Node | None, new: Node) -> Wake:
    """What a change of a node may make possible; nothing for a heartbeat."""
    if old is None:
        return Wake.NODE_ADDED
    news = Wake(0)
    if old.status.allocatable != new.status.allocatable or old.status.capacity != new.status.capacity:
        news |= Wake.NODE_RESOURCES | Wake.CARDS_FREED
    if old.metadata.annotations.get(shoal.ANNOTATION_GPUS) != new.metadata.annotations.get(shoal.ANNOTATION_GPUS):
        news |= Wake.CARDS_FREED
    if old.metadata.labels != new.metadata.labels:
        news |= Wake.NODE_LABELS | Wake.CARDS_FREED
    if old.spec.taints != new.spec.taints or old.spec.unschedulable != new.spec.unschedulable:
        news |= Wake.NODE_TAINTS
    return news
