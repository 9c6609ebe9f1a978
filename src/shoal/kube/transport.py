"""HTTP to one API server: connections, identity, retries, bounds. It knows bytes and paths, no kinds of objects.

What is tried again, and only a few times: requests that never left (connection refused), whatever the verb; those cut
off on the way, if repeating them does no harm; 429 and 503 when the server says to come back; and once a 401, with
fresh credentials. HTTP/1.1 without compression: API servers stand near, and gzip costs them more than the wire does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

import shoal
from shoal.kube.access.credentials import Access, Credential, KeyPair
from shoal.kube.access.tls import tls_context
from shoal.kube.codec import status_of
from shoal.kube.errors import AnswerError, ApiError, ConfigError, KubeError, SilentError, UnreachableError, api_error
from shoal.kube.objects.meta import StatusDetails
from shoal.model.backoff import Backoff

log = logging.getLogger(__name__)

USER_AGENT: Final = f"shoal/{shoal.__version__}"
#: A page of 500 objects of the largest size etcd takes would not fit; no real page comes near.
MAX_BYTES: Final = 256 << 20
_MOST_CAUSES: Final = 256
_MOST_SAID: Final = 8
_LONGEST_CAUSE: Final = 300
MAX_ERROR_BYTES: Final = 1 << 20
_READ_BUFFER: Final = 256 << 10
#: More than any connection needs to be closed.
_CLOSING_TURNS: Final = 10
_BACKOFF: Final = Backoff(first=0.1, longest=60.0)
_WITHHELD: Final = "the server's message is withheld, it may repeat the secret"


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """How long to wait and how often to try."""

    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    attempts: int = 4
    backoff: Backoff = _BACKOFF
    #: A server that wants to be left alone for longer is told to the caller instead.
    max_retry_after: float = 15.0
    connections: int = 100


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    verb: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    content_type: str = "application/json"
    accept: str = "application/json"
    #: Whether doing it twice is as good as once.
    repeatable: bool = False
    #: Whether to try again at all.
    retried: bool = True
    seconds: float | None = None
    max_bytes: int = MAX_BYTES
    #: More headers, which may hold a secret.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def asked(self) -> str:
        """The request as errors name it."""
        return f"{self.verb} {self.path}"


class _CutOffError(UnreachableError):
    """No answer, and the server may have acted on the request."""


class _NotSentError(UnreachableError):
    """The request never left."""


class _UntrustedError(UnreachableError):
    """The server's certificate is not signed by the authority."""


class Transport:
    """Sends calls to the server of an `Access`. Open it before the first, close it after the last."""

    def __init__(
        self, access: Access, *, limits: TransportLimits | None = None, rng: random.Random | None = None
    ) -> None:
        self.access = access
        self.limits = limits or TransportLimits()
        self._rng = rng or random.Random()
        self._session: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._tls: ssl.SSLContext | None = None
        self._tls_made_of: tuple[bytes | None, KeyPair | None] | None = None

    async def open(self) -> None:
        """Get ready to send."""
        connector = aiohttp.TCPConnector(limit=self.limits.connections, socket_factory=self._make_socket)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=_READ_BUFFER, trust_env=False
        )
        # aiohttp would by itself repeat a DELETE that was cut off; there is no public way to say no.
        self._session._retry_connection = False

    async def close(self) -> None:
        """Close all connections, also those of requests that were given up and wait for the server's goodbye."""
        if self._session is None:
            return
        await self._session.close()
        self._session = None
        for one in self._sockets:
            with contextlib.suppress(OSError):  # closed, or never connected
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSING_TURNS):  # the event loop sees the end, and closes
            if all(one.fileno() < 0 for one in self._sockets):
                break
            await asyncio.sleep(0)

    def _make_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    async def request(self, call: Call) -> bytes:
        """The body of the answer; ApiError for a refusal, UnreachableError for none."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._once(call)
            except KubeError as error:
                pause = self._pause(call, error, attempt)
                if pause is None:
                    raise
                log.debug("%s: attempt %d failed, next in %.2f s: %s", call.asked, attempt, pause, error)
            await asyncio.sleep(pause)

    async def date(self, call: Call) -> str:
        """The header Date of an answer, empty if it has none: the server's clock. Never tried again."""
        bounds = aiohttp.ClientTimeout(total=self.limits.request_seconds, sock_connect=self.limits.connect_seconds)
        response = await self._exchange(call, bounds)
        try:
            return response.headers.get("Date", "")
        finally:
            response.release()

    @contextlib.asynccontextmanager
    async def stream(self, call: Call, *, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of the answer in pieces as they come; SilentError when none comes for `silence` seconds."""
        bounds = aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_seconds, sock_read=silence)
        response = await self._exchange(call, bounds)
        try:
            if response.status != 200:
                raise await self._refusal(call, response)
            yield self._pieces(call, response, silence)
        finally:
            # Aborted, not released: a stream may have no end, and a peer that is gone never says goodbye.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def _once(self, call: Call) -> bytes:
        seconds = call.seconds or self.limits.request_seconds
        bounds = aiohttp.ClientTimeout(total=seconds, sock_connect=self.limits.connect_seconds)
        response = await self._exchange(call, bounds)
        try:
            if response.status >= 300:
                raise await self._refusal(call, response)
            return await self._body(call, response, call.max_bytes)
        finally:
            response.release()

    async def _exchange(self, call: Call, bounds: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """An answer of any status, after a second try if the server no longer knows us or we no longer know it."""
        credential = await self.access.credentials.current()
        try:
            response = await self._send(call, credential, bounds)
        except _UntrustedError:
            if self.access.authority is None:
                raise
            before = self.access.authority.read()
            self.access.authority.expire()
            if self.access.authority.read() == before:
                raise
            response = await self._send(call, credential, bounds)
        if response.status == 401:
            fresh = await self.access.credentials.refresh(credential)
            if fresh != credential:
                response.release()
                response = await self._send(call, fresh, bounds)
        return response

    async def _send(self, call: Call, credential: Credential, bounds: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            raise KubeError(f"{call.asked}: the client is not open: use it in `async with`")
        headers = CIMultiDict(self.access.headers)
        headers.update(call.headers)
        headers.update({"User-Agent": USER_AGENT, "Accept": call.accept, "Accept-Encoding": "identity"})
        secure = self.access.server.startswith("https://")
        if credential.token and secure:
            headers["Authorization"] = f"Bearer {credential.token}"
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        query = f"?{_query(tuple(call.query.items()))}" if call.query else ""
        try:
            return await self._session.request(
                call.verb,
                URL(f"{self.access.server}{call.path}{query}", encoded=True),
                data=call.body,
                headers=headers,
                ssl=self._context(credential.pair) if secure else True,
                server_hostname=self.access.server_name or None,
                proxy=self.access.proxy or None,
                timeout=bounds,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(call, error) from error

    def _context(self, pair: KeyPair | None) -> ssl.SSLContext:
        """The TLS context of the present identity. A half-written new one does not replace one that works."""
        authority = None if self.access.authority is None else self.access.authority.read()
        if self._tls is None or self._tls_made_of != (authority, pair):
            try:
                self._tls = tls_context(authority=authority, pair=pair, verify=self.access.verify)
                self._tls_made_of = (authority, pair)
            except ConfigError as error:
                if self._tls is None:
                    raise
                log.warning("the renewed certificates cannot be used, the earlier ones are: %s", error)
        return self._tls

    async def _pieces(
        self, call: Call, response: aiohttp.ClientResponse, silence: float | None = None
    ) -> AsyncIterator[bytes]:
        try:
            async for piece in response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if silence is not None and isinstance(error, TimeoutError):
                silent = f"{call.asked} at {self.access.server}: nothing was told for {silence:g} s"
                raise SilentError(silent) from error
            raise self._unreachable(call, error) from error

    async def _body(self, call: Call, response: aiohttp.ClientResponse, limit: int) -> bytes:
        pieces, size = [], 0
        async for piece in self._pieces(call, response):
            size += len(piece)
            if size > limit:
                response.close()
                raise AnswerError(f"{call.asked}: the answer is larger than {limit} bytes: ask for less at a time")
            pieces.append(piece)
        return b"".join(pieces)

    async def _refusal(self, call: Call, response: aiohttp.ClientResponse) -> ApiError:
        content = await self._body(call, response, MAX_ERROR_BYTES)
        status = status_of(content)
        # The server repeats a whole object when a patch does not fit it.
        secret = "/secrets/" in f"{call.path}/"
        after = response.headers.get("Retry-After", "")
        retry_after = float(after) if after.isascii() and after.isdigit() and len(after) < 9 else None
        if status is None:
            text = "".join(c if c.isprintable() else " " for c in content[:200].decode("utf-8", "replace"))
            said = _WITHHELD if secret else text
            return api_error(asked=call.asked, status=response.status, message=said, retry_after=retry_after)
        if retry_after is None and status.details is not None and status.details.retry_after_seconds:
            retry_after = float(status.details.retry_after_seconds)
        return api_error(
            asked=call.asked,
            status=response.status,
            reason=status.reason or "",
            message=_WITHHELD if secret else status.message or "",
            retry_after=retry_after,
            fields=() if secret or status.details is None else _fields(status.details),
            causes=() if secret or status.details is None else _causes(status.details),
        )

    def _pause(self, call: Call, error: KubeError, attempt: int) -> float | None:
        """Seconds until the next attempt; None when there should be none."""
        if not call.retried or attempt >= self.limits.attempts:
            return None
        backoff = self.limits.backoff.jittered(attempt, self._rng, most=1.5)
        if isinstance(error, ApiError):
            asked_back = error.status == 429 or (error.status == 503 and error.retry_after is not None)
            if not asked_back and not (error.status == 503 and call.repeatable):
                return None
            wait = error.retry_after or 0.0
            return max(wait, backoff) if wait <= self.limits.max_retry_after else None
        if isinstance(error, _NotSentError) or (isinstance(error, _CutOffError) and call.repeatable):
            return backoff
        return None

    def _unreachable(self, call: Call, error: Exception) -> UnreachableError:
        """The failure in our words: those of the library may hold the address of a proxy with its password."""
        asked = f"{call.asked} at {self.access.server}"
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = getattr(error.certificate_error, "verify_message", "") or "certificate not accepted"
            return _UntrustedError(f"{asked}: {why}: correct certificate-authority or tls-server-name")
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return UnreachableError(f"{asked}: the proxy refused with {error.status}: correct proxy-url or HTTPS_PROXY")
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return _NotSentError(f"{asked}: no connection in time: check the address and the network")
        if isinstance(error, TimeoutError):
            return UnreachableError(f"{asked}: no answer in time: try again, or allow more time")
        if isinstance(error, aiohttp.ClientSSLError):
            return UnreachableError(f"{asked}: TLS failed: check the address and the certificates")
        if isinstance(error, aiohttp.ClientConnectorError):
            why = _reason(error.os_error)
            return _NotSentError(f"{asked}: no connection: {why}: check that the server runs, and the address")
        return _CutOffError(f"{asked}: the connection broke: {_reason(error)}: try again")


@lru_cache(256)
def _query(items: tuple[tuple[str, str], ...]) -> str:
    """Encoded once: most writes carry the same few words."""
    return urlencode(items)


def _fields(details: StatusDetails) -> tuple[str, ...]:
    """The fields of a refusal's causes, as many as a reader can use."""
    return tuple(cause.field for cause in (details.causes or ())[:_MOST_CAUSES] if cause.field)


def _causes(details: StatusDetails) -> tuple[str, ...]:
    """What is said of a refusal's causes, as much as a reader can use."""
    said = [cause.message for cause in details.causes or () if cause.message]
    return tuple(message[:_LONGEST_CAUSE] for message in said[:_MOST_SAID])


def _reason(error: Exception) -> str:
    """The system's word for a failure; asyncio's own repeats addresses."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
