"""Who looks, and what they may see: a Kubernetes token, the session it opens, and the rights that its owner has.

The API server says who a token belongs to (TokenReview) and which namespaces its owner may read
(SubjectAccessReview); both are asked again within a minute. A session lives in this process's memory and is known by a
hash of its cookie; it keeps the token, which is needed to ask again, and shows it to nobody. While the API server
cannot be asked, sessions see what they saw, for a while: the picture stands still as well.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from shoal.dashboard.views import ViewClass
from shoal.kube.reviews import Caller, CallerRefusedError, Reviews, Right
from shoal.model.bounded_cache import BoundedCache

log = logging.getLogger(__name__)

#: A session ends after so long, however long its token lasts.
SESSION_SECONDS: Final = 12 * 3600.0
#: A link that signs in works once, and for so long.
LINK_SECONDS: Final = 3600.0
#: While the API server cannot be asked, what was allowed last counts for so long.
UNASKED_SECONDS: Final = 600.0
#: A token or a right that is taken away is of no use after a minute: for so long an answer of the API server counts,
#: what is known of a viewer is worked out again after so long, streams look as often, and the API server itself
#: remembers tokens for ten seconds.
REVIEWED_SECONDS: Final = 40.0
_VIEW_SECONDS: Final = 5.0
_SESSIONS: Final = 1000
_SESSIONS_OF_ONE: Final = 20
_LINKS: Final = 16
_VIEWERS: Final = 1024
_MOST_NAMESPACES: Final = 2000
_PODS: Final = Right("list", "", "pods")
_NODES: Final = Right("list", "", "nodes")
_EVENTS: Final = Right("list", "", "events")

HOW: Final = "`kubectl create token SERVICEACCOUNT` makes one"


class SignedOutError(Exception):
    """There is no session, or it has ended; `reason` is expired, signed-out or unknown."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


@dataclass(slots=True, eq=False)
class Session:
    """One sign-in."""

    user: str
    token: str = field(repr=False)
    #: By the clock of `Viewers`.
    until: float
    key: bytes = field(repr=False)
    #: Why it is over, in one word: expired, signed-out; empty while it is not.
    over: str = ""
    #: Told when it is over: one event for each stream of it.
    readers: set[asyncio.Event] = field(default_factory=set, repr=False)

    def end(self, reason: str) -> None:
        """It is over, and those who follow it hear so."""
        if not self.over:
            self.over, self.token = reason, ""
            for reader in self.readers:
                reader.set()


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks: their name, what they see, and their session; None for a program with a token."""

    caller: Caller
    view: ViewClass
    session: Session | None = None

    @property
    def name(self) -> str:
        """The user name."""
        return self.caller.name


@dataclass(slots=True)
class _Known:
    """What is known of a token's owner."""

    caller: Caller
    view: ViewClass
    #: When it is asked again, and until when it counts if nobody can be asked.
    again: float
    until: float
    #: The namespaces that were looked at.
    among: frozenset[str]


class Viewers:
    """Signs in and says what each may see. `namespaces` are those that have something to show now."""

    def __init__(
        self,
        reviews: Reviews,
        namespaces: Callable[[], Collection[str]],
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """`clock` is monotonic; `now` is seconds since 1970, for when tokens end."""
        self._reviews = reviews
        self._namespaces = namespaces
        self._clock = clock
        self._now = now
        self._sessions: BoundedCache[bytes, Session] = BoundedCache(
            _SESSIONS, dropped=lambda session: session.end("expired")
        )
        self._links: BoundedCache[bytes, tuple[str, float]] = BoundedCache(_LINKS)
        self._known: BoundedCache[bytes, _Known] = BoundedCache(_VIEWERS)

    def __len__(self) -> int:
        return len(self._sessions)

    def link(self, token: str) -> str:
        """A code that signs in once, as the owner of a token."""
        code = secrets.token_urlsafe(32)
        self._links.put(_hash(code), (token, self._clock() + LINK_SECONDS))
        return code

    async def sign_in_by_link(self, code: str, peer: str) -> tuple[Session, str]:
        """The session that a link opens, and its cookie. Raises CallerRefusedError."""
        found = self._links.pop(_hash(code))
        if found is None or found[1] <= self._clock():
            raise CallerRefusedError(401, "this link has been used or is too old: sign in with a token")
        return await self.sign_in(found[0], peer)

    async def sign_in(self, token: str, peer: str) -> tuple[Session, str]:
        """A session for a token, and its cookie. Raises CallerRefusedError."""
        token = token.strip()
        known = await self._look(token, peer)
        cookie = secrets.token_urlsafe(32)
        session = Session(known.caller.name, token, self._end_of(token), _hash(cookie))
        own = [one for one in self._sessions.values() if one.user == session.user]
        for old in own[: max(0, len(own) + 1 - _SESSIONS_OF_ONE)]:
            self.sign_out(old, "expired")
        self._sessions.put(session.key, session)
        return session, cookie

    def sign_out(self, session: Session, reason: str = "signed-out") -> None:
        """End a session."""
        self._sessions.pop(session.key)
        session.end(reason)

    def session(self, cookie: str) -> Session:
        """The session of a cookie. Raises SignedOutError."""
        found = self._sessions.get(_hash(cookie)) if cookie else None
        if found is None:
            raise SignedOutError("unknown", "you are not signed in")
        if found.until <= self._clock():
            self.sign_out(found, "expired")
            raise SignedOutError("expired", "your session is over: sign in again")
        return found

    async def of_session(self, session: Session, peer: str) -> Viewer:
        """What a session may see now. Raises SignedOutError and CallerRefusedError."""
        if session.over or session.until <= self._clock():
            self.sign_out(session, session.over or "expired")
            raise SignedOutError(session.over, "your session is over: sign in again")
        try:
            known = await self._look(session.token, peer)
        except CallerRefusedError as refusal:
            if refusal.status != 401:
                raise
            self.sign_out(session, "expired")
            raise SignedOutError("expired", "your token is not valid any more: sign in again") from None
        return Viewer(known.caller, known.view, session)

    async def of_token(self, token: str, peer: str) -> Viewer:
        """What the owner of a token may see. Raises CallerRefusedError."""
        if self._end_of(token) <= self._clock():
            raise CallerRefusedError(401, f"this token has expired: {HOW}")
        known = await self._look(token, peer)
        return Viewer(known.caller, known.view)

    async def readable_events(self, viewer: Viewer) -> frozenset[str] | None:
        """The namespaces whose Events a viewer may list, None for all. Raises CallerRefusedError."""
        if await self._reviews.may(viewer.caller, _EVENTS):
            return None
        # Events of nodes are in `default`.
        among = self._namespaces() if viewer.view.namespaces is None else viewer.view.namespaces
        return await self._allowed(viewer.caller, _EVENTS, {*among, "default"})

    async def _allowed(self, caller: Caller, right: Right, among: Collection[str]) -> frozenset[str]:
        """The namespaces in which a caller has a right."""
        some = sorted(among)[:_MOST_NAMESPACES]
        rights = [replace(right, namespace=namespace) for namespace in some]
        allowed = await asyncio.gather(*(self._reviews.may(caller, one) for one in rights))
        return frozenset(name for name, may in zip(some, allowed, strict=True) if may)

    async def _look(self, token: str, peer: str) -> _Known:
        """Who a token belongs to and what they may see: looked at every few seconds."""
        key = _hash(token)
        known, clock = self._known.get(key), self._clock()
        among = frozenset(self._namespaces())
        if known is not None and known.again > clock and (known.view.namespaces is None or among <= known.among):
            return known
        try:
            caller = await self._reviews.caller(token, peer)
            view = await self._view(caller, among)
        except CallerRefusedError as refusal:
            if refusal.status == 503 and known is not None and known.until > clock:
                return known
            if refusal.status == 401:
                self._known.pop(key)
            raise
        fresh = _Known(caller, view, clock + _VIEW_SECONDS, clock + UNASKED_SECONDS, among)
        self._known.put(key, fresh)
        return fresh

    async def _view(self, caller: Caller, among: frozenset[str]) -> ViewClass:
        all_pods, all_nodes = await asyncio.gather(self._reviews.may(caller, _PODS), self._reviews.may(caller, _NODES))
        if all_pods:
            return ViewClass(None, all_nodes)
        return ViewClass(await self._allowed(caller, _PODS, among), all_nodes)

    def _end_of(self, token: str) -> float:
        """When a session with this token ends, by the clock: with the token, where that says when."""
        clock, expires = self._clock(), _expiry(token)
        if expires is None:
            return clock + SESSION_SECONDS
        return clock + min(SESSION_SECONDS, expires - self._now())


class _Claims(msgspec.Struct, frozen=True):
    exp: float | None = None


def _expiry(token: str) -> float | None:
    """When a JWT says that it ends; None for other tokens. Nothing is believed by it: the API server is asked too."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    with contextlib.suppress(msgspec.MsgspecError, binascii.Error, ValueError):
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(text, type=_Claims).exp
    return None


def _hash(secret: str) -> bytes:
    """What a secret is looked up by: how long that takes says nothing about others."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
