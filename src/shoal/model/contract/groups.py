"""Pod groups: pods that are placed together or not at all, told by labels, without any custom resource.

Read are Shoal's own names and those in use elsewhere: the labels of scheduler-plugins' lightweight coscheduling, which
Aliyun's ACK documents too, and the newer label of its PodGroup resource. That resource itself is not read, so its label
needs the size beside it, as a label or an annotation. How a group is placed is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.model.contract import text
from shoal.model.errors import CodecError, shown

# Shoal's own
LABEL_GROUP: Final = "shoal.dev/pod-group"
NAME_MINIMUM: Final = "shoal.dev/pod-group-min"
NAME_TIMEOUT: Final = "shoal.dev/pod-group-timeout"

# Lightweight coscheduling of scheduler-plugins
LABEL_LIGHT_GROUP: Final = "pod-group.scheduling.sigs.k8s.io/name"
NAME_LIGHT_MINIMUM: Final = "pod-group.scheduling.sigs.k8s.io/min-available"

# The label of the PodGroup resource of scheduler-plugins, before and since version 0.25
LABEL_OLD_GROUP: Final = "pod-group.scheduling.sigs.k8s.io"
LABEL_NEW_GROUP: Final = "scheduling.x-k8s.io/pod-group"

_GROUPS: Final = (LABEL_GROUP, LABEL_LIGHT_GROUP, LABEL_NEW_GROUP, LABEL_OLD_GROUP)
_MINIMA: Final = (NAME_MINIMUM, NAME_LIGHT_MINIMUM)

#: All names by which a pod tells of its group, among labels and annotations.
GROUP_NAMES: Final = frozenset((*_GROUPS, *_MINIMA))

#: Each try places all of them, or none.
MAX_MINIMUM: Final = 1_000
DEFAULT_TIMEOUT_SECONDS: Final = 60
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600
_MAX_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class PodGroup:
    """What a pod says of its group, which lives in the pod's own namespace."""

    name: str
    #: How many members must have a place before any of them gets one.
    minimum: int
    #: Seconds after which a group that lacks members is told to be late.
    timeout: int = DEFAULT_TIMEOUT_SECONDS


def decode_group(labels: Mapping[str, object], annotations: Mapping[str, object]) -> PodGroup | None:
    """The group a pod belongs to; None when it names none."""
    if GROUP_NAMES.isdisjoint(labels) and GROUP_NAMES.isdisjoint(annotations):
        return None
    names = {label: name for label in _GROUPS if (name := (text.value_of(labels, label) or "").strip())}
    minima = {name: value for name in _MINIMA if (value := _either(name, labels, annotations))}
    if not names:
        if minima:
            raise CodecError(f"{next(iter(minima))} is set and no group is named: add the label {LABEL_GROUP}")
        return None
    name = _agreed(names, "the same group")
    if len(name) > _MAX_NAME:
        raise CodecError(f"{next(iter(names))} holds {shown(name)}: write at most {_MAX_NAME} characters")
    if not minima:
        raise CodecError(
            f"{next(iter(names))} names pod group {shown(name)} and nothing tells its size: "
            f"set {NAME_MINIMUM} to the number of pods that must be placed together"
        )
    minimum = _agreed(minima, "the same size")
    timeout = _either(NAME_TIMEOUT, labels, annotations)
    return PodGroup(
        name=name,
        minimum=text.integer(minimum, what=next(iter(minima)), minimum=1, maximum=MAX_MINIMUM),
        timeout=DEFAULT_TIMEOUT_SECONDS
        if timeout is None
        else text.integer(timeout, what=NAME_TIMEOUT, minimum=1, maximum=MAX_TIMEOUT_SECONDS),
    )


def _either(name: str, labels: Mapping[str, object], annotations: Mapping[str, object]) -> str | None:
    """A value that may stand as a label or as an annotation."""
    values = [value for each in (labels, annotations) if (value := (text.value_of(each, name) or "").strip())]
    if len(set(values)) > 1:
        raise CodecError(
            f"{name} holds {shown(values[0])} as a label and {shown(values[1])} as an annotation: keep one"
        )
    return values[0] if values else None


def _agreed(values: Mapping[str, str], what: str) -> str:
    (first, value), *others = values.items()
    for other, differing in others:
        if differing != value:
            raise CodecError(
                f"{first} holds {shown(value)} and {other} holds {shown(differing)}: keep one, or give both {what}"
            )
    return value
