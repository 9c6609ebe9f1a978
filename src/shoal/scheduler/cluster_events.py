"""Events of the cluster that may let a pod fit which fitted nowhere, and those that a change of a node is."""

from __future__ import annotations

from enum import Flag, auto

from shoal.kube.objects.node import Node
from shoal.model.contract import mechanisms, shoal


class ClusterEvent(Flag):
    """A kind of event that may let a parked pod fit."""

    CARDS_FREED = auto()
    NODE_RESOURCES = auto()
    NODE_ADDED = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()
    #: Other pods came, went or changed: affinity, ports, spread.
    PODS = auto()
    VOLUMES = auto()
    #: Claims of devices, their classes, or what nodes publish.
    CLAIMS = auto()
    POLICY = auto()
    GANG = auto()
    #: Less of a card is used beyond what is booked.
    LIVE_LOAD = auto()
    #: The pod itself changed. Every parked pod is woken by this.
    POD_CHANGED = auto()


def node_events(old: Node | None, new: Node) -> ClusterEvent:
    """The events that a change of a node is; none for a heartbeat."""
    if old is None:
        return ClusterEvent.NODE_ADDED
    events = ClusterEvent(0)
    if old.status.allocatable != new.status.allocatable or old.status.capacity != new.status.capacity:
        events |= ClusterEvent.NODE_RESOURCES | ClusterEvent.CARDS_FREED
    if old.metadata.annotations.get(shoal.ANNOTATION_GPUS) != new.metadata.annotations.get(shoal.ANNOTATION_GPUS):
        events |= ClusterEvent.CARDS_FREED
    if old.metadata.annotations.get(mechanisms.ANNOTATION_MECHANISMS) != new.metadata.annotations.get(
        mechanisms.ANNOTATION_MECHANISMS
    ):
        events |= ClusterEvent.NODE_RESOURCES | ClusterEvent.CARDS_FREED | ClusterEvent.CLAIMS
    if old.metadata.labels != new.metadata.labels:
        events |= ClusterEvent.NODE_LABELS | ClusterEvent.CARDS_FREED
    if old.spec.taints != new.spec.taints or old.spec.unschedulable != new.spec.unschedulable:
        events |= ClusterEvent.NODE_TAINTS
    return events
