"""Who shows a token and what they may do: TokenReview, then SubjectAccessReview, each remembered for a minute.

For servers of Shoal's own. Whoever reaches such a port can make it ask the API server who a token belongs to: how often
is bounded for all and for each address, and what is remembered is bounded in number. A token that was good a minute ago
is asked about again whatever others show meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import KubeError
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
#: Reviews at once.
_AT_ONCE: Final = 8


class CallerRefusedError(Exception):
    """The caller is not answered; `status` is the HTTP code, the message says what to do."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True, slots=True)
class Rate:
    """How much is let through: `burst` at once, then so much a second."""

    burst: float
    each_second: float


#: Tokens that are not known yet.
ALL_CALLERS: Final = Rate(100, 20)
ONE_ADDRESS: Final = Rate(20, 2)


class Bucket:
    """Counts what is done against a rate."""

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._at = now

    def has(self, amount: float, now: float) -> bool:
        """Whether so much is left."""
        self._left = min(self._rate.burst, self._left + max(0.0, now - self._at) * self._rate.each_second)
        self._at = now
        return self._left >= amount

    def spend(self, amount: float) -> None:
        """So much is used, whether or not it was left."""
        self._left -= amount

    def take(self, now: float) -> bool:
        """Use one if there is one."""
        if not self.has(1, now):
            return False
        self.spend(1)
        return True


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
class Right:
    """What RBAC is asked for; no namespace is all of them."""

    verb: str
    group: str
    resource: str
    namespace: str = ""


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


class Reviews:
    """Asks the API server about callers. `audience`: whom tokens must be made for; empty: the API server itself.

    `how` tells a caller without a good token where to get one. `remembered`: for how many seconds an answer counts.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], float],
        audience: str = "",
        how: str,
        remembered: float = REMEMBERED_SECONDS,
        all_callers: Rate = ALL_CALLERS,
        one_address: Rate = ONE_ADDRESS,
    ) -> None:
        self._client = client
        self._clock = clock
        self._audience = audience
        self._how = how
        self._remembered = remembered
        self._one_address = one_address
        self._all = Bucket(all_callers, clock())
        self._peers: BoundedCache[str, Bucket] = BoundedCache(_PEERS)
        self._tokens: BoundedCache[bytes, _Known] = BoundedCache(_TOKENS)
        self._rights: BoundedCache[tuple[bytes, Right], _Known] = BoundedCache(_RIGHTS)
        self._asked: dict[object, asyncio.Task[Any]] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def caller(self, token: str, peer: str) -> Caller:
        """Who shows this token. Raises CallerRefusedError."""
        wanted = f" for {self._audience}" if self._audience else ""
        if not token:
            raise CallerRefusedError(401, f"show a token{wanted}: {self._how}")
        if len(token) > MOST_TOKEN or not token.isascii() or not token.isprintable():
            raise CallerRefusedError(401, "this is no token of a service account")
        key = hashlib.sha256(token.encode()).digest()
        known = self._tokens.get(key)
        if known is None or known.until <= self._clock():
            if key not in self._asked and (known is None or not known.answer):
                self._count(peer)
            user = await self._together(key, lambda: self._review_token(key, token))
        else:
            user = known.answer
        if not user:
            or_not = f", or not{wanted}" if wanted else ""
            raise CallerRefusedError(401, f"this token is not known{or_not}: {self._how}")
        return Caller(key, user)

    async def may(self, caller: Caller, right: Right) -> bool:
        """Whether a caller has a right. Raises CallerRefusedError."""
        key = (caller.key, right)
        known = self._rights.get(key)
        if known is not None and known.until > self._clock():
            return bool(known.answer)
        return bool(await self._together(key, lambda: self._review_right(caller, right)))

    def _count(self, peer: str) -> None:
        """Raises CallerRefusedError when too many unknown tokens are shown."""
        now = self._clock()
        own = self._peers.of(peer, lambda: Bucket(self._one_address, now))
        if not own.take(now) or not self._all.take(now):
            raise CallerRefusedError(429, "too many tokens that are not known: try again in some seconds")

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
            raise CallerRefusedError(
                503, "the API server does not tell who you are and what you may: try again"
            ) from None

    async def _review_token(self, key: bytes, token: str) -> dict[str, Any] | None:
        spec: dict[str, Any] = {"token": token}
        if self._audience:
            spec["audiences"] = [self._audience]
        began = self._clock()
        status = await self._review("authentication.k8s.io/v1", "TokenReview", spec)
        # A server that knows nothing of audiences would call any token good.
        good = status.authenticated and (not self._audience or self._audience in status.audiences)
        user = status.user if good else None
        self._tokens.put(key, _Known(user, began + self._remembered))
        return user

    async def _review_right(self, caller: Caller, right: Right) -> bool:
        user = caller.user
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "resourceAttributes": {
                "group": right.group,
                "resource": right.resource,
                "verb": right.verb,
                **({"namespace": right.namespace} if right.namespace else {}),
            },
        }
        began = self._clock()
        status = await self._review("authorization.k8s.io/v1", "SubjectAccessReview", spec)
        self._rights.put((caller.key, right), _Known(status.allowed, began + self._remembered))
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
