"""Events of pods that ask for cards and of nodes that have some, kept by a watch: the newest ones, cut to a length.

What is kept is bounded in number. Events of others, of which most clusters have more, go first; then the oldest, by
turns of the namespaces, so that one of them with many takes no other's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from shoal.analysis.inspect.use import printable
from shoal.dashboard.picture import Picture
from shoal.kube.client import Client
from shoal.kube.objects.meta import Base, Object, ObjectMeta
from shoal.kube.objects.others import EventSeries, EventSource
from shoal.kube.reflector import Reflector
from shoal.kube.resources import Key, Resource
from shoal.kube.store import Change, Store
from shoal.model.bounded_cache import BoundedCache

#: Pods that are remembered after they are gone, so that what was said of them still shows.
_PODS: Final = 20_000
_MOST_MESSAGE: Final = 1000


class EventTarget(Base, frozen=True, kw_only=True):
    """What an event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class SeenEvent(Object, frozen=True, kw_only=True):
    """An event with the fields that are shown."""

    involved_object: EventTarget = EventTarget()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int = 0
    source: EventSource = EventSource()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_component: str = ""

    @property
    def when(self) -> str:
        """When it was last seen; empty when nobody says."""
        series = self.series.last_observed_time if self.series is not None else None
        return series or self.last_timestamp or self.event_time or self.first_timestamp or ""


_EVENTS: Final = Resource("", "v1", "events", "Event", SeenEvent)
#: Of which Events are kept, and how many: those of nodes are few, and nobody's many pods take their place.
_KINDS: Final = {"Pod": 9_000, "Node": 1_000}
#: When there are too many, so many go at once, of a hundred.
_AT_ONCE: Final = 5


class BoundedEvents(Store[SeenEvent]):
    """At most so many Events. `concerns` says which are shown."""

    def __init__(self, most: int, concerns: Callable[[EventTarget], bool]) -> None:
        super().__init__()
        self._most = most
        self._concerns = concerns
        #: How many Events that would be shown had to go since the last list.
        self.left_out = 0

    def replace(self, items: Iterable[SeenEvent], version: str = "") -> Iterator[Change[SeenEvent]]:
        """Become a fresh list, or the part of it that is kept."""
        kept, out = self._newest(list(items), self._most)
        self.left_out = 0
        self._count(out)
        yield from super().replace(kept, version)

    def _set(self, key: Key, uid: str, version: str, new: SeenEvent) -> Iterator[Change[SeenEvent]]:
        yield from super()._set(key, uid, version, new)
        if len(self) > self._most:
            kept, out = self._newest(list(self), self._most - self._most * _AT_ONCE // 100)
            self._count(out)
            names = {(one.metadata.namespace, one.metadata.name) for one in kept}
            self._entries = {key: entry for key, entry in self._entries.items() if key in names}

    def _count(self, out: Iterable[SeenEvent]) -> None:
        self.left_out += sum(self._concerns(one.involved_object) for one in out)

    def _newest(self, events: list[SeenEvent], most: int) -> tuple[list[SeenEvent], list[SeenEvent]]:
        """Those that are kept, and the others: each namespace keeps as many of its newest as there is room for."""
        if len(events) <= most:
            return events, []
        turns: defaultdict[tuple[bool, str], int] = defaultdict(int)
        ranked: list[tuple[bool, int, SeenEvent]] = []
        for event in sorted(events, key=lambda one: one.when, reverse=True):
            other = not self._concerns(event.involved_object)
            place = (other, event.metadata.namespace)
            ranked.append((other, turns[place], event))
            turns[place] += 1
        ranked.sort(key=lambda one: one[:2])
        return [one[2] for one in ranked[:most]], [one[2] for one in ranked[most:]]


class LiveEvents:
    """Keeps events. Run `run()`."""

    def __init__(self, client: Client) -> None:
        self._pods: BoundedCache[tuple[str, str], bool] = BoundedCache(_PODS)
        self._nodes: frozenset[str] = frozenset()
        self._begun = asyncio.Event()
        self._stores = {kind: BoundedEvents(most, self._concerns) for kind, most in _KINDS.items()}
        self._reflectors = [
            Reflector(client, _EVENTS, fields=f"involvedObject.kind={kind}", slim=_slim, store=store)
            for kind, store in self._stores.items()
        ]

    async def run(self) -> None:
        """Follow until cancelled; from when it is known which pods and nodes concern us."""
        await self._begun.wait()
        async with contextlib.AsyncExitStack() as stack:
            for reflector in self._reflectors:
                await stack.enter_async_context(reflector)
            await asyncio.get_running_loop().create_future()

    @property
    def left_out(self) -> int:
        """How many older Events of pods and nodes with cards are not kept any more, for want of room."""
        return sum(store.left_out for store in self._stores.values())

    def follow(self, picture: Picture, before: Picture) -> None:
        """Note which pods and nodes concern us."""
        if picture.cluster is not before.cluster:
            self._begun.set()
            self._nodes = frozenset(picture.nodes)
            for pod in picture.pods():
                self._pods.put((pod.namespace, pod.name), True)

    def all(self) -> list[SeenEvent]:
        """Those of pods that ask or asked for cards, and of nodes with cards; in no order."""
        return [event for store in self._stores.values() for event in store if self._concerns(event.involved_object)]

    def _concerns(self, target: EventTarget) -> bool:
        if target.kind == "Node":
            return target.name in self._nodes
        return (target.namespace, target.name) in self._pods


def _slim(event: SeenEvent) -> SeenEvent:
    meta = event.metadata
    own = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)
    return msgspec.structs.replace(event, metadata=own, message=printable(event.message[:_MOST_MESSAGE]))
