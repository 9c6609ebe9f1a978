"""The bundle in its Secret. Whoever is first writes it, whole and in one write; whoever is second takes what is there.

The Secret comes empty with the manifests, so that the scheduler needs no right to make Secrets. Where it is missing and
that right is there, it is made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import Secret
from shoal.kube.resources import SECRETS
from shoal.scheduler.credentials.bundle import Bundle, BundleError, decode, fresh
from shoal.scheduler.extender.tls import TlsError

_PAUSE = 0.2


class BundleSecret:
    """Reads and writes one Secret."""

    def __init__(self, client: Client, *, namespace: str, name: str, now: Callable[[], datetime]) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._now = now

    async def read(self) -> Bundle | None:
        """What is there; None while there is nothing. Raises TlsError and KubeError."""
        secret = await self._secret()
        return None if secret is None or not secret.data else self._decoded(secret)

    async def ensure(self) -> Bundle:
        """What is there, or made now if nothing is; its server's certificate renewed in time."""
        made: Bundle | None = None

        def change(bundle: Bundle | None) -> Bundle:
            nonlocal made
            if bundle is None:
                made = made or fresh(self._now())
                return made
            return bundle.renewed(self._now())

        return await self._change(change)

    async def rotate_client(self) -> Bundle:
        """Make a new client's half. Raises TlsError when there is none yet."""

        def change(bundle: Bundle | None) -> Bundle:
            if bundle is None:
                raise TlsError(f"{self._where} holds no certificates yet: start the scheduler first")
            return bundle.rotated(self._now())

        return await self._change(change)

    async def settle_client(self, used: str) -> Bundle:
        """The client's certificate with this fingerprint was used: if it is the present one, the one before is over."""

        def change(bundle: Bundle | None) -> Bundle:
            if bundle is None:
                raise TlsError(f"{self._where} holds no certificates any more: restart the scheduler")
            return bundle.settled() if used in bundle.settled().accepted else bundle

        return await self._change(change)

    @property
    def _where(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    async def _change(self, change: Callable[[Bundle | None], Bundle]) -> Bundle:
        """Write what `change` makes of what is there, or nothing when that is the same. Others may write meanwhile."""
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
