"""Claims of devices that nodes say are held, and the pods that use them.

Which claim it is, and who uses it, is told by the claim's object; a node knows its UID alone. A claim counts once on
its cards, and is shown with each pod that uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import msgspec

from shoal.analysis.inspect.objects import CLAIMS, PartialClaim
from shoal.analysis.inspect.use import PodUse, printable
from shoal.kube.client import Client
from shoal.kube.reflector import Reflector
from shoal.kube.store import Store
from shoal.model.allocation import CardShare
from shoal.model.request import NO_SHARE, Share

#: In place of the namespace of a claim of which only the UID is known, and before the name of one whose pod is not.
CLAIM: Final = "(claim)"
_PODS: Final = "pods"


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that a node says is held. `object` is None where there is none, or none was read."""

    node: str
    uid: str
    #: By the card's UUID.
    held: Mapping[str, Share]
    object: PartialClaim | None = None

    @classmethod
    def of(cls, node: str, uid: str, cards: Iterable[CardShare], known: PartialClaim | None) -> HeldClaim:
        """What a node says of a claim, beside the claim itself."""
        held: dict[str, Share] = {}
        for card in cards:
            held[card.uuid] = held.get(card.uuid, NO_SHARE) + card.share
        return cls(node, uid, held, known)

    def users(self) -> tuple[str, ...]:
        """The UIDs of the pods that may use it."""
        reserved = () if self.object is None else self.object.status.reserved_for
        return tuple(one.uid for one in reserved if one.resource == _PODS and not one.api_group and one.uid)

    @property
    def place(self) -> tuple[str, str]:
        """Its node and its namespace, which are those of its pods."""
        return self.node, "" if self.object is None else self.object.metadata.namespace

    def used_by(self, pod: PodUse) -> PodUse:
        """The pod with what it holds by this claim too."""
        assert self.object is not None
        held = dict(pod.held)
        add(held, self.held)
        names = (*pod.claims, printable(self.object.metadata.name))
        return msgspec.structs.replace(pod, held=held, asked_mib=0, why="", claims=names)

    def alone(self) -> PodUse:
        """The claim, where no pod is known that uses it."""
        held = dict(self.held)
        if self.object is None:
            return PodUse(CLAIM, printable(self.uid), self.node, held=held)
        meta = self.object.metadata
        name = printable(meta.name)
        return PodUse(printable(meta.namespace), f"{CLAIM} {name}", self.node, held=held, claims=(name,))


def add(held: dict[str, Share], more: Mapping[str, Share]) -> None:
    """Count what somebody holds of cards to what is held of them."""
    for uuid, share in more.items():
        held[uuid] = held.get(uuid, NO_SHARE) + share


def by_pods(claims: Iterable[HeldClaim], pods: Mapping[str, PodUse]) -> list[PodUse]:
    """The pods of a node, by UID, with what they hold by claims; behind them the claims that none of them uses."""
    shown, alone = dict(pods), []
    for claim in claims:
        users = [
            uid
            for uid in claim.users()
            if uid in shown and claim.object is not None and shown[uid].namespace == claim.object.metadata.namespace
        ]
        for uid in users:
            shown[uid] = claim.used_by(shown[uid])
        if not users:
            alone.append(claim.alone())
    return [*shown.values(), *alone]


class ClaimsWatch:
    """A watch of claims that begins when the first node holds one: many clusters have none, or not the API."""

    def __init__(self, client: Client, changed: Callable[[object], None]) -> None:
        self._reflector: Reflector[PartialClaim] = Reflector(client, CLAIMS, consumers=[changed])
        self._needed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ClaimsWatch:
        self._task = asyncio.create_task(self._run(), name="watch of claims")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def store(self) -> Store[PartialClaim]:
        """The claims, as far as they are known."""
        return self._reflector.store

    @property
    def trouble(self) -> str:
        """Why claims may be shown by their UIDs alone; empty while all is well."""
        error = self._reflector.last_error
        return "" if error is None else unread(error)

    def need(self) -> None:
        """A node holds a claim."""
        self._needed.set()

    async def _run(self) -> None:
        await self._needed.wait()
        await self._reflector.run()


def unread(error: Exception) -> str:
    """That claims were not read, in words."""
    return printable(f"claims are shown by their UIDs: {error}")
