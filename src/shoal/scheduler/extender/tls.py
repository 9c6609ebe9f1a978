"""TLS of the extender: its certificate, and whose callers are let in.

A caller without a certificate of the client CA gets no further than the handshake: no byte of a request is read.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

log = logging.getLogger(__name__)

#: How often what is kept elsewhere is looked at again.
LOOK_SECONDS: Final = 60.0


class TlsError(Exception):
    """Certificates that cannot be used; the message names them and the fix."""


class Tls(Protocol):
    """What the server listens with."""

    @property
    def context(self) -> ssl.SSLContext:
        """For new connections; it is changed in place."""
        ...

    async def admits(self, shown: str) -> str:
        """Why a caller may not ask, by the fingerprint it has shown ("" without one); empty when it may."""
        ...

    async def keep(self) -> None:
        """Keep the context as new as its source, until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the operator's own. With `client_ca`, callers must show a certificate that it has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What the server listens with. Raises TlsError."""
        context = server_context()
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        try:
            self.load(context)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(
                f"TLS files {self.certificate}, {self.key}"
                f"{f', {self.client_ca}' if self.client_ca else ''} cannot be used: {error}: "
                "give a certificate and its own key, and a CA, as PEM"
            ) from error
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Take the files as they are now. Raises OSError."""
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)


class FileTls:
    """TLS by files, which are read again while the server runs.

    A renewed certificate counts from the next connection on, and one that is half written does not replace what works.
    A client CA that was replaced counts beside the old one until a restart.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = files.context()

    async def admits(self, shown: str) -> str:
        """The handshake has seen to it."""
        return ""

    async def keep(self) -> None:
        """Read the files again from time to time."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.renew()

    def renew(self) -> None:
        """Take the files as they are now, if they are usable."""
        try:
            self._files.context()
            self._files.load(self.context)
        except (TlsError, OSError) as error:
            log.warning("TLS files were not renewed: %s", error)


def server_context() -> ssl.SSLContext:
    """A context for a server, with nothing loaded yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
