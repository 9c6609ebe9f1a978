"""Taints and tolerations: which pods a node's taints keep away."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from shoal.kube.objects.claims import DeviceTaint, DeviceToleration
from shoal.kube.objects.node import Taint
from shoal.kube.objects.pod import Toleration

#: The effects that keep a pod from being put on a node, and the one that only asks for another node.
NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"


def tolerates(toleration: Toleration | DeviceToleration, taint: Taint | DeviceTaint) -> bool:
    """Whether a toleration covers a taint, of a node or of a device."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    # Lt and Gt are behind a feature gate that is off: they tolerate nothing.
    return toleration.operator == "Exists"


def untolerated(
    taints: Iterable[Taint], tolerations: Collection[Toleration], effects: Collection[str]
) -> tuple[Taint, ...]:
    """The taints with one of these effects that no toleration covers."""
    return tuple(
        taint
        for taint in taints
        if taint.effect in effects and not any(tolerates(toleration, taint) for toleration in tolerations)
    )


def read_taints(raw: object) -> tuple[Taint, ...]:
    """The taints of a node's spec, as decoded JSON or not there at all."""
    return msgspec.convert(raw or (), tuple[Taint, ...])


def read_tolerations(raw: object) -> tuple[Toleration, ...]:
    """The tolerations of a pod's spec, as decoded JSON or not there at all."""
    return msgspec.convert(raw or (), tuple[Toleration, ...])
