"""Runs the controllers beside the API server: hears every write, and looks at the objects it concerns.

One look is one step without a pause, so what it saw is still so when it writes. Between looks others may work.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.access.users import WORKLOAD_CONTROLLERS
from shoal.embedded.controllers.execute import MANAGER, Action, Execution
from shoal.embedded.controllers.object_index import ObjectIndex
from shoal.embedded.controllers.reconcile import job, pods, resource_claim
from shoal.embedded.controllers.table import CONTROLLERS, Controller
from shoal.embedded.deletion import Deletion
from shoal.embedded.kinds import (
    BUDGETS,
    DAEMON_SETS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    RESOURCE_TEMPLATES,
    Kind,
)
from shoal.embedded.recorder import EventWriter
from shoal.embedded.registry import Registry
from shoal.embedded.rules.claims import claim_names, has_claims
from shoal.embedded.selectors import matches_selector
from shoal.embedded.store import Key, Object, key_of
from shoal.embedded.writes import ACTING
from shoal.model.backoff import Backoff

# Keys to look at: each once, however often it is asked for, now or at a later moment.


_BACKOFF: Final = Backoff(first=0.005, longest=1000.0)
#: After a look that found nothing to make or delete a key rests this many times as long as the look took, so that a
#: flood of changes is seen in batches.
_REST: Final = 3.0


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """An object that a controller shall look at."""

    controller: str
    key: Key


class Queue:
    """What is due, by a clock in seconds that the caller reads."""

    def __init__(self) -> None:
        self._ready: OrderedDict[Item, None] = OrderedDict()
        self._later: list[tuple[float, Item]] = []
        #: The earliest moment each waiting item is due: what else the heap says of it is out of date.
        self._due: dict[Item, float] = {}
        self._rests_until: dict[Item, float] = {}
        self._refusals: dict[Item, int] = {}

    def add(self, item: Item) -> None:
        """Look at it soon."""
        self._ready[item] = None

    def add_at(self, item: Item, when: float) -> None:
        """Look at it at that time, or before if something else asks for it."""
        if self._due.get(item, when + 1) > when:
            self._due[item] = when
            heapq.heappush(self._later, (when, item))

    def retry(self, item: Item, now: float) -> None:
        """Look at it again after a refusal, ever later."""
        self._refusals[item] = self._refusals.get(item, 0) + 1
        self.add_at(item, now + _BACKOFF.after(self._refusals[item]))

    def succeeded(self, item: Item) -> None:
        """The next refusal is the first again."""
        self._refusals.pop(item, None)

    def rest(self, item: Item, began: float, ended: float) -> None:
        """Leave a key alone for a while, after a look of that length."""
        self._rests_until[item] = ended + _REST * (ended - began)

    def forget(self, item: Item) -> None:
        """The object is gone."""
        for kept in (self._refusals, self._rests_until):
            kept.pop(item, None)

    def pop(self, now: float) -> Item | None:
        """The next item that is due."""
        while self._later and self._later[0][0] <= now:
            when, item = heapq.heappop(self._later)
            if self._due.get(item) == when:
                del self._due[item]
                self._ready[item] = None
        for _ in range(len(self._ready)):
            item, _ = self._ready.popitem(last=False)
            rests = self._rests_until.get(item, 0.0)
            if rests <= now:
                return item
            self.add_at(item, rests)
        return None

    def next_due(self) -> float | None:
        """When the first of the waiting items is due."""
        return self._later[0][0] if self._later else None


_log = logging.getLogger(__name__)
#: Seconds of work after which others get their turn.
_SLICE: Final = 0.02
#: How long a node may be away before its pods are given up.
NODE_AWAY: Final = timedelta(seconds=40)
_TRACKED: Final = "job-tracking"
_LOST: Final = "pod-garbage-collector"
#: Objects are not checked against schemas, so one that makes no sense to a controller is met with these.
_NONSENSE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Controllers:
    """The controllers of one embedded cluster. `run` works until it is cancelled."""

    def __init__(
        self,
        registry: Registry,
        deletion: Deletion,
        *,
        node_away: timedelta = NODE_AWAY,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._deletion = deletion
        self._node_away = node_away
        self._monotonic = monotonic
        self._queue = Queue()
        self._wake = asyncio.Event()
        self._memory: dict[Item, Any] = {}
        self._world = ObjectIndex(registry, deletion)
        self._by_name: Mapping[str, Controller] = {one.name: one for one in CONTROLLERS}
        self._by_kind = {(one.kind.group, one.kind.kind): one for one in CONTROLLERS}
        self._recorders = {
            name: EventWriter(registry, name, manager=MANAGER) for name in (*self._by_name, _TRACKED, _LOST)
        }

    async def run(self) -> None:
        """Look after all there is, and after what comes."""
        self._world = ObjectIndex(self._registry, self._deletion)
        self._registry.observers.append(self._observe)
        try:
            self._begin()
            while True:
                self._wake.clear()
                if self._work():
                    await asyncio.sleep(0)
                else:
                    await self._wait()
        finally:
            self._registry.observers.remove(self._observe)

    def _begin(self) -> None:
        for kind in self._registry.catalogue.all():
            if kind.key in (PODS.key, NODES.key) or (kind.group, kind.kind) in self._by_kind:
                for obj in self._world.all(kind):
                    self._observe(kind, None, obj)

    def _work(self) -> bool:
        """Look at what is due for a while; whether more may be due is the answer."""
        end = self._monotonic() + _SLICE
        while (now := self._monotonic()) < end:
            item = self._queue.pop(now)
            if item is None:
                return False
            self._look(item, now)
        return True

    async def _wait(self) -> None:
        """Until something is written, or something is due."""
        due = self._queue.next_due()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - self._monotonic())):
                await self._wake.wait()
        except TimeoutError:
            return

    def _look(self, item: Item, began: float) -> None:
        controller = self._by_name.get(item.controller)
        ACTING.set(WORKLOAD_CONTROLLERS if controller is None else controller.user)
        try:
            if item.controller == _TRACKED:
                done = self._look_at_tracked(item)
            elif item.controller == _LOST:
                done = self._look_at_node(item)
            else:
                done = self._look_at_object(item, self._by_name[item.controller], began)
        except _NONSENSE:
            _log.exception("%s cannot make sense of %s", item.controller, "/".join(item.key))
            done = False
        if done:
            self._queue.succeeded(item)
        else:
            self._queue.retry(item, self._monotonic())

    def _look_at_object(self, item: Item, controller: Controller, began: float) -> bool:
        """Whether all went well."""
        obj = self._world.get(controller.kind, item.key)
        if obj is None:
            self._memory.pop(item, None)
            self._queue.forget(item)
            return True
        now = self._registry.clock()
        owned = replace(controller.gather(self._world, obj), memory=self._memory.get(item))
        execution = self._execution(item, controller.kind, obj)
        failure = execution.run(controller.reconcile(obj, owned, now))
        self._keep(item, execution, now)
        if not execution.moved:
            self._queue.rest(item, began, self._monotonic())
        if failure is None:
            return True
        _log.info("%s %s: %s", item.controller, "/".join(item.key), failure.message)
        obj = self._world.get(controller.kind, item.key)
        if obj is not None and failure.reason != "Conflict":
            again = replace(controller.gather(self._world, obj), memory=self._memory.get(item), failure=failure)
            self._execution(item, controller.kind, obj).run(controller.reconcile(obj, again, now))
        return False

    def _look_at_tracked(self, item: Item) -> bool:
        """Free a pod that was counted by a Job which is gone or finished."""
        pod = self._world.get(PODS, item.key)
        if pod is None or not self._is_left_tracked(pod):
            return True
        return self._execution(item, PODS, pod).run(job.released(pod)) is None

    def _look_at_node(self, item: Item) -> bool:
        """Give up the pods of a node that is gone. Nodes go seldom, so all pods are looked at."""
        name = item.key[1]
        if self._world.get(NODES, item.key) is not None:
            return True
        done, now = True, self._registry.clock()
        for pod in self._world.all(PODS):
            if pod["spec"].get("nodeName") == name:
                actions: list[Action] = pods.reconcile(pod, now)
                done = self._execution(item, PODS, pod).run(actions) is None and done
        return done

    def _execution(self, item: Item, kind: Kind, about: Object) -> Execution:
        return Execution(self._registry, self._deletion, self._recorders[item.controller], kind, about)

    def _keep(self, item: Item, execution: Execution, now: datetime) -> None:
        if execution.memory is not None:
            self._memory[item] = execution.memory
        if execution.again is not None:
            self._queue.add_at(item, self._monotonic() + max(0.0, (execution.again - now).total_seconds()))

    def _observe(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        """Called after each write, in the middle of it: only notes what to look at."""
        obj = after or before
        assert obj is not None
        key = key_of(obj)
        own = self._by_kind.get((kind.group, kind.kind))
        if own is not None and own.concerns(obj):
            self._queue.add(Item(own.name, key))
        for state in (before, after):
            if state is not None:
                self._add_owner(state)
        if self._world.note(kind, key):
            self._add_adopters(kind, obj)
        if kind.key == PODS.key or "scale" in kind.subresources:
            self._add_budgets(key[0])
        if kind.key == PODS.key:
            self._observe_pod(before, after)
        elif kind.key == NODES.key:
            self._observe_node(before, after)
        elif kind.key in (RESOURCE_CLAIMS.key, RESOURCE_TEMPLATES.key):
            name = self._by_kind[PODS.group, PODS.kind].name
            for user in self._world.users(kind, key):
                self._queue.add(Item(name, user))
        elif kind.key == JOBS.key and after is None:
            # Pods that were on their way out already are told of by nobody else.
            for pod in self._world.owned(obj, PODS):
                self._queue.add(Item(_TRACKED, key_of(pod)))
        self._wake.set()

    def _add_owner(self, obj: Object) -> None:
        owner = pods.controller_of(obj)
        if owner is None:
            return
        group = owner["apiVersion"].rpartition("/")[0]
        controller = self._by_kind.get((group, owner["kind"]))
        if controller is not None:
            self._queue.add(Item(controller.name, (obj["metadata"].get("namespace", ""), owner["name"])))

    def _add_adopters(self, kind: Kind, obj: Object) -> None:
        metadata = obj["metadata"]
        labels = metadata.get("labels") or {}
        for controller in CONTROLLERS:
            if not labels or kind not in controller.adopts:
                continue
            for owner in self._world.all(controller.kind, metadata["namespace"]):
                if matches_selector(owner["spec"].get("selector"), labels):
                    self._queue.add(Item(controller.name, key_of(owner)))

    def _add_budgets(self, namespace: str) -> None:
        """Whatever changes the pods of a namespace may change what its budgets allow; there are few of them."""
        name = self._by_kind[BUDGETS.group, BUDGETS.kind].name
        for budget in self._world.all(BUDGETS, namespace):
            self._queue.add(Item(name, key_of(budget)))

    def _observe_pod(self, before: Object | None, after: Object | None) -> None:
        self._observe_claims(before, after)
        if after is None:
            self._add_grandparent(before)
            return
        if self._is_left_tracked(after):
            self._queue.add(Item(_TRACKED, key_of(after)))
        node = after["spec"].get("nodeName", "")
        if node and self._world.get(NODES, ("", node)) is None:
            self._queue.add_at(Item(_LOST, ("", node)), self._monotonic() + self._node_away.total_seconds())

    def _observe_claims(self, before: Object | None, after: Object | None) -> None:
        """Claims of a pod that has ended or gone may be given back."""
        pod = after or before
        if pod is None or not any(state and has_claims(state) for state in (before, after)):
            return
        self._world.note_claims(key_of(pod))
        if after is None or resource_claim.is_done(after):
            name = self._by_kind[RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.kind].name
            for claim in claim_names(pod):
                self._queue.add(Item(name, (pod["metadata"]["namespace"], claim)))

    def _add_grandparent(self, gone: Object | None) -> None:
        """A Deployment that recreates its pods waits for the last of them to go."""
        owner = pods.controller_of(gone) if gone else None
        if gone is None or owner is None or owner["kind"] != REPLICA_SETS.kind:
            return
        parent = self._world.get(REPLICA_SETS, (gone["metadata"]["namespace"], owner["name"]))
        if parent is not None:
            self._add_owner(parent)

    def _observe_node(self, before: Object | None, after: Object | None) -> None:
        if after is None and before is not None:
            item = Item(_LOST, ("", before["metadata"]["name"]))
            self._queue.add_at(item, self._monotonic() + self._node_away.total_seconds())
        if _for_daemons(before) != _for_daemons(after):
            name = self._by_kind[DAEMON_SETS.group, DAEMON_SETS.kind].name
            for one in self._world.all(DAEMON_SETS):
                self._queue.add(Item(name, key_of(one)))

    def _is_left_tracked(self, pod: Object) -> bool:
        """Whether a pod waits for being counted by a Job that will not do it."""
        metadata = pod["metadata"]
        if job.TRACKING not in (metadata.get("finalizers") or ()):
            return False
        owner = pods.controller_of(pod)
        if owner is None:
            return True
        found = self._world.get(JOBS, (metadata["namespace"], owner["name"])) if owner["kind"] == JOBS.kind else None
        if owner["kind"] != JOBS.kind:
            return False
        return found is None or found["metadata"]["uid"] != owner["uid"] or job.is_finished(found)


def _for_daemons(node: Object | None) -> object:
    """What of a node decides about daemon pods."""
    if node is None:
        return None
    return node["metadata"].get("labels"), node.get("spec", {}).get("taints")
