"""Certificates of our own making, held to what OpenSSL makes of them in a handshake."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shoal.kube import certificates
from shoal.kube.access.credentials import KeyPair
from shoal.kube.certificates import Authority, CertificateError, new_authority

NOW = datetime.now(UTC)
YEAR = timedelta(days=365)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return new_authority("test", now=NOW, life=10 * YEAR)


def context(kind: int, pair: KeyPair | None, trusted: Authority, tmp_path: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(kind)
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=trusted.certificate.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    if pair is not None:
        path = tmp_path / f"{kind}.pem"
        path.write_bytes(pair.certificate + pair.key)
        made.load_cert_chain(path)
    return made


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """The server's side of a connection that both sides believe. Raises SSLError when one does not."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(up, down, server_side=True)
    calling = client.wrap_bio(down, up, server_hostname=host)
    for _ in range(5):
        for side in (calling, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    serving.write(b"done")
    assert calling.read() == b"done"
    return serving


def test_both_sides_believe_each_other(authority: Authority, tmp_path: Path) -> None:
    hosts = ["extender.kube-system.svc", "127.0.0.1", "::1"]
    server = authority.server(hosts, now=NOW, life=YEAR)
    client = authority.client("kube-scheduler", now=NOW, life=YEAR)
    serving = context(ssl.PROTOCOL_TLS_SERVER, server, authority, tmp_path)
    calling = context(ssl.PROTOCOL_TLS_CLIENT, client, authority, tmp_path)
    for host in hosts:
        shown = shake_hands(serving, calling, host).getpeercert(binary_form=True)
        assert shown is not None
        assert certificates.der_fingerprint(shown) == certificates.fingerprint(client.certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(serving, calling, "elsewhere")
    assert certificates.hosts_of(server.certificate) == set(hosts)
    assert certificates.hosts_of(client.certificate) == set()


def test_clocks_may_be_minutes_apart(tmp_path: Path) -> None:
    """Made by a machine whose clock is 50 minutes ahead: for all others it is valid already."""
    ahead = new_authority("ahead", now=NOW + timedelta(minutes=50), life=10 * YEAR)
    pairs = (
        ahead.server(["shoal"], now=NOW + timedelta(minutes=50), life=YEAR),
        ahead.client("kube-scheduler", now=NOW + timedelta(minutes=50), life=YEAR),
    )
    server = context(ssl.PROTOCOL_TLS_SERVER, pairs[0], ahead, tmp_path)
    client = context(ssl.PROTOCOL_TLS_CLIENT, pairs[1], ahead, tmp_path)
    assert shake_hands(server, client, "shoal").getpeercert()


def test_a_server_is_no_client_and_strangers_are_nobody(authority: Authority, tmp_path: Path) -> None:
    server = authority.server(["localhost"], now=NOW, life=YEAR)
    stranger = new_authority("test", now=NOW, life=YEAR)
    serving = context(ssl.PROTOCOL_TLS_SERVER, server, authority, tmp_path)
    for shown in (server, stranger.client("kube-scheduler", now=NOW, life=YEAR), None):
        calling = context(ssl.PROTOCOL_TLS_CLIENT, shown, authority, tmp_path)
        with pytest.raises(ssl.SSLError):
            shake_hands(serving, calling, "localhost")


def test_nothing_outlives_its_authority(authority: Authority) -> None:
    short = new_authority("short", now=NOW, life=YEAR)
    begin, end = certificates.validity(short.server(["a"], now=NOW, life=5 * YEAR).certificate)
    assert begin < NOW
    assert end == certificates.validity(short.certificate)[1]
    assert certificates.validity(authority.certificate)[1] - NOW > 9 * YEAR


def test_what_belongs_together(authority: Authority) -> None:
    one, two = (authority.client("c", now=NOW, life=YEAR) for _ in range(2))
    assert certificates.matches(one)
    assert not certificates.matches(KeyPair(one.certificate, two.key))
    assert certificates.is_signed_by(one.certificate, authority.certificate)
    assert not certificates.is_signed_by(one.certificate, new_authority("test", now=NOW, life=YEAR).certificate)
    assert certificates.fingerprint(one.certificate) != certificates.fingerprint(two.certificate)


def test_keys_are_not_shown(authority: Authority) -> None:
    assert "PRIVATE" not in repr(authority) + repr(authority.client("c", now=NOW, life=YEAR))


@pytest.mark.parametrize("text", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_cannot_be_read_is_said(text: bytes, authority: Authority) -> None:
    with pytest.raises(CertificateError):
        certificates.fingerprint(text)
    with pytest.raises(CertificateError):
        certificates.is_signed_by(text, authority.certificate)
    with pytest.raises(CertificateError):
        certificates.matches(KeyPair(authority.certificate, text))
