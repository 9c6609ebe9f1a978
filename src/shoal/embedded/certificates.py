"""The files of the embedded cluster: an authority, and the pair of a server that only loopback reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from shoal.kube.access.secret_files import make_secret_folder, write_secret
from shoal.kube.certificates import new_authority

_LIFE: Final = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Pki:
    """Where the files are."""

    authority: Path
    certificate: Path
    key: Path


def make_pki(directory: Path, *, now: datetime, hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> Pki:
    """Write an authority's certificate and a server's pair that it has signed."""
    make_secret_folder(directory)
    pki = Pki(directory / "ca.crt", directory / "server.crt", directory / "server.key")
    authority = new_authority("shoal embedded cluster", now=now, life=_LIFE)
    server = authority.server(hosts, now=now, life=_LIFE)
    pki.authority.write_bytes(authority.certificate)
    pki.certificate.write_bytes(server.certificate)
    write_secret(pki.key, server.key)
    return pki
