"""Passwords of basic authentication, as bcrypt hashes.

bcrypt is computed by the C library's libcrypt (libxcrypt), which every Debian has and the image too: no package of
Python's is needed, and pure Python would take minutes. A password that was right once is known by a keyed digest, so
that a scrape costs nothing; a wrong one costs a computation in a thread, one at a time and with a pause after it, so
that guessing neither holds up the event loop nor takes a core.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ctypes
import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.model.bounded_cache import BoundedCache
from shoal.model.errors import shown

#: Each step doubles the time of a check; 14 is about a second.
_HIGHEST_COST: Final = 14
_HASH: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}").fullmatch
_LIBRARY: Final = "libcrypt.so.1"
#: The size of libxcrypt's `struct crypt_data`.
_WORKSPACE: Final = 32768
#: bcrypt reads no further.
_LONGEST: Final = 72
_PAUSE_SECONDS: Final = 0.2
#: Callers with a password that is not known yet; more are turned away.
_MOST_WAITING: Final = 16
_REMEMBERED: Final = 64
#: Checked for users that there are not, so that they take as long as those there are. Nobody's password.
_NOBODY: Final = "$2b$10$......................" + "." * 31


def checked_hash(user: str, text: str) -> str:
    """A bcrypt hash, if it can be one. Raises ExporterConfigError."""
    found = _HASH(text)
    if not found:
        words = "is no bcrypt hash: write what `htpasswd -nBC 10 '' | tr -d ':\\n'` prints"
        raise ExporterConfigError(f"the password of user {shown(user)} {words}")
    if not 4 <= int(found[1]) <= _HIGHEST_COST:
        raise ExporterConfigError(f"the password of user {shown(user)} has cost {found[1]}: use 4 to {_HIGHEST_COST}")
    return text


def bcrypt(password: bytes, setting: str) -> str:
    """The hash of a password with the cost and the salt of another hash; empty when there cannot be one. Blocks."""
    if b"\0" in password or len(password) > _LONGEST:
        return ""
    workspace = ctypes.create_string_buffer(_WORKSPACE)
    found = _crypt()(password, setting.encode(), workspace, _WORKSPACE)
    return found.decode(errors="replace") if found else ""


@functools.cache
def _crypt() -> Callable[..., bytes | None]:
    try:
        function = ctypes.CDLL(_LIBRARY).crypt_rn
    except (OSError, AttributeError) as error:
        raise ExporterConfigError(
            f"bcrypt needs {_LIBRARY} of libxcrypt, which is not here: install libcrypt1, or leave basic_auth_users out"
        ) from error
    function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
    function.restype = ctypes.c_char_p
    found: Callable[..., bytes | None] = function
    return found


class BasicUsers:
    """The users that may ask."""

    def __init__(self, users: Mapping[str, str], *, pause_seconds: float = _PAUSE_SECONDS) -> None:
        """`users` are bcrypt hashes by name. Raises ExporterConfigError."""
        self._users = {user: checked_hash(user, text) for user, text in users.items()}
        if self._users:
            _crypt()
        self._pause = pause_seconds
        self._key = secrets.token_bytes(32)
        self._right: BoundedCache[bytes, bool] = BoundedCache(_REMEMBERED)
        self._one = asyncio.Lock()
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._users)

    async def admits(self, header: str) -> bool:
        """Whether an Authorization header is that of a user."""
        found = _credentials(header)
        if found is None:
            return False
        user, password = found
        digest = hmac.digest(self._key, len(user).to_bytes(4) + user.encode(errors="replace") + password, "sha256")
        if self._right.get(digest):
            return True
        if self._waiting >= _MOST_WAITING:
            return False
        self._waiting += 1
        try:
            async with self._one:
                if self._right.get(digest):
                    return True
                return await self._check(user, password, digest)
        finally:
            self._waiting -= 1

    async def _check(self, user: str, password: bytes, digest: bytes) -> bool:
        kept = self._users.get(user, _NOBODY)
        made = await asyncio.to_thread(bcrypt, password, kept)
        if user in self._users and hmac.compare_digest(hashlib.sha256(made.encode()).digest(), _sha256(kept)):
            self._right.put(digest, True)
            return True
        await asyncio.sleep(self._pause)
        return False


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _credentials(header: str) -> tuple[str, bytes] | None:
    kind, _, encoded = header.partition(" ")
    if kind.lower() != "basic":
        return None
    with contextlib.suppress(binascii.Error, UnicodeDecodeError, ValueError):
        user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        if colon:
            return user.decode(), password
    return None
