"""TLS and basic authentication, by the file of Prometheus's exporters (`--web-config-file`).

`parse` is pure: text in, plain data out. What cannot be done here is refused with the fix, since a setting that is not
heeded would be a hole. Paths count from the file's folder. `WebAccess` reads the file and the certificates again while
the server runs; what cannot be used leaves what works. Whether there is TLS at all is settled at the start.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import yaml

from shoal.http.errors import TlsError
from shoal.http.tls import TlsFiles, server_context
from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.metrics.exporter.passwords import BasicUsers, checked_hash
from shoal.model.errors import shown

log = logging.getLogger(__name__)

MAX_BYTES: Final = 1 << 20
_MOST_USERS: Final = 1000
_LONGEST_ERROR: Final = 300

#: Go's names of TLS 1.2's suites, and OpenSSL's. Those of TLS 1.3 cannot be chosen, in Go neither.
_SUITES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
_TLS_13_SUITES: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS: Final = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HEADERS: Final = (
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
    "Content-Security-Policy",
)


class _TlsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cert_file: str
    key_file: str
    client_auth_type: str = ""
    client_ca_file: str = ""
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    #: Has no effect in Go any more.
    prefer_server_cipher_suites: bool = True


class _HttpSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: HTTP/1.1 is spoken here, which every client of HTTP/2 speaks too.
    http2: bool = True
    headers: dict[str, Annotated[str, msgspec.Meta(max_length=4096, pattern=r"^[\x20-\x7e]*$")]] = {}


class _WebFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tls_server_config: _TlsSection | None = None
    http_server_config: _HttpSection | None = None
    basic_auth_users: Annotated[dict[str, str], msgspec.Meta(max_length=_MOST_USERS)] | None = None


@dataclass(frozen=True, slots=True)
class WebTls:
    """How TLS is spoken."""

    files: TlsFiles
    clients: ssl.VerifyMode
    least: ssl.TLSVersion
    most: ssl.TLSVersion
    suites: str = ""

    def apply(self, context: ssl.SSLContext) -> None:
        """Make a context speak so from the next connection on. Raises TlsError."""
        try:
            # A context is tried first, so that one in use is not left half changed.
            for each in (server_context(), context):
                each.minimum_version, each.maximum_version = self.least, self.most
                each.verify_mode = self.clients
                if self.suites:
                    each.set_ciphers(self.suites)
                self.files.load(each)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(
                f"TLS files {self.files.certificate}, {self.files.key} cannot be used: {error}: give a certificate and "
                "its own key, and a CA, as PEM"
            ) from error


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says."""

    tls: WebTls | None = None
    users: dict[str, str] = field(default_factory=dict, repr=False)
    headers: dict[str, str] = field(default_factory=dict)


def parse(text: str, folder: Path) -> WebConfig:
    """What a web configuration says. Raises ExporterConfigError."""
    try:
        content = yaml.safe_load(text)  # the loader in C crashes on deep nesting
        read = msgspec.convert({} if content is None else content, _WebFile)
    except yaml.MarkedYAMLError as error:
        # The error repeats the line, and that may hold a password.
        line = "" if error.problem_mark is None else f" at line {error.problem_mark.line + 1}"
        raise ExporterConfigError(f"it is no YAML{line}: {error.problem or 'it cannot be read'}") from None
    except (yaml.YAMLError, RecursionError):
        raise ExporterConfigError("it is no YAML: write tls_server_config and basic_auth_users") from None
    except ValueError as error:
        raise ExporterConfigError(f"it is no web configuration: {str(error)[:_LONGEST_ERROR]}") from None
    users = {user: checked_hash(user, kept) for user, kept in (read.basic_auth_users or {}).items()}
    headers = dict(read.http_server_config.headers) if read.http_server_config is not None else {}
    for name in headers:
        if name not in _HEADERS:
            raise ExporterConfigError(f"header {shown(name)} cannot be set: choose of {', '.join(_HEADERS)}")
    return WebConfig(None if read.tls_server_config is None else _tls(read.tls_server_config, folder), users, headers)


def _tls(section: _TlsSection, folder: Path) -> WebTls:
    if section.client_auth_type not in _CLIENTS:
        known = ", ".join(filter(None, _CLIENTS))
        raise ExporterConfigError(
            f"client_auth_type {shown(section.client_auth_type)} cannot be done here: choose of {known}"
        )
    clients = _CLIENTS[section.client_auth_type]
    if (clients is ssl.CERT_NONE) == bool(section.client_ca_file):
        raise ExporterConfigError("client_ca_file and a client_auth_type that verifies go together: write both or none")
    names = [name for name in section.cipher_suites if name not in _TLS_13_SUITES]
    if unknown := [name for name in names if name not in _SUITES]:
        raise ExporterConfigError(
            f"cipher suite {shown(unknown[0])} is not spoken here: choose of {', '.join(_SUITES)}"
        )
    least, most = _VERSIONS[section.min_version], _VERSIONS[section.max_version]
    if least > most:
        raise ExporterConfigError("min_version is above max_version: exchange them")
    files = TlsFiles(
        folder / section.cert_file,
        folder / section.key_file,
        folder / section.client_ca_file if section.client_ca_file else None,
    )
    return WebTls(files, clients, least, most, ":".join(_SUITES[name] for name in names))


class WebAccess:
    """Who may ask, and how: as the file says, or everybody without TLS."""

    def __init__(self, path: Path | None, *, look_seconds: float = 5.0) -> None:
        """The files are read again every `look_seconds`.

        Raises ExporterConfigError and TlsError: a server that should be closed does not open.
        """
        self._path = path
        self._look_seconds = look_seconds
        self.refused = ""
        config = WebConfig() if path is None else self._read(path)
        self._config = config
        self.users = BasicUsers(config.users)
        self.context: ssl.SSLContext | None = None
        if config.tls is not None:
            self.context = server_context()
            config.tls.apply(self.context)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every answer."""
        return self._config.headers

    @property
    def authenticates(self) -> bool:
        """Whether every client shows a password or a certificate before it reads `/metrics`."""
        return len(self.users) > 0 or (self.context is not None and self.context.verify_mode is ssl.CERT_REQUIRED)

    async def run(self) -> None:
        """Keep it as new as its files, until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds)
            self.look()

    def look(self) -> None:
        """Use the files as they are now, if they can be used."""
        if self._path is None:
            return
        try:
            config = self._read(self._path)
            if (config.tls is None) != (self.context is None):
                raise ExporterConfigError("TLS is switched on or off by a restart only: restart the collector")
            if config.users != self._config.users:
                self.users = BasicUsers(config.users)
            if config.tls is not None and self.context is not None:
                config.tls.apply(self.context)
        except (ExporterConfigError, TlsError) as error:
            if str(error) != self.refused:
                log.warning("%s cannot be used, and what was before stays: %s", self._path, error)
            self.refused = str(error)
            return
        self.refused = ""
        self._config = config

    @staticmethod
    def _read(path: Path) -> WebConfig:
        try:
            with path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ExporterConfigError(f"web configuration {path} cannot be read: {error.strerror}") from None
        if len(text) > MAX_BYTES:
            raise ExporterConfigError(f"web configuration {path} is longer than {MAX_BYTES} bytes")
        return parse(text.decode(errors="replace"), path.parent)
