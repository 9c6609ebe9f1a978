"""The facts of a node as its worker of discovery tells them, in an annotation of the node.

A worker says what it has read of the machine; which labels follow is the leader's to work out, so that a node can bring
about no label but those, and none elsewhere. What could not be read is left out: a missing part says nothing, and takes
nothing back. Reading is strict and bounded, as for Shoal's other documents.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from shoal.model.contract import text
from shoal.model.contract.plugin_config import MOST_REPLICAS
from shoal.model.errors import CodecError

#: On a node: what its worker has read of the machine.
ANNOTATION_FACTS: Final = "shoal.dev/node-facts"
#: The ServiceAccount of the leader, its Deployment and Lease; the workers have their own account.
NAME_LEADER: Final = "shoal-discovery"
NAME_WORKER: Final = "shoal-discovery-worker"
#: The workers' DaemonSets: on nodes without a known card, and on those with one.
NAME_WORKERS_BUS: Final = "shoal-discovery-bus"
NAME_WORKERS_CARDS: Final = "shoal-discovery-cards"
#: Whose labels are the leader's, in the words of server-side apply.
MANAGER_LABELS: Final = "shoal-discovery"
#: Keeps on removal what NFD lists as its own although Shoal wrote it first.
MANAGER_KEPT: Final = "shoal-discovery-kept"

VERSION: Final = 1
#: deploy/discovery/own-node.yaml has the same bound.
MAX_LENGTH: Final = 32 * 1024
MAX_KINDS: Final = 32
MAX_PROFILES: Final = 16
_MOST_CARDS: Final = 256

_Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST_CARDS)]
_Amount = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
_Mebibytes = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Words = Annotated[str, msgspec.Meta(max_length=255)]
_PciClass = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{4}\Z")]
#: With `.` for `+`, as labels have it. Long enough for what NVIDIA names, short enough for the keys of labels.
_Profile = Annotated[str, msgspec.Meta(pattern=r"\A([1-9]c\.)?[1-9]g\.[0-9]{1,5}gb([.-][a-z]{1,8}){0,2}\Z")]
_Version = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,6}(\.[0-9]{1,6}){1,2}\Z")]
_Small = Annotated[int, msgspec.Meta(ge=0, le=1000)]
_Fabric = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10}\Z")]
_Resource = Annotated[str, msgspec.Meta(pattern=r"\Anvidia\.com/[a-z0-9.-]{1,63}\Z")]
_HostDriver = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?\Z")]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class PartitionFacts(_Struct, frozen=True, kw_only=True):
    """MIG partitions of a card that are alike."""

    profile: _Profile
    count: _Count = 1
    memory: _Mebibytes = 0
    multiprocessors: _Amount = 0
    gpu_slices: _Amount = 0
    compute_slices: _Amount = 0
    copy: _Amount = 0
    decoder: _Amount = 0
    encoder: _Amount = 0
    jpeg: _Amount = 0
    ofa: _Amount = 0


class CardFacts(_Struct, frozen=True, kw_only=True):
    """Cards that are alike in all of this."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    count: _Count = 1
    #: MiB; 0 is not known.
    memory: _Mebibytes = 0
    capability: tuple[_Small, _Small] = (0, 0)
    #: MIG mode is on; None: the card knows no MIG.
    mig: bool | None = None
    #: Class on the bus; empty: not known.
    pci: _PciClass = ""
    #: UUID of the fabric, a point, and the clique; empty: on none.
    fabric: _Fabric = ""
    partitions: Annotated[tuple[PartitionFacts, ...], msgspec.Meta(max_length=MAX_PROFILES)] = ()


class SharingFacts(_Struct, frozen=True, kw_only=True):
    """How a resource is shared."""

    resource: _Resource
    strategy: Literal["time-slicing", "mps"]
    replicas: Annotated[int, msgspec.Meta(ge=2, le=MOST_REPLICAS)]
    renamed: bool = False


class VgpuFacts(_Struct, frozen=True, kw_only=True):
    """A virtual GPU, and the driver of the machine that lends it."""

    host_version: _HostDriver = ""
    host_branch: _HostDriver = ""


class GpuFacts(_Struct, frozen=True, kw_only=True):
    """What the driver tells, and how NVIDIA's plugin is configured. At least one card."""

    #: When the worker started, or took another configuration: Unix seconds.
    since: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    driver: _Version
    cuda: tuple[_Small, _Small]
    machine: _Words = ""
    cards: Annotated[tuple[CardFacts, ...], msgspec.Meta(min_length=1, max_length=MAX_KINDS)]
    mig_strategy: Literal["none", "single", "mixed"] = "none"
    sharing: Annotated[tuple[SharingFacts, ...], msgspec.Meta(max_length=MAX_PROFILES)] = ()
    #: None: not known, since the worker may not read so much of the bus.
    vgpus: Annotated[tuple[VgpuFacts, ...], msgspec.Meta(max_length=MAX_KINDS)] | None = None


class NodeFacts(_Struct, frozen=True, kw_only=True):
    """What a worker knows."""

    version: Literal[1]
    #: The classes of NVIDIA's cards on the bus, each once; none: there is no card.
    pci: Annotated[tuple[_PciClass, ...], msgspec.Meta(max_length=8)]
    #: None: not known now.
    gpus: GpuFacts | None = None


_FACTS: Final = msgspec.json.Decoder(NodeFacts)


def encode_facts(facts: NodeFacts) -> str:
    """The value of `shoal.dev/node-facts`. What could not be read back is not written."""
    written = text.to_json(facts, what=ANNOTATION_FACTS, limit=MAX_LENGTH)
    decode_facts(written)
    return written


def decode_facts(value: str) -> NodeFacts:
    """The facts that `shoal.dev/node-facts` holds."""
    facts = text.from_json(value, _FACTS, what=ANNOTATION_FACTS, limit=MAX_LENGTH)
    if facts.gpus is not None and sum(card.count for card in facts.gpus.cards) > _MOST_CARDS:
        raise CodecError(f"{ANNOTATION_FACTS} lists more than {_MOST_CARDS} cards: remove the annotation")
    return facts
