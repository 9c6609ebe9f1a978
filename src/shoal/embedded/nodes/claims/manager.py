"""kubelet's manager of claims: has drivers prepare what pods use, and take it back after the last of them.

Which claims are prepared outlives a restart of kubelet. The rules and the words of refusals are those of the real one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from shoal.embedded.kinds import RESOURCE_CLAIMS
from shoal.embedded.nodes.claims import checkpoint
from shoal.embedded.nodes.claims.checkpoint import ClaimDevice, ClaimInfo
from shoal.embedded.nodes.claims.drivers import DeviceKey, Drivers
from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.errors import CheckpointError, ClaimNotReadyError
from shoal.embedded.rules.claims import claim_name, extended, status_of
from shoal.embedded.rules.pods import is_extended
from shoal.embedded.store import Key, Object, ObjectStore
from shoal.model import quantity

log = logging.getLogger(__name__)

CHECKPOINT: Final = "dra_manager_state"


class ClaimManager:
    """The claims of one node. Nothing is served or read until `open` is called."""

    def __init__(
        self,
        root: Path,
        registry_folder: Path,
        store: ObjectStore,
        *,
        clock: Clock,
        wipe: Callable[[str], None],
        news: Callable[[Iterable[str]], None],
    ) -> None:
        """`wipe` deletes the slices of a driver; `news` hears of pods whose devices are no longer as they were."""
        self._path = root / CHECKPOINT
        self._folder = registry_folder
        self._store = store
        self._news = news
        self._claims: dict[Key, ClaimInfo] = {}
        self._drivers = Drivers(registry_folder, clock=clock, wipe=wipe, changed=self._health_changed)
        self._open = False
        self._reconciling: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Read the checkpoint and look for drivers from now on."""
        self._open = True
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._claims = {(one.namespace, one.name): one for one in checkpoint.read(self._path)}
        except CheckpointError as error:
            log.error("%s: going on without it", error)

    async def close(self) -> None:
        """Hang up on all drivers."""
        self._open = False
        if self._reconciling is not None:
            self._reconciling.cancel()
            await asyncio.gather(self._reconciling, return_exceptions=True)
        await self._drivers.close()

    def look(self) -> None:
        """Find drivers that came or went."""
        if self._open:
            self._drivers.look()

    # Preparing

    async def prepare(self, pod: Object) -> None:
        """Have all claims of a pod prepared; ClaimNotReadyError if one cannot be, and then the pod must wait."""
        uid = pod["metadata"]["uid"]
        allocated = [self._allocated(pod, claim) for claim in self._objects(pod)]
        drivers = {name: self._drivers.get(name) for one in allocated for name in one.drivers}
        open_: list[ClaimInfo] = []
        for one in allocated:
            info = self._claims.setdefault((one.namespace, one.name), one)
            if info.uid != one.uid:
                why = "still exists (previous pod force-deleted?!)"
                raise ClaimNotReadyError(
                    f"old ResourceClaim with same name {one.name} and different UID {info.uid} {why}"
                )
            info.pods.add(uid)
            if not info.prepared and info not in open_:
                open_.append(info)
        self._write()
        for name, driver in drivers.items():
            asked = [info for info in open_ if name in info.drivers]
            answers = await driver.prepare(asked) if asked else {}
            for info in asked:
                info.drivers[name] = answers[info.uid]
        for info in open_:
            info.prepared = True
        self._write()

    def _objects(self, pod: Object) -> Iterator[Object]:
        """The claims of a pod; ClaimNotReadyError for one that is not there, or not the pod's."""
        meta = pod["metadata"]
        for entry in pod["spec"].get("resourceClaims") or ():
            generated = "resourceClaimName" not in entry
            if generated and status_of(pod, entry["name"]) is None:
                raise ClaimNotReadyError(f'pod "{meta["namespace"]}/{meta["name"]}": ResourceClaim not created yet')
            name = claim_name(pod, entry)
            if name:
                claim = self._object(meta["namespace"], name)
                if generated and not _is_controlled_by(claim, meta["uid"]):
                    whose = f"{meta['namespace']}/{name} was not created for Pod {meta['namespace']}/{meta['name']}"
                    raise ClaimNotReadyError(f"ResourceClaim {whose} (Pod is not owner)")
                yield claim
        made = extended(pod)
        if made is not None:
            yield self._object(meta["namespace"], made["resourceClaimName"])

    def _object(self, namespace: str, name: str) -> Object:
        found = self._store.get(RESOURCE_CLAIMS.key, (namespace, name))
        if found is None:
            raise ClaimNotReadyError(f'fetch ResourceClaim {name}: resourceclaims.resource.k8s.io "{name}" not found')
        return found

    def _allocated(self, pod: Object, claim: Object) -> ClaimInfo:
        """A claim that the pod may use and that was allocated."""
        meta, user = claim["metadata"], pod["metadata"]
        status = claim.get("status") or {}
        if all(one.get("uid") != user["uid"] for one in status.get("reservedFor") or ()):
            who = f"pod {user['name']} ({user['uid']})"
            raise ClaimNotReadyError(f"{who} is not allowed to use ResourceClaim {meta['name']} ({meta['uid']})")
        if "allocation" not in status:
            raise ClaimNotReadyError(f"ResourceClaim {meta['name']}: not allocated")
        results = (status["allocation"].get("devices") or {}).get("results") or ()
        drivers: dict[str, tuple[ClaimDevice, ...]] = {one["driver"]: () for one in results}
        return ClaimInfo(meta["namespace"], meta["name"], meta["uid"], drivers=drivers)

    # Taking back

    def uses(self, pod_uid: str) -> bool:
        """Whether claims are held for a pod."""
        return any(pod_uid in info.pods for info in self._claims.values())

    async def unprepare(self, pod_uid: str) -> None:
        """Have the claims taken back that no other pod uses; ClaimNotReadyError if a driver does not."""
        last: list[ClaimInfo] = []
        for info in [info for info in self._claims.values() if pod_uid in info.pods]:
            if len(info.pods) > 1:
                info.pods.discard(pod_uid)
            else:
                last.append(info)
                # A pod that comes to it now has it prepared anew.
                info.prepared = False
        for name in dict.fromkeys(name for info in last for name in info.drivers):
            await self._drivers.get(name).unprepare([info for info in last if name in info.drivers])
        for info in last:
            info.pods.discard(pod_uid)
            if not info.pods and self._claims.get((info.namespace, info.name)) is info:
                del self._claims[info.namespace, info.name]
        self._write()

    def reconcile(self, active: Collection[str]) -> None:
        """Begin to take back what is held for pods that are gone; what fails is tried again the next time."""
        gone = sorted({uid for info in self._claims.values() for uid in info.pods} - set(active))
        if gone and self._open and (self._reconciling is None or self._reconciling.done()):
            self._reconciling = asyncio.create_task(self._take_back(gone), name="claims of pods that are gone")

    async def _take_back(self, pods: Iterable[str]) -> None:
        for uid in pods:
            try:
                await self.unprepare(uid)
            except ClaimNotReadyError as error:
                log.warning("the claims of pod %s are not taken back yet: %s", uid, error)

    def _write(self) -> None:
        if self._open:
            checkpoint.write(self._path, self._claims.values())

    # What containers get

    def _used(self, pod: Object, container: Mapping[str, Any]) -> list[tuple[ClaimInfo, list[str]]]:
        """The prepared claims of a container, with the requests it names of each; an empty one stands for all."""
        found: dict[str, list[str]] = {}
        entries = {one["name"]: one for one in pod["spec"].get("resourceClaims") or ()}
        for one in (container.get("resources") or {}).get("claims") or ():
            name = claim_name(pod, entries[one["name"]]) if one["name"] in entries else ""
            if name:
                found.setdefault(name, []).append(one.get("request", ""))
        made = extended(pod)
        if made is not None:
            asked = {
                name
                for name, amount in ((container.get("resources") or {}).get("requests") or {}).items()
                if is_extended(name) and quantity.parse(amount)
            }
            for mapping in made.get("requestMappings") or ():
                if mapping["containerName"] == container["name"] and mapping["resourceName"] in asked:
                    found.setdefault(made["resourceClaimName"], []).append(mapping["requestName"])
        namespace = pod["metadata"]["namespace"]
        infos = ((self._claims.get((namespace, name)), requests) for name, requests in found.items())
        return [(info, requests) for info, requests in infos if info is not None]

    def of_container(self, pod: Object, container: Mapping[str, Any]) -> list[ClaimInfo]:
        """The prepared claims of a container."""
        return [info for info, _ in self._used(pod, container)]

    def cdi_devices(self, pod: Object, container: Mapping[str, Any]) -> list[str]:
        """The CDI devices of a container."""
        return [
            name
            for info, requests in self._used(pod, container)
            for request in requests
            for _, device in _devices(info, request)
            for name in device.cdi
        ]

    # Health

    def health(self, pod: Object, container: Mapping[str, Any]) -> list[dict[str, Any]]:
        """How the devices of a container's claims are, as its status tells it."""
        found = []
        entries = {one["name"]: one for one in pod["spec"].get("resourceClaims") or ()}
        for one in (container.get("resources") or {}).get("claims") or ():
            name = claim_name(pod, entries[one["name"]]) if one["name"] in entries else ""
            info = self._claims.get((pod["metadata"]["namespace"], name))
            request = one.get("request", "")
            resources: dict[str, dict[str, Any]] = {}
            for driver, device in _devices(info, request) if info is not None else ():
                health, message = self._drivers.health((driver, device.pool, device.device))
                title = device.cdi[0] if device.cdi else f"{driver}/{device.pool}/{device.device}"
                told = {"resourceID": title, "health": health, **({"message": message} if message else {})}
                resources.setdefault(title, told)
            if resources:
                title = f"claim:{one['name']}/{request}" if request else f"claim:{one['name']}"
                found.append({"name": title, "resources": list(resources.values())})
        return found

    def _health_changed(self, devices: set[DeviceKey]) -> None:
        concerned = {
            uid
            for info in self._claims.values()
            for driver, device in _devices(info)
            if (driver, device.pool, device.device) in devices
            for uid in info.pods
        }
        if concerned:
            self._news(concerned)


def _devices(info: ClaimInfo, request: str = "") -> Iterator[tuple[str, ClaimDevice]]:
    """The devices of a claim, or of one request, with their drivers. One that names no request is for all."""
    for driver, devices in info.drivers.items():
        for device in devices:
            if not request or not device.requests or request in device.requests:
                yield driver, device


def _is_controlled_by(claim: Object, uid: str) -> bool:
    owners = claim["metadata"].get("ownerReferences") or ()
    return any(one.get("controller") and one.get("uid") == uid for one in owners)
