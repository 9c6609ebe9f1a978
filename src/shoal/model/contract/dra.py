"""Names of shares as claims (dynamic resource allocation), and what an allocated share of a card means.

Shoal's agent is the driver that publishes a node's cards in ResourceSlices and prepares claims; its scheduler allocates
them, and so may any other. Both read a result of an allocation here. Nothing here reads objects of Kubernetes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from shoal.model import quantity
from shoal.model.contract.keti import CLIENTS_MAX
from shoal.model.errors import CodecError, QuantityError, shown
from shoal.model.request import FULL_COMPUTE, ContainerRequest, Share

DRIVER: Final = "gpu.shoal.dev"
#: The class of all devices of the driver, shipped with Shoal.
DEVICE_CLASS: Final = "shoal-gpu"

# Attributes of a device, in the driver's own domain
ATTRIBUTE_UUID: Final = "uuid"
ATTRIBUTE_INDEX: Final = "index"
ATTRIBUTE_MODEL: Final = "productName"
ATTRIBUTE_ARCHITECTURE: Final = "architecture"
ATTRIBUTE_DRIVER_VERSION: Final = "driverVersion"
ATTRIBUTE_CUDA_VERSION: Final = "cudaDriverVersion"
ATTRIBUTE_NUMA: Final = "numaNode"
ATTRIBUTE_NVLINK: Final = "nvlinkGroup"
ATTRIBUTE_ISOLATION: Final = "isolation"
ATTRIBUTE_TYPE: Final = "type"
ATTRIBUTE_PARENT: Final = "parentUUID"
ATTRIBUTE_PROFILE: Final = "profile"
TYPE_GPU: Final = "gpu"
TYPE_MIG: Final = "mig"

# Capacity of a device; a request names it without the driver's domain
CAPACITY_MEMORY: Final = "memory"
CAPACITY_COMPUTE: Final = "compute"
#: Places for MPS clients, published where `keti.com/mpsgpu` is served by claims. A request that says nothing gets none.
CAPACITY_CLIENTS: Final = "clients"
CLIENTS_MIN: Final = "0"
CLIENTS_STEP: Final = "1"
#: Both smallest amount and step of memory. A request for none gets all of it.
MEMORY_STEP: Final = "1Mi"
#: Smallest amount of compute, which is also what a request that says nothing of it gets; and its step.
COMPUTE_MIN: Final = "0"
COMPUTE_STEP: Final = "1"
#: The counter of a card in MIG mode that its partitions consume.
COUNTER_MEMORY: Final = "memory"

#: Taint of a device whose card has a fault; its value is the fault, as far as a label's value can tell it.
TAINT_UNHEALTHY: Final = "shoal.dev/unhealthy"

CDI_KIND: Final = "shoal.dev/claim"

# Names of Kubernetes
API_GROUP: Final = "resource.k8s.io"
API_VERSION: Final = "v1"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
ANNOTATION_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
ANNOTATION_EXTENDED_RESOURCE: Final = "resource.kubernetes.io/extended-resource-claim"
EFFECT_NO_SCHEDULE: Final = "NoSchedule"
EFFECT_NO_EXECUTE: Final = "NoExecute"
EXACT_COUNT: Final = "ExactCount"
#: Separates a request of `firstAvailable` from the alternative that was taken.
REQUEST_SEPARATOR: Final = "/"

# Bounds of Kubernetes
MAX_DEVICES: Final = 128
#: With a taint, or a counter, on any device of the slice.
MAX_DEVICES_ADVANCED: Final = 64
MAX_COUNTER_SETS: Final = 8
MAX_RESULTS: Final = 32
MAX_ATTRIBUTE: Final = 64

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST_BYTES: Final = 8


def device_name(uuid: str, *, mig: bool = False) -> str:
    """The name of a card's, or a partition's, device. A UUID that makes no DNS label is known by its digest."""
    kind = TYPE_MIG if mig else TYPE_GPU
    name = f"{kind}-{uuid.lower().removeprefix(f'{kind}-')}"
    if _LABEL.fullmatch(name):
        return name
    return f"{kind}-{hashlib.blake2b(uuid.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"


def is_partition(device: str) -> bool:
    """Whether a device of the driver is a partition of MIG, by its name."""
    return device.startswith(f"{TYPE_MIG}-")


def slice_name(node: str, number: int) -> str:
    """The name of a node's slice."""
    return f"{node}-{DRIVER}-{number}"


def base_request(request: str) -> str:
    """The request of a claim that a result is for: of `gpu/small`, an alternative of `gpu`, that is `gpu`."""
    return request.partition(REQUEST_SEPARATOR)[0]


def exact_request(asked: ContainerRequest) -> dict[str, Any]:
    """What a claim requests (`exactly`) for a container that asks for GPUs by a resource name."""
    found: dict[str, Any] = {"deviceClassName": DEVICE_CLASS, "allocationMode": EXACT_COUNT, "count": asked.gpus}
    return found if asked.share.exclusive else {**found, "capacity": {"requests": _amounts(asked.share)}}


def _amounts(share: Share) -> dict[str, str]:
    amounts = {CAPACITY_MEMORY: quantity.canonical(share.memory_mib * quantity.MEBIBYTE, binary=True)}
    if share.compute:
        amounts[CAPACITY_COMPUTE] = str(share.compute)
    if share.clients:
        amounts[CAPACITY_CLIENTS] = str(share.clients)
    return amounts


def allocated_share(consumed: Mapping[str, object], *, share_id: str | None, memory_mib: int) -> Share:
    """What a result takes of a card with so much memory: amounts, or the whole card.

    Without a share ID the card is one claim's alone, and so it is with all of its memory. CodecError if the amounts
    cannot be: nobody checks them but who reads them here.
    """
    if not share_id:
        return Share(exclusive=True)
    unknown = sorted(set(consumed) - {CAPACITY_MEMORY, CAPACITY_COMPUTE, CAPACITY_CLIENTS})
    if unknown:
        raise CodecError(f"consumedCapacity has {shown(unknown[0])}: a card has memory, compute and clients")
    if CAPACITY_MEMORY not in consumed:
        raise CodecError(
            f"consumedCapacity says nothing of {CAPACITY_MEMORY}: whoever allocates a share must write its amount"
        )
    try:
        memory = quantity.mebibytes(consumed[CAPACITY_MEMORY])
        compute = quantity.whole(consumed.get(CAPACITY_COMPUTE, COMPUTE_MIN))
        clients = quantity.whole(consumed.get(CAPACITY_CLIENTS, CLIENTS_MIN))
    except QuantityError as error:
        raise CodecError(f"consumedCapacity cannot be read: {error}") from error
    if not 0 <= clients <= CLIENTS_MAX:
        raise CodecError(f"consumedCapacity takes {shown(consumed[CAPACITY_CLIENTS])} of {CAPACITY_CLIENTS}")
    # An MPS client may have no size.
    if not (0 < memory <= memory_mib or (clients and memory == 0)):
        raise CodecError(
            f"consumedCapacity takes {shown(consumed[CAPACITY_MEMORY])} of {CAPACITY_MEMORY}: the card has "
            f"{memory_mib}Mi, and a share at least {MEMORY_STEP}"
        )
    if not 0 <= compute <= FULL_COMPUTE:
        raise CodecError(
            f"consumedCapacity takes {shown(consumed[CAPACITY_COMPUTE])} of {CAPACITY_COMPUTE}: a card has "
            f"{FULL_COMPUTE} percent"
        )
    return Share(exclusive=True) if memory == memory_mib else Share(memory, compute, clients)
