"""TLS from PEM in memory: whom to believe, and what to show.

OpenSSL takes certificate and key from files only. Where the system has them, these are files in memory, so that no key
touches a disk; elsewhere temporary files that only the user may read, deleted at once.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator

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
