"""What really happened to pods, from the API server itself: every event in order, and the bookings they add up to.

A pod holds its cards from the event that shows it on a node until the one that shows it finished or gone. After a
restart the API server tells nothing of the moments before: what changed in such a gap is taken from a list, with all
that left the cards before all that came. So a gap hides what was over-booked only inside it; `gaps` tells how much.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.kube.client import Client
from shoal.kube.errors import GoneError, KubeError
from shoal.kube.resources import PODS

Object = dict[str, Any]
RECORD = "shoal.dev/allocation"
FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Card:
    """What a card has."""

    node: str
    memory_mib: int
    clients: int


@dataclass
class BookingHistory:
    """Who holds what, kept from events; `wrong` is every rule that was broken, in words."""

    cards: dict[str, Card]
    wrong: list[str] = field(default_factory=list)
    #: Pods that ever had a node, by UID.
    bound: set[str] = field(default_factory=set)
    #: The most that was held of any card, in MiB, and how many pods held something at one time.
    most_mib: int = 0
    most_pods: int = 0
    _holds: dict[str, list[Object]] = field(default_factory=dict)
    _memory: Counter[str] = field(default_factory=Counter)
    _clients: Counter[str] = field(default_factory=Counter)
    _holders: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _whole: dict[str, str] = field(default_factory=dict)

    def see(self, kind: str, pod: Object) -> None:
        """An event, in order."""
        uid = pod["metadata"]["uid"]
        node = pod["spec"].get("nodeName")
        over = kind == "DELETED" or pod["status"].get("phase") in FINISHED
        if over:
            self._leave(uid)
        elif node and uid not in self._holds:
            self.bound.add(uid)
            self._come(uid, pod, node)

    def holding(self) -> set[str]:
        """Who holds something."""
        return set(self._holds)

    def _come(self, uid: str, pod: Object, node: str) -> None:
        name, version = pod["metadata"]["name"], pod["metadata"]["resourceVersion"]
        record = json.loads(pod["metadata"].get("annotations", {}).get(RECORD, "{}"))
        if record.get("node") != node:
            self.wrong.append(f"{version}: {name} is on {node}, its record names {record.get('node')}")
        held = [card for container in record.get("containers", ()) for card in container["cards"]]
        self._holds[uid] = held
        for card in held:
            self._take(uid, card)
            self.wrong += (f"{version}: {name} came to {problem}" for problem in self._problems(card["uuid"], node))
        if not held:
            self.wrong.append(f"{version}: {name} has no cards")
        self.most_pods = max(self.most_pods, len(self._holds))

    def _take(self, uid: str, card: Object) -> None:
        uuid = card["uuid"]
        self._memory[uuid] += card.get("memory", 0)
        self._clients[uuid] += card.get("clients", 0)
        self._holders[uuid].add(uid)
        self.most_mib = max(self.most_mib, self._memory[uuid])
        if card.get("exclusive"):
            self._whole[uuid] = uid

    def _problems(self, uuid: str, node: str) -> Iterator[str]:
        card = self.cards.get(uuid)
        if card is None or card.node != node:
            yield f"card {uuid}, which {node} does not have"
            return
        if self._memory[uuid] > card.memory_mib:
            yield f"card {uuid} with {self._memory[uuid]} of {card.memory_mib} MiB held"
        if self._clients[uuid] > card.clients:
            yield f"card {uuid} with {self._clients[uuid]} of {card.clients} clients"
        if uuid in self._whole and len(self._holders[uuid]) > 1:
            yield f"card {uuid}, which somebody has whole, with {len(self._holders[uuid])} pods"

    def _leave(self, uid: str) -> None:
        for card in self._holds.pop(uid, ()):
            uuid = card["uuid"]
            self._memory[uuid] -= card.get("memory", 0)
            self._clients[uuid] -= card.get("clients", 0)
            self._holders[uuid].discard(uid)
            if self._whole.get(uuid) == uid:
                del self._whole[uuid]


class History:
    """Follows the pods of a namespace on a connection of its own, and books as it hears."""

    def __init__(self, client: Client, namespace: str, cards: dict[str, Card]) -> None:
        self._client = client
        self._namespace = namespace
        self.state = BookingHistory(cards)
        #: The pods that are there, by UID.
        self.pods: dict[str, Object] = {}
        self.events = 0
        #: Changes that no event told, by gap.
        self.gaps: list[int] = []

    async def run(self) -> None:
        """Until cancelled."""
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                async for event in self._client.watch(
                    PODS.raw, namespace=self._namespace, resource_version=version, silence=30.0
                ):
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self._hear(event.type, event.object)
            except KubeError as error:
                # Gone means that a list must close the gap; anything else is tried again from where it was.
                version = "" if isinstance(error, GoneError) else version
                await asyncio.sleep(0.2)

    async def _list(self) -> str:
        listing = await self._client.list(PODS.raw, namespace=self._namespace)
        now = {pod["metadata"]["uid"]: pod for pod in listing.items}
        version = {uid: pod["metadata"]["resourceVersion"] for uid, pod in self.pods.items()}
        gone = [pod for uid, pod in self.pods.items() if uid not in now]
        news = [pod for uid, pod in now.items() if version.get(uid) != pod["metadata"]["resourceVersion"]]
        if self.events:
            self.gaps.append(len(gone) + len(news))
        for pod in gone:
            self._hear("DELETED", pod)
        for pod in sorted(news, key=lambda pod: pod["status"].get("phase") not in FINISHED):
            self._hear("MODIFIED", pod)
        return listing.resource_version

    def _hear(self, kind: str, pod: Object) -> None:
        self.events += 1
        if kind == "DELETED":
            self.pods.pop(pod["metadata"]["uid"], None)
        else:
            self.pods[pod["metadata"]["uid"]] = pod
        self.state.see(kind, pod)
