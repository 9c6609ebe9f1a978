"""What dispatched pods name: whether it is where they shall go, and copies of ConfigMaps and Secrets for those who ask.

Both namespaces have to ask by a label, and each cluster has to give the right: home to read, the member to make.
Secrets are looked for without being read, by making them without effect; the manager reads no ConfigMap or Secret of a
member but its own copies. A copy is owned by the pods that name it, so that the member's garbage collector removes it
with the last of them; nothing is deleted here. A copy has a name of its own (`opened.copied_name`), so that it
takes no other object's place; what a namespace opens to dispatched pods is used there as it is.

What a pod names is always read from the pod at home, never from its copy, which others can write.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec

from shoal.clusters import execute
from shoal.clusters.copies import DispatchedPod, Reference, references, whole
from shoal.clusters.member import Member
from shoal.clusters.opened import NamespaceTerms, copied_name, entry, may_use
from shoal.kube.client import Client
from shoal.kube.codec import codec_of
from shoal.kube.errors import (
    AlreadyExistsError,
    AnswerError,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
)
from shoal.kube.objects.meta import Object, ObjectMeta
from shoal.kube.resources import NAMESPACES, PODS, Key, RawObject, Resource
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import clusters
from shoal.model.errors import shown

log = logging.getLogger(__name__)

#: Servers take 1 MiB of content, which base64 and the server's own notes make longer.
MAX_BYTES: Final = 3 << 20
#: Contents that are in memory at once.
_TRANSFERS: Final = 8
#: A copy with so many owners is given no more: one of them lives long enough until the next one is added.
MAX_OWNERS: Final = 1000
#: What one pod names beyond this is not copied.
MAX_REFERENCES: Final = 64
_REMEMBERED: Final = 20_000
_LABEL_SECONDS: Final = 10.0
#: A copy that has not changed at home is looked at again after so long: somebody may have changed or deleted it.
_WHOLE_SECONDS: Final = 300.0
_TRIES: Final = 5
_MOST_NAMES: Final = 20
_REFUSED: Final = (BadRequestError, ForbiddenError, InvalidError, NotFoundError)


class _Content(Object, frozen=True, kw_only=True):
    """A ConfigMap or a Secret. Its repr does not show what is in it."""

    type: str = ""
    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"_Content({self.metadata.namespace}/{self.metadata.name})"


class _NotOurs(Enum):
    ABSENT = "absent"
    FOREIGN = "foreign"


@dataclass(slots=True)
class _Place:
    """One ConfigMap or Secret in one member, as far as it is known."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Copies of pods that wait to own it, and those that do: names by UID.
    waiting: dict[str, str] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)
    #: The UID of our copy, the version of the original that it was made from, and when it was seen.
    uid: str = ""
    original: str = ""
    looked: float = 0.0

    def forget(self) -> None:
        """It is not as it was."""
        self.uid = self.original = ""
        self.owners = set()


@dataclass(frozen=True, slots=True)
class SentPod:
    """A pod at home that was sent, and its copy."""

    key: Key
    uid: str
    member: Member
    copy: str


class ReferenceCopies:
    """Looks for what pods name, and keeps copies of ConfigMaps and Secrets."""

    def __init__(self, home: Client, home_cluster: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._home_cluster = home_cluster
        self._clock = clock
        self._namespaces: BoundedCache[tuple[str, str], tuple[float, ObjectMeta]] = BoundedCache(_REMEMBERED)
        self._places: BoundedCache[tuple[str, str, Reference], _Place] = BoundedCache(_REMEMBERED)
        #: What pods that were sent name, by their UID.
        self._named: dict[str, tuple[Reference, ...]] = {}
        self._transfers = asyncio.Semaphore(_TRANSFERS)

    # Looking

    async def lacks(self, member: Member, namespace: str, one: Reference) -> str:
        """Why a pod may not or cannot use what it names in a member, with the fix; empty also where nobody may look."""
        name = f"{one.kind} {shown(one.name)}"
        terms = await self.terms(member, namespace)
        if terms.opens(entry(one)) or (one.plural == "serviceaccounts" and one.name == member.pod_account):
            there = await self._is_there(member.client, namespace, one)
            return f"{name} does not exist: create it" if there is False else ""
        if not (one.has_content and terms.copies):
            return _not_open(namespace, one)
        async with self._transfers:
            found = await self._original(namespace, one)
        return f"{name} {found}" if isinstance(found, str) else ""

    async def _is_there(self, client: Client, namespace: str, one: Reference) -> bool | None:
        """None where nobody may look, or nobody answers."""
        if one.has_content:
            found = await self._by_making(client, namespace, one)
            if found is not None:
                return found
        try:
            await client.get(one.resource, one.name, namespace=namespace)
        except NotFoundError:
            return False
        except KubeError:
            return None
        return True

    async def _by_making(self, client: Client, namespace: str, one: Reference) -> bool | None:
        """Whether it is there, by making it without effect: the right to read it would show what is in it."""
        path = one.resource.path(namespace=namespace)
        body = {"metadata": {"name": one.name, "labels": {clusters.LABEL_ORIGIN: self._home_cluster}}}
        try:
            await client.request("POST", path, query={"dryRun": "All"}, body=body, repeatable=True, max_bytes=1 << 20)
        except AlreadyExistsError:
            return True
        except KubeError:
            return None
        return False

    # Supplying

    async def supply(self, member: Member, pod: RawObject, copy: DispatchedPod) -> str:
        """Have all that a pod names where its copy is, before that is opened; what is missing, in words.

        Raises KubeError if somebody does not answer.
        """
        meta = copy.metadata
        terms = await self.terms(member, meta.namespace)
        needed = _copied(references(pod), terms)
        spare = _copied(references(pod, optional=True), terms)
        if not terms.copies:
            return "; ".join(_not_open(meta.namespace, one) for one in needed[:_MOST_NAMES])
        if len(needed) + len(spare) > MAX_REFERENCES:
            return f"it names more than {MAX_REFERENCES} ConfigMaps and Secrets: put them into fewer"
        self._named[str(pod["metadata"]["uid"])] = (*needed, *spare)
        for one in (*needed, *spare):
            why = await self._supply(member, meta.namespace, one, {meta.uid: meta.name})
            if why and one in needed:
                return f"{one.kind} {shown(one.name)}: {why}"
        return ""

    async def _supply(self, member: Member, namespace: str, one: Reference, owners: Mapping[str, str]) -> str:
        """Many pods that come at once are written by whoever is first: it reads the original after they came."""
        place = self._places.of((member.uid, namespace, one), _Place)
        place.waiting.update(owners)
        async with place.lock:
            if owners.keys() <= place.owners:
                return ""
            batch = {**place.waiting, **owners}
            place.waiting.clear()
            async with self._transfers:
                return await self._write(place, member, namespace, one, batch)

    async def _write(
        self, place: _Place, member: Member, namespace: str, one: Reference, owners: Mapping[str, str]
    ) -> str:
        """Have the content of the original there, owned by these; why not, in words."""
        original = await self._original(namespace, one)
        one = dataclasses.replace(one, name=copied_name(self._home_cluster, one.name))
        if isinstance(original, str):
            there = await self._is_there(member.client, namespace, one)
            return original if there is False else ""
        if place.uid and place.original == original.metadata.resource_version and owners.keys() <= place.owners:
            return ""
        found = await self._own(member.client, namespace, one) if place.uid else _NotOurs.ABSENT
        for _ in range(_TRIES):
            if found is _NotOurs.FOREIGN:
                place.forget()
                return ""
            try:
                self._took(place, await self._put(member.client, namespace, one, found, original, owners), original)
                return ""
            except (AlreadyExistsError, ConflictError, NotFoundError) as error:
                if found is _NotOurs.ABSENT and isinstance(error, NotFoundError):
                    return _said(error)  # it is the namespace that is missing
                found = await self._own(member.client, namespace, one)
            except _REFUSED as error:
                place.forget()
                return _said(error)
        return "it changes all the time: try again later"

    async def _put(
        self,
        client: Client,
        namespace: str,
        one: Reference,
        found: _Content | _NotOurs,
        original: _Content,
        owners: Mapping[str, str],
    ) -> _Content:
        """Our copy as it shall be, made or changed."""
        resource = Resource("", "v1", one.plural, one.kind, _Content)
        if not isinstance(found, _Content):
            return await client.create(resource, self._manifest(one, namespace, original, owners), namespace=namespace)
        patch = _difference(found, original, owners)
        if patch is None:
            return found
        return await client.patch(resource, one.name, patch, namespace=namespace, kind="strategic")

    def _took(self, place: _Place, there: _Content, original: _Content) -> None:
        place.uid = there.metadata.uid
        place.original = original.metadata.resource_version
        place.owners = {owner.uid for owner in there.metadata.owner_references}
        place.looked = self._clock()

    def _manifest(self, one: Reference, namespace: str, original: _Content, owners: Mapping[str, str]) -> RawObject:
        made: RawObject = {
            "metadata": {
                "name": one.name,
                "namespace": namespace,
                "labels": {clusters.LABEL_ORIGIN: self._home_cluster},
                "ownerReferences": _owned_by(owners)[:MAX_OWNERS],
            },
            "data": original.data,
        }
        if original.binary_data:
            made["binaryData"] = original.binary_data
        if original.type:
            made["type"] = original.type
        return made

    async def _own(self, client: Client, namespace: str, one: Reference) -> _Content | _NotOurs:
        """Our copy. A patch that only tests is a read that shows nothing else: policy and test keep it to our own."""
        label = clusters.LABEL_ORIGIN.replace("/", "~1")
        test = [{"op": "test", "path": f"/metadata/labels/{label}", "value": self._home_cluster}]
        try:
            resource = Resource("", "v1", one.plural, one.kind, _Content)
            return await client.patch(resource, one.name, test, namespace=namespace, kind="json")
        except NotFoundError:
            return _NotOurs.ABSENT
        except (ForbiddenError, InvalidError):
            return _NotOurs.FOREIGN

    # At home

    async def terms(self, member: Member, namespace: str) -> NamespaceTerms:
        """What a member's namespace lets dispatched pods use. Raises KubeError if somebody does not answer."""
        there = await self._namespace(member.client, member.uid, namespace)
        copies = there.labels.get(clusters.LABEL_ACCEPTS_REFERENCES) == clusters.ENABLED
        if copies:
            here = await self._namespace(self._home, self._home_cluster, namespace)
            copies = here.labels.get(clusters.LABEL_COPIES_REFERENCES) == clusters.ENABLED
        return NamespaceTerms(may_use(there.annotations), copies)

    async def _namespace(self, client: Client, cluster: str, namespace: str) -> ObjectMeta:
        """The metadata of a namespace; empty if it is not there, or may not be read."""
        known = self._namespaces.get((cluster, namespace))
        if known is not None and known[0] > self._clock():
            return known[1]
        try:
            found = (await client.get(NAMESPACES, namespace)).metadata
        except (ForbiddenError, NotFoundError):
            found = ObjectMeta()
        self._namespaces.put((cluster, namespace), (self._clock() + _LABEL_SECONDS, found))
        return found

    async def _original(self, namespace: str, one: Reference) -> _Content | str:
        """What shall be copied, or why it cannot be, in words. Raises KubeError if home does not answer."""
        path = one.resource.path(namespace=namespace, name=one.name)
        try:
            answer = await self._home.request("GET", path, max_bytes=MAX_BYTES)
            found = codec_of(_Content).one(answer, asked=f"GET {path}")
        except NotFoundError:
            return "is not at home either: create it"
        except ForbiddenError as error:
            return f"home does not let it be read: {error.message}"
        except AnswerError as error:
            return f"cannot be read at home: {error}"
        return _never_copied(found) or found

    # Keeping up

    async def keep_up(self, sent: Iterable[SentPod]) -> None:
        """Write what has changed at home to the copies that pods use, and make again what somebody deleted."""
        used: dict[tuple[str, str, Reference], dict[str, str]] = {}
        members: dict[str, Member] = {}
        seen: set[str] = set()
        for pod in list(sent):
            terms = await self._terms_if_known(pod)
            if not terms.copies:
                continue
            seen.add(pod.uid)
            members[pod.member.uid] = pod.member
            for one in _copied(await self._named_by(pod), terms):
                used.setdefault((pod.member.uid, pod.key[0], one), {})[pod.copy] = pod.key[1]
        for uid in self._named.keys() - seen:
            del self._named[uid]
        for (cluster, namespace, one), owners in used.items():
            try:
                why = await self._refresh(members[cluster], namespace, one, owners)
            except KubeError as error:
                why = str(error)
            if why:
                name = members[cluster].name
                log.warning("cluster %s: %s %s/%s is not kept up: %s", name, one.kind, namespace, one.name, why)

    async def _terms_if_known(self, pod: SentPod) -> NamespaceTerms:
        try:
            return await self.terms(pod.member, pod.key[0])
        except KubeError:
            return NamespaceTerms()

    async def _named_by(self, pod: SentPod) -> tuple[Reference, ...]:
        """What a pod names, as its manager knows from sending it, or reads of it when it was started anew."""
        known = self._named.get(pod.uid)
        if known is None:
            found = (await execute.read(self._home, *pod.key)).pod
            manifest = whole(found) if isinstance(found, DispatchedPod) and found.metadata.uid == pod.uid else None
            if manifest is None:
                return ()
            named = (*references(manifest), *references(manifest, optional=True))
            known = self._named[pod.uid] = tuple(one for one in named if one.has_content)[:MAX_REFERENCES]
        return known

    async def _refresh(self, member: Member, namespace: str, one: Reference, owners: Mapping[str, str]) -> str:
        place = self._places.of((member.uid, namespace, one), _Place)
        async with place.lock, self._transfers:
            if self._clock() - place.looked > _WHOLE_SECONDS:
                place.original = ""
            return await self._write(place, member, namespace, one, owners)


def _copied(named: Iterable[Reference], terms: NamespaceTerms) -> list[Reference]:
    """Those of which the pod uses a copy: what the member's namespace opens is used there as it is."""
    return [one for one in named if one.has_content and not terms.opens(entry(one))]


def _not_open(namespace: str, one: Reference) -> str:
    return (
        f"{one.kind} {shown(one.name)} is not open to dispatched pods: add {entry(one)} to annotation "
        f"{clusters.ANNOTATION_MAY_USE} of namespace {namespace} there"
    )


def _owned_by(owners: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"apiVersion": PODS.api_version, "kind": PODS.kind, "name": name, "uid": uid} for uid, name in owners.items()
    ]


def _never_copied(found: _Content) -> str:
    if found.type in clusters.UNCOPIED_SECRET_TYPES:
        return f"is of type {found.type}, which is never copied: create one there"
    if clusters.LABEL_CLUSTER in found.metadata.labels:
        return f"has label {clusters.LABEL_CLUSTER}: the credentials of a cluster are never copied"
    return ""


def _difference(there: _Content, original: _Content, owners: Mapping[str, str]) -> dict[str, Any] | None:
    """A patch that gives a copy the content and these owners, in the version seen; None if it has them."""
    meta = there.metadata
    owning = {owner.uid for owner in meta.owner_references}
    missing = {uid: name for uid, name in owners.items() if uid not in owning}
    added = _owned_by(missing)[: max(MAX_OWNERS - len(owning), 0)]
    patch: dict[str, Any] = {}
    for name, old, new in (
        ("data", there.data, original.data),
        ("binaryData", there.binary_data, original.binary_data),
    ):
        if old != new:
            patch[name] = {**dict.fromkeys(old.keys() - new.keys()), **new}
    if not patch and not added:
        return None
    metadata: dict[str, Any] = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    if added:
        metadata["ownerReferences"] = added
    return {"metadata": metadata, **patch}


def _said(error: ApiError) -> str:
    """What a member has against a copy. Of Secrets the server's own words are not repeated, so that a fix is named."""
    fix = ""
    if isinstance(error, ForbiddenError):
        role = f"ClusterRole {clusters.NAME_ACCOUNT_PREFIX}…{clusters.ROLE_REFERENCES_SUFFIX}"
        fix = f": bind {role} in that namespace, as `shoal clusters join` says, and look at its quota"
    return f"{error.status} {error.reason}: {error.message}{fix}"
