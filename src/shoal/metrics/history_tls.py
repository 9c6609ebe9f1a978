"""The certificate of a collector: of its own making, in memory alone, or by files of the operator's.

One of its own making is new at each start. The collector says in its Lease by which authority it is known, so a node
can pass for no other: nobody shares a key.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import msgspec

from shoal.http.errors import TlsError
from shoal.http.tls import LOOK_SECONDS, FileTls, TlsFiles, server_context
from shoal.kube import certificates
from shoal.kube.access.tls import load_pair
from shoal.metrics.history_wire import SERVER_NAME

log = logging.getLogger(__name__)

_LIFE: Final = timedelta(days=90)
_RENEW_SECONDS: Final = timedelta(days=30).total_seconds()


class HistoryTlsSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """PEM files of the operator's own: a certificate for `serverName`, its key, and the authority that signed it."""

    certificate: str
    key: str
    authority: str
    server_name: str = SERVER_NAME


class HistoryTls(Protocol):
    """The TLS side of a collector."""

    context: ssl.SSLContext
    #: The certificates (PEM) that callers are told to believe, and the name that is certified.
    authority: str
    server_name: str

    async def renewed(self) -> None:
        """Return when the authority has become another one, which callers must be told."""
        ...


class OwnHistoryTls:
    """A certificate of the collector's own making."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.context = server_context()
        self.server_name = SERVER_NAME
        self.authority = ""
        self._make()

    def _make(self) -> None:
        now = self._now()
        authority = certificates.new_authority("shoal history", now=now, life=_LIFE)
        load_pair(self.context, authority.server([SERVER_NAME], now=now, life=_LIFE))
        self.authority = authority.certificate.decode()

    async def renewed(self) -> None:
        """Return after a month, with a new certificate."""
        await asyncio.sleep(_RENEW_SECONDS)
        self._make()


class FileHistoryTls:
    """Certificates of the operator's."""

    def __init__(self, settings: HistoryTlsSettings) -> None:
        """Raises TlsError."""
        self._files = FileTls(TlsFiles(Path(settings.certificate), Path(settings.key)))
        self._authority = Path(settings.authority)
        self.context = self._files.context
        self.server_name = settings.server_name
        self.authority = self._read()

    def _read(self) -> str:
        try:
            text = self._authority.read_text("ascii")
            ssl.create_default_context(cadata=text)
        except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
            raise TlsError(f"authority {self._authority} cannot be used: {error}: give certificates as PEM") from error
        return text

    async def renewed(self) -> None:
        """Follow the files; return when the authority has changed."""
        keeping = asyncio.create_task(self._files.keep())
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    found = self._read()
                except TlsError as error:
                    log.warning("the authority stays as it is: %s", error)
                    continue
                if found != self.authority:
                    self.authority = found
                    return
        finally:
            keeping.cancel()
