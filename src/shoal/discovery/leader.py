"""The leader: turns the facts of all nodes into their labels, and writes a node only when its labels differ.

Labels are written by server-side apply under a manager of their own and never by force: what another manager holds to
another value stays its own, and is left out until it changes. The server itself removes what was Shoal's and is not
named any more. One node's trouble holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.labels import is_listed
from shoal.discovery.plan import NodeLabels, differs, has_card, nfd_keys, planned
from shoal.discovery.worker import NODE_METADATA
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, ForbiddenError, KubeError, NotFoundError
from shoal.kube.objects.meta import Object
from shoal.kube.reflector import Reflector
from shoal.kube.store import Change
from shoal.model.backoff import Backoff
from shoal.model.contract.discovery import ANNOTATION_FACTS, MANAGER_LABELS, NodeFacts, decode_facts
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
#: A write is tried again so often when it meets labels of others.
_TRIES: Final = 4
_FIELD: Final = ".metadata.labels."
#: So many writes to one node at once, and then one in so many seconds: a node that changes its word all the time must
#: not keep the API server busy.
BURST: Final = 10
REFILL_SECONDS: Final = 10.0


class Leader:
    """Labels of all nodes. `run` goes on until it is cancelled."""

    def __init__(
        self,
        config: DiscoveryConfig,
        client: Client,
        *,
        may_write: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._client = client
        self._may_write = may_write
        self._clock = clock
        #: Since when there is no sign of a card, by node.
        self._absent: dict[str, float] = {}
        self._foreign: dict[str, dict[str, str | None]] = {}
        self._unreadable: dict[str, str] = {}
        #: Nodes to look at; when to look again at those that failed or whose grace time runs.
        self._dirty: dict[str, None] = {}
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        #: How many nodes are being looked at.
        self._looked_at = 0
        #: Writes that a node has left, and when that was.
        self._left: dict[str, tuple[float, float]] = {}
        self._wake = asyncio.Event()
        #: Labels were written so often.
        self.writes = 0
        self.reflector: Reflector[Object] = Reflector(client, NODE_METADATA, consumers=[self._on_node])

    async def run(self) -> None:
        """Keep the labels of all nodes until cancelled."""
        async with self.reflector, asyncio.TaskGroup() as group:
            await self.reflector.wait_synced()
            for _ in range(self._config.writers):
                group.create_task(self._write())
            group.create_task(self._remind())

    def waiting_for(self) -> str:
        """What keeps the leader from its work, in words; one node's trouble does not."""
        if self.reflector.synced.is_set():
            return ""
        return f"still reading the nodes: {self.reflector.last_error or 'no answer yet'}"

    @property
    def idle(self) -> bool:
        """Whether no node waits to be looked at now, and none is."""
        return not self._dirty and not self._looked_at

    async def _write(self) -> None:
        while True:
            if not self._dirty:
                self._wake.clear()
                await self._wake.wait()
                continue
            name = next(iter(self._dirty))
            del self._dirty[name]
            self._looked_at += 1
            try:
                await self.settle(name)
                self._failures.pop(name, None)
            except KubeError as error:
                log.warning("node %s: %s", name, error)
                self._failures[name] = self._failures.get(name, 0) + 1
                self._remember(name, self._clock() + _BACKOFF.after(self._failures[name]))
            finally:
                self._looked_at -= 1

    async def _remind(self) -> None:
        """Look again at nodes whose time has come."""
        while True:
            await asyncio.sleep(1.0)
            self.remind()

    def remind(self) -> None:
        """Look again at nodes whose time has come."""
        now = self._clock()
        for name in [name for name, due in self._due.items() if due <= now]:
            del self._due[name]
            self._mark(name)
        for name in [name for name, (_, at) in self._left.items() if now - at > BURST * REFILL_SECONDS]:
            del self._left[name]

    def _mark(self, name: str) -> None:
        self._dirty[name] = None
        self._wake.set()

    def _remember(self, name: str, due: float) -> None:
        self._due[name] = min(due, self._due.get(name, due))

    def _on_node(self, change: Change[Object]) -> None:
        name = change.object.metadata.name
        if change.new is None:
            # What it has written stays counted: a name that is used again is no way around the limit.
            for known in (self._absent, self._foreign, self._unreadable, self._dirty, self._due, self._failures):
                known.pop(name, None)
            return
        if change.old is None or _relevant(change.old) != _relevant(change.new):
            self._mark(name)

    async def settle(self, name: str) -> None:
        """Write the labels of one node if they differ, once."""
        for _ in range(_TRIES):
            found = self.reflector.store.get(name)
            if found is None or not self._may_write():
                return
            node = self.look(found)
            wanted = planned(node, gone=self._gone(name, node))
            if not differs(node, wanted) or not self._may_write_to(name):
                return
            try:
                written = await self._apply(found, wanted)
            except ConflictError as error:
                if not self._left_to_others(name, node, error, wanted):
                    raise
                continue
            except NotFoundError:
                return
            except ForbiddenError:
                if self.reflector.store.get(name) is None:
                    return  # gone meanwhile: to apply would have been to create it
                raise
            self.writes += written.metadata.resource_version != found.metadata.resource_version
            # What is there in spite of us is somebody else's.
            foreign = self._foreign.setdefault(name, {})
            for key, value in _listed(written).items():
                if key not in wanted:
                    foreign[key] = value
            return
        log.info("node %s: others write its labels now: looking again when they change", name)

    def _may_write_to(self, name: str) -> bool:
        """Count a write to a node; if it has had too many, look again later."""
        now = self._clock()
        left, at = self._left.get(name, (BURST, now))
        left = min(BURST, left + (now - at) / REFILL_SECONDS)
        if left < 1:
            self._remember(name, now + (1 - left) * REFILL_SECONDS)
            return False
        self._left[name] = left - 1, now
        return True

    async def _apply(self, node: Object, labels: Mapping[str, str]) -> Object:
        # The uid: a node that was deleted must not come back as a node of labels.
        metadata: dict[str, Any] = {"name": node.metadata.name, "uid": node.metadata.uid}
        if labels:
            metadata["labels"] = labels
        return await self._client.apply(NODE_METADATA, {"metadata": metadata}, field_manager=MANAGER_LABELS)

    def look(self, found: Object) -> NodeLabels:
        """A node as it was last seen, with what is known of it here."""
        meta = found.metadata
        labels = _listed(found)
        foreign = self._foreign.get(meta.name, {})
        for key in [key for key, value in foreign.items() if labels.get(key) != value]:
            del foreign[key]  # whose it is now remains to be seen
        return NodeLabels(
            labels=labels,
            nfd=nfd_keys(meta.annotations),
            facts=self._facts(meta.name, meta.annotations.get(ANNOTATION_FACTS)),
            foreign=foreign,
        )

    def _facts(self, name: str, text: str | None) -> NodeFacts | None:
        if text is None:
            return None
        try:
            facts = decode_facts(text)
        except CodecError as error:
            if self._unreadable.get(name) != str(error):
                self._unreadable[name] = str(error)
                log.warning("node %s: %s: its labels stay as they are", name, error)
            return None
        self._unreadable.pop(name, None)
        return facts

    def _gone(self, name: str, node: NodeLabels) -> bool:
        """Whether there has been no sign of a card for the grace time."""
        if has_card(node) is not False:
            self._absent.pop(name, None)
            return False
        since = self._absent.setdefault(name, self._clock())
        end = since + self._config.grace_seconds
        if self._clock() >= end:
            return True
        if node.labels:
            self._remember(name, end)
        return False

    def _left_to_others(self, name: str, node: NodeLabels, error: ConflictError, wanted: Mapping[str, str]) -> bool:
        """Take note of labels that others own; whether there are any."""
        keys = [one.removeprefix(_FIELD) for one in error.fields if one.startswith(_FIELD)]
        foreign = self._foreign.setdefault(name, {})
        fresh = [key for key in keys if key in wanted and key not in foreign]
        for key in fresh:
            foreign[key] = node.labels.get(key)
        if fresh:
            log.info("node %s: another manager has %s: left to it", name, ", ".join(sorted(fresh)[:5]))
        return bool(fresh)


def _listed(node: Object) -> dict[str, str]:
    return {key: value for key, value in node.metadata.labels.items() if is_listed(key)}


def _relevant(node: Object) -> tuple[object, ...]:
    annotations = node.metadata.annotations
    return node.metadata.labels, annotations.get(ANNOTATION_FACTS), nfd_keys(annotations)
