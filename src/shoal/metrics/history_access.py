"""Who asks a collector, and what they may see: TokenReview, then SubjectAccessReview, each remembered for a minute.

Whoever reaches the port can make the collector ask the API server who a token belongs to: how often is bounded for all
and for each address, and what is remembered is bounded in number. A token counts only if it was made for collectors.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.metrics import history_wire as wire
from shoal.model.bounded_cache import BoundedCache

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A token or a right that was taken away works for so long, and no longer.
REMEMBERED_SECONDS: Final = 60.0
#: Longer than any token of a service account, and within the server's bound on a header.
MOST_TOKEN: Final = 4000
_REVIEW_SECONDS: Final = 10.0
_TOKENS: Final = 1024
_RIGHTS: Final = 16_384
_PEERS: Final = 1024
#: Namespaces that are asked about for one request: more than a node has pods.
_NAMESPACES: Final = 512
#: Reviews at once.
_AT_ONCE: Final = 8


class HistoryRefusedError(Exception):
    """The caller is not answered; `status` is the HTTP code, the message says what to do."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True, slots=True)
class ReviewRate:
    """How many tokens that are not known yet are looked at: `burst` at once, then so many a second."""

    burst: float
    each_second: float


ALL_CALLERS: Final = ReviewRate(100, 20)
ONE_ADDRESS: Final = ReviewRate(20, 2)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom the API server says a token belongs to."""

    key: bytes
    user: dict[str, Any]

    @property
    def name(self) -> str:
        """The user name."""
        return str(self.user.get("username", ""))


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller may see. `namespaces` is None for all."""

    cards: bool
    namespaces: frozenset[str] | None

    def pods_of(self, namespace: str) -> bool:
        """Whether pods of a namespace may be seen."""
        return self.namespaces is None or namespace in self.namespaces


class _Bucket:
    """Counts what is done against a rate."""

    def __init__(self, rate: ReviewRate, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._at = now

    def take(self, now: float) -> bool:
        self._left = min(self._rate.burst, self._left + max(0.0, now - self._at) * self._rate.each_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _ReviewStatus(msgspec.Struct, frozen=True):
    """What the API server says: of a token, or of a right."""

    authenticated: bool = False
    user: dict[str, Any] = {}
    audiences: tuple[str, ...] = ()
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


@dataclass(frozen=True, slots=True)
class _Known:
    """An answer, and until when it counts."""

    answer: Any
    until: float


class HistoryAccess:
    """Asks the API server about callers."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], float],
        all_callers: ReviewRate = ALL_CALLERS,
        one_address: ReviewRate = ONE_ADDRESS,
    ) -> None:
        self._client = client
        self._clock = clock
        self._one_address = one_address
        self._all = _Bucket(all_callers, clock())
        self._peers: BoundedCache[str, _Bucket] = BoundedCache(_PEERS)
        self._tokens: BoundedCache[bytes, _Known] = BoundedCache(_TOKENS)
        self._rights: BoundedCache[tuple[bytes, str, str], _Known] = BoundedCache(_RIGHTS)
        self._asked: dict[object, asyncio.Task[Any]] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def caller(self, token: str, peer: str) -> Caller:
        """Who shows this token. Raises HistoryRefusedError."""
        if not token:
            raise HistoryRefusedError(401, f"show a token for {wire.AUDIENCE}: {_HOW}")
        if len(token) > MOST_TOKEN or not token.isascii() or not token.isprintable():
            raise HistoryRefusedError(401, "this is no token of a service account")
        key = hashlib.sha256(token.encode()).digest()
        known = self._tokens.get(key)
        if known is None or known.until <= self._clock():
            if key not in self._asked:
                self._count(peer)
            user = await self._together(key, lambda: self._review_token(key, token))
        else:
            user = known.answer
        if not user:
            raise HistoryRefusedError(401, f"this token is not known, or not for {wire.AUDIENCE}: {_HOW}")
        return Caller(key, user)

    async def sight(self, caller: Caller, namespaces: Callable[[], Awaitable[Iterable[str]]]) -> Sight:
        """What a caller may see: all namespaces, else which of those that are there. Raises HistoryRefusedError."""
        cards, everywhere = await asyncio.gather(
            self._may(caller, wire.CARD_METRICS, ""), self._may(caller, wire.POD_METRICS, "")
        )
        if everywhere:
            return Sight(cards, None)
        asked = sorted(set(await namespaces()))[:_NAMESPACES]
        allowed = await asyncio.gather(*(self._may(caller, wire.POD_METRICS, one) for one in asked))
        seen = frozenset(one for one, may in zip(asked, allowed, strict=True) if may)
        if not cards and not seen:
            raise HistoryRefusedError(403, f"you may see nothing here: {_RIGHTS_WANTED}")
        return Sight(cards, seen)

    def _count(self, peer: str) -> None:
        """Raises HistoryRefusedError when too many unknown tokens are shown."""
        now = self._clock()
        own = self._peers.of(peer, lambda: _Bucket(self._one_address, now))
        if not own.take(now) or not self._all.take(now):
            raise HistoryRefusedError(429, "too many tokens that are not known: try again in some seconds")

    async def _may(self, caller: Caller, resource: str, namespace: str) -> bool:
        key = (caller.key, resource, namespace)
        known = self._rights.get(key)
        if known is not None and known.until > self._clock():
            return bool(known.answer)
        return bool(await self._together(key, lambda: self._review_right(caller, resource, namespace)))

    async def _together(self, key: object, ask: Callable[[], Coroutine[None, None, T]]) -> T:
        """Ask once for all who want to know the same. Those who leave do not end it for the others."""
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(ask())
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        try:
            return await asyncio.shield(task)
        except (KubeError, TimeoutError, msgspec.MsgspecError) as error:
            log.debug("a review failed: %s", error)
            raise HistoryRefusedError(
                503, "the API server does not tell who you are and what you may: try again"
            ) from None

    async def _review_token(self, key: bytes, token: str) -> dict[str, Any] | None:
        spec = {"token": token, "audiences": [wire.AUDIENCE]}
        began = self._clock()
        status = await self._review("authentication.k8s.io/v1", "TokenReview", spec)
        # A server that knows nothing of audiences would call any token good.
        user = status.user if status.authenticated and wire.AUDIENCE in status.audiences else None
        self._tokens.put(key, _Known(user, began + REMEMBERED_SECONDS))
        return user

    async def _review_right(self, caller: Caller, resource: str, namespace: str) -> bool:
        user = caller.user
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "resourceAttributes": {
                "group": wire.GROUP,
                "resource": resource,
                "verb": "get",
                **({"namespace": namespace} if namespace else {}),
            },
        }
        began = self._clock()
        status = await self._review("authorization.k8s.io/v1", "SubjectAccessReview", spec)
        self._rights.put((caller.key, resource, namespace), _Known(status.allowed, began + REMEMBERED_SECONDS))
        return status.allowed

    async def _review(self, version: str, kind: str, spec: dict[str, Any]) -> _ReviewStatus:
        body = {"apiVersion": version, "kind": kind, "metadata": {}, "spec": spec}
        async with asyncio.timeout(_REVIEW_SECONDS), self._at_once:
            answer = await self._client.request("POST", f"/apis/{version}/{kind.lower()}s", body=body)
        return msgspec.json.decode(answer, type=_Review).status

    async def close(self) -> None:
        """End what is being asked."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


_HOW: Final = f"kubectl create token {wire.VIEWER_ACCOUNT} -n {wire.NAMESPACE} --audience {wire.AUDIENCE}"
_RIGHTS_WANTED: Final = (
    f"get {wire.CARD_METRICS}.{wire.GROUP} shows cards, get {wire.POD_METRICS}.{wire.GROUP} in a namespace its pods "
    "(deploy/rbac/viewer.yaml)"
)
