"""kubelet's device manager: plugins come and go, containers get devices of them, and a checkpoint keeps it.

A node without plugins has one too, with nothing in it and no sockets, until `open` is called.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.devices import checkpoint
from shoal.embedded.nodes.devices.accounting import Accounts, PluginDevice, Reuse
from shoal.embedded.nodes.devices.plugins import Endpoint, RegistrationService
from shoal.embedded.nodes.errors import AllocationError, CheckpointError
from shoal.embedded.nodes.pods.states import containers_of
from shoal.embedded.rules.claims import served_by_claim
from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model import quantity
from shoal.model.request import ContainerKind

log = logging.getLogger(__name__)
#: How long the devices of a plugin that is gone are still counted.
STOP_GRACE_SECONDS: Final = 300.0


class DeviceManager:
    """The devices of one node."""

    def __init__(self, folder: Path, *, clock: Clock, rng: random.Random, changed: Callable[[], None]) -> None:
        self.accounts = Accounts(rng)
        self._folder = folder
        self._clock = clock
        self._changed = changed
        self._endpoints: dict[str, Endpoint] = {}
        self._followers: dict[Endpoint, asyncio.Task[None]] = {}
        self._registration: RegistrationService | None = None

    async def open(self) -> None:
        """Read the checkpoint and wait for plugins."""
        if self._registration is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._read_checkpoint()
        self._registration = RegistrationService(self._folder, self._connect)
        await self._registration.start()
        self._changed()

    async def close(self) -> None:
        """Hang up on all plugins."""
        if self._registration is not None:
            await self._registration.stop()
            self._registration = None
        followers = list(self._followers.values())
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        for endpoint in self._endpoints.values():
            await endpoint.close()

    def _read_checkpoint(self) -> None:
        try:
            found = checkpoint.read(self._folder / constants.CHECKPOINT)
        except CheckpointError as error:
            # As kubelet does: whose devices are taken is then not known.
            log.error("%s: going on without it", error)
            return
        if found is not None:
            self.accounts.restore(found)
            now = self._clock.now()
            self._endpoints = {name: Endpoint(name, stopped=now) for name in found.registered}

    def _write_checkpoint(self) -> None:
        if self._registration is not None:
            checkpoint.write(self._folder / constants.CHECKPOINT, self.accounts.checkpoint())

    async def _connect(self, resource: str, socket: Path) -> None:
        endpoint = Endpoint(resource)
        await endpoint.connect(socket)
        before = self._endpoints.get(resource)
        self._endpoints[resource] = endpoint
        self._followers[endpoint] = asyncio.create_task(self._follow(endpoint), name=f"plugin {resource}")
        if before is not None:
            await before.close()

    async def _follow(self, endpoint: Endpoint) -> None:
        async def listed(devices: list[PluginDevice]) -> None:
            self.accounts.listed(endpoint.resource, devices)
            self._write_checkpoint()
            self._changed()

        try:
            await endpoint.follow(listed)
        finally:
            self._followers.pop(endpoint, None)
        if self._endpoints.get(endpoint.resource) is endpoint:
            self.accounts.lost(endpoint.resource)
            endpoint.stopped = self._clock.now()
            self._changed()
        await endpoint.close()

    def counts(self) -> tuple[dict[str, tuple[int, int]], list[str]]:
        """Capacity and allocatable by resource, and the resources that are gone for good with this call."""
        gone = []
        for name in list(self.accounts.healthy):
            endpoint = self._endpoints.get(name)
            since = endpoint.stopped if endpoint is not None else None
            over = since is not None and self._clock.now() - since > timedelta(seconds=STOP_GRACE_SECONDS)
            if endpoint is None or over:
                self._endpoints.pop(name, None)
                self.accounts.forget(name)
                gone.append(name)
        if gone:
            self._write_checkpoint()
        return self.accounts.counts(), gone

    async def allocate(self, pod: Mapping[str, Any], active: Iterable[str]) -> None:
        """Get all devices of a pod; AllocationError if one container cannot have its own.

        `active` are the pods whose devices stay taken, and this one.
        """
        uid = pod["metadata"]["uid"]
        reuse = Reuse()
        keep = {*active, uid}
        for kind, container in containers_of(pod["spec"]):
            await self._allocate_container(pod, container, reuse, keep)
            held = self.accounts.held_by(uid, container["name"])
            (reuse.offer if kind is ContainerKind.INIT else reuse.withdraw)(held)

    async def _allocate_container(
        self, pod: Mapping[str, Any], container: Mapping[str, Any], reuse: Reuse, active: Iterable[str]
    ) -> None:
        changed, uid = False, pod["metadata"]["uid"]
        by_claim = served_by_claim(pod, container["name"])
        for resource, count in self._wanted(container):
            if resource in by_claim:
                continue
            self.accounts.keep_only(active)
            choice = self.accounts.choose(uid, container["name"], resource, count, reuse.of(resource))
            if choice is None:
                continue
            endpoint = self._endpoints.get(resource)
            if endpoint is None:
                self.accounts.settle()
                raise AllocationError(f"unknown Device Plugin {resource}")
            try:
                preferred: list[str] = []
                if choice.needed and endpoint.options.get_preferred_allocation_available:
                    taken = sorted(choice.taken)
                    preferred = await endpoint.preferred([*choice.available, *taken], taken, count)
                ids = self.accounts.take(resource, choice, preferred)
                response = await endpoint.allocate(ids)
            except AllocationError:
                self.accounts.settle()
                raise
            self.accounts.hold(uid, container["name"], resource, ids, response)
            changed = True
        if changed:
            self._write_checkpoint()

    def _wanted(self, container: Mapping[str, Any]) -> list[tuple[str, int]]:
        limits = (container.get("resources") or {}).get("limits") or {}
        return [
            (name, int(quantity.parse(amount)))
            for name, amount in sorted(limits.items())
            if self.accounts.is_known(name)
        ]

    async def pre_start(self, pod: Mapping[str, Any], container: Mapping[str, Any], active: Iterable[str]) -> None:
        """Tell plugins that want to know it that a container is about to be created.

        A container that was admitted before its plugin came gets its devices now, unless the plugin wants to know.
        """
        uid = pod["metadata"]["uid"]
        wanted = [(resource, count) for resource, count in self._wanted(container) if count]
        for resource, _ in wanted:
            endpoint = self._endpoints.get(resource)
            if endpoint is None:
                raise AllocationError(f"endpoint not found in cache for a registered resource: {resource}")
            if not endpoint.options.pre_start_required:
                continue
            entry = self.accounts.held_by(uid, container["name"]).get(resource)
            if entry is None:
                where = f"pod {uid}, container {container['name']}, resource {resource}"
                raise AllocationError(f"no devices found allocated in local cache for {where}")
            await endpoint.pre_start(sorted(entry.ids))
        if any(resource not in self.accounts.held_by(uid, container["name"]) for resource, _ in wanted):
            await self._allocate_container(pod, container, Reuse(), {*active, uid})

    def responses(self, uid: str, container: str) -> list[api.ContainerAllocateResponse]:
        """What plugins said to a container's devices."""
        held = self.accounts.held_by(uid, container)
        return [api.ContainerAllocateResponse.FromString(held[name].response) for name in sorted(held)]
