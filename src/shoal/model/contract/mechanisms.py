"""By which mechanism a node serves a resource name: devices that a device plugin counts, or claims that are made of it.

A label of the node asks for claims, name by name; an annotation, the agent's own, tells what is. One name has one
mechanism on one node at one time: while the last pods of the mechanism before are there, the node takes no new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from shoal.model.contract import gpushare, keti, nvidia, text
from shoal.model.errors import CodecError

#: On a node: `claims.shoal.dev/<name>=true`, with `_` for the `/` of the name. One label a name: a label's value can
#: be no list.
LABEL_PREFIX: Final = "claims.shoal.dev/"
LABEL_ON: Final = "true"
#: On a node: the names that have or had another mechanism than devices. The agent writes it.
ANNOTATION_MECHANISMS: Final = "shoal.dev/mechanisms"

#: The names that can be served by claims.
NAMES: Final = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU)
#: What a container asks for by number, and has by the request of its claim instead.
BY_NUMBER: Final = frozenset((*NAMES, gpushare.RESOURCE_COMPUTE))

_MAX_LENGTH: Final = 4096


class Mechanism(StrEnum):
    """How a node serves a name; or what it is changing to, while pods of the mechanism before are there."""

    DEVICES = "devices"
    CLAIMS = "claims"
    TO_CLAIMS = "to-claims"
    TO_DEVICES = "to-devices"


_DECODER: Final = msgspec.json.Decoder(dict[str, Mechanism])


def label_of(name: str) -> str:
    """The label by which a node asks for claims of a name."""
    return LABEL_PREFIX + name.replace("/", "_")


def asked_for(labels: Mapping[str, object]) -> frozenset[str]:
    """The names that a node's labels want served by claims."""
    return frozenset(name for name in NAMES if labels.get(label_of(name)) == LABEL_ON)


def encode(mechanisms: Mapping[str, Mechanism]) -> str | None:
    """The annotation's value; None where all names are devices."""
    listed = {name: one.value for name, one in mechanisms.items() if one is not Mechanism.DEVICES}
    return text.to_json(dict(sorted(listed.items())), what=ANNOTATION_MECHANISMS, limit=_MAX_LENGTH) if listed else None


def decode(annotations: Mapping[str, object]) -> dict[str, Mechanism]:
    """By name, the mechanism, without names that are devices. Raises CodecError."""
    value = text.value_of(annotations, ANNOTATION_MECHANISMS)
    if value is None:
        return {}
    found = text.from_json(value, _DECODER, what=ANNOTATION_MECHANISMS, limit=_MAX_LENGTH)
    return {name: one for name, one in found.items() if one is not Mechanism.DEVICES}


def by_claims(annotations: Mapping[str, object]) -> frozenset[str]:
    """The names of which a node's pods have claims and no devices, by the node's annotations.

    Of an annotation that cannot be read, none: devices are counted then.
    """
    try:
        served = decode(annotations)
    except CodecError:
        return frozenset()
    return frozenset(name for name, one in served.items() if one in (Mechanism.CLAIMS, Mechanism.TO_DEVICES))


def shared(mechanisms: Mapping[str, Mechanism], names: Iterable[str]) -> Mechanism | None:
    """The mechanism that all these names have on a node; None if they differ."""
    found = {mechanisms.get(name, Mechanism.DEVICES) for name in names}
    return found.pop() if len(found) == 1 else None
