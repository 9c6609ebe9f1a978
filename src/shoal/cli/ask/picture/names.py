"""Annotations that a decision is read from or made by. All others are nobody's business here."""

from __future__ import annotations

from typing import Final

from shoal.model.contract import gpushare, groups, keti, kubernetes, shoal
from shoal.model.pod import ANNOTATIONS_READ

#: On a pod: the decision, whoever made it.
DECISION: Final = frozenset(
    {
        shoal.ANNOTATION_ALLOCATION,
        gpushare.ANNOTATION_ALLOCATION,
        gpushare.ANNOTATION_COMPUTE,
        gpushare.NAME_INDEX,
        gpushare.NAME_CARD,
        gpushare.NAME_POD,
        gpushare.ANNOTATION_ASSIGNED,
        gpushare.ANNOTATION_ASSUME_TIME,
        keti.ANNOTATION_UUID,
    }
)
#: On a pod: what it asks for besides its resources, and its group.
ASKED: Final = frozenset(
    {
        *ANNOTATIONS_READ,
        keti.ANNOTATION_NODE,
        keti.ANNOTATION_CLUSTER,
        keti.ANNOTATION_PRIORITY,
        groups.NAME_MINIMUM,
        groups.NAME_LIGHT_MINIMUM,
        groups.NAME_TIMEOUT,
    }
)
#: On a node: its cards.
INVENTORY: Final = frozenset({shoal.ANNOTATION_GPUS})
#: On claims and volumes.
VOLUMES: Final = frozenset(
    {
        kubernetes.ANNOTATION_SELECTED_NODE,
        kubernetes.ANNOTATION_BIND_COMPLETED,
        kubernetes.ANNOTATION_BOUND_BY_CONTROLLER,
        kubernetes.ANNOTATION_STORAGE_CLASS,
    }
)
