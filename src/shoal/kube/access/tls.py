"""TLS from PEM in memory: whom to believe, and what to show.

OpenSSL takes certificate and key from files only. Where the system has them, these are files in memory, so that no key
touches a disk; elsewhere temporary files that only the user may read, deleted at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from shoal.kube.access.credentials import KeyPair
from shoal.kube.errors import ConfigError


def tls_context(*, authority: bytes | None, pair: KeyPair | None, verify: bool) -> ssl.SSLContext:
    """The context for connections as one identity; ConfigError for certificates that cannot be read."""
    try:
        text = None if authority is None else authority.decode("ascii", "ignore")
        context = ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError("the certificate authority cannot be read: give certificates in PEM") from error
    # Clusters' own authorities are often made without what strict mode (on since Python 3.13) asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if pair is not None:
        load_pair(context, pair)
    return context


def load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """What connections of a context show from now on; ConfigError for a pair that cannot be used."""
    with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
        try:
            # The callback keeps OpenSSL from asking for a password at the terminal.
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise ConfigError(
                "a certificate and its key cannot be used: give both in PEM, matching, without a password"
            ) from error


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("shoal-tls")
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


# Which proxy a request goes through, by the environment, as Go programs and so kubectl read it.
#
# Loopback never goes through a proxy. `NO_PROXY` holds `*`, host names (with all below them), `.domain`, addresses and
# networks, each with a port if wanted.


def proxy_for(server: str, environ: Mapping[str, str]) -> str:
    """The proxy for a server; empty for none."""
    url = urlsplit(server)
    name = "HTTPS_PROXY" if url.scheme == "https" else "HTTP_PROXY"
    proxy = environ.get(name) or environ.get(name.lower()) or ""
    if not proxy or _bypassed(url.hostname or "", url.port, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return ""
    return checked(proxy if "://" in proxy else f"http://{proxy}", where=name)


def checked(proxy: str, *, where: str) -> str:
    """The proxy, if it is of a kind we can use. Its address is not shown, it may hold a password."""
    try:
        url = urlsplit(proxy)
        usable = url.scheme in ("http", "https") and bool(url.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"the proxy of {where} cannot be used: give an http or https address, not SOCKS")
    return proxy


def _bypassed(host: str, port: int | None, no_proxy: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host.lower(), address, port) for entry in no_proxy.split(","))


def _matches(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int | None
) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, _, wanted = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
    if wanted and str(port) != wanted:
        return False
    if address is not None:
        return _address(name.strip("[]")) == address
    name = name.removeprefix("*")
    return (host == name.removeprefix(".") and not name.startswith(".")) or host.endswith("." + name.removeprefix("."))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
