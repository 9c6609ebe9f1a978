"""Publishes the node's devices in ResourceSlices, and restores them.

kubelet deletes the slices of a node when it starts, and those of a driver that was away for half a minute: so they are
watched, and whatever is missing is written again. All slices of the pool have one generation, which grows with each
change. Without the API, or where it does not keep the fields that let claims share a device, nothing is published.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from shoal.agent.claims.devices import PoolSlice
from shoal.kube.client import Client
from shoal.kube.codec import codec_of
from shoal.kube.errors import (
    AlreadyExistsError,
    AnswerError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
)
from shoal.kube.objects.claims import ResourcePool, ResourceSlice, ResourceSliceSpec, SliceDevice
from shoal.kube.objects.meta import ObjectMeta, OwnerReference
from shoal.kube.objects.node import Node
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, RESOURCE_SLICES, RawObject
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
    """The slices of one node. `run` until it is cancelled."""

    def __init__(self, client: Client, node: str, owner: Callable[[], Node | None]) -> None:
        """`owner` is the Node object: its slices go with it."""
        self._client = client
        self._node = node
        self._owner = owner
        self._wanted: tuple[PoolSlice, ...] | None = None
        self._wake = asyncio.Event()
        #: What the server has answered to writes, by name: ahead of the watch.
        self._written: dict[str, ResourceSlice] = {}
        self._generation = 0
        self.reflector: Reflector[ResourceSlice] = Reflector(
            client, RESOURCE_SLICES, fields=slices_of(node), consumers=[self._on_slice]
        )

    async def unavailable(self) -> str:
        """Why slices cannot be published on this cluster, in words; empty if they can. Nothing is written."""
        device = SliceDevice(name="probe", allow_multiple_allocations=True)
        body = self._manifest(PoolSlice(devices=(device,)), 0, generation=1, count=1)
        body["metadata"]["name"] = f"{self._node}-{dra.DRIVER}-{_PROBE}"
        path = RESOURCE_SLICES.path()
        try:
            answer = await self._client.request("POST", path, query={"dryRun": "All"}, body=body)
        except NotFoundError:
            return f"the API server has no {RESOURCE_SLICES.api_version}: it comes with Kubernetes 1.34"
        except ForbiddenError as error:
            return f"the agent may not write ResourceSlices: {error}"
        except InvalidError as error:
            return f"the API server takes no slice of a shared device: {error}"
        except ApiError as error:
            if error.status >= _SERVER_TROUBLE:
                raise
            return f"the API server does not take a ResourceSlice: {error}"
        kept = codec_of(ResourceSlice).one(answer, asked=f"POST {path}").spec.devices
        if not kept or not all(one.allow_multiple_allocations for one in kept):
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
        found = {one.metadata.name: one for one in self.reflector.store}
        for name, one in self._written.items():
            if name not in found or _number(one) > _number(found[name]):
                found[name] = one
        return found

    def _on_slice(self, change: Change[ResourceSlice]) -> None:
        name = change.object.metadata.name
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
        return {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind, **manifest}

    async def _write(self, name: str, manifest: RawObject, present: ResourceSlice | None) -> None:
        raw = RESOURCE_SLICES.raw
        try:
            if present is None:
                answer = await self._client.create(raw, manifest)
            else:
                _keep_times(manifest, present)
                manifest["metadata"]["resourceVersion"] = present.metadata.resource_version
                answer = await self._client.replace(raw, manifest)
        except (AlreadyExistsError, ConflictError, NotFoundError):
            # It is not as the watch has told yet.
            self._written.pop(name, None)
            try:
                self._written[name] = await self._client.get(RESOURCE_SLICES, name)
            except NotFoundError:
                await asyncio.sleep(_BACKOFF.first)
            self._wake.set()
            return
        try:
            self._written[name] = msgspec.convert(answer, ResourceSlice)
        except msgspec.ValidationError as error:
            raise AnswerError(f"slice {name} came back as no slice: {error}") from error

    async def _delete(self, name: str) -> None:
        self._written.pop(name, None)
        try:
            await self._client.delete(RESOURCE_SLICES, name)
        except NotFoundError:
            return


async def remove_slices(client: Client, node: str) -> None:
    """Delete all slices of a node. Those that cannot be deleted now are kubelet's to delete, half a minute later."""
    try:
        for one in (await client.list(RESOURCE_SLICES, fields=slices_of(node))).items:
            with contextlib.suppress(NotFoundError):
                await client.delete(RESOURCE_SLICES, one.metadata.name)
    except (NotFoundError, ForbiddenError):
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
