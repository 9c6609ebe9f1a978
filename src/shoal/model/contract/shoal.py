"""Shoal's own names, under `shoal.dev/`, and its documents: a pod's allocation, a node's inventory
and what is held of it.

All are JSON in an annotation, written to be read by a person too. Reading is strict: an unknown key, a missing one, a
number out of bounds or a document too long is a `CodecError`, so that a component that does not understand a decision
stops instead of guessing. A change of meaning raises `VERSION`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation, Held
from shoal.model.contract import text
from shoal.model.errors import CodecError, shown
from shoal.model.gpu import DEFAULT_MPS_CLIENTS, Gpu, Isolation, Link, MigInstance
from shoal.model.request import CardSelector, ContainerKind, Share

# Written by Shoal
ANNOTATION_ALLOCATION: Final = "shoal.dev/allocation"
ANNOTATION_GPUS: Final = "shoal.dev/gpus"
#: On a node: what its containers have been given, by pod. The agent's word, which counts more than a pod's record.
ANNOTATION_HELD: Final = "shoal.dev/held"
#: On a node: faults of its cards that the agent has to remember over a restart.
ANNOTATION_FAULTS: Final = "shoal.dev/gpu-faults"
#: The slot resource of nodes whose memory is counted in node status: one per container that asks for a share.
RESOURCE_SLOT: Final = "shoal.dev/gpu"
CDI_KIND: Final = "shoal.dev/share"
#: On a pod whose containers have started: what limits memory and compute (`shoal.model.gpu.LimitedBy`).
ANNOTATION_ISOLATION: Final = "shoal.dev/isolation"
#: The same in a container.
ENV_ISOLATION: Final = "SHOAL_ISOLATION"

# Written by users
ANNOTATION_POLICY: Final = "shoal.dev/policy"
ANNOTATION_USE_MODEL: Final = "shoal.dev/use-gpu-model"
ANNOTATION_AVOID_MODEL: Final = "shoal.dev/avoid-gpu-model"
ANNOTATION_USE_UUID: Final = "shoal.dev/use-gpu-uuid"
ANNOTATION_AVOID_UUID: Final = "shoal.dev/avoid-gpu-uuid"
#: What the containers of a pod do on a simulated node; with the name of a container behind it, what that one does.
ANNOTATION_SIMULATE: Final = "shoal.dev/simulate"
ANNOTATION_SIMULATE_PREFIX: Final = "shoal.dev/simulate."
#: On a namespace: its pods and workloads are not looked at by the admission policies.
LABEL_ADMISSION: Final = "shoal.dev/admission"
ADMISSION_IGNORE: Final = "ignore"

# Workloads on a cluster: their names, which are also those of their roles, and of the scheduler's Lease
NAME_SCHEDULER: Final = "shoal-scheduler"
NAME_AGENT: Final = "shoal-agent"
#: On all manifests, as the value of `app.kubernetes.io/part-of`.
PART_OF: Final = "shoal"
#: The Secret of the extender's certificates, as deploy/scheduler names it.
NAME_EXTENDER_SECRET: Final = "shoal-scheduler-tls"

# Admission policies, each with a binding of the same name
POLICY_PODS: Final = "shoal-gpu-requests"
POLICY_TEMPLATES: Final = "shoal-gpu-requests-templates"
POLICY_CRON_JOBS: Final = "shoal-gpu-requests-cronjobs"

#: Ends the version that the embedded API server tells.
EMBEDDED_VERSION: Final = "+shoal"

#: On a namespace: its pods may be clients of an MPS daemon of protocol 2, beside those of others that say so.
LABEL_MPS: Final = "shoal.dev/mps"
MPS_ALLOW: Final = "allow"

# Endpoints of every service
PATH_HEALTH: Final = "/healthz"
PATH_READY: Final = "/readyz"
PATH_METRICS: Final = "/metrics"

VERSION: Final = 1
#: Kubernetes allows 256 KiB for all annotations of an object together.
MAX_LENGTH: Final = 160 * 1024
MAX_CONTAINERS: Final = 256
MAX_CARDS: Final = 256
MAX_POLICY: Final = 63

_MADE_UP_PREFIX: Final = "shoal-"
_POLICY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
_Mebibytes = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_Words = Annotated[str, msgspec.Meta(max_length=512)]
#: Commas, blanks and `=` would break the lists in which other stacks write UUIDs.
_Uuid = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:/-]{0,299}\Z")]
_Version = Literal[1]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class _Card(_Struct, frozen=True):
    uuid: _Uuid
    index: _Count
    memory: _Mebibytes = 0
    compute: _Percent = 0
    clients: _Count = 0
    exclusive: bool = False


class _Container(_Struct, frozen=True):
    name: _Name
    cards: Annotated[tuple[_Card, ...], msgspec.Meta(max_length=MAX_CARDS)]
    kind: ContainerKind = ContainerKind.APP
    limit: _Mebibytes | None = None


class _Allocation(_Struct, frozen=True):
    version: _Version
    node: _Name
    containers: Annotated[tuple[_Container, ...], msgspec.Meta(max_length=MAX_CONTAINERS)]
    policy: Annotated[str, msgspec.Meta(max_length=MAX_POLICY)] = ""


class _Link(_Struct, frozen=True):
    peer: _Uuid
    lanes: _Count


class _Instance(_Struct, frozen=True):
    uuid: _Uuid
    profile: _Name
    memory: _Mebibytes


class _Gpu(_Struct, frozen=True):
    uuid: _Uuid
    index: _Count
    memory: _Mebibytes
    model: _Words = ""
    minor: _Count | None = None
    numa: _Count | None = None
    links: Annotated[tuple[_Link, ...], msgspec.Meta(max_length=MAX_CARDS)] = ()
    healthy: bool = True
    fault: _Words = ""
    mig: bool = False
    instances: Annotated[tuple[_Instance, ...], msgspec.Meta(max_length=MAX_CARDS)] = ()
    clients: _Count = DEFAULT_MPS_CLIENTS
    isolation: Isolation = Isolation.NONE
    compute_isolation: Isolation = msgspec.field(name="computeIsolation", default=Isolation.NONE)


class _Inventory(_Struct, frozen=True):
    version: _Version
    gpus: Annotated[tuple[_Gpu, ...], msgspec.Meta(max_length=MAX_CARDS)]


class _Held(_Struct, frozen=True):
    version: _Version
    as_of: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = msgspec.field(name="asOf", default=0)
    pods: dict[_Name, Annotated[tuple[_Card, ...], msgspec.Meta(max_length=MAX_CARDS)]] = {}
    claims: dict[_Name, Annotated[tuple[_Card, ...], msgspec.Meta(max_length=MAX_CARDS)]] = {}


_ALLOCATION: Final = msgspec.json.Decoder(_Allocation)
_HELD: Final = msgspec.json.Decoder(_Held)
_INVENTORY: Final = msgspec.json.Decoder(_Inventory)


def encode_allocation(allocation: Allocation) -> str:
    """The value of `shoal.dev/allocation`. What could not be read back is not written."""
    document = _Allocation(
        version=VERSION,
        node=allocation.node,
        policy=allocation.policy,
        containers=tuple(
            _Container(
                name=container.name,
                kind=container.kind,
                limit=container.memory_limit_mib,
                cards=tuple(_card(card) for card in container.cards),
            )
            for container in allocation.containers
        ),
    )
    written = text.to_json(document, what=ANNOTATION_ALLOCATION, limit=MAX_LENGTH)
    decode_allocation(written)
    return written


def _card(card: CardShare) -> _Card:
    share = card.share
    return _Card(card.uuid, card.index, share.memory_mib, share.compute, share.clients, share.exclusive)


def decode_allocation(value: str) -> Allocation:
    """The decision `shoal.dev/allocation` holds."""
    document = text.from_json(value, _ALLOCATION, what=ANNOTATION_ALLOCATION, limit=MAX_LENGTH)
    _once((c.name for c in document.containers), what="container", where=ANNOTATION_ALLOCATION)
    for container in document.containers:
        if len(container.cards) > 1:
            where = f"container {shown(container.name)} of {ANNOTATION_ALLOCATION}"
            _once((card.uuid for card in container.cards), what="card", where=where)
    return Allocation(
        node=document.node,
        policy=document.policy,
        containers=tuple(
            ContainerAllocation(
                name=container.name,
                kind=container.kind,
                memory_limit_mib=container.limit,
                cards=tuple(map(_card_share, container.cards)),
            )
            for container in document.containers
        ),
    )


def _card_share(card: _Card) -> CardShare:
    return CardShare(card.uuid, card.index, Share(card.memory, card.compute, card.clients, card.exclusive))


def encode_held(held: Held) -> str:
    """The value of `shoal.dev/held`."""
    pods, claims = (
        {uid: tuple(map(_card, cards)) for uid, cards in holders.items()} for holders in (held.pods, held.claims)
    )
    document = _Held(version=VERSION, as_of=held.as_of, pods=pods, claims=claims)
    return text.to_json(document, what=ANNOTATION_HELD, limit=MAX_LENGTH)


def decode_held(value: str) -> Held:
    """What `shoal.dev/held` tells."""
    document = text.from_json(value, _HELD, what=ANNOTATION_HELD, limit=MAX_LENGTH)
    pods, claims = (
        {uid: tuple(map(_card_share, cards)) for uid, cards in holders.items()}
        for holders in (document.pods, document.claims)
    )
    return Held(pods, document.as_of, claims)


def encode_gpus(gpus: Iterable[Gpu]) -> str:
    """The value of `shoal.dev/gpus`. What could not be read back is not written."""
    document = _Inventory(
        version=VERSION,
        gpus=tuple(
            _Gpu(
                uuid=gpu.uuid,
                index=gpu.index,
                memory=gpu.memory_mib,
                model=gpu.model,
                minor=gpu.minor,
                numa=gpu.numa,
                links=tuple(_Link(link.peer, link.lanes) for link in gpu.links),
                healthy=gpu.healthy,
                fault=gpu.fault,
                mig=gpu.mig,
                instances=tuple(_Instance(mig.uuid, mig.profile, mig.memory_mib) for mig in gpu.mig_instances),
                clients=gpu.mps_clients,
                isolation=gpu.isolation,
                compute_isolation=gpu.compute_isolation,
            )
            for gpu in gpus
        ),
    )
    written = text.to_json(document, what=ANNOTATION_GPUS, limit=MAX_LENGTH)
    decode_gpus(written)
    return written


def decode_gpus(value: str) -> tuple[Gpu, ...]:
    """The cards `shoal.dev/gpus` lists."""
    document = text.from_json(value, _INVENTORY, what=ANNOTATION_GPUS, limit=MAX_LENGTH)
    _once((gpu.uuid for gpu in document.gpus), what="card", where=ANNOTATION_GPUS)
    _once((str(gpu.index) for gpu in document.gpus), what="index", where=ANNOTATION_GPUS)
    return tuple(
        Gpu(
            uuid=gpu.uuid,
            index=gpu.index,
            memory_mib=gpu.memory,
            model=gpu.model,
            minor=gpu.minor,
            numa=gpu.numa,
            links=tuple(Link(link.peer, link.lanes) for link in gpu.links),
            healthy=gpu.healthy,
            fault=gpu.fault,
            mig=gpu.mig,
            mig_instances=tuple(MigInstance(mig.uuid, mig.profile, mig.memory) for mig in gpu.instances),
            mps_clients=gpu.clients,
            isolation=gpu.isolation,
            compute_isolation=gpu.compute_isolation,
        )
        for gpu in document.gpus
    )


def made_up_uuid(node: str, index: int) -> str:
    """The name of a card whose UUID nobody published: stable, and no UUID of NVIDIA's begins like it."""
    return f"{_MADE_UP_PREFIX}{node}-{index}"


def is_made_up(uuid: str) -> bool:
    """Whether a card goes by a name Shoal gave it, which no container runtime knows."""
    return uuid.startswith(_MADE_UP_PREFIX)


def decode_selector(annotations: Mapping[str, object]) -> CardSelector:
    """Which cards a pod's annotations accept. Whether the wishes can be met together is not checked here."""

    def listed(key: str) -> frozenset[str]:
        return frozenset(text.items(text.value_of(annotations, key) or "", what=f"annotation {key}"))

    return CardSelector(
        models=listed(ANNOTATION_USE_MODEL),
        not_models=listed(ANNOTATION_AVOID_MODEL),
        uuids=listed(ANNOTATION_USE_UUID),
        not_uuids=listed(ANNOTATION_AVOID_UUID),
    )


def decode_policy(values: Mapping[str, object]) -> str | None:
    """The policy an annotation or a label asks for; which names exist is for `shoal.placement` to say."""
    name = (text.value_of(values, ANNOTATION_POLICY) or "").strip()
    if name and not _POLICY.fullmatch(name):
        raise CodecError(f"{ANNOTATION_POLICY} holds {shown(name)}: write the name of a policy, such as binpack")
    return name or None


def _once(names: Iterable[str], *, what: str, where: str) -> None:
    listed = list(names)
    if len(set(listed)) == len(listed):
        return
    twice = next(name for place, name in enumerate(listed) if name in listed[:place])
    raise CodecError(f"{where} lists {what} {shown(twice)} twice: write it again from the present decision")
