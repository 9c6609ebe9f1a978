"""Certificates that the extender makes itself: an authority, a server's pair, and a client's pair for kube-scheduler.

kube-scheduler reads its pair once, so the authority and the client's certificate live ten years. The server's is
renewed long before its end. A client's certificate that was replaced is accepted until the new one has been used.

They are kept in one Secret. Whichever replica is first writes it, whole and in one write; the others take what is
there. The Secret comes empty with the manifests, so that the scheduler needs no right to make Secrets. Where it is
missing and that right is there, it is made.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from shoal.http.errors import TlsError
from shoal.kube import certificates
from shoal.kube.access.credentials import KeyPair
from shoal.kube.certificates import Authority, CertificateError
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import Secret
from shoal.kube.resources import SECRETS
from shoal.model.contract import clusters, gpushare
from shoal.scheduler.errors import BundleError

CA_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=365)
#: The server's certificate is renewed when this much is left.
RENEW_BEFORE: Final = timedelta(days=120)
#: What kube-scheduler expects the server's certificate to be for, whatever address it reaches it by.
SERVER_NAME: Final = f"{gpushare.EXTENDER_NAME}.{gpushare.EXTENDER_NAMESPACE}.svc"
#: The same for those who ask for offers, in the namespace where the manifests put the scheduler.
OFFER_SERVER_NAME: Final = f"{clusters.NAME_OFFER_SERVICE}.{gpushare.EXTENDER_NAMESPACE}.svc"
OFFER_HOSTS: Final = (
    clusters.NAME_OFFER_SERVICE,
    f"{clusters.NAME_OFFER_SERVICE}.{gpushare.EXTENDER_NAMESPACE}",
    OFFER_SERVER_NAME,
    f"{OFFER_SERVER_NAME}.cluster.local",
)
HOSTS: Final = (
    SERVER_NAME,
    gpushare.EXTENDER_NAME,
    f"{gpushare.EXTENDER_NAME}.{gpushare.EXTENDER_NAMESPACE}",
    f"{SERVER_NAME}.cluster.local",
    *OFFER_HOSTS,
    "localhost",
    "127.0.0.1",
    "::1",
)
CLIENT_NAME: Final = "kube-scheduler"

KEY_CA: Final = "ca.crt"
KEY_CA_KEY: Final = "ca.key"
KEY_SERVER: Final = "tls.crt"
KEY_SERVER_KEY: Final = "tls.key"
KEY_CLIENT: Final = "client.crt"
KEY_CLIENT_KEY: Final = "client.key"
#: The fingerprint of the client's certificate that was replaced, until its successor is used.
KEY_PREVIOUS: Final = "previous-client"
_KEYS: Final = (KEY_CA, KEY_CA_KEY, KEY_SERVER, KEY_SERVER_KEY, KEY_CLIENT, KEY_CLIENT_KEY)

_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Bundle:
    """All certificates and keys of the extender."""

    authority: Authority
    server: KeyPair
    client: KeyPair
    previous: str = field(default="", repr=False)

    @property
    def accepted(self) -> frozenset[str]:
        """The fingerprints of the client certificates that are accepted."""
        return frozenset({certificates.fingerprint(self.client.certificate), self.previous} - {""})

    def renewed(self, now: datetime) -> Bundle:
        """The bundle with a server's certificate that is not about to end."""
        end = certificates.validity(self.server.certificate)[1]
        if end - now > RENEW_BEFORE and certificates.hosts_of(self.server.certificate) >= set(HOSTS):
            return self
        # Near the authority's own end nothing better can be had.
        if min(now + SERVER_LIFE, certificates.validity(self.authority.certificate)[1]) <= max(end, now):
            return self
        return replace(self, server=self.authority.server(HOSTS, now=now, life=SERVER_LIFE))

    def rotated(self, now: datetime) -> Bundle:
        """The bundle with a new client's pair. The old certificate is accepted until the new one is used."""
        client = self.authority.client(CLIENT_NAME, now=now, life=CA_LIFE)
        return replace(self, client=client, previous=certificates.fingerprint(self.client.certificate))

    def settled(self) -> Bundle:
        """The bundle that no longer accepts the client's old certificate."""
        return replace(self, previous="")

    def encode(self) -> dict[str, str]:
        """The bundle as the data of a Secret."""
        pairs = zip(_KEYS, self._parts(), strict=True)
        data = {key: base64.b64encode(value).decode() for key, value in pairs}
        if self.previous:
            data[KEY_PREVIOUS] = base64.b64encode(self.previous.encode()).decode()
        return data

    def _parts(self) -> Sequence[bytes]:
        authority, server, client = self.authority, self.server, self.client
        return (
            *(authority.certificate, authority.key, server.certificate, server.key),
            *(client.certificate, client.key),
        )


def fresh(now: datetime) -> Bundle:
    """A new bundle."""
    authority = certificates.new_authority("shoal extender", now=now, life=CA_LIFE)
    return Bundle(
        authority,
        authority.server(HOSTS, now=now, life=SERVER_LIFE),
        authority.client(CLIENT_NAME, now=now, life=CA_LIFE),
    )


def decode(data: Mapping[str, str]) -> Bundle:
    """The bundle of a Secret's data. Raises BundleError."""
    missing = [key for key in _KEYS if not data.get(key)]
    if missing:
        raise BundleError(f"it lacks {', '.join(missing)}")
    try:
        ca, ca_key, server, server_key, client, client_key = (
            base64.b64decode(data[key], validate=True) for key in _KEYS
        )
        previous = base64.b64decode(data.get(KEY_PREVIOUS, ""), validate=True).decode("ascii")
        bundle = Bundle(Authority(ca, ca_key), KeyPair(server, server_key), KeyPair(client, client_key), previous)
        _check(bundle)
    except (binascii.Error, UnicodeDecodeError, CertificateError) as error:
        raise BundleError(f"it cannot be read: {error}") from error
    return bundle


def _check(bundle: Bundle) -> None:
    """Raises BundleError for parts that do not belong together."""
    authority = bundle.authority
    pairs = ((KEY_CA, KeyPair(authority.certificate, authority.key)), (KEY_SERVER, bundle.server))
    for name, pair in (*pairs, (KEY_CLIENT, bundle.client)):
        if not certificates.matches(pair):
            raise BundleError(f"the key of {name} is not its own")
        if not certificates.is_signed_by(pair.certificate, authority.certificate):
            raise BundleError(f"{name} is not signed by {KEY_CA}")


class BundleSecret:
    """Reads and writes one Secret."""

    def __init__(self, client: Client, *, namespace: str, name: str, now: Callable[[], datetime]) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._now = now

    async def read(self) -> Bundle | None:
        """The bundle in the Secret; None while it is empty. Raises TlsError and KubeError."""
        secret = await self._secret()
        return None if secret is None or not secret.data else self._decoded(secret)

    async def ensure(self) -> Bundle:
        """The bundle in the Secret, made now if there is none, with the server's certificate renewed in time."""
        made: Bundle | None = None

        def change(bundle: Bundle | None) -> Bundle:
            nonlocal made
            if bundle is None:
                made = made or fresh(self._now())
                return made
            return bundle.renewed(self._now())

        return await self._change(change)

    async def rotate_client(self) -> Bundle:
        """Make a new client's pair. Raises TlsError when the Secret is empty."""

        def change(bundle: Bundle | None) -> Bundle:
            if bundle is None:
                raise TlsError(f"{self._where} holds no certificates yet: start the scheduler first")
            return bundle.rotated(self._now())

        return await self._change(change)

    async def settle_client(self, used: str) -> Bundle:
        """The client certificate with this fingerprint was used: if it is the new one, the old one is over."""

        def change(bundle: Bundle | None) -> Bundle:
            if bundle is None:
                raise TlsError(f"{self._where} holds no certificates any more: restart the scheduler")
            return bundle.settled() if used in bundle.settled().accepted else bundle

        return await self._change(change)

    @property
    def _where(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    async def _change(self, change: Callable[[Bundle | None], Bundle]) -> Bundle:
        """Write what `change` makes of the bundle in the Secret, if it differs; again when another has written."""
        while True:
            secret = await self._secret()
            before = None if secret is None or not secret.data else self._decoded(secret)
            after = change(before)
            if after == before:
                return after
            with contextlib.suppress(ConflictError, AlreadyExistsError, NotFoundError):
                await self._write(secret, after)
                return after
            await asyncio.sleep(_PAUSE)  # another was faster: look again

    async def _secret(self) -> Secret | None:
        try:
            return await self._client.get(SECRETS, self._name, namespace=self._namespace)
        except NotFoundError:
            return None

    async def _write(self, secret: Secret | None, bundle: Bundle) -> None:
        if secret is not None:
            await self._client.replace(SECRETS, msgspec.structs.replace(secret, data=bundle.encode()), retried=False)
            return
        meta = ObjectMeta(name=self._name, namespace=self._namespace)
        try:
            await self._client.create(SECRETS, Secret(metadata=meta, type="Opaque", data=bundle.encode()))
        except ForbiddenError as error:
            raise TlsError(f"{self._where} is not there: apply deploy/scheduler, which makes it empty") from error

    def _decoded(self, secret: Secret) -> Bundle:
        try:
            return decode(secret.data)
        except BundleError as error:
            raise TlsError(
                f"{self._where} cannot be used: {error}: empty its data, restart the scheduler, and give kube-scheduler"
                " its new half (shoal config kube-scheduler)"
            ) from error
