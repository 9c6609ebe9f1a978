"""The loop: look at the world, work out what is to be done, do it, and see it done before looking again.

A pass is planned on what the watches show. Its writes are carried out in order, those of nodes and pods many at a time;
one that fails is tried again later and holds up no other. Then the watches must have caught up with the writes, so that
the next plan is made with them: what counts nodes would count wrong otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from shoal.kube.client import Client
from shoal.kube.errors import KubeError, TooManyRequestsError, UnavailableError, UnreachableError
from shoal.kube.objects.pod import Pod
from shoal.kube.reflector import Reflector
from shoal.kube.resources import PODS, meta_of
from shoal.model.backoff import Backoff
from shoal.model.contract import nvidia
from shoal.operator.actions import (
    Action,
    Apply,
    Delete,
    DeletePod,
    Evict,
    PatchNode,
    SetFinalizer,
    SetStatus,
    Tell,
)
from shoal.operator.config import OperatorConfig
from shoal.operator.drift import ANNOTATION_APPLIED
from shoal.operator.errors import OperandsError
from shoal.operator.manifests import Manifests, read_manifests, state_of
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.policy_status import bounded
from shoal.operator.reconcile import due, in_force, needs_all_pods, reconcile, refused
from shoal.operator.watches import OperatorWatches
from shoal.operator.world import World
from shoal.operator.writes import Writes

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first=1.0, longest=120.0)
#: When there was no answer: that is over soon, or is no fault of what was written.
_SILENT_BACKOFF: Final = Backoff(first=0.5, longest=5.0)
#: After a failure of our own.
_ODD_SECONDS: Final = 10.0
#: How long the watches may take to show a write, before they are read anew.
_SEEN_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02
#: So many writes to one object at once, and then one in so many seconds: whoever changes it back all the time must not
#: keep the API server busy.
BURST: Final = 20
REFILL_SECONDS: Final = 5.0
#: A status changes with every node while many come: as often as this it is told.
STATUS_BURST: Final = 3
STATUS_SECONDS: Final = 1.0
#: Between two looks at least, when the last one had nothing to do but to tell.
_GAP_SECONDS: Final = 0.5
#: Words of refusals that the status repeats.
_MOST_FAILURES: Final = 100
#: The state of a driver upgrade in which all pods of a node are read.
_DRAIN: Final = "drain-required"
#: What an action is about.
Target = tuple[str, str, str]


class PolicyController:
    """The operator's work. `run` goes on until it is cancelled, and writes only while it may."""

    def __init__(
        self,
        config: OperatorConfig,
        client: Client,
        writes: Writes,
        *,
        may_write: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._client = client
        self._writes = writes
        self._may_write = may_write
        self._clock = clock
        self._now = now
        self._dirty = asyncio.Event()
        self._dirty.set()
        self.watches = OperatorWatches(client, config.namespace, changed=self._dirty.set)
        self.metrics = OperatorMetrics(lambda: self.watches.running)
        #: The manifests as last read; None before that.
        self.manifests: Manifests | None = None
        self._manifests_state: tuple[object, ...] = ()
        self._manifests_wrong = ""
        self._failures: dict[Target, int] = {}
        self._words: dict[Target, str] = {}
        #: What is not tried before this time.
        self._not_before: dict[Target, float] = {}
        self._left: dict[Target, tuple[float, float]] = {}
        #: Objects that stay as they are whatever is applied, by hash and version.
        self._settled: dict[Target, tuple[str, str]] = {}
        self._refusals: dict[str, str] = {}
        self._nvidia_known = False
        self._gap = 0.0
        #: Passes that were carried out, and those that found nothing to do.
        self.passes = 0
        self.idle_passes = 0

    # What is read

    def not_ready(self) -> str:
        """What has not been read yet, or cannot be used; empty when all can."""
        return self._unread() or (self._manifests_wrong if self.manifests is None else "")

    def _unread(self) -> str:
        """What has not been read yet; empty when all has."""
        unread = [name for name, one in self.watches.running.items() if not one.synced.is_set()]
        if unread:
            return f"still reading {', '.join(unread)}"
        if self.manifests is None and not self._manifests_wrong:
            return "the manifests of operands are not read yet"
        return "" if self._nvidia_known else "it is not known yet whether NVIDIA's operator is here"

    async def follow(self) -> None:
        """Keep up with what is no watch: the manifests, and whether NVIDIA's kind is served. Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_manifests())
            group.create_task(self._follow_nvidia())

    async def _follow_manifests(self) -> None:
        while True:
            await self.read_manifests()
            await asyncio.sleep(self._config.operands_seconds)

    async def read_manifests(self) -> None:
        """Read the manifests if they have changed. Those that cannot be read change nothing."""
        folder = Path(self._config.operands)
        state = await asyncio.to_thread(state_of, folder)
        if state == self._manifests_state and self.manifests is not None:
            return
        try:
            found = await asyncio.to_thread(read_manifests, folder, self._config.operands_digest)
        except OperandsError as error:
            if str(error) != self._manifests_wrong:
                log.error("%s", error)
                self._manifests_wrong = str(error)
                self._dirty.set()
            return
        if self._manifests_wrong:
            self._dirty.set()
        self._manifests_wrong, self._manifests_state = "", state
        if found != self.manifests:
            log.info("operands: %s", ", ".join(sorted(found)))
            self.manifests = found
            self._dirty.set()

    async def _follow_nvidia(self) -> None:
        while True:
            try:
                await self.watches.look_for_nvidia()
                if not self._nvidia_known:
                    self._nvidia_known = True
                    self._dirty.set()
            except KubeError as error:
                log.warning("whether NVIDIA's ClusterPolicy is known here: %s", error)
            await asyncio.sleep(self._config.nvidia_seconds if self._nvidia_known else 1.0)

    # The loop

    async def run(self) -> None:
        """Do what is to be done, until cancelled."""
        while True:
            await self._dirty.wait()
            started = self._clock()
            await asyncio.sleep(self._config.settle_seconds)
            self._dirty.clear()
            if self._unread() or not self._may_write():
                await asyncio.sleep(_LOOK_SECONDS * 5)
                self._dirty.set()
                continue
            try:
                again = await self.pass_once()
            except KubeError as error:
                log.warning("a look at the cluster failed: %s", error)
                again = _BACKOFF.first
            except Exception:
                # Whatever is odd in the cluster, an operator that ends again and again would help nobody.
                log.exception("a look at the cluster failed")
                again = _ODD_SECONDS
            if again is not None:
                asyncio.get_running_loop().call_later(again, self._dirty.set)
            # At most half of the time is spent on looking.
            await asyncio.sleep(max(self._gap, min(1.0, (self._clock() - started) / 2)))

    async def pass_once(self) -> float | None:
        """One look and what follows from it; seconds after which to look again, None: when something changes."""
        await self.watches.look_at_all_pods(needs_all_pods(self._world()))
        drained = await self._drained()
        started = self._clock()
        world = self._world(drained_pods=drained)
        # Without manifests that can be used nothing is changed, and nothing is removed.
        actions = refused(world) if self.manifests is None else reconcile(world)
        again = due(world)
        self.metrics.passes.observe(self._clock() - started)
        self._count_nodes(world)
        self._forget(world)
        ready, waiting = self._withheld(actions)
        self._gap = 0.0 if any(not isinstance(one, SetStatus | Tell) for one in ready) else _GAP_SECONDS
        self.passes += 1
        if ready:
            await self._carry_out(ready)
        else:
            self.idle_passes += 1
        soonest = min((one for one in (again, waiting) if one is not None), default=None)
        return soonest

    def _world(self, **more: Any) -> World:
        failures = {_told(target): words for target, words in itertools.islice(self._words.items(), _MOST_FAILURES)}
        return self.watches.world(
            self.manifests or {},
            now=self._now(),
            refusals=self._refusals,
            failures=failures,
            operands_error=self._manifests_wrong,
            **more,
        )

    async def _drained(self) -> dict[str, tuple[Pod, ...]]:
        """All pods of nodes that are being drained for a driver."""
        names = [
            name
            for name, node in self.watches.nodes.items()
            if node.metadata.labels.get(nvidia.LABEL_UPGRADE_STATE) == _DRAIN
        ]
        return {name: tuple((await self._client.list(PODS, fields=f"spec.nodeName={name}")).items) for name in names}

    def _count_nodes(self, world: World) -> None:
        """Tell Prometheus how many GPU nodes serve, as the status last said."""
        policy = in_force(world.policies)
        ready, _, served = str(((policy or {}).get("status") or {}).get("ready", "")).partition("/")
        if ready.isdigit() and served.isdigit():
            self.metrics.nodes.set(int(ready), "true")
            self.metrics.nodes.set(int(served) - int(ready), "false")

    def _forget(self, world: World) -> None:
        """Drop what is remembered of pods that are gone."""
        if self._refusals:
            there = {pod.metadata.uid for pods in world.gpu_pods.values() for pod in pods}
            there |= {pod.metadata.uid for pods in world.drained_pods.values() for pod in pods}
            self._refusals = {uid: words for uid, words in self._refusals.items() if uid in there}
        if len(self._left) > 2 * len(world.nodes) + 1000:
            self._left.clear()

    def _withheld(self, actions: list[Action]) -> tuple[list[Action], float | None]:
        """The actions to carry out now, and after how long to look again for the others."""
        now = self._clock()
        wanted = {target_of(action) for action in actions}
        if any(target not in wanted for target in self._words):
            self._dirty.set()  # the status still tells of it
        for known in (self._failures, self._words, self._not_before):
            for target in [target for target in known if target not in wanted]:
                del known[target]
        ready: list[Action] = []
        later: list[float] = []
        for action in actions:
            target = target_of(action)
            if self._not_before.get(target, now) > now:
                later.append(self._not_before[target] - now)
            elif self._is_settled(action):
                continue
            elif isinstance(action, Tell) or (pause := self._pause(action, now)) is None:
                ready.append(action)
            else:
                later.append(pause)
        return ready, min(later, default=None)

    def _pause(self, action: Action, now: float) -> float | None:
        """Count a write; seconds to wait if there were too many."""
        target = target_of(action)
        status = isinstance(action, SetStatus)
        if status:
            target = ("status", *target[1:])
        burst, refill = (STATUS_BURST, STATUS_SECONDS) if status else (BURST, REFILL_SECONDS)
        left, at = self._left.get(target, (float(burst), now))
        left = min(float(burst), left + (now - at) / refill)
        if left < 1:
            return (1 - left) * refill
        self._left[target] = left - 1, now
        return None

    def _is_settled(self, action: Action) -> bool:
        """Whether applying this changed nothing the last time, and the object is still the same."""
        if not isinstance(action, Apply):
            return False
        target = target_of(action)
        return self._settled.get(target) == (_hash_of(action), self._version(target))

    def _version(self, target: Target) -> str:
        reflector = self._reflector(target[0])
        found = reflector.store.get(target[2], target[1]) if reflector is not None else None
        return "" if found is None else meta_of(found).resource_version

    # Writing

    async def _carry_out(self, actions: list[Action]) -> None:
        """Write, in order; what is about nodes and pods many at a time."""
        versions: dict[str, int] = {}
        failed = False
        for many, group in itertools.groupby(actions, key=lambda one: isinstance(one, PatchNode | Evict | DeletePod)):
            if many:
                results = await self._at_once(group, versions)
                failed |= not all(results)
                continue
            for action in group:
                if not self._may_write():
                    return
                # The last word on a policy is for when all before it was done.
                if isinstance(action, SetFinalizer) and not action.present and failed:
                    continue
                failed |= not await self._write(action, versions)
        await self._see(actions, versions)

    async def _at_once(self, actions: Iterable[Action], versions: dict[str, int]) -> list[bool]:
        todo: Iterator[list[Action]] = iter(_by_target(actions))
        results: list[bool] = []

        async def work() -> None:
            for chain in todo:
                for action in chain:
                    if not self._may_write():
                        return
                    results.append(await self._write(action, versions))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._config.writers):
                group.create_task(work())
        return results

    async def _write(self, action: Action, versions: dict[str, int]) -> bool:
        target = target_of(action)
        kind = target[0]
        try:
            version = await self._writes.write(action)
        except TooManyRequestsError as error:
            if not isinstance(action, Evict):
                self._fail(target, error)
                return False
            # The causes name the budget.
            self._refusals[action.uid] = bounded("; ".join(error.causes) or error.message)
            return True
        except KubeError as error:
            self._fail(target, error)
            return False
        if isinstance(action, Evict):
            self._refusals.pop(action.uid, None)
        self.metrics.writes.inc(kind)
        if version is None:
            # Gone, or not the one that was looked at: the watches will tell.
            self._not_before[target] = self._clock() + _BACKOFF.first
            return True
        for known in (self._failures, self._words, self._not_before):
            known.pop(target, None)
        if isinstance(action, Apply):
            self._settle(action, target, version)
        with contextlib.suppress(ValueError):
            versions[kind] = max(versions.get(kind, 0), int(version or 0))
        return True

    def _settle(self, action: Apply, target: Target, version: str) -> None:
        if version and version == self._version(target):
            self._settled[target] = _hash_of(action), version
        else:
            self._settled.pop(target, None)

    def _fail(self, target: Target, error: KubeError) -> None:
        number = self._failures.get(target, 0) + 1
        self._failures[target] = number
        self._words[target] = bounded(str(error))
        silent = isinstance(error, UnreachableError | UnavailableError)
        self._not_before[target] = self._clock() + (_SILENT_BACKOFF if silent else _BACKOFF).after(number)
        self.metrics.failures.inc(target[0])
        log.warning("%s: %s", _told(target), error)

    # Seeing what was written

    async def _see(self, actions: list[Action], versions: dict[str, int]) -> None:
        """Wait until the watches show the writes; read anew what does not come."""
        deleted = [target for action in actions if (target := _deleted(action)) and target[1] not in self._not_before]
        end = self._clock() + _SEEN_SECONDS
        while self._clock() < end:
            if self._caught_up(versions) and all(self._is_gone(one) for one in deleted):
                return
            await asyncio.sleep(_LOOK_SECONDS)
        log.warning("the watches do not show what was written: reading anew")
        await self.watches.refresh()

    def _caught_up(self, versions: dict[str, int]) -> bool:
        for kind, version in versions.items():
            reflector = self._reflector(kind)
            if reflector is None:
                continue
            try:
                if int(reflector.resource_version or 0) < version:
                    return False
            except ValueError:
                return False
        return True

    def _is_gone(self, deleted: tuple[str, Target]) -> bool:
        uid, (kind, namespace, name) = deleted
        if uid in self._refusals or (kind, namespace, name) in self._failures:
            return True
        return self.watches.terminating(kind, name, namespace, uid)

    def _reflector(self, kind: str) -> Reflector[Any] | None:
        watches = self.watches
        known: dict[str, Reflector[Any]] = {
            "ClusterPolicy": watches.policies,
            "Node": watches.node_objects,
            "DaemonSet": watches.daemon_sets,
            "ConfigMap": watches.config_maps,
            "RuntimeClass": watches.runtime_classes,
        }
        return known.get(kind)


def target_of(action: Action) -> Target:
    """Kind, namespace and name of what an action writes to."""
    match action:
        case Apply(manifest):
            meta = meta_of(dict(manifest))
            return str(manifest.get("kind", "")), meta.namespace, meta.name
        case Delete(_, kind, name, namespace, _):
            return kind, namespace, name
        case PatchNode():
            return "Node", "", action.name
        case Evict(name, namespace, _) | DeletePod(name, namespace, _):
            return "Pod", namespace, name
        case Tell():
            return "Event", action.kind, f"{action.name} {action.reason}"
        case SetStatus(policy, _, _) | SetFinalizer(policy, _, _):
            return "ClusterPolicy", "", policy


def _told(target: Target) -> str:
    kind, namespace, name = target
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _deleted(action: Action) -> tuple[str, Target] | None:
    """The uid of what an action removes, and what it is."""
    if isinstance(action, Delete | Evict | DeletePod):
        return action.uid, target_of(action)
    return None


def _by_target(actions: Iterable[Action]) -> list[list[Action]]:
    """What is about one object stays in order, and together."""
    found: dict[Target, list[Action]] = {}
    for action in actions:
        found.setdefault(target_of(action), []).append(action)
    return list(found.values())


def _hash_of(action: Apply) -> str:
    metadata = action.manifest.get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(ANNOTATION_APPLIED, ""))
