"""Calls to the API server, typed by kind of object.

Every call is one request (a list: one per page), with the transport's few retries. There is no cache here; for objects
that are read over and over use `shoal.kube.reflector`. A slim object cannot be written back whole, since it has lost
the fields nobody reads: `replace` refuses it, `patch` and `apply` change just what they name.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from shoal.kube.access.credentials import Access
from shoal.kube.codec import Batch, WatchEvent, codec_of
from shoal.kube.errors import AnswerError, GoneError, KubeError
from shoal.kube.objects.meta import Base, ListOf
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import PODS, RawObject, Resource, manifest_of, meta_of
from shoal.kube.transport import MAX_BYTES, Call, Transport, TransportLimits
from shoal.kube.watch import batches

T = TypeVar("T")

FIELD_MANAGER: Final = "shoal"
PAGE_SIZE: Final = 500
_LIST_SECONDS: Final = 60.0
_LOG_BYTES: Final = 16 << 20
_PATCH_TYPES: Final = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
PatchType = Literal["merge", "strategic", "json"]
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A whole list, and the version from which to watch on."""

    items: list[T]
    resource_version: str


class Version(Base, frozen=True, kw_only=True):
    """What the API server says it is."""

    major: str = ""
    minor: str = ""
    git_version: str = ""
    platform: str = ""


class Token(msgspec.Struct, frozen=True, rename="camel"):
    """A token of a service account and the moment it ends."""

    token: str
    expiration_timestamp: str

    def __repr__(self) -> str:
        return f"Token(expiration_timestamp={self.expiration_timestamp!r})"


class _TokenRequest(msgspec.Struct, frozen=True):
    status: Token


class Client:
    """One API server, seen by one user. Use it in `async with`."""

    def __init__(self, access: Access, *, limits: TransportLimits | None = None) -> None:
        self._transport = Transport(access, limits=limits)

    async def __aenter__(self) -> Client:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    @property
    def access(self) -> Access:
        """How the server is reached, and as whom."""
        return self._transport.access

    @property
    def namespace(self) -> str:
        """The namespace that the kubeconfig or the pod names; no call uses it by itself."""
        return self._transport.access.namespace

    async def request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        max_bytes: int = MAX_BYTES,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        seconds: float | None = None,
    ) -> bytes:
        """Any request; the answer as it came. AnswerError when it is longer than `max_bytes`.

        `repeatable`: doing it twice is as good as once, as it always is with GET.
        """
        content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        call = Call(
            verb,
            path,
            query or {},
            content,
            content_type,
            accept,
            repeatable=repeatable or verb == "GET",
            seconds=seconds,
            max_bytes=max_bytes,
            headers=headers or {},
        )
        return await self._transport.request(call)

    async def version(self) -> Version:
        """The version of the server."""
        call = Call("GET", "/version", repeatable=True)
        return codec_of(Version).one(await self._transport.request(call), asked=call.asked)

    async def server_time(self) -> datetime.datetime:
        """The server's clock in this moment, its second begun: no later than the truth, by a second at most."""
        call = Call("GET", "/version")
        said = await self._transport.date(call)
        try:
            return email.utils.parsedate_to_datetime(said).astimezone(datetime.UTC)
        except ValueError as error:
            raise AnswerError(
                f"{call.asked}: the answer has no date ({said[:80]!r}): is a proxy in between?"
            ) from error

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "", subresource: str = "") -> T:
        """One object; NotFoundError if it is not there."""
        path = _path(resource, namespace, name, subresource)
        return await self._object(resource, Call("GET", path, repeatable=True))

    async def page(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = PAGE_SIZE,
        continue_: str = "",
    ) -> ListOf[T]:
        """One page of a list; an empty namespace means all of them, limit 0 everything at once."""
        query = _selectors(labels, fields)
        if limit:
            query["limit"] = str(limit)
        if continue_:
            query["continue"] = continue_
        call = Call("GET", resource.path(namespace=namespace), query, repeatable=True, seconds=_LIST_SECONDS)
        return codec_of(resource.type).page(await self._transport.request(call), asked=call.asked)

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = PAGE_SIZE,
        slim: Callable[[T], T] | None = None,
    ) -> Listing[T]:
        """All objects as of one version, page by page; `slim` leaves out of each what need not be kept.

        When the version expires on the way, the list starts anew; when that happens twice, it is taken in one piece.
        """
        for size in (limit, limit, 0):
            with contextlib.suppress(GoneError):
                return await self._pages(
                    resource, namespace=namespace, labels=labels, fields=fields, limit=size, slim=slim
                )
        raise AnswerError(f"GET {resource.path(namespace=namespace)}: a list without pages expired: try again")

    async def create(self, resource: Resource[T], obj: T | RawObject, *, namespace: str = "") -> T:
        """Make an object; AlreadyExistsError if the name is taken."""
        path = _path(resource, namespace or meta_of(obj).namespace)
        return await self._object(resource, Call("POST", path, _MANAGED, _encoded(resource, obj)))

    async def replace(
        self,
        resource: Resource[T],
        obj: T | RawObject,
        *,
        namespace: str = "",
        subresource: str = "",
        retried: bool = True,
        seconds: float | None = None,
    ) -> T:
        """Write an object whole; ConflictError if it holds a version and that is not the present one."""
        if not resource.whole and not isinstance(obj, dict):
            raise KubeError(
                f"a slim {resource.kind} would lose fields when written back: use patch or apply, or read it with .raw"
            )
        meta = meta_of(obj)
        path = _path(resource, namespace or meta.namespace, meta.name, subresource)
        call = Call("PUT", path, _MANAGED, _encoded(resource, obj), repeatable=True, retried=retried, seconds=seconds)
        return await self._object(resource, call)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        kind: PatchType = "merge",
        subresource: str = "",
    ) -> T:
        """Change the fields that the patch names."""
        path = _path(resource, namespace, name, subresource)
        # A JSON patch may append; the other kinds say how things shall be, which may be said twice.
        repeatable = kind == "merge"
        body = msgspec.json.encode(patch)
        return await self._object(
            resource, Call("PATCH", path, _MANAGED, body, _PATCH_TYPES[kind], repeatable=repeatable)
        )

    async def apply(
        self,
        resource: Resource[T],
        obj: T | RawObject,
        *,
        namespace: str = "",
        field_manager: str = FIELD_MANAGER,
        force: bool = False,
        subresource: str = "",
    ) -> T:
        """Server-side apply: own the fields given; ConflictError if others own them and `force` is off."""
        meta = meta_of(obj)
        path = _path(resource, namespace or meta.namespace, meta.name, subresource)
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        body = _encoded(resource, obj)
        call = Call("PATCH", path, query, body, "application/apply-patch+yaml", repeatable=True)
        return await self._object(resource, call)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """Ask for an object's end; ConflictError if it is not the one with this uid or version."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_seconds,
            "propagationPolicy": propagation,
            "preconditions": {key: value for key, value in preconditions.items() if value} or None,
        }
        body = msgspec.json.encode({key: value for key, value in options.items() if value is not None})
        # Without the uid a second delete could hit another object of the same name.
        call = Call("DELETE", _path(resource, namespace, name), {}, body, repeatable=bool(uid))
        await self._transport.request(call)

    async def bind(
        self,
        pod: Pod,
        node: str,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Give a pod its node, with annotations and labels in the same write (labels from Kubernetes 1.35 on).

        ConflictError if it has a node already, or is another pod of that name. It is not repeated when the connection
        breaks: the pod's own state tells whether it was done.
        """
        meta = pod.metadata
        metadata: dict[str, Any] = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        if labels:
            metadata["labels"] = dict(labels)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = _path(PODS, meta.namespace, meta.name, "binding")
        await self._transport.request(Call("POST", path, _MANAGED, msgspec.json.encode(body)))

    async def evict(self, name: str, *, namespace: str, uid: str = "", grace_seconds: int | None = None) -> None:
        """Delete a pod if disruption budgets allow; TooManyRequestsError if not now."""
        options = {"gracePeriodSeconds": grace_seconds, "preconditions": {"uid": uid} if uid else None}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {key: value for key, value in options.items() if value is not None},
        }
        path = _path(PODS, namespace, name, "eviction")
        # Here 429 is an answer and not a plea for patience.
        await self._transport.request(Call("POST", path, {}, msgspec.json.encode(body), retried=False))

    async def log(
        self, name: str, *, namespace: str, container: str = "", tail_lines: int | None = None, previous: bool = False
    ) -> str:
        """The log of a container, as far as the node still has it, up to 16 MiB."""
        query = {"limitBytes": str(_LOG_BYTES)}
        if container:
            query["container"] = container
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        if previous:
            query["previous"] = "true"
        path = _path(PODS, namespace, name, "log")
        call = Call("GET", path, query, accept="*/*", repeatable=True, seconds=_LIST_SECONDS, max_bytes=2 * _LOG_BYTES)
        return (await self._transport.request(call)).decode("utf-8", "replace")

    async def token(
        self, service_account: str, *, namespace: str, audiences: Sequence[str] = (), seconds: int = 3600
    ) -> Token:
        """A short-lived token of a service account."""
        spec: dict[str, Any] = {"expirationSeconds": seconds}
        if audiences:
            spec["audiences"] = list(audiences)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        accounts = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict)
        call = Call("POST", _path(accounts, namespace, service_account, "token"), {}, msgspec.json.encode(body))
        return codec_of(_TokenRequest).one(await self._transport.request(call), asked=call.asked).status

    async def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        seconds: int = 300,
        silence: float = 120.0,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Events after a version, bookmarks included, until the server ends the stream after about `seconds`."""
        stream = self.watch_batches(
            resource,
            resource_version=resource_version,
            namespace=namespace,
            labels=labels,
            fields=fields,
            seconds=seconds,
            silence=silence,
        )
        async with contextlib.aclosing(stream):
            async for batch in stream:
                for event in batch:
                    yield event

    async def watch_batches(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        seconds: int = 300,
        silence: float = 120.0,
        accepted: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Batch[T], None]:
        """`watch`, with the events that arrived together in one list. `accepted` is called when the server takes it."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
            **_selectors(labels, fields),
        }
        call = Call("GET", resource.path(namespace=namespace), query)
        async with self._transport.stream(call, silence=silence) as pieces:
            accepted()
            events = batches(pieces, codec_of(resource.type), asked=f"WATCH {call.path}")
            async with contextlib.aclosing(events):
                async for batch in events:
                    yield batch

    async def _pages(
        self,
        resource: Resource[T],
        *,
        namespace: str,
        labels: str,
        fields: str,
        limit: int,
        slim: Callable[[T], T] | None,
    ) -> Listing[T]:
        items: list[T] = []
        continue_ = ""
        while True:
            page = await self.page(
                resource, namespace=namespace, labels=labels, fields=fields, limit=limit, continue_=continue_
            )
            items += page.items or () if slim is None else map(slim, page.items or ())
            continue_ = page.metadata.continue_
            if not continue_:
                return Listing(items, page.metadata.resource_version)

    async def _object(self, resource: Resource[T], call: Call) -> T:
        return codec_of(resource.type).one(await self._transport.request(call), asked=call.asked)


_MANAGED: Final = {"fieldManager": FIELD_MANAGER}


def _path(resource: Resource[Any], namespace: str, name: str = "", subresource: str = "") -> str:
    """The path of a collection in a namespace or of an object, where namespaced kinds need their namespace."""
    if resource.namespaced and not namespace:
        raise KubeError(f"a {resource.kind} lives in a namespace and none is named: give namespace=")
    return resource.path(namespace=namespace, name=name, subresource=subresource)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {name: selector for name, selector in selectors.items() if selector}


def _encoded(resource: Resource[Any], obj: object) -> bytes:
    return msgspec.json.encode({**manifest_of(obj), "apiVersion": resource.api_version, "kind": resource.kind})
