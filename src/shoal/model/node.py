"""A node's cards from its Kubernetes object, whoever runs there.

Shoal's agent publishes an inventory (`shoal.dev/gpus`), and then nothing else counts. A node without one is read from
what other device plugins leave in its capacity:

- Aliyun's: `aliyun.com/gpu-count` equal cards, `aliyun.com/gpu-mem` divided evenly among them and rounded down. It can
  serve one container on one card;
- NVIDIA's: `nvidia.com/gpu` cards. Their size and model come from feature-discovery labels; without the labels the
  size is 0 and only whole cards can be placed. Cards cut into replicas count once, not once a replica.

Such cards go by made-up names (`shoal.model.contract.shoal.made_up_uuid`) and indices from 0. They serve MPS clients
only if the node counts `keti.com/mpsgpu`. A node with nothing but that resource has no cards here: KETI's plugin hands
out cards by UUID, and none is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shoal.model import quantity
from shoal.model.contract import gpushare, keti, kubernetes, mechanisms, nvidia, shoal, text
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.mechanisms import Mechanism
from shoal.model.errors import CodecError, QuantityError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import Fields, fields, name_of

_MAX_CPU_MILLI = 2**53
_MAX_MEMORY_MIB = 2**53
_MAX_CARD_MIB = 2**31
#: The domain of the resources that stand for whole cards, their replicas and partitions.
_NVIDIA = "nvidia.com/"


def node_gpus(node: Mapping[str, object], *, unit: MemoryUnit) -> NodeGpus:
    """The node as placement sees it. `unit` is what one of `aliyun.com/gpu-mem` stands for on nodes without inventory.

    A node that cannot be read, or whose inventory cannot, raises CodecError: its cards are unknown, not absent.
    """
    top = fields(node, where="the node", error=CodecError)
    metadata = fields(top.get("metadata"), where="metadata", error=CodecError)
    status = fields(top.get("status"), where="status", error=CodecError)
    labels = fields(metadata.get("labels"), where="metadata.labels", error=CodecError)
    annotations = fields(metadata.get("annotations"), where="metadata.annotations", error=CodecError)
    capacity = fields(status.get("capacity"), where="status.capacity", error=CodecError)
    allocatable = fields(status.get("allocatable"), where="status.allocatable", error=CodecError)
    name = name_of(metadata.get("name"), where="metadata.name", error=CodecError)
    inventory = text.value_of(annotations, shoal.ANNOTATION_GPUS)
    return NodeGpus(
        name=name,
        gpus=_from_capacity(name, capacity, labels, unit) if inventory is None else shoal.decode_gpus(inventory),
        cpu_milli=min(_offered(allocatable, capacity, kubernetes.RESOURCE_CPU, quantity.milli), _MAX_CPU_MILLI),
        memory_mib=min(
            _offered(allocatable, capacity, kubernetes.RESOURCE_MEMORY, quantity.mebibytes), _MAX_MEMORY_MIB
        ),
        policy=_policy(labels),
        one_container=inventory is None and _shares_counted(capacity),
    )


def held_written(annotations: Mapping[str, str], capacity: Mapping[str, object]) -> str | None:
    """What a node's agent says is held of its cards, as written; None where it says nothing or is gone for good.

    An agent that is gone leaves its last word behind. kubelet counts none of its devices then: at its own next start,
    or five minutes after the agent's end. Until they are counted again nothing can be placed on the node, and with
    them the word counts again; so it does no harm to doubt an agent that is only away.
    """
    serves = _serves_devices(capacity) or _serves_claims(annotations)
    return annotations.get(shoal.ANNOTATION_HELD) if serves else None


def _serves_claims(annotations: Mapping[str, str]) -> bool:
    """Whether names are served by claims, of which kubelet counts no devices. Then nobody can tell a gone agent."""
    try:
        return Mechanism.CLAIMS in mechanisms.decode(annotations).values()
    except CodecError:
        return False


def _serves_devices(capacity: Mapping[str, object]) -> bool:
    """Whether a device plugin counts GPUs on the node. Where it serves slots, the memory is not kubelet's to count."""
    counted = gpushare.RESOURCE_MEMORY if shoal.RESOURCE_SLOT not in capacity else shoal.RESOURCE_SLOT
    names = (counted, keti.RESOURCE_MPS, *(name for name in capacity if name.startswith(_NVIDIA)))
    return any(str(capacity.get(name, "0")) != "0" for name in names)


def _policy(labels: Fields) -> str | None:
    own = shoal.decode_policy(labels)
    if own is not None:
        return own
    placement = text.value_of(labels, gpushare.LABEL_PLACEMENT)
    return placement if placement in gpushare.PLACEMENTS else None


class _Rounding(Protocol):
    def __call__(self, value: object, *, round_up: bool) -> int: ...


def _offered(allocatable: Fields, capacity: Fields, resource: str, convert: _Rounding) -> int:
    value = allocatable.get(resource, capacity.get(resource, 0))
    try:
        return max(0, convert(value, round_up=False))
    except QuantityError as error:
        raise CodecError(f"{resource} of the node cannot be read: {error}") from error


def _from_capacity(name: str, capacity: Fields, labels: Fields, unit: MemoryUnit) -> tuple[Gpu, ...]:
    model = text.value_of(labels, nvidia.LABEL_PRODUCT) or ""
    model = model.removesuffix(nvidia.PRODUCT_SHARED_SUFFIX)
    if _shares_counted(capacity):
        count = _counted(capacity, gpushare.RESOURCE_COUNT)
        memory_mib = unit.to_mib(_counted(capacity, gpushare.RESOURCE_MEMORY) // count)
    else:
        replicas = _label_number(labels, nvidia.LABEL_REPLICAS, default=1)
        count = _counted(capacity, nvidia.RESOURCE_GPU) // max(1, replicas)
        memory_mib = _label_number(labels, nvidia.LABEL_MEMORY, default=0)
    if count > shoal.MAX_CARDS:
        raise CodecError(f"the node counts {count} cards, at most {shoal.MAX_CARDS} are read: correct its status")
    clients = _counted(capacity, keti.RESOURCE_MPS) // count if count else 0
    return tuple(
        Gpu(
            uuid=shoal.made_up_uuid(name, index),
            index=index,
            memory_mib=min(memory_mib, _MAX_CARD_MIB),
            model=model,
            mps_clients=min(clients, keti.CLIENTS_MAX),
        )
        for index in range(count)
    )


def _shares_counted(capacity: Fields) -> bool:
    """Whether Aliyun's plugin counts the node's cards."""
    return all(_counted(capacity, name) for name in (gpushare.RESOURCE_MEMORY, gpushare.RESOURCE_COUNT))


def _counted(capacity: Fields, resource: str) -> int:
    value = capacity.get(resource, 0)
    try:
        return max(0, quantity.whole(value))
    except QuantityError as error:
        raise CodecError(f"{resource} of the node cannot be read: {error}") from error


def _label_number(labels: Fields, label: str, *, default: int) -> int:
    value = text.value_of(labels, label)
    return default if value is None else text.integer(value, what=f"node label {label}", maximum=_MAX_CARD_MIB)
