"""The map of the cluster for each view, and its changes: made once for all viewers that see the same.

A view's map is kept as encoded entries of nodes; a delta is those that came out different. What was sent lately is
kept, so that a reader that was away for a moment goes on where it was. Sending is in `api.py`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shoal.analysis.inspect.used import UsedCard, mib
from shoal.dashboard.answers import instant
from shoal.dashboard.picture import LivePicture, MeasuredState, NodePicture, Picture
from shoal.dashboard.views import ViewClass, pod_state
from shoal.model.contract import shoal

#: Deltas that are kept of each view, and their bytes.
_KEPT: Final = 120
_KEPT_BYTES: Final = 4 << 20
#: A reader that is further behind is sent a snapshot.
_BEHIND: Final = 10
#: Views that are followed at once; one that nobody follows is forgotten after so long.
_VIEWS: Final = 256
_FORGET_SECONDS: Final = 120.0
_LEVEL: Final = 5
#: What a compressed stream begins with. Each event is compressed by itself, once for all who get it.
GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

_encode: Final = msgspec.json.Encoder().encode


class TooManyViewsError(Exception):
    """So many different views are followed that there is no room for one more."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event as it is sent, plain and compressed."""

    number: int
    plain: bytes
    packed: bytes


def stream_event(kind: str, number: int, tag: str, content: bytes) -> StreamEvent:
    """An event of a stream. JSON has no line breaks of its own, so it is one line."""
    head = f"id: {tag}\n" if tag else ""
    plain = f"{head}event: {kind}\ndata: ".encode() + content + b"\n\n"
    return StreamEvent(number, plain, packed(plain))


def packed(plain: bytes) -> bytes:
    """Compressed without reference to what came before, so that it fits into any stream."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    return deflate.compress(plain) + deflate.flush(zlib.Z_FULL_FLUSH)


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Root of what is sent as an array: there are many of them, and names would be most of it."""


class MapShare(_Row, frozen=True, array_like=True):
    """What a pod has of a card: `pod` is a place in `pods`, -1 for all pods together that the viewer may not read."""

    pod: int
    requested_mib: int
    used_mib: int | None


class MapCard(_Row, frozen=True, array_like=True):
    """A card: `model` is a place in `models`; `health` 0 good, 1 broken, 2 not known."""

    uuid: str
    index: int
    model: int
    total_mib: int
    health: int
    requested_mib: int
    used_mib: int | None
    unattributed_mib: int | None
    utilisation: int | None
    exclusive: bool
    shares: list[MapShare]


class MapNode(_Row, frozen=True, array_like=True):
    """A node: `measured` 0 no collector, 1 fresh, 2 stale since `since`."""

    name: str
    ready: bool
    cordoned: bool
    measured: int
    since: str | None
    cards: list[MapCard]


class MapPod(_Row, frozen=True, array_like=True):
    """A pod, with its state as in `/pods`, or `unrequested`."""

    namespace: str
    name: str
    state: str


class MapDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All cards; names once."""

    number: int
    time: str
    #: Since when the API server has not been heard; null while it is.
    old_since: str | None
    models: list[str]
    pods: list[MapPod | None]
    nodes: list[MapNode]


class MapDelta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What changed: by place in `models` and `pods`, and by name of node; null for what is gone."""

    number: int
    time: str
    old_since: str | None
    models: dict[int, str]
    pods: dict[int, MapPod | None]
    nodes: dict[str, MapNode | None]


class _Places:
    """Numbers for names; a number that became free is given again only after the next delta."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], int] = {}
        self.entries: list[Any] = []
        self._free: list[int] = []

    def put(self, key: tuple[str, str], entry: Any) -> bool:
        """Whether that is new."""
        place = self.of.get(key)
        if place is None:
            place = self._free.pop() if self._free else len(self.entries)
            self.of[key] = place
            if place == len(self.entries):
                self.entries.append(None)
        if self.entries[place] == entry:
            return False
        self.entries[place] = entry
        return True

    def drop(self, key: tuple[str, str]) -> int:
        place = self.of.pop(key)
        self.entries[place] = None
        self._free.insert(0, place)
        return place


class MapOfView:
    """The map as one view shows it, with the deltas of the last minutes."""

    def __init__(self, view: ViewClass, serial: int, picture: Picture, clock: Callable[[], float]) -> None:
        self.view = view
        #: Told of each change: one event for each stream that is open.
        self.readers: set[asyncio.Event] = set()
        self.left = clock()
        self._clock = clock
        self._serial = serial
        self._pods = _Places()
        self._models: dict[str, int] = {}
        self._nodes: dict[str, bytes] = {}
        self._sources: dict[str, NodePicture] = {}
        self._picture = picture
        self._deltas: deque[StreamEvent] = deque()
        self._bytes = 0
        #: Deltas are there for readers that have this number or a later one.
        self._since = picture.number
        self._snapshot: StreamEvent | None = None
        self._update(picture)

    @property
    def number(self) -> int:
        """That of the picture it shows."""
        return self._picture.number

    def tag(self, number: int) -> str:
        """What names a moment of this map: numbers of pods mean something else in the map of another view."""
        return f"{number}.{self._serial}"

    def place(self, tag: str) -> int:
        """The number in a tag; -1 when it is not of this map."""
        number, _, serial = tag.partition(".")
        plain = number.isascii() and number.isdigit() and len(number) < 20
        return int(number) if plain and serial == str(self._serial) else -1

    def follow(self, picture: Picture) -> None:
        """Take in a new picture."""
        before = self._picture
        pods, models, nodes = self._update(picture)
        if pods or models or nodes or (before.old_since, before.trouble) != (picture.old_since, picture.trouble):
            content = {**_head(picture), "models": models, "pods": pods, "nodes": nodes}
            self._keep(stream_event("delta", picture.number, self.tag(picture.number), _encode(content)))
            self._snapshot = None
            self.wake()

    def wake(self) -> None:
        """Have the streams look around."""
        for reader in self.readers:
            reader.set()

    def content(self) -> bytes:
        """The whole map as JSON."""
        whole = {
            **_head(self._picture),
            "models": list(self._models),
            "pods": self._pods.entries,
            "nodes": [msgspec.Raw(entry) for entry in self._nodes.values()],
        }
        return _encode(whole)

    def snapshot(self) -> StreamEvent:
        """The whole map as an event."""
        if self._snapshot is None:
            self._snapshot = stream_event("snapshot", self.number, self.tag(self.number), self.content())
        return self._snapshot

    def after(self, number: int) -> list[StreamEvent]:
        """What brings a reader up to date that has seen this number; a snapshot where deltas do not, or are more."""
        if number < self._since or number > self.number:
            return [self.snapshot()]
        missed = [delta for delta in self._deltas if delta.number > number]
        return missed if len(missed) <= _BEHIND else [self.snapshot()]

    def _keep(self, delta: StreamEvent) -> None:
        self._deltas.append(delta)
        self._bytes += len(delta.plain) + len(delta.packed)
        while len(self._deltas) > _KEPT or self._bytes > _KEPT_BYTES:
            gone = self._deltas.popleft()
            self._bytes -= len(gone.plain) + len(gone.packed)
            self._since = gone.number

    def _update(self, picture: Picture) -> tuple[dict[int, Any], dict[int, str], dict[str, Any]]:
        self._picture = picture
        known = len(self._models)
        pods = self._update_pods(picture)
        nodes = self._update_nodes(picture)
        models = {place: name for name, place in self._models.items() if place >= known}
        return pods, models, nodes

    def _update_pods(self, picture: Picture) -> dict[int, Any]:
        there: dict[tuple[str, str], None] = {}
        changed: dict[int, Any] = {}
        for pod in self.view.pods(picture):
            key = (pod.namespace, pod.name)
            there[key] = None
            if self._pods.put(key, MapPod(pod.namespace, pod.name, pod_state(pod))):
                changed[self._pods.of[key]] = self._pods.entries[self._pods.of[key]]
        for node in self.view.of_nodes(picture):
            for key in node.uninvited:
                if key not in there and self.view.shows(key[0]):
                    there[key] = None
                    if self._pods.put(key, MapPod(*key, "unrequested")):
                        changed[self._pods.of[key]] = self._pods.entries[self._pods.of[key]]
        for key in [key for key in self._pods.of if key not in there]:
            changed[self._pods.drop(key)] = None
        return changed

    def _update_nodes(self, picture: Picture) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        sources: dict[str, NodePicture] = {}
        for node in self.view.of_nodes(picture):
            sources[node.name] = node
            if self._sources.get(node.name) is node:
                continue
            entry = _encode(self._entry(node))
            if self._nodes.get(node.name) != entry:
                self._nodes[node.name] = entry
                changed[node.name] = msgspec.Raw(entry)
        for name in [name for name in self._nodes if name not in sources]:
            del self._nodes[name]
            changed[name] = None
        self._sources = sources
        return changed

    def _entry(self, node: NodePicture) -> MapNode:
        measured = node.measurement
        since = instant(measured.at) if measured.state is MeasuredState.STALE and measured.at is not None else None
        cards = [self._card(card) for card in self.view.cards(node)]
        return MapNode(node.name, node.use.ready, node.use.cordoned, int(measured.state), since, cards)

    def _card(self, card: UsedCard) -> MapCard:
        gpu, reading = card.gpu, card.reading
        named, others = self.view.holders(card)
        places = self._pods.of
        shares = [MapShare(places[pod.namespace, pod.name], pod.requested_mib, mib(pod.used_bytes)) for pod in named]
        if others is not None:
            shares.append(MapShare(-1, others.requested_mib, mib(others.used_bytes)))
        return MapCard(
            gpu.uuid,
            gpu.index,
            self._models.setdefault(gpu.model, len(self._models)),
            gpu.memory_mib,
            2 if shoal.is_made_up(gpu.uuid) else int(not gpu.healthy),
            card.requested_mib,
            mib(reading.used_bytes) if reading else None,
            mib(reading.unattributed_bytes) if reading else None,
            reading.utilisation if reading else None,
            card.node.share(gpu).exclusive,
            shares,
        )


def _head(picture: Picture) -> dict[str, Any]:
    old = None if picture.old_since is None else instant(picture.old_since)
    return {"number": picture.number, "time": instant(picture.time), "oldSince": old}


class Maps:
    """The maps of all views that are followed."""

    def __init__(self, live: LivePicture, *, clock: Callable[[], float]) -> None:
        self._live = live
        self._clock = clock
        self._maps: dict[ViewClass, MapOfView] = {}
        self._serial = 0
        self._namespaces = live.namespaces_seen
        live.on_change(self._follow)

    def __len__(self) -> int:
        return len(self._maps)

    @property
    def readers(self) -> int:
        """Streams that are open."""
        return sum(len(one.readers) for one in self._maps.values())

    def of(self, view: ViewClass) -> MapOfView:
        """The map of a view, which is followed from now on for a while. Raises TooManyViewsError."""
        found = self._maps.get(view)
        if found is None:
            self._forget()
            if len(self._maps) >= _VIEWS:
                raise TooManyViewsError
            self._serial += 1
            found = self._maps[view] = MapOfView(view, self._serial, self._live.current, self._clock)
        found.left = self._clock()
        return found

    def wake(self) -> None:
        """Have every stream look around: the server ends."""
        for one in self._maps.values():
            one.wake()

    def _follow(self, picture: Picture, _: Picture) -> None:
        self._forget()
        new, self._namespaces = self._live.namespaces_seen != self._namespaces, self._live.namespaces_seen
        for one in self._maps.values():
            one.follow(picture)
            if new and one.view.namespaces is not None:
                one.wake()

    def _forget(self) -> None:
        now = self._clock()
        for one in [one for one in self._maps.values() if not one.readers and now - one.left > _FORGET_SECONDS]:
            del self._maps[one.view]
