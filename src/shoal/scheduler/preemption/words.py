"""What the owner of a pod is told of the pods of others: how many there are, never which.

Names of pods are for those who may list them, and an event is read by all who may read its namespace.
"""

from __future__ import annotations

from collections.abc import Collection

from shoal.kube.objects.pod import Pod


def who_leaves(pod: Pod, victims: Collection[Pod]) -> str:
    """Those that make room for a pod, for its own message."""
    own = sorted(_name(victim) for victim in victims if _is_neighbour(victim, pod))
    others = len(victims) - len(own)
    counted = "1 pod of another namespace" if others == 1 else f"{others} pods of other namespaces"
    return ", ".join([*own, *([counted] if others else [])])


def for_whom(victim: Pod, pod: Pod) -> str:
    """The pod that room is made for, for the message of one that must leave."""
    return _name(pod) if _is_neighbour(victim, pod) else "a pod of another namespace with a higher priority"


def _is_neighbour(one: Pod, other: Pod) -> bool:
    return one.metadata.namespace == other.metadata.namespace


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
