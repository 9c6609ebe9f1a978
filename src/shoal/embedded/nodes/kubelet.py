"""One simulated kubelet: registers its node, gives signs of life, and has a worker for each pod on it.

It can be stopped and started like the real one: the containers of its machine go on without it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from shoal.embedded.deletion import DeleteOptions, Deletion
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import NODES, PODS, RESOURCE_SLICES, Kind
from shoal.embedded.nodes.claims.manager import ClaimManager
from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.devices.manager import DeviceManager
from shoal.embedded.nodes.devices.pod_resources import PodResources
from shoal.embedded.nodes.errors import NodesError
from shoal.embedded.nodes.host import Host
from shoal.embedded.nodes.node_object import LEASE_NAMESPACE, lease, node_object, node_status, without_heartbeat
from shoal.embedded.nodes.pods.site import Site
from shoal.embedded.nodes.pods.states import Timing
from shoal.embedded.nodes.pods.worker import PodWorker
from shoal.embedded.recorder import EventWriter
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object, key_of
from shoal.model.contract import kubernetes

log = logging.getLogger(__name__)


class Kubelet:
    """The kubelet of one node."""

    def __init__(
        self,
        host: Host,
        registry: Registry,
        deletion: Deletion,
        recorder: EventWriter,
        *,
        leases: Kind,
        clock: Clock,
        timing: Timing,
        rng: random.Random,
        plugin_calls: asyncio.Semaphore,
        news: Callable[[], None],
    ) -> None:
        self.host = host
        self.running = False
        self._registry = registry
        self._deletion = deletion
        self._recorder = recorder
        self._leases = leases
        self._clock = clock
        self._timing = timing
        self._rng = rng
        self._plugin_calls = plugin_calls
        self._news = news
        #: The status is to be written soon; the next sign of life; when the status was written last.
        self._dirty = False
        self._due: datetime = clock.now()
        self._reported: datetime | None = None
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        self._site = self._new_site()
        self._pod_resources = PodResources(
            host.folders.pod_resources,
            lambda: self._site.devices.accounts,
            lambda: self._site.claims,
            lambda: self._site.pods(),
        )

    @property
    def name(self) -> str:
        """The node's name."""
        return self.host.spec.name

    def _new_site(self) -> Site:
        devices = DeviceManager(
            self.host.folders.device_plugins, clock=self._clock, rng=self._rng, changed=self._mark_dirty
        )
        folders = self.host.folders
        claims = ClaimManager(
            folders.root,
            folders.plugins_registry,
            self._registry.store,
            clock=self._clock,
            wipe=self._wipe_slices,
            news=self._wake,
        )
        return Site(
            self.host,
            devices,
            claims,
            self._registry,
            self._deletion,
            self._recorder,
            self._clock,
            self._timing,
            self._plugin_calls,
        )

    def _wake(self, pods: Iterable[str]) -> None:
        """Have the workers of these pods look again."""
        for uid in pods:
            if uid in self._workers:
                self._workers[uid][0].wake.set()

    def _wipe_slices(self, driver: str = "") -> None:
        """Delete what drivers, or one of them, say of the node: nobody is there who could prepare it."""
        for one in self._registry.store.objects(RESOURCE_SLICES.key):
            spec = one["spec"]
            if spec.get("nodeName") != self.name or (driver and spec.get("driver") != driver):
                continue
            try:
                self._deletion.delete(RESOURCE_SLICES, *key_of(one), DeleteOptions(uid=one["metadata"]["uid"]))
            except ApiStatus as error:
                log.warning("a slice of node %s could not be deleted: %s", self.name, error)

    def _mark_dirty(self) -> None:
        self._dirty = True
        self._news()

    async def start(self) -> None:
        """Register the node, wait for plugins if it has any, and take over what runs."""
        if self.running:
            return
        self._site = self._new_site()
        if self.host.spec.device_plugins or self.host.folders.device_plugins.exists():
            await self.open_device_plugins()
        self._register()
        self._wipe_slices()
        self._renew()
        self._due = self._clock.now() + timedelta(seconds=self._timing.renew * self._rng.random())
        self.running = True
        self.resync()

    def resync(self) -> None:
        """Look at all pods of the node, and forget those that are gone."""
        for worker, _ in self._workers.values():
            worker.wake.set()
        present = [pod for pod in self._registry.store.objects(PODS.key) if pod["spec"].get("nodeName") == self.name]
        for uid in set(self.host.runs) - {pod["metadata"]["uid"] for pod in present} - set(self._workers):
            self.host.forget(uid)
        for pod in present:
            self.deliver(pod)
        self._site.claims.reconcile(self._workers)

    async def open_device_plugins(self) -> None:
        """Serve the sockets by which plugins register and PodResources is asked; until then there are none."""
        for folder in self.host.folders.cdi:
            folder.mkdir(parents=True, exist_ok=True)
        await self._site.devices.open()
        self._site.claims.open()
        await self._pod_resources.stop()
        await self._pod_resources.start()

    async def stop(self) -> None:
        """End kubelet alone. Its containers go on, its node goes quiet."""
        self.running = False
        tasks = [task for _, task in self._workers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.clear()
        await self._pod_resources.stop()
        await self._site.devices.close()
        await self._site.claims.close()

    async def restart(self) -> None:
        """Stop and start."""
        await self.stop()
        await self.start()

    async def reboot(self) -> None:
        """Restart the machine: every container ends."""
        await self.stop()
        self.host.reboot()
        await self.start()

    def deliver(self, pod: Object) -> None:
        """A pod is on the node, has changed, or has gone with this last state."""
        uid = pod["metadata"]["uid"]
        if not self.running or pod["spec"].get("nodeName") != self.name:
            return
        known = self._workers.get(uid)
        if known is not None:
            known[0].wake.set()
            return
        if self._registry.store.get(PODS.key, (pod["metadata"]["namespace"], pod["metadata"]["name"])) is not pod:
            if not self._is_present(pod):
                self.host.forget(uid)
            return
        if (pod.get("status") or {}).get("phase") in kubernetes.FINISHED_PHASES:
            return
        worker = PodWorker(self._site, pod)
        task = asyncio.create_task(worker.run(), name=f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}")
        self._workers[uid] = (worker, task)
        task.add_done_callback(lambda done: self._ended(uid, done))

    def end_container(self, pod_uid: str, container: str, code: int) -> None:
        """Have a container end now, as if its program did so by itself."""
        run = self.host.runs.get(pod_uid)
        if run is None or container not in run.containers:
            raise NodesError(f"pod {pod_uid} has no container {container!r} on {self.name}: nothing can be ended")
        run.exited(container, self._clock.now(), code)
        if pod_uid in self._workers:
            self._workers[pod_uid][0].wake.set()

    def _is_present(self, pod: Object) -> bool:
        meta = pod["metadata"]
        present = self._registry.store.get(PODS.key, (meta["namespace"], meta["name"]))
        return present is not None and present["metadata"]["uid"] == meta["uid"]

    def _ended(self, uid: str, done: asyncio.Task[None]) -> None:
        worker, _ = self._workers.pop(uid, (None, None))
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.error("the worker of a pod on %s broke", self.name, exc_info=error)
            self._site.release(uid)
        if worker is not None and not self._is_present(worker.pod):
            self.host.forget(uid)

    def beat(self) -> None:
        """What is due: the lease, and the status if there is news or it is old."""
        now = self._clock.now()
        self._site.claims.look()
        if now >= self._due:
            self._site.claims.reconcile(self._workers)
            self._renew()
            self._due = now + timedelta(seconds=self._timing.renew)
            self._dirty = True
        if self._dirty or self._is_late(now):
            self._dirty = False
            self._report(now)

    def _is_late(self, now: datetime) -> bool:
        return self._reported is None or (now - self._reported).total_seconds() >= self._timing.report

    def _register(self) -> None:
        now = self._clock.now()
        fresh = node_object(self.host.spec, self.host.address, now)
        old = self._registry.store.get(NODES.key, ("", self.name))
        if old is None:
            made = self._registry.create(NODES, "", fresh, manager="kubelet")
            self._recorder.tell(made, "Starting", "Starting kubelet.", host=self.name)
        else:
            meta = old["metadata"]
            labels = {**(meta.get("labels") or {}), **fresh["metadata"]["labels"]}
            self._registry.update(
                NODES, "", self.name, {**old, "metadata": {**meta, "labels": labels}}, manager="kubelet"
            )
        self._reported = None
        self._report(now)

    def _report(self, now: datetime) -> None:
        old = self._registry.store.get(NODES.key, ("", self.name))
        if old is None:
            return  # deleted by somebody: it comes back when kubelet is started again
        counts, gone = self._site.devices.counts()
        before = old.get("status") or {}
        fresh = node_status(before, self.host.spec, self.host.address, now, devices=counts, gone=gone)
        if self._is_late(now) or without_heartbeat(fresh) != without_heartbeat({"conditions": [], **before}):
            self._reported = now
            self._update(NODES, "", {**old, "status": fresh}, subresource="status", manager="kubelet")

    def _renew(self) -> None:
        node = self._registry.store.get(NODES.key, ("", self.name))
        if node is None:
            return
        fresh = lease(self.name, node["metadata"]["uid"], self._clock.now())
        old = self._registry.store.get(self._leases.key, (LEASE_NAMESPACE, self.name))
        if old is not None:
            fresh = {**old, "spec": fresh["spec"]}
        # Nobody asks who manages the fields of a lease, and it is written often.
        self._update(self._leases, LEASE_NAMESPACE, fresh)

    def _update(
        self, kind: Kind, namespace: str, obj: dict[str, Any], *, subresource: str = "", manager: str | None = None
    ) -> None:
        try:
            self._registry.update(kind, namespace, self.name, obj, subresource=subresource, manager=manager)
        except ApiStatus as error:
            log.warning("%s of node %s could not be written: %s", kind.kind, self.name, error)
