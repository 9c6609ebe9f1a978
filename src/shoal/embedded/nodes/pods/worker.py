"""Drives one pod on one node: has it admitted, starts its containers, tells of it, and lets it go.

What happens next is decided by `machine`; here it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.access.users import kubelet_of
from shoal.embedded.deletion import DeleteOptions
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import PODS
from shoal.embedded.nodes.errors import (
    AllocationError,
    ClaimNotReadyError,
    ContainerConfigError,
    HookError,
    SimulatedWorkloadError,
)
from shoal.embedded.nodes.host import Creation, HookCall
from shoal.embedded.nodes.pods import status as statuses
from shoal.embedded.nodes.pods.admission import check
from shoal.embedded.nodes.pods.environment import environment
from shoal.embedded.nodes.pods.machine import Note, PodRun
from shoal.embedded.nodes.pods.site import Site
from shoal.embedded.nodes.pods.states import ContainerRun, Ended, Running
from shoal.embedded.nodes.pods.workload import failed, plan_of
from shoal.embedded.rules.claims import has_claims
from shoal.embedded.rules.pods import containers
from shoal.embedded.store import Object
from shoal.embedded.writes import ACTING
from shoal.kubelet.cdi import ContainerEdits, DeviceNode, Mount, resolve
from shoal.kubelet.errors import CdiError
from shoal.model.contract import kubernetes

log = logging.getLogger(__name__)
_NOT_STARTED: Final = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init"
)
#: Seconds that the containers of a pod have to end whose object has vanished.
_VANISHED_GRACE: Final = 1.0
#: The hooks that come before a container's program, in their order.
_EARLY: Final = ("prestart", "createRuntime", "createContainer", "startContainer")


def _words(pod: Object) -> tuple[object, ...]:
    """What of a pod makes kubelet look at it again when it changes: not its status."""
    meta = pod["metadata"]
    return pod["spec"], meta.get("labels"), meta.get("annotations")


class PodWorker:
    """One pod on one node. `run` ends when the pod is over or gone."""

    def __init__(self, site: Site, pod: Object) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        #: Set when the pod's object has changed or is gone.
        self.wake = asyncio.Event()
        #: The object is gone from the API server: the containers are to end at once.
        self._gone = False
        self._site = site
        self._told_status: dict[str, Any] | None = None
        self._grace: float | None = None
        #: Since when somebody else calls the pod finished.
        self._lied_at: datetime | None = None

    async def run(self) -> None:
        """From its admission to its end."""
        ACTING.set(kubelet_of(self._site.host.spec.name))
        run = self._site.host.runs.get(self.uid)
        if run is not None and (run.running or run.over):
            self._site.take(self.pod)
        elif not await self._admit():
            return
        elif run is None:
            run = PodRun(self.pod, timing=self._site.timing)
            run.started = self._site.clock.now()
            self._site.host.runs[self.uid] = run
        await self._drive(run)

    def _refresh(self) -> None:
        """Look at the object anew."""
        present = self._site.registry.store.get(PODS.key, self._key)
        if present is None or present["metadata"]["uid"] != self.uid:
            self._gone = True
        else:
            self.pod = present

    async def _admit(self) -> bool:
        """Take the pod or refuse it. Pods are admitted one after another, as on a real node."""
        site = self._site
        async with site.admission, site.plugin_calls:
            self._refresh()
            if self._is_ending():
                self._let_go()
                return False
            try:
                await site.devices.allocate(self.pod, site.active())
            except AllocationError as error:
                message = f"Allocate failed due to {error}, which is unexpected"
                self._refuse("UnexpectedAdmissionError", message)
                return False
            refusal = check(self.pod, site.node(), site.others(self.uid), held=site.devices.accounts.in_use())
            if refusal is not None:
                self._refuse(refusal.reason, refusal.message)
                return False
            site.take(self.pod)
        return True

    def _refuse(self, reason: str, message: str) -> None:
        log.info("pod %s refused on %s: %s: %s", self._name, self._site.name, reason, message)
        self._site.host.forget(self.uid)
        self._tell(Note(reason, message, warning=True))
        self._write(statuses.refused(self.pod, reason, message, self._site.clock.now()))

    async def _drive(self, run: PodRun) -> None:
        site = self._site
        self._refresh()
        if not run.address and not run.over:
            if has_claims(self.pod):
                await self._prepare(run)
            if not run.over:
                await self._make_sandbox(run)
        while True:
            now = site.clock.now()
            self._refresh()
            self._heed_deletion(run, now)
            step = run.step(now)
            for note in step.notes:
                self._tell(note)
            more = self._move_programs(run, now)
            if run.over:
                break
            due = self._heed_lies(now)
            # Before the starts: plugins look at the pod's status to see how far it has come.
            self._publish(run)
            if step.start:
                for one in step.start:
                    async with site.plugin_calls:
                        await self._start(run, one)
                continue
            moments = [moment for moment in (step.wake, more, due) if moment is not None]
            await site.clock.wait(self.wake, min(moments, default=None))
        # Before anybody hears that the pod has ended: its claims are given to others then.
        await self._unprepare()
        site.release(self.uid)
        site.host.end_cgroup(self._pod_cgroup())
        self._publish(run)
        if self._is_ending():
            self._let_go()

    async def _prepare(self, run: PodRun) -> None:
        """Wait until all claims of the pod are prepared, or it is to end."""
        clock = self._site.clock
        while not self._is_ending():
            step = run.wait(clock.now())
            for note in step.notes:
                self._tell(note)
            if run.over:
                return
            self._publish(run)
            try:
                await self._unless_ending(self._site.claims.prepare(self.pod))
                return
            except ClaimNotReadyError as error:
                why = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
                self._tell(Note("FailedPrepareDynamicResources", why, warning=True))
            seen, until = _words(self.pod), clock.now() + timedelta(seconds=self._site.timing.retry)
            until = min(until, step.wake or until)
            while clock.now() < until and _words(self.pod) == seen and not self._is_ending():
                await clock.wait(self.wake, until)
                self._refresh()

    async def _unless_ending(self, work: Coroutine[None, None, None]) -> None:
        """Do it, and break it off when the pod is to end."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not self._is_ending():
                woken = asyncio.ensure_future(self.wake.wait())
                await asyncio.wait({task, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self.wake.clear()
                self._refresh()
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _unprepare(self) -> None:
        """Have the pod's claims taken back, however long that takes."""
        site = self._site
        while site.claims.uses(self.uid):
            try:
                await site.claims.unprepare(self.uid)
            except ClaimNotReadyError as error:
                log.warning("pod %s cannot end: unprepare dynamic resources: %s", self._name, error)
                await site.clock.wait(self.wake, site.clock.now() + timedelta(seconds=site.timing.retry))
                self._refresh()

    async def _make_sandbox(self, run: PodRun) -> None:
        """Give the pod its address, after the time that takes."""
        clock = self._site.clock
        if any(one.runs for one in run.containers.values()):
            self._tell(Note("SandboxChanged", "Pod sandbox changed, it will be killed and re-created."))
        until = clock.now() + timedelta(seconds=self._site.timing.start)
        if self._site.timing.start:
            self._publish(run)
        while clock.now() < until and not self._is_ending():
            await clock.wait(self.wake, until)
            self._refresh()
        run.address = self._site.host.pod_address()
        self._site.host.begin_cgroup(self._pod_cgroup())

    def _heed_deletion(self, run: PodRun, now: datetime) -> None:
        if not self._is_ending():
            return
        grace = _VANISHED_GRACE if self._gone else float(self.pod["metadata"].get("deletionGracePeriodSeconds", 0))
        if self._grace is not None and grace >= self._grace:
            return
        self._grace = grace
        for note in run.stop(now, grace):
            self._tell(note)

    def _is_ending(self) -> bool:
        return self._gone or "deletionTimestamp" in self.pod["metadata"]

    def _heed_lies(self, now: datetime) -> datetime | None:
        """Treat a pod that runs as the real kubelet does when its object is gone, or somebody else calls it finished.

        It counts as none of the node's pods then, so others can have its devices. Its containers go on; the status is
        put right some time later. That moment, if it is still to come.
        """
        if self._gone:
            self._site.release(self.uid)
            return None
        if self._told_status is None or (self.pod.get("status") or {}).get("phase") not in kubernetes.FINISHED_PHASES:
            self._lied_at = None
            return None
        self._site.release(self.uid)
        self._lied_at = self._lied_at or now
        due = self._lied_at + timedelta(seconds=self._site.timing.reconcile)
        if now < due:
            return due
        self._lied_at = self._told_status = None
        self._site.take(self.pod)
        return None

    async def _start(self, run: PodRun, one: ContainerRun) -> None:
        """Create and start a container; whatever keeps it from that is told, and tried again."""
        site = self._site
        spec = next(found for found in containers(self.pod["spec"]) if found["name"] == one.name)
        image = f'Container image "{spec["image"]}" already present on machine and can be accessed by the pod'
        self._tell(Note("Pulled", image, one.name))
        try:
            await site.devices.pre_start(self.pod, spec, site.active())
            creation = self._created(spec, run)
            plan = plan_of(spec, self.pod, creation.env, creation.secret)
        except (AllocationError, ContainerConfigError, SimulatedWorkloadError) as error:
            self._fail(run, one, "CreateContainerConfigError", str(error))
            return
        except CdiError as error:
            why = f"failed to create containerd container: CDI device injection failed: {error}"
            self._fail(run, one, "CreateContainerError", why)
            return
        container_id = site.host.container_id(self.uid, one.name, one.runs)
        site.host.creations[self.uid, one.name] = creation
        self._tell(Note("Created", "Container created", one.name))
        cgroup = self._cgroup(container_id)
        try:
            await self._run_hooks(one.name, container_id, cgroup, creation)
        except HookError as error:
            message = f"{_NOT_STARTED}: {error}"
            self._tell(Note("Failed", f"Error: {message}", one.name, warning=True))
            run.broken(one.name, site.clock.now(), container_id, message)
            return
        now = site.clock.now()
        if plan.uses_cards:
            lines = site.host.programs.begin(container_id, plan, creation.env, creation.edits, cgroup, now)
            plan = failed(plan, lines) if lines else plan
        run.begun(one.name, now, container_id, plan)
        self._tell(Note("Started", "Container started", one.name))

    def _fail(self, run: PodRun, one: ContainerRun, reason: str, message: str) -> None:
        self._tell(Note("Failed", f"Error: {message}", one.name, warning=True))
        run.not_begun(one.name, self._site.clock.now(), reason, message)

    def _created(self, spec: Mapping[str, Any], run: PodRun) -> Creation:
        """What the container gets: the plugins' answers, the pod's own words, and its CDI devices."""
        host = self._site.host
        responses = self._site.devices.responses(self.uid, spec["name"])
        env = environment(
            spec,
            self.pod,
            addresses={"podIP": run.address, "hostIP": host.address},
            allocatable=self._site.node()["status"].get("allocatable", {}),
            allocated=[dict(answer.envs) for answer in responses],
            fetch=self._fetch,
        )
        edits = ContainerEdits(
            device_nodes=tuple(
                DeviceNode(path=one.container_path, host_path=one.host_path, permissions=one.permissions)
                for answer in responses
                for one in answer.devices
            ),
            mounts=tuple(
                Mount(one.host_path, one.container_path, options=("ro",) if one.read_only else ())
                for answer in responses
                for one in answer.mounts
            ),
        )
        names = self._site.claims.cdi_devices(self.pod, spec)
        names += [device.name for answer in responses for device in answer.cdi_devices]
        if names:
            edits += resolve(names, host.cdi_files.load())
        return Creation(edits.environment(env.variables), env.secret, edits)

    def _fetch(self, plural: str, name: str) -> Object | None:
        return self._site.registry.store.get(("", plural), (self.pod["metadata"]["namespace"], name))

    def _cgroup(self, container_id: str) -> str:
        return f"/sys/fs/cgroup/{self._pod_cgroup()}/{container_id.removeprefix('containerd://')}"

    def _pod_cgroup(self) -> str:
        qos = (self.pod.get("status") or {}).get("qosClass", "BestEffort").lower()
        return "/".join(["kubepods", *([] if qos == "guaranteed" else [qos]), f"pod{self.uid}"])

    async def _run_hooks(self, name: str, container_id: str, cgroup: str, creation: Creation) -> None:
        """Have the hooks run that come before a container's program, if somebody plays them here."""
        runner = self._site.host.run_hook
        if runner is None:
            return
        prefix = "io.kubernetes.cri"
        state = {
            "ociVersion": "1.0.2",
            "id": container_id.removeprefix("containerd://"),
            "status": "creating",
            "annotations": {
                f"{prefix}.container-name": name,
                f"{prefix}.container-type": "container",
                f"{prefix}.sandbox-name": self.pod["metadata"]["name"],
                f"{prefix}.sandbox-namespace": self.pod["metadata"]["namespace"],
                f"{prefix}.sandbox-uid": self.uid,
            },
        }
        for number, hook in enumerate(one for one in creation.edits.hooks if one.hook_name in _EARLY):
            try:
                await runner(HookCall(hook, state, cgroup))
            except HookError as error:
                why = f"error running hook #{number}: error running hook: exit status 1, stdout: , stderr: {error}"
                raise HookError(why) from error

    def _move_programs(self, run: PodRun, now: datetime) -> datetime | None:
        """Let programs take their memory, and take it from those that ended; when to do so again."""
        programs = self._site.host.programs
        moments = []
        for one in run.containers.values():
            if isinstance(one.state, Ended):
                programs.end(one.state.id)
            elif isinstance(one.state, Running):
                due = programs.next_move(one.state.id)
                if due is not None and due <= now:
                    lines = programs.move(one.state.id, now)
                    due = programs.next_move(one.state.id)
                    if lines:
                        run.exited(one.name, now, 1, tuple(lines))
                        due = now
                if due is not None:
                    moments.append(due)
        return min(moments, default=None)

    def _publish(self, run: PodRun) -> None:
        """Write the status if there is news."""
        site = self._site
        if self._gone:
            return
        fresh = statuses.pod_status(
            self.pod,
            run,
            host=site.host.address,
            now=site.clock.now(),
            health=lambda container: site.claims.health(self.pod, container),
        )
        if fresh != self._told_status:
            self._write(fresh)
            self._told_status = fresh

    def _write(self, status: dict[str, Any]) -> None:
        registry = self._site.registry
        self._refresh()
        if self._gone:
            return
        try:
            changed = {**self.pod, "status": statuses.with_others(status, self.pod)}
            self.pod, _ = registry.update(PODS, *self._key, changed, subresource="status", manager="kubelet")
        except ApiStatus as error:
            log.warning("the status of pod %s could not be written: %s", self._name, error)

    def _let_go(self) -> None:
        """All containers have ended: the object may go."""
        options = DeleteOptions(grace_seconds=0, uid=self.uid)
        try:
            self._site.deletion.delete(PODS, *self._key, options)
        except ApiStatus as error:
            if error.code not in (404, 409):  # gone already, perhaps with another of its name in its place
                log.warning("pod %s could not be let go: %s", self._name, error)

    def _tell(self, note: Note) -> None:
        path = ""
        if note.container:
            inits = {one["name"] for one in self.pod["spec"].get("initContainers") or ()}
            path = f"spec.{'initContainers' if note.container in inits else 'containers'}{{{note.container}}}"
        self._site.recorder.tell(
            self.pod, note.reason, note.message, host=self._site.name, field_path=path, warning=note.warning
        )

    @property
    def _key(self) -> tuple[str, str]:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]

    @property
    def _name(self) -> str:
        return "/".join(self._key)
