"""The load of a node as its collector tells the scheduler: a digest of each card, in an annotation of a Lease.

A digest weighs, and lowers what is free of its own node's cards; it decides nothing. So it is small: whole MiB,
percent, degrees and watts. What was not measured is left out, and is never 0. Reading is strict and bounded, as for
Shoal's other documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from shoal.model.contract import text
from shoal.model.errors import CodecError, shown

#: Where the Leases are, one per node, by the node's name. Nothing else is there, and nobody but collectors writes.
NAMESPACE: Final = "shoal-load"
#: On such a Lease: the digest.
ANNOTATION_LOAD: Final = "shoal.dev/load"
#: The collector's ServiceAccount, DaemonSet and ClusterRoleBinding.
NAME_COLLECTOR: Final = "shoal-metrics"
#: The admission policy that keeps a collector to its node's Lease.
POLICY_LOAD: Final = "shoal-metrics-own-lease"

#: What a digest may have; deploy/metrics/own-lease.yaml has the same bound on its length.
MAX_CARDS: Final = 256
MAX_LENGTH: Final = 64 * 1024
VERSION: Final = 1
#: A digest that has not changed for so long counts for nothing.
TTL_SECONDS: Final = 180.0
#: What driver and MPS daemon themselves take of a card, and no pod is to blame for.
TOLERATED_MIB: Final = 256

_Uuid = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:/-]{0,299}\Z")]
_Mebibytes = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Celsius = Annotated[int, msgspec.Meta(ge=-100, le=500)]
_Watts = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


@dataclass(frozen=True, slots=True)
class CardDigest:
    """What is used of one card. None is not known."""

    used_mib: int | None = None
    #: Used by nobody's pod.
    unattributed_mib: int | None = None
    #: Used by pods beyond what was booked for each.
    overuse_mib: int | None = None
    utilisation: int | None = None
    celsius: int | None = None
    watts: int | None = None


@dataclass(frozen=True, slots=True)
class LoadDigest:
    """A node: its cards by UUID, and what is used of the machine in percent."""

    cards: Mapping[str, CardDigest]
    cpu: int | None = None
    memory: int | None = None
    storage: int | None = None


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class _Card(_Struct, frozen=True):
    uuid: _Uuid
    used: _Mebibytes | None = None
    unattributed: _Mebibytes | None = None
    overuse: _Mebibytes | None = None
    utilisation: _Percent | None = None
    celsius: _Celsius | None = None
    watts: _Watts | None = None


class _Digest(_Struct, frozen=True):
    version: Literal[1]
    cards: Annotated[tuple[_Card, ...], msgspec.Meta(max_length=MAX_CARDS)] = ()
    cpu: _Percent | None = None
    memory: _Percent | None = None
    storage: _Percent | None = None


_DIGEST: Final = msgspec.json.Decoder(_Digest)


def encode_load(digest: LoadDigest) -> str:
    """The value of `shoal.dev/load`. What could not be read back is not written."""
    cards = tuple(
        _Card(
            uuid,
            used=card.used_mib,
            unattributed=card.unattributed_mib,
            overuse=card.overuse_mib,
            utilisation=card.utilisation,
            celsius=card.celsius,
            watts=card.watts,
        )
        for uuid, card in digest.cards.items()
    )
    document = _Digest(VERSION, cards, digest.cpu, digest.memory, digest.storage)
    written = text.to_json(document, what=ANNOTATION_LOAD, limit=MAX_LENGTH)
    decode_load(written)
    return written


def decode_load(value: str) -> LoadDigest:
    """The digest that `shoal.dev/load` holds."""
    document = text.from_json(value, _DIGEST, what=ANNOTATION_LOAD, limit=MAX_LENGTH)
    cards = {
        card.uuid: CardDigest(card.used, card.unattributed, card.overuse, card.utilisation, card.celsius, card.watts)
        for card in document.cards
    }
    if len(cards) < len(document.cards):
        uuids = [card.uuid for card in document.cards]
        twice = next(uuid for place, uuid in enumerate(uuids) if uuid in uuids[:place])
        raise CodecError(f"{ANNOTATION_LOAD} lists card {shown(twice)} twice: each card stands once")
    return LoadDigest(cards, document.cpu, document.memory, document.storage)
