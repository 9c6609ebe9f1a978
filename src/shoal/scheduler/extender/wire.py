"""What kube-scheduler sends to an extender and reads back, as its Go types write it.

Go reads the keys of its own types in any case, so the keys of these documents are accepted in any case here too. Inside
a Kubernetes object they are read as the API spells them, which is how every kube-scheduler writes them. Whole nodes
(`nodeCacheCapable: false`) are sent back byte by byte as they came; only their names are read. Of the pod only its
name and UID are read: what it asks for is what the API server shows, never what a caller writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from shoal.kube.objects.meta import Object, ObjectMeta
from shoal.model.contract import gpushare
from shoal.scheduler.errors import WireError

#: The scores kube-scheduler takes from an extender.
MIN_SCORE: Final = 0
MAX_SCORE: Final = 10
#: The longest name, namespace or UID that anything has.
MAX_NAME: Final = 253

S = TypeVar("S", bound=msgspec.Struct)

_DECODING: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NULL: Final = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | UnsetType | None = UNSET


class _Args(msgspec.Struct):
    pod: Object | UnsetType | None = msgspec.field(name="Pod", default=UNSET)
    nodes: msgspec.Raw | UnsetType = msgspec.field(name="Nodes", default=UNSET)
    node_names: list[str] | UnsetType | None = msgspec.field(name="NodeNames", default=UNSET)


class _BindingArgs(msgspec.Struct):
    pod_name: str | UnsetType | None = msgspec.field(name="PodName", default=UNSET)
    pod_namespace: str | UnsetType | None = msgspec.field(name="PodNamespace", default=UNSET)
    pod_uid: str | UnsetType | None = msgspec.field(name="PodUID", default=UNSET)
    node: str | UnsetType | None = msgspec.field(name="Node", default=UNSET)


_Named = dict[str, msgspec.Raw]


class _PreemptionArgs(msgspec.Struct):
    pod: Object | UnsetType | None = msgspec.field(name="Pod", default=UNSET)
    victims: _Named | UnsetType | None = msgspec.field(name="NodeNameToVictims", default=UNSET)
    meta_victims: _Named | UnsetType | None = msgspec.field(name="NodeNameToMetaVictims", default=UNSET)


class _Victims(msgspec.Struct):
    pods: list[msgspec.Raw] | UnsetType | None = msgspec.field(name="Pods", default=UNSET)
    violations: int | UnsetType | None = msgspec.field(name="NumPDBViolations", default=UNSET)


class _MetaPod(msgspec.Struct):
    uid: str | UnsetType | None = msgspec.field(name="UID", default=UNSET)


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A pod and the nodes it may go to. `nodes` are whole nodes beside `names`, when kube-scheduler sent these."""

    pod: ObjectMeta
    names: Sequence[str]
    nodes: Sequence[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """A pod and the node kube-scheduler has chosen for it."""

    name: str
    namespace: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of a node that would have to go, by UID, and how many disruption budgets that breaks."""

    uids: tuple[str, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A pod, and per node the pods that kube-scheduler would remove for it."""

    pod: ObjectMeta
    victims: Mapping[str, Victims]


@dataclass(frozen=True, slots=True)
class Filtered:
    """Which nodes passed, in the order of the request, and why the others did not."""

    passed: Sequence[bool] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    #: Nodes on which no preemption could help.
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class _FilterResult(msgspec.Struct):
    nodes: Mapping[str, object] | None = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    failed: Mapping[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    unresolvable: Mapping[str, str] = msgspec.field(name="FailedAndUnresolvableNodes", default_factory=dict)
    error: str = msgspec.field(name="Error", default="")


class _HostPriority(msgspec.Struct, gc=False):
    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


def read_args(body: bytes) -> ExtenderArgs:
    """The request of filter and prioritize."""
    args = _read(_Args, body)
    pod = _pod(args.pod)
    if isinstance(args.node_names, list):
        return ExtenderArgs(pod, args.node_names)
    if args.nodes is UNSET or _is_null(args.nodes):
        raise WireError(gpushare.ERROR_NO_NODES)
    nodes = _read(_NodeList, _readable(bytes(args.nodes)))
    items = nodes.items if isinstance(nodes.items, list) else []
    return ExtenderArgs(pod, [_name(item) for item in items], items)


def read_binding(body: bytes) -> BindingArgs:
    """The request of bind. Values that cannot be names are refused."""
    args = _read(_BindingArgs, body)
    given = {
        "PodName": _text(args.pod_name),
        "PodNamespace": _text(args.pod_namespace),
        "PodUID": _text(args.pod_uid),
        "Node": _text(args.node),
    }
    for key, value in given.items():
        if not 0 < len(value) <= MAX_NAME:
            raise WireError(f"{key} has {len(value)} characters: give 1 to {MAX_NAME}")
    name, namespace, uid, node = given.values()
    return BindingArgs(name=name, namespace=namespace, uid=uid, node=node)


def read_preemption(body: bytes) -> PreemptionArgs:
    """The request of preempt, in either of its forms."""
    args = _read(_PreemptionArgs, body)
    pod = _pod(args.pod)
    if isinstance(args.meta_victims, dict):
        return PreemptionArgs(pod, {node: _victims(raw, _meta_uid) for node, raw in args.meta_victims.items()})
    if isinstance(args.victims, dict):
        return PreemptionArgs(pod, {node: _victims(raw, _pod_uid) for node, raw in args.victims.items()})
    raise WireError(gpushare.ERROR_NO_NODES)


def filter_answer(filtered: Filtered, args: ExtenderArgs | None = None) -> bytes:
    """The answer of filter, nodes in the form in which they came."""
    result = _FilterResult(failed=filtered.failed, unresolvable=filtered.unresolvable, error=filtered.error)
    if args is not None and not filtered.error:
        if args.nodes is None:
            result.node_names = list(compress(args.names, filtered.passed))
        else:
            result.nodes = {"metadata": {}, "items": list(compress(args.nodes, filtered.passed))}
    return _encode(result)


def prioritize_answer(names: Iterable[str], scores: Iterable[int]) -> bytes:
    """The answer of prioritize."""
    return _encode(list(map(_HostPriority, names, scores)))


def bind_answer(error: str = "") -> bytes:
    """The answer of bind; an error in words reaches the pod's event only with status 200."""
    return _encode({"Error": error})


def preempt_answer(victims: Mapping[str, Victims]) -> bytes:
    """The answer of preempt: always by UID."""
    return _encode(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in chosen.uids], "NumPDBViolations": chosen.violations}
                for node, chosen in victims.items()
            }
        }
    )


def _read(kind: type[S], content: bytes) -> S:
    """A document that Go wrote. When a key is missing, its other spellings are looked for."""
    try:
        read: S = _decoder(kind).decode(content)
        if any(getattr(read, name) is UNSET for name in kind.__struct_fields__):
            read = _decoder(kind).decode(_respelled(kind, content))
    except _DECODING as error:
        # msgspec names the place and the types, never the value; a decode error of bytes would show some.
        why = str(error) if isinstance(error, msgspec.MsgspecError) else type(error).__name__
        raise WireError(f"the request cannot be read: {why}") from error
    return read


def _readable(content: bytes) -> bytes:
    """The content, checked to be UTF-8: it is sent back as it came, and the decoder checks only what it reads."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise WireError("the request cannot be read: its nodes are not UTF-8") from error
    return content


def _respelled(kind: type[S], content: bytes) -> bytes:
    spelled = {name.lower(): name for name in kind.__struct_encode_fields__}
    given = _document.decode(content)
    found = {name: value for key, value in given.items() if (name := spelled.get(key.lower())) is not None}
    return _encode(dict.fromkeys(spelled.values(), _NULL) | found)


_document: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def _decoder(kind: type[S]) -> msgspec.json.Decoder[S]:
    made: Any = kind
    return msgspec.json.Decoder(made)


def _pod(pod: Object | UnsetType | None) -> ObjectMeta:
    if not isinstance(pod, Object):
        raise WireError(gpushare.ERROR_NO_POD)
    return pod.metadata


def _name(node: msgspec.Raw) -> str:
    return _read_object(node).metadata.name


def _read_object(content: msgspec.Raw) -> Object:
    try:
        return _object.decode(content)
    except _DECODING as error:
        raise WireError(f"an object of the request cannot be read: {type(error).__name__}") from error


_object: Final = msgspec.json.Decoder(Object)


def _victims(content: msgspec.Raw, uid_of: Callable[[msgspec.Raw], str]) -> Victims:
    if _is_null(content):
        return Victims(())
    read = _read(_Victims, bytes(content))
    pods = read.pods if isinstance(read.pods, list) else []
    violations = read.violations if isinstance(read.violations, int) else 0
    return Victims(tuple(uid_of(pod) for pod in pods if not _is_null(pod)), violations)


def _meta_uid(pod: msgspec.Raw) -> str:
    return _text(_read(_MetaPod, bytes(pod)).uid)


def _pod_uid(pod: msgspec.Raw) -> str:
    return _read_object(pod).metadata.uid


def _is_null(content: msgspec.Raw) -> bool:
    return bytes(content) == b"null"


def _text(value: str | UnsetType | None) -> str:
    return value if isinstance(value, str) else ""
