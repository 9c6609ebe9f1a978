"""Names of the cluster manager, and its documents: where a pod was sent, whose copy a pod is, an offer, a room.

All documents are JSON. Those in annotations are written by the manager alone (admission policies see to that), a room
by the scheduler of its cluster. Reading is strict and bounded: what cannot be read is a `CodecError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from shoal.model.contract import keti, text
from shoal.model.errors import CodecError, shown

# At home

#: On a namespace: pods that ask for a GPU are held for the cluster manager.
LABEL_DISPATCH: Final = "shoal.dev/dispatch"
ENABLED: Final = "enabled"
#: On such a namespace: ConfigMaps and Secrets that its pods name may be copied to where they are sent.
LABEL_COPIES_REFERENCES: Final = "shoal.dev/copies-references"
#: The scheduling gate and the finalizer of a pod that is held at home.
GATE_HOME: Final = "shoal.dev/cluster"
FINALIZER_HOME: Final = "shoal.dev/cluster"
#: On such a pod: where it was sent.
ANNOTATION_DISPATCH: Final = "shoal.dev/dispatch"
#: On such a pod, a condition: where it is, or why it waits.
CONDITION_DISPATCHED: Final = "shoal.dev/Dispatched"

# In the cluster it was sent to

#: On a namespace: copies of other clusters' pods may run here.
LABEL_ACCEPTS: Final = "shoal.dev/accepts-copies"
#: On such a namespace: the ConfigMaps and Secrets that copies name may be copied here with them.
LABEL_ACCEPTS_REFERENCES: Final = "shoal.dev/accepts-references"
#: On such a namespace: what dispatched pods may use there, as PLURAL/NAME separated by commas, such as
#: `secrets/registry,serviceaccounts/trainer`.
ANNOTATION_MAY_USE: Final = "shoal.dev/dispatched-pods-may-use"
#: The ServiceAccount of dispatched pods where `shoal clusters join` names no other.
DEFAULT_POD_ACCOUNT: Final = "default"
#: How the names of copied ConfigMaps and Secrets begin; the identity of the cluster they came from follows.
NAME_COPIED_PREFIX: Final = "shoal-copied."
#: The gate of a copy until home was read again, and its finalizer from then on.
GATE_COPY: Final = "shoal.dev/dispatch"
FINALIZER_COPY: Final = "shoal.dev/copy"
#: On a copy, as label: the identity of the cluster it came from. As annotation: whose copy it is. Copies of ConfigMaps
#: and Secrets have the label.
LABEL_ORIGIN: Final = "shoal.dev/origin-cluster"
ANNOTATION_ORIGIN: Final = "shoal.dev/origin"
#: The Lease that a manager renews in each namespace with copies of mode Replace; its copies go when it is not renewed.
NAME_FENCE_PREFIX: Final = "shoal-copies-"
#: Shares of the time after which they go: between two renewals, between two looks of the scheduler there, and the
#: longest grace period of what it removes.
FENCE_RENEWALS: Final = 12
#: Seconds between two looks where no copy asks for more.
FENCE_LOOK_SECONDS: Final = 10.0
FENCE_LOOKS: Final = 24
FENCE_GRACES: Final = 8

# Written by users, on pods or their templates, beside KETI's `clusterName`

#: Names, separated by commas.
ANNOTATION_CLUSTERS: Final = "shoal.dev/clusters"
ANNOTATION_AVOID_CLUSTERS: Final = "shoal.dev/avoid-clusters"
#: "true": pods of one owner or gang may go to different clusters.
ANNOTATION_SPREAD: Final = "shoal.dev/cluster-spread"
#: `wait` or `replace`: what becomes of a pod whose cluster does not answer.
ANNOTATION_LOST: Final = "shoal.dev/lost-cluster"


class LostMode(StrEnum):
    """What becomes of a pod whose cluster does not answer: `ANNOTATION_LOST`."""

    #: Nothing, until it answers or somebody says that it is dead.
    WAIT = "wait"
    #: Its copy is removed there, and the pod fails here, so that its owner makes another.
    REPLACE = "replace"


# The manager

NAME_MANAGER: Final = "shoal-cluster-manager"
#: On the Lease by which a manager leads: which clusters are silent, and since when.
ANNOTATION_SILENT: Final = "shoal.dev/clusters"
#: The ConfigMap in the manager's namespace in which the leader tells how the clusters are, and its one key: for those
#: who show them, and have no business with the kubeconfigs beside it.
NAME_CLUSTERS: Final = "shoal-clusters"
KEY_CLUSTERS: Final = "clusters"
#: The leader writes at least this often, in seconds; what is three times as old is not believed to be so any more.
TOLD_SECONDS: Final = 60.0
#: The namespace that deploy/cluster-manager gives it: it reads the Secrets there, so nothing else is in it.
NAMESPACE_MANAGER: Final = "shoal-clusters"
#: On a Secret with a kubeconfig: the name of the cluster.
LABEL_CLUSTER: Final = "shoal.dev/cluster"
#: On such a Secret: weights of the choice.
ANNOTATION_COST: Final = "shoal.dev/cost"
ANNOTATION_PREFERENCE: Final = "shoal.dev/preference"
#: On such a Secret: a direct way to its scheduler's verb `offer`, https://HOST:PORT.
ANNOTATION_OFFER_URL: Final = "shoal.dev/offer-url"
#: On such a Secret: the identity of the cluster that was joined, and where Shoal's scheduler is there.
ANNOTATION_CLUSTER_UID: Final = "shoal.dev/cluster-uid"
ANNOTATION_SCHEDULER_NAMESPACE: Final = "shoal.dev/scheduler-namespace"
#: On such a Secret: the ServiceAccount as which dispatched pods run there.
ANNOTATION_POD_ACCOUNT: Final = "shoal.dev/pod-account"
#: The keys of such a Secret: how its API server is reached, and with what certificates that direct way is signed.
KEY_KUBECONFIG: Final = "kubeconfig"
KEY_OFFER_AUTHORITY: Final = "offer-ca.crt"
#: In a member: where the accounts of managers are, and the prefix of their names (the home's identity follows).
NAMESPACE_MEMBERS: Final = "shoal-members"
NAME_ACCOUNT_PREFIX: Final = "shoal-manager-"

# The scheduler's side

#: The ConfigMap in the scheduler's namespace that tells what room there is, and its one key.
NAME_ROOM: Final = "shoal-room"
KEY_ROOM: Final = "room"
#: Another key of it: the moment in which the scheduler last looked at copies made under a fence. Managers repeat it in
#: their Leases.
KEY_FENCE: Final = "fence"
#: The Service, port and path of the verb `offer`, and the header in which a caller's token travels.
NAME_OFFER_SERVICE: Final = "shoal-offer"
OFFER_PORT: Final = 8788
PATH_OFFER: Final = "/shoal/v1/offer"
HEADER_TOKEN: Final = "X-Shoal-Token"
#: What a caller's account must be allowed in the scheduler's namespace, by a SubjectAccessReview: `create` of these.
OFFER_GROUP: Final = "shoal.dev"
OFFER_RESOURCE: Final = "offers"

#: Who may `write` this resource, cluster-wide, may make and open copies beside the managers: administrators.
COPIES_RESOURCE: Final = "copies"

#: ClusterRoles that a namespace binds to have what its pods name checked and copied: their names end like this.
ROLE_REFERENCES_SUFFIX: Final = "-references"
#: Types of Secrets that stand for somebody in their own cluster, and a ConfigMap that every namespace has of its own.
UNCOPIED_SECRET_TYPES: Final = ("kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token")
UNCOPIED_CONFIG_MAP: Final = "kube-root-ca.crt"

VERSION: Final = 1
MAX_LENGTH: Final = 64 * 1024
MAX_CLUSTERS: Final = 100
#: Of all clusters together, with the bounds below.
MAX_TOLD: Final = 512 * 1024
MAX_TOLD_MODELS: Final = 16
MAX_TOLD_WORDS: Final = 600

Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9A-Z]([a-z0-9A-Z._-]{0,251}[a-z0-9A-Z])?\Z")]
_Uid = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{1,64}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Words = Annotated[str, msgspec.Meta(max_length=MAX_TOLD_WORDS)]
#: Seconds without renewal after which a copy goes; 0: it stays.
Fence = Annotated[int, msgspec.Meta(ge=0, le=86400)]
#: A moment in UTC, as Leases have it.
Moment = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}Z\Z")]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


T = TypeVar("T", bound=_Struct)


class Sent(_Struct, frozen=True):
    """`ANNOTATION_DISPATCH`. No cluster: taken back, and nowhere yet."""

    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    cluster: Name = ""
    #: Its identity, by which it is known whatever its name becomes.
    uid: _Uid = ""
    leaving: bool = False
    #: The copy is made under a fence; given up, since that cluster is lost.
    fence: Fence = 0
    lost: bool = False


def sent_to(annotations: Mapping[str, str]) -> str:
    """The cluster that a pod at home was sent to; empty if it was sent nowhere."""
    written = annotations.get(ANNOTATION_DISPATCH)
    if written is None:
        return ""
    try:
        return decode(Sent, written, what=ANNOTATION_DISPATCH).cluster
    except CodecError:
        return ""  # written by nobody's manager


class CopyOrigin(_Struct, frozen=True):
    """`ANNOTATION_ORIGIN`: the home's identity, its pod's UID, for the which time it was sent, and its fence."""

    cluster: _Uid
    uid: _Uid
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    fence: Fence = 0


class ClusterSilence(_Struct, frozen=True):
    """What a manager last knew of a cluster: since when it does not answer, and whether its scheduler kept fences."""

    name: Name
    since: Moment = ""
    fenced: bool = False


class SilenceRecord(_Struct, frozen=True):
    """`ANNOTATION_SILENT`: clusters by their identity."""

    clusters: Annotated[dict[_Uid, ClusterSilence], msgspec.Meta(max_length=2 * MAX_CLUSTERS)]


class OfferRequest(_Struct, frozen=True):
    """What is asked of a scheduler: whether it has room for so many pods like this one."""

    pod: dict[str, Any]
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    #: UID of the pod at home for which cards are held; none are held without it.
    origin: _Uid = ""
    #: Seconds for which they are held.
    hold: Annotated[int, msgspec.Meta(ge=0, le=60)] = 0


class Offer(_Struct, frozen=True):
    """The answer. The score is of 0 to 1 and comparable between clusters; `wait` in seconds where nothing fits now."""

    fits: _Count
    score: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    #: Pods ahead of it in the queue.
    queue: _Count = 0
    wait: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] | None = None
    #: How busy its cards are, 0 to 1; None where nobody measures.
    load: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    held: bool = False
    why: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class RoomOfModel(_Struct, frozen=True):
    """The cards of one model: how many, how many are wholly free, and the largest free piece."""

    model: Annotated[str, msgspec.Meta(max_length=300)]
    cards: _Count
    free: _Count
    largest_mib: _Count
    free_mib: _Count


class ClusterRoom(_Struct, frozen=True):
    """`shoal-room`: for a first sieve and for wake-ups; it decides nothing."""

    version: Literal[1]
    #: Rises with each change of what is free.
    serial: _Count
    nodes: _Count
    queue: _Count
    models: Annotated[list[RoomOfModel], msgspec.Meta(max_length=1000)]
    #: Offers that are held now.
    holds: _Count = 0


class ToldModel(_Struct, frozen=True):
    """`RoomOfModel`, as far as it is shown."""

    model: Annotated[str, msgspec.Meta(max_length=64)]
    cards: _Count
    free: _Count
    largest_mib: _Count


class ToldCluster(_Struct, frozen=True):
    """A joined cluster as the manager knows it; without any room, `problem` says why."""

    name: Name
    state: Annotated[str, msgspec.Meta(max_length=16)]
    uid: _Uid = ""
    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    own: bool = False
    problem: _Words = ""
    #: Since when it does not answer.
    since: Moment = ""
    nodes: _Count | None = None
    cards: _Count | None = None
    free: _Count | None = None
    queue: _Count | None = None
    models: Annotated[list[ToldModel], msgspec.Meta(max_length=MAX_TOLD_MODELS)] = []


class ToldClusters(_Struct, frozen=True):
    """`shoal-clusters`: how the clusters are at a moment, and what is wrong with entries that are no cluster."""

    version: Literal[1]
    time: Moment
    clusters: Annotated[list[ToldCluster], msgspec.Meta(max_length=MAX_CLUSTERS)]
    problems: Annotated[
        dict[Annotated[str, msgspec.Meta(max_length=300)], _Words], msgspec.Meta(max_length=MAX_CLUSTERS)
    ] = {}


def account_name(home: str) -> str:
    """The name of a manager's account in a member, and of all that is made for it there; by its home's identity."""
    return f"{NAME_ACCOUNT_PREFIX}{home.lower()}"


def account_user(home: str) -> str:
    """That account as API servers name it."""
    return f"system:serviceaccount:{NAMESPACE_MEMBERS}:{account_name(home)}"


def fence_name(home: str) -> str:
    """The name of a manager's Lease in namespaces with its copies."""
    return f"{NAME_FENCE_PREFIX}{home.lower()}"


def encode(document: _Struct, *, what: str, limit: int = MAX_LENGTH) -> str:
    """A document as it is written; CodecError if it is too long."""
    return text.to_json(document, what=what, limit=limit)


def decode(kind: type[T], written: str, *, what: str, limit: int = MAX_LENGTH) -> T:
    """A document as it was written; CodecError if it is none."""
    return text.from_json(written, msgspec.json.Decoder(kind), what=what, limit=limit)


@dataclass(frozen=True, slots=True)
class ClusterSelector:
    """Which clusters a pod's annotations name. `pinned`: only this one (KETI's `clusterName`)."""

    pinned: str = ""
    only: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    spread: bool = False
    #: None: as is usual for its owner.
    lost: LostMode | None = None


def selector_of(annotations: Mapping[str, str]) -> ClusterSelector:
    """What a pod's annotations ask for; CodecError if one cannot be read."""
    return ClusterSelector(
        annotations.get(keti.ANNOTATION_CLUSTER, "").strip(),
        frozenset(text.items(annotations.get(ANNOTATION_CLUSTERS, ""), what=ANNOTATION_CLUSTERS)),
        frozenset(text.items(annotations.get(ANNOTATION_AVOID_CLUSTERS, ""), what=ANNOTATION_AVOID_CLUSTERS)),
        text.boolean(annotations.get(ANNOTATION_SPREAD, "false"), what=ANNOTATION_SPREAD),
        lost_mode(annotations),
    )


def lost_mode(annotations: Mapping[str, str]) -> LostMode | None:
    """What a pod's annotations say of a lost cluster; None if nothing. CodecError for another word."""
    written = annotations.get(ANNOTATION_LOST)
    if written is None:
        return None
    try:
        return LostMode(written.strip().lower())
    except ValueError:
        raise CodecError(f"{ANNOTATION_LOST} holds {shown(written)}: write wait or replace") from None


def fence_grace(fence: float) -> int:
    """The longest grace period, in seconds, of what is removed by a fence of so many."""
    return max(1, int(fence / FENCE_GRACES))
