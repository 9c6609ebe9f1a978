"""Publishes the node's devices in ResourceSlices, and restores them.

kubelet deletes the slices of a node when it starts, and those of a driver that was away for half a minute: so they are
watched, and whatever is missing is written again. All slices of the pool have one generation, which grows with each
change. Where the API server does not keep the fields that let claims share a device, nothing is published; one that
is too old to have them gets whole devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from shoal.agent.claims.devices import PoolSlice
from shoal.kube.claims_api import V1, ClaimsApi, ClaimsVersion
from shoal.kube.client import Client
from shoal.kube.codec import codec_of
from shoal.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnservedError,
)
from shoal.kube.objects.claims import ResourcePool, ResourceSlice, ResourceSliceSpec, SliceDevice
from shoal.kube.objects.meta import ObjectMeta, OwnerReference
from shoal.kube.objects.node import Node
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, RawObject, meta_of
from shoal.kube.store import Change
from shoal.model.backoff import Backoff
from shoal.model.contract import dra

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first=0.5, longest=30.0)
#: The shortest time between two writes: the order of devices follows what is held of them.
_SPACING_SECONDS: Final = 1.0
_PROBE: Final = "probe"
#: From this HTTP status on the server is in trouble, and says nothing of the slice.
_SERVER_TROUBLE: Final = 500


def slices_of(node: str) -> str:
    """The field selector of a node's slices."""
    return f"spec.driver={dra.DRIVER},spec.nodeName={node}"


class SlicePublisher:
    """The slices of one node, in one version of the API. `run` until it is cancelled."""

    def __init__(
        self, client: Client, node: str, owner: Callable[[], Node | None], version: ClaimsVersion = V1
    ) -> None:
        """`owner` is the Node object: its slices go with it."""
        self.version = version
        self._client = client
        self._node = node
        self._owner = owner
        self._wanted: tuple[PoolSlice, ...] | None = None
        self._wake = asyncio.Event()
        #: What the server has answered to writes, by name: ahead of the watch.
        self._written: dict[str, ResourceSlice] = {}
        self._generation = 0
        self.reflector: Reflector[RawObject] = Reflector(
            client, version.slices, fields=slices_of(node), consumers=[self._on_slice]
        )

    async def unavailable(self) -> str:
        """Why slices cannot be published on this cluster, in words; empty if they can. Nothing is written."""
        shares = self.version.shares
        device = SliceDevice(name="probe", allow_multiple_allocations=True if shares else None)
        body = self._manifest(PoolSlice(devices=(device,)), 0, generation=1, count=1)
        body["metadata"]["name"] = f"{self._node}-{dra.DRIVER}-{_PROBE}"
        path = self.version.slices.path()
        try:
            answer = await self._client.request("POST", path, query={"dryRun": "All"}, body=self.version.written(body))
        except NotFoundError:
            return f"the API server has no ResourceSlices in {self.version.slices.api_version}"
        except ForbiddenError as error:
            return f"the agent may not write ResourceSlices: {error}"
        except InvalidError as error:
            return f"the API server takes no slice of a {'shared ' if shares else ''}device: {error}"
        except ApiError as error:
            if error.status >= _SERVER_TROUBLE:
                raise
            return f"the API server does not take a ResourceSlice: {error}"
        kept = self.version.slice_of(codec_of(dict).one(answer, asked=f"POST {path}")).spec.devices
        if shares and not (kept and all(one.allow_multiple_allocations for one in kept)):
            return (
                "the API server drops allowMultipleAllocations: switch its feature gate DRAConsumableCapacity on, and "
                "kube-scheduler's; from Kubernetes 1.36 on it is"
            )
        return ""

    def publish(self, wanted: Sequence[PoolSlice]) -> None:
        """Have these slices, and no others, from now on."""
        if self._wanted != tuple(wanted):
            self._wanted = tuple(wanted)
            self._wake.set()

    async def run(self) -> None:
        """Write what differs, whenever that changes."""
        await self.reflector.wait_synced()
        pause = _BACKOFF.first
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                wrote = await self.settle()
                pause = _BACKOFF.first
            except KubeError as error:
                log.warning("slices of %s: %s", self._node, error)
                await asyncio.sleep(pause)
                pause = _BACKOFF.longer(pause)
                self._wake.set()
                continue
            if wrote:
                await asyncio.sleep(_SPACING_SECONDS)

    async def settle(self) -> bool:
        """Write what differs, once; whether anything did."""
        if self._wanted is None or self._owner() is None:
            return False
        present = self._present()
        names = [dra.slice_name(self._node, number) for number in range(len(self._wanted))]
        surplus = present.keys() - set(names)
        self._generation = max([self._generation, *(one.spec.pool.generation for one in present.values())])
        wanted = {
            name: self._manifest(one, number, generation=self._generation, count=len(names))
            for number, (name, one) in enumerate(zip(names, self._wanted, strict=True))
        }
        different = [name for name in names if name not in present or not _same(present[name], wanted[name])]
        if not different and not surplus:
            return False
        if surplus or any(name in present for name in different) or not self._generation:
            self._generation += 1
            different = names
        for name in different:
            wanted[name]["spec"]["pool"]["generation"] = self._generation
            await self._write(name, wanted[name], present.get(name))
        for name in sorted(surplus):
            await self._delete(name)
        log.info("published %d slices of %s, generation %d", len(names), self._node, self._generation)
        return True

    def _present(self) -> dict[str, ResourceSlice]:
        """The slices as last heard of, by the watch or by an answer."""
        found = {one.metadata.name: one for one in map(self.version.slice_of, self.reflector.store)}
        for name, one in self._written.items():
            if name not in found or _number(one) > _number(found[name]):
                found[name] = one
        return found

    def _on_slice(self, change: Change[RawObject]) -> None:
        name = meta_of(change.object).name
        written = self._written.get(name)
        if written is not None:
            heard = int(change.version) if change.version.isdigit() else 0
            if heard >= _number(written):
                del self._written[name]
        self._wake.set()

    def _manifest(self, one: PoolSlice, number: int, *, generation: int, count: int) -> RawObject:
        owner = self._owner()
        pool = ResourcePool(name=self._node, generation=generation, resource_slice_count=count)
        owners: tuple[OwnerReference, ...] = ()
        if owner is not None:
            reference = OwnerReference(api_version=NODES.api_version, kind=NODES.kind, name=self._node, controller=True)
            owners = (msgspec.structs.replace(reference, uid=owner.metadata.uid),)
        obj = ResourceSlice(
            metadata=ObjectMeta(name=dra.slice_name(self._node, number), owner_references=owners),
            spec=ResourceSliceSpec(
                driver=dra.DRIVER,
                pool=pool,
                node_name=self._node,
                devices=one.devices,
                shared_counters=one.counters,
            ),
        )
        manifest: dict[str, Any] = msgspec.to_builtins(obj)
        return manifest

    async def _write(self, name: str, manifest: RawObject, present: ResourceSlice | None) -> None:
        version = self.version
        try:
            if present is None:
                answer = await self._client.create(version.slices, version.written(manifest))
            else:
                _keep_times(manifest, present)
                manifest["metadata"]["resourceVersion"] = present.metadata.resource_version
                answer = await self._client.replace(version.slices, version.written(manifest))
        except (AlreadyExistsError, ConflictError, NotFoundError):
            # It is not as the watch has told yet.
            self._written.pop(name, None)
            try:
                self._written[name] = version.slice_of(await self._client.get(version.slices, name))
            except NotFoundError:
                await asyncio.sleep(_BACKOFF.first)
            self._wake.set()
            return
        self._written[name] = version.slice_of(answer)

    async def _delete(self, name: str) -> None:
        self._written.pop(name, None)
        try:
            await self._client.delete(self.version.slices, name)
        except NotFoundError:
            return


async def remove_slices(client: Client, node: str) -> None:
    """Delete all slices of a node. Those that cannot be deleted now are kubelet's to delete, half a minute later."""
    try:
        slices = (await ClaimsApi(client).version()).slices
        for one in (await client.list(slices, fields=slices_of(node))).items:
            with contextlib.suppress(NotFoundError):
                await client.delete(slices, meta_of(one).name)
    except (UnservedError, NotFoundError, ForbiddenError):
        return  # there are none
    except KubeError as error:
        log.warning("slices of %s are left: %s", node, error)


def _number(one: ResourceSlice) -> int:
    version = one.metadata.resource_version
    return int(version) if version.isdigit() else 0


def _same(present: ResourceSlice, wanted: RawObject) -> bool:
    """Whether a slice is what it shall be; when a taint came is the server's to say."""
    shall = msgspec.convert(wanted, ResourceSlice)
    devices = tuple(
        msgspec.structs.replace(
            device, taints=tuple(msgspec.structs.replace(taint, time_added=None) for taint in device.taints)
        )
        for device in present.spec.devices
    )
    return (
        msgspec.structs.replace(present.spec, devices=devices) == shall.spec
        and present.metadata.owner_references == shall.metadata.owner_references
    )


def _keep_times(manifest: RawObject, present: ResourceSlice) -> None:
    """Write taints that were there with the time at which they came."""
    times = {
        (device.name, taint.key, taint.value, taint.effect): taint.time_added
        for device in present.spec.devices
        for taint in device.taints
    }
    for device in manifest["spec"].get("devices", ()):
        for taint in device.get("taints", ()):
            since = times.get((device["name"], taint["key"], taint.get("value", ""), taint["effect"]))
            if since:
                taint["timeAdded"] = since
