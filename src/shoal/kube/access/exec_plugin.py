"""Credential plugins: programs that print a token or a client certificate (`client.authentication.k8s.io`).

A plugin runs when its credential is first needed, has expired or was refused; only one run at a time. Time and output
are bounded. Without a terminal it gets no standard input, and what it writes to standard error is kept for the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from shoal.kube.access.credentials import Credential, KeyPair
from shoal.kube.errors import ConfigError

GROUP: Final = "client.authentication.k8s.io"
VERSIONS: Final = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
MODES: Final = ("Never", "IfAvailable", "Always")
TIMEOUT_SECONDS: Final = 60.0
MAX_OUTPUT: Final = 1 << 20
_SHOWN_STDERR: Final = 400
#: Long runs without a space may be tokens or keys.
_SECRET_LIKE = re.compile(r"[A-Za-z0-9_\-./+=]{32,}")
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\n\u00a0-\uffff]")


class ExecEnv(msgspec.Struct, frozen=True):
    """One variable for the plugin."""

    name: str
    value: str = ""

    def __repr__(self) -> str:
        return f"ExecEnv({self.name})"


class ExecSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The plugin as a kubeconfig names it."""

    api_version: str = ""
    command: str = ""
    args: list[str] | None = None
    env: list[ExecEnv] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None

    def __repr__(self) -> str:
        # Arguments may hold secrets.
        return f"ExecSpec({self.command})"


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class ExecPlugin:
    """A source of credentials that asks a program."""

    def __init__(
        self,
        spec: ExecSpec,
        *,
        environ: Mapping[str, str],
        cluster: Mapping[str, Any] | None = None,
        terminal: bool = False,
        timeout: float = TIMEOUT_SECONDS,
        now: Callable[[], datetime.datetime] = _utc_now,
    ) -> None:
        _check(spec, terminal=terminal)
        self._spec = spec
        self._interactive = terminal and spec.interactive_mode != "Never"
        info: dict[str, Any] = {"interactive": self._interactive}
        if spec.provide_cluster_info:
            info["cluster"] = dict(cluster or {})
        document = {"apiVersion": spec.api_version, "kind": "ExecCredential", "spec": info}
        self._environ = {
            **environ,
            **{variable.name: variable.value for variable in spec.env or ()},
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(document).decode(),
        }
        self._timeout = timeout
        self._now = now
        self._lock = asyncio.Lock()
        self._credential: Credential | None = None
        self._expires: datetime.datetime | None = None

    def __repr__(self) -> str:
        return f"ExecPlugin({self._spec.command})"

    async def current(self) -> Credential:
        """The last credential, or a new one when there is none that is still good."""
        async with self._lock:
            expired = self._expires is not None and self._now() >= self._expires
            if self._credential is None or expired:
                self._credential = await self._ask()
            return self._credential

    async def refresh(self, refused: Credential) -> Credential:
        """A new credential, unless somebody else has just fetched one."""
        async with self._lock:
            if self._credential is None or self._credential == refused:
                self._credential = await self._ask()
            return self._credential

    async def _ask(self) -> Credential:
        code, output, errors = await self._run()
        if code != 0:
            raise ConfigError(f"{self._name()} ended with code {code}{_said(errors)}: run it by hand to see why")
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{self._name()} printed no ExecCredential in JSON: correct the plugin") from error
        if answer.api_version != self._spec.api_version:
            raise ConfigError(
                f"{self._name()} answered in another version than {self._spec.api_version}: set that apiVersion of "
                "the plugin in the kubeconfig to the one it speaks"
            )
        status = answer.status or _Status()
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise ConfigError(f"{self._name()} gave a certificate without its key, or the reverse: correct the plugin")
        if not status.token and not status.client_certificate_data:
            raise ConfigError(f"{self._name()} gave neither a token nor a certificate: log in with it again")
        self._expires = _aware(status.expiration_timestamp)
        pair = None
        if status.client_certificate_data and status.client_key_data:
            pair = KeyPair(status.client_certificate_data.encode(), status.client_key_data.encode())
        return Credential((status.token or "").strip(), pair)

    async def _run(self) -> tuple[int, bytes, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(
                self._spec.command,
                *(self._spec.args or ()),
                env=self._environ,
                stdin=None if self._interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if self._interactive else asyncio.subprocess.PIPE,
                # A group of its own, so that its children end with it; a terminal belongs to our group only.
                start_new_session=not self._interactive,
            )
        except FileNotFoundError as error:
            hint = _UNPRINTABLE.sub("", self._spec.install_hint or "").strip() or "install it, or correct the path"
            raise ConfigError(f"{self._name()} is not there: {hint}") from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its arguments or environment hold a zero byte"
            raise ConfigError(f"{self._name()} cannot be started: {reason}: make it a program") from error
        try:
            async with asyncio.timeout(self._timeout):
                output, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                if len(output) <= MAX_OUTPUT and len(errors) <= MAX_OUTPUT:
                    return await process.wait(), output, errors
        except TimeoutError as error:
            raise ConfigError(f"{self._name()} gave no answer within {self._timeout:g} s: run it by hand") from error
        finally:
            await self._end(process)
        raise ConfigError(f"{self._name()} printed more than {MAX_OUTPUT} bytes: correct the plugin")

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._interactive:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        # Unread output would keep the pipes, and so the wait, open.
        await asyncio.gather(_drain(process.stdout), _drain(process.stderr), process.wait())

    def _name(self) -> str:
        return f"credential plugin {self._spec.command!r}"


def _check(spec: ExecSpec, *, terminal: bool) -> None:
    if not spec.command:
        raise ConfigError("a credential plugin without a command: name the program in users[].user.exec.command")
    if spec.api_version not in VERSIONS:
        raise ConfigError(
            f"credential plugin {spec.command!r} is set to apiVersion {spec.api_version[:60]!r}: update the plugin and "
            f"its entry to {VERSIONS[0]}"
        )
    mode = spec.interactive_mode or ("" if spec.api_version == VERSIONS[0] else "IfAvailable")
    if mode not in MODES:
        raise ConfigError(f"credential plugin {spec.command!r}: set interactiveMode to one of {', '.join(MODES)}")
    if mode == "Always" and not terminal:
        raise ConfigError(
            f"credential plugin {spec.command!r} wants a terminal and there is none: log in by hand first, or use a "
            "service account's token"
        )


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """All of a stream, and one byte more than allowed at most."""
    if stream is None:
        return b""
    content = bytearray()
    while len(content) <= MAX_OUTPUT and (chunk := await stream.read(MAX_OUTPUT + 1 - len(content))):
        content += chunk
    return bytes(content)


async def _drain(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(MAX_OUTPUT):
        pass


def _said(errors: bytes) -> str:
    text = _UNPRINTABLE.sub("", errors.decode("utf-8", "replace")).strip()
    text = _SECRET_LIKE.sub("[hidden]", text)[-_SHOWN_STDERR:]
    return f" and said {text!r}" if text else ""


def _aware(moment: datetime.datetime | None) -> datetime.datetime | None:
    return moment.replace(tzinfo=datetime.UTC) if moment is not None and moment.tzinfo is None else moment
