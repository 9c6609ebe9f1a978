"""TLS of the scheduler by certificates that it makes itself. By files of the operator's it is that of `shoal.http`.

A caller of the extender without a certificate of the client CA gets no further than the handshake: no byte of a request
is read. Certificates are renewed without a restart.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final, Protocol

from shoal.http.errors import TlsError
from shoal.http.tls import LOOK_SECONDS, server_context
from shoal.kube.access.tls import load_pair
from shoal.kube.errors import KubeError
from shoal.scheduler.certificates import Bundle, BundleSecret

log = logging.getLogger(__name__)

#: A certificate that is not known yet makes the Secret be read again, this often at most.
_AGAIN_SECONDS: Final = 1.0
_REFUSED: Final = "this client certificate was replaced: give kube-scheduler what `shoal config kube-scheduler` prints"


class ServerTls(Protocol):
    """The TLS side of a server."""

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


class OwnTls:
    """TLS by the certificates in the Secret: the server's context, and which client certificates are accepted.

    Without `clients` nobody is asked for a certificate: callers say otherwise who they are.
    """

    def __init__(self, secret: BundleSecret, bundle: Bundle, *, clients: bool = True) -> None:
        self._secret = secret
        self._clients = clients
        self._bundle = bundle
        self._accepted = bundle.accepted
        self._current = bundle.settled().accepted
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self.context = server_context()
        if clients:
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_verify_locations(cadata=bundle.authority.certificate.decode())
        load_pair(self.context, bundle.server)

    @classmethod
    async def begun(cls, secret: BundleSecret, *, clients: bool = True) -> OwnTls:
        """TLS by the Secret's certificates, which are made if it holds none."""
        return cls(secret, await secret.ensure(), clients=clients)

    async def admits(self, shown: str) -> str:
        """Why this client is not let in; empty when it is."""
        if not self._clients:
            return ""
        if shown not in self._accepted:
            await self._look_again()
        if shown not in self._accepted:
            return _REFUSED
        if self._bundle.previous and shown in self._current:
            await self._settle(shown)
        return ""

    async def keep(self) -> None:
        """Follow the Secret, and renew the server's certificate in time."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Use what the Secret holds now."""
        try:
            self._take(await self._secret.ensure())
        except (TlsError, KubeError) as error:
            log.warning("TLS stays as it is: %s", error)

    async def _look_again(self) -> None:
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if now - self._looked_at >= _AGAIN_SECONDS:
                self._looked_at = now
                await self.look()

    async def _settle(self, used: str) -> None:
        log.info("kube-scheduler uses its new certificate: the one before is over")
        self._bundle = self._bundle.settled()
        self._accepted = self._current
        try:
            self._take(await self._secret.settle_client(used))
        except (TlsError, KubeError) as error:
            log.warning("the Secret still knows the certificate before: %s", error)

    def _take(self, bundle: Bundle) -> None:
        if bundle.authority.certificate != self._bundle.authority.certificate:
            raise TlsError("the Secret holds another authority: restart the scheduler")
        if bundle.server != self._bundle.server:
            load_pair(self.context, bundle.server)
            log.info("the server's certificate is renewed")
        self._bundle = bundle
        self._accepted = bundle.accepted
        self._current = bundle.settled().accepted
