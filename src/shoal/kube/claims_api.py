"""The versions of `resource.k8s.io`: the one to use on an API server, and its objects in the shape of v1.

`shoal.kube.objects.claims` has the structs of v1, and nobody but this module knows of others. v1beta2 has the shape of
v1; v1beta1 has what describes a device under `basic`, and what a request asks for in the request itself. A server whose
newest version is one of the two (1.33, 1.32) lets nobody share a device. Templates and classes are not read here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from shoal.kube.client import Client
from shoal.kube.codec import codec_of
from shoal.kube.errors import AnswerError, NotFoundError, UnservedError
from shoal.kube.objects.claims import ResourceClaim, ResourceSlice
from shoal.kube.objects.meta import Base
from shoal.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, RawObject, Resource, meta_of

T = TypeVar("T")

GROUP: Final = RESOURCE_SLICES.group


def newer_slice(obj: RawObject) -> RawObject:
    """A slice of v1beta1 in the shape of v1."""
    spec = obj.get("spec") or {}
    devices = [{"name": one.get("name", ""), **(one.get("basic") or {})} for one in spec.get("devices") or ()]
    return {**obj, "spec": {**spec, "devices": devices}}


def older_slice(obj: RawObject) -> RawObject:
    """A slice of v1 in the shape of v1beta1."""
    spec = obj["spec"]
    devices = [
        {"name": one["name"], "basic": {name: value for name, value in one.items() if name != "name"}}
        for one in spec.get("devices", ())
    ]
    return {**obj, "spec": {**spec, "devices": devices}}


def newer_claim(obj: RawObject) -> RawObject:
    """A claim of v1beta1 in the shape of v1; what was allocated has one shape in both."""
    spec = obj.get("spec") or {}
    wish = spec.get("devices") or {}
    requests = [_newer_request(one) for one in wish.get("requests") or ()]
    return {**obj, "spec": {**spec, "devices": {**wish, "requests": requests}}}


def _newer_request(request: RawObject) -> RawObject:
    if "firstAvailable" in request:
        return request
    exactly = {name: value for name, value in request.items() if name != "name"}
    return {"name": request.get("name", ""), "exactly": exactly}


def _same(obj: RawObject) -> RawObject:
    return obj


@dataclass(frozen=True, slots=True)
class ClaimsVersion:
    """One version of the group: where its objects are, and how they become those of v1 and come of them."""

    name: str
    #: Whether claims can share a device, on a server with this version as its newest.
    shares: bool = False
    _slice: Callable[[RawObject], RawObject] = field(default=_same, repr=False)
    _written: Callable[[RawObject], RawObject] = field(default=_same, repr=False)
    _claim: Callable[[RawObject], RawObject] = field(default=_same, repr=False)

    @property
    def slices(self) -> Resource[RawObject]:
        """ResourceSlices as this version has them."""
        return dataclasses.replace(RESOURCE_SLICES.raw, version=self.name)

    @property
    def claims(self) -> Resource[RawObject]:
        """ResourceClaims as this version has them."""
        return dataclasses.replace(RESOURCE_CLAIMS.raw, version=self.name)

    def slice_of(self, obj: RawObject) -> ResourceSlice:
        """A slice that was read. AnswerError if it is none."""
        return _decoded(self._slice, obj, ResourceSlice)

    def claim_of(self, obj: RawObject) -> ResourceClaim:
        """A claim that was read. AnswerError if it is none."""
        return _decoded(self._claim, obj, ResourceClaim)

    def written(self, manifest: RawObject) -> RawObject:
        """A slice of v1, to be written."""
        return {**self._written(manifest), "apiVersion": self.slices.api_version, "kind": RESOURCE_SLICES.kind}


def _decoded(translate: Callable[[RawObject], RawObject], obj: RawObject, of: type[T]) -> T:
    try:
        return msgspec.convert(translate(obj), of)
    except (msgspec.ValidationError, AttributeError, TypeError) as error:
        raise AnswerError(f"{of.__name__} {meta_of(obj).name!r} cannot be read: {error}") from error


V1: Final = ClaimsVersion("v1", shares=True)
V1BETA2: Final = ClaimsVersion("v1beta2")
V1BETA1: Final = ClaimsVersion("v1beta1", _slice=newer_slice, _written=older_slice, _claim=newer_claim)
#: All that are known, the newest first.
VERSIONS: Final = (V1, V1BETA2, V1BETA1)


class _Served(Base, frozen=True, kw_only=True):
    version: str = ""


class _Group(Base, frozen=True, kw_only=True):
    versions: tuple[_Served, ...] = ()


class ClaimsApi:
    """Claims and slices of one API server, in the newest version that it serves, which is looked up once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._version: ClaimsVersion | None = None

    async def version(self) -> ClaimsVersion:
        """The version that is used. UnservedError if the server has none that is known; then it is asked again."""
        if self._version is None:
            self._version = await self._find()
        return self._version

    def look_again(self) -> None:
        """The server does not have that version any more, after an upgrade."""
        self._version = None

    async def _find(self) -> ClaimsVersion:
        path = f"/apis/{GROUP}"
        try:
            group = codec_of(_Group).one(await self.client.request("GET", path), asked=f"GET {path}")
        except NotFoundError as error:
            raise UnservedError(f"the API server has no {GROUP}") from error
        served = [one.version for one in group.versions]
        for known in VERSIONS:
            if known.name in served:
                return known
        raise UnservedError(f"the API server has {GROUP} as {', '.join(served) or 'nothing'} only")

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        """A claim; NotFoundError if it is not there."""
        version = await self.version()
        return version.claim_of(await self.client.get(version.claims, name, namespace=namespace))
