"""TLS by files of the operator's, which are renewed without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.http.errors import TlsError

log = logging.getLogger(__name__)

#: How often files are read again.
LOOK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the operator's own. With `client_ca`, callers must show a certificate that it has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """A context with the files loaded. Raises TlsError."""
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
        """Load the files as they are now. Raises OSError."""
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
        """Everybody: the handshake has checked the certificate."""
        return ""

    async def keep(self) -> None:
        """Read the files again from time to time."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.renew()

    def renew(self) -> None:
        """Load the files as they are now, if they are usable."""
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
