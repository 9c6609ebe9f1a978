"""Which proxy a request goes through, by the environment, as Go programs and so kubectl read it.

Loopback never goes through a proxy. `NO_PROXY` holds `*`, host names (with all below them), `.domain`, addresses and
networks, each with a port if wanted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from shoal.kube.errors import ConfigError


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
