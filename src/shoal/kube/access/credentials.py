"""Who we are to the API server, and where that knowledge comes from.

Contents of files are read again at most once a minute, and at once when the server says 401, since kubelet and
certificate rotation replace them under a running process. Nothing here shows a secret in its repr.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from shoal.kube.errors import ConfigError

log = logging.getLogger(__name__)

REREAD_SECONDS: Final = 60.0
#: Certificates and tokens are small; anything larger is the wrong file.
MAX_FILE_BYTES: Final = 1 << 20


class Content(Protocol):
    """Bytes that may change while we run."""

    def read(self) -> bytes:
        """The present bytes; ConfigError when there have never been any."""

    def expire(self) -> None:
        """Have the next `read` look again."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Bytes that were given once."""

    content: bytes = field(repr=False)

    def read(self) -> bytes:
        """The bytes."""
        return self.content

    def expire(self) -> None:
        """Nothing to look at again."""


class FileContent:
    """A file that others replace. When it cannot be read, the last good bytes go on."""

    def __init__(self, path: Path, *, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._what = what
        self._clock = clock
        self._content: bytes | None = None
        self._due = 0.0

    def __repr__(self) -> str:
        return f"FileContent({self._path})"

    def read(self) -> bytes:
        """The bytes of the file, at most a minute old."""
        if self._content is not None and self._clock() < self._due:
            return self._content
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES or not content.strip():
                raise ConfigError(f"{self._what} {self._path} is empty or too large: point to the right file")
            self._content = content
        except OSError as error:
            if self._content is None:
                raise ConfigError(
                    f"{self._what} {self._path} cannot be read: {error.strerror}: create it, or correct the path"
                ) from error
            log.warning("%s %s cannot be read again: %s; the earlier one is used", self._what, self._path, error)
        except ConfigError:
            if self._content is None:
                raise
            log.warning("%s %s is empty or too large now; the earlier one is used", self._what, self._path)
        self._due = self._clock() + REREAD_SECONDS
        return self._content

    def expire(self) -> None:
        """Have the next `read` open the file again."""
        self._due = 0.0


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A client certificate with its key, in PEM."""

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request is signed with; empty for anonymous."""

    token: str = field(default="", repr=False)
    pair: KeyPair | None = None


class CredentialSource(Protocol):
    """Gives the credential of the moment."""

    async def current(self) -> Credential:
        """The credential to use now."""

    async def refresh(self, refused: Credential) -> Credential:
        """Another try at a credential, after the server refused one. It may be the same again."""


class StoredCredential:
    """A token or a certificate that lies in a kubeconfig or in files."""

    def __init__(
        self, *, token: Content | None = None, certificate: Content | None = None, key: Content | None = None
    ) -> None:
        self._token = token
        self._certificate = certificate
        self._key = key

    async def current(self) -> Credential:
        """What the files hold."""
        token = self._token.read().decode("utf-8", "replace").strip() if self._token else ""
        if not token.isascii() or not token.isprintable():
            raise ConfigError(f"the token of {self._token!r} is not plain text: store the token alone")
        pair = KeyPair(self._certificate.read(), self._key.read()) if self._certificate and self._key else None
        return Credential(token, pair)

    async def refresh(self, refused: Credential) -> Credential:
        """Look at the files again."""
        for content in (self._token, self._certificate, self._key):
            if content:
                content.expire()
        return await self.current()


class ReplaceableContent:
    """Bytes that come from another place when told so."""

    def __init__(self, content: Content) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"ReplaceableContent({self.content!r})"

    def read(self) -> bytes:
        """The present bytes."""
        return self.content.read()

    def expire(self) -> None:
        """Have the next `read` look again."""
        self.content.expire()


class ReplaceableCredential:
    """A source of credentials that is replaced under whoever uses it: its next request goes by the new one."""

    def __init__(self, source: CredentialSource) -> None:
        self.source = source

    def __repr__(self) -> str:
        return f"ReplaceableCredential({self.source!r})"

    async def current(self) -> Credential:
        """The credential to use now."""
        return await self.source.current()

    async def refresh(self, refused: Credential) -> Credential:
        """The new source's credential if it was replaced meanwhile, else another try of the one there is."""
        current = await self.source.current()
        return current if current != refused else await self.source.refresh(refused)


@dataclass(frozen=True, slots=True)
class Access:
    """Where an API server is, how to know it, and as whom to speak."""

    server: str
    credentials: CredentialSource
    #: The certificates that the server's must be signed with; None for those of the system.
    authority: Content | None = None
    verify: bool = True
    #: The name the server's certificate must be for, when it is not the host's.
    server_name: str = ""
    #: May hold a password.
    proxy: str = field(default="", repr=False)
    #: The namespace used where none is named.
    namespace: str = "default"
    #: Headers that go with every request, for impersonation, or a token for whoever is behind the server.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
