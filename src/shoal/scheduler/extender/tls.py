"""TLS of the extender: its certificate, and the CA whose certificates callers must show.

The files are read again while the server runs: a renewed certificate counts from the next connection on, and one that
is half written does not replace what works. A client CA that was replaced counts beside the old one until a restart.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)


class TlsError(Exception):
    """Files that cannot be used; the message names them and the fix."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, a caller may show a certificate, which must be signed by it.

    What is answered to callers without one is the server's to say: kubelet probes without.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What the server listens with. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
        try:
            self._load(context)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(
                f"TLS files {self.certificate}, {self.key}"
                f"{f', {self.client_ca}' if self.client_ca else ''} cannot be used: {error}: "
                "give a certificate and its own key, and a CA, as PEM"
            ) from error
        return context

    def renew(self, context: ssl.SSLContext) -> None:
        """Take the files as they are now, if they are usable."""
        try:
            self.context()
            self._load(context)
        except (TlsError, OSError) as error:
            log.warning("TLS files were not renewed: %s", error)

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
