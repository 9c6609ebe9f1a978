"""What may happen in a cluster that lets a pod fit which did not."""

from __future__ import annotations

from enum import Flag, auto


class Wake(Flag):
    """What may happen that lets a parked pod fit."""

    CARDS_FREED = auto()
    NODE_RESOURCES = auto()
    NODE_ADDED = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()
    #: Other pods came, went or changed: affinity, ports, spread.
    PODS = auto()
    VOLUMES = auto()
    POLICY = auto()
    GANG = auto()
    #: The pod itself. Every pod waits for this, told or not.
    POD_CHANGED = auto()
