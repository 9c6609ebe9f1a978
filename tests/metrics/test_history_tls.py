"""The certificate of a collector: of its own making, or by files that are renewed."""

import asyncio
import shutil
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shoal.embedded.certificates import make_pki
from shoal.http.errors import TlsError
from shoal.kube import certificates
from shoal.metrics import history_tls
from shoal.metrics.history_lease import own_address
from shoal.metrics.history_tls import FileHistoryTls, HistoryTlsSettings, OwnHistoryTls
from shoal.metrics.history_wire import SERVER_NAME


def now() -> datetime:
    return datetime.now(UTC)


def settings(folder: Path) -> HistoryTlsSettings:
    pki = make_pki(folder, now=now(), hosts=["history.example"])
    return HistoryTlsSettings(
        certificate=str(pki.certificate), key=str(pki.key), authority=str(pki.authority), server_name="history.example"
    )


async def handshake(context: ssl.SSLContext, authority: str, name: str) -> None:
    """A connection to a server with this context, by whoever believes the authority."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        host, port = server.sockets[0].getsockname()
        trust = ssl.create_default_context(cadata=authority)
        _, writer = await asyncio.open_connection(host, port, ssl=trust, server_hostname=name)
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_each_has_another_authority() -> None:
    one, two = OwnHistoryTls(now), OwnHistoryTls(now)
    await handshake(one.context, one.authority, SERVER_NAME)
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(one.context, two.authority, SERVER_NAME)


async def test_it_is_made_anew_long_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_tls, "_RENEW_SECONDS", 0.0)
    tls = OwnHistoryTls(now)
    before = tls.authority
    assert (certificates.validity(before.encode())[1] - now()).days > 60
    await tls.renewed()
    assert tls.authority != before
    await handshake(tls.context, tls.authority, SERVER_NAME)


async def test_files_of_the_operator_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_tls, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr("shoal.http.tls.LOOK_SECONDS", 0.01)
    tls = FileHistoryTls(settings(tmp_path / "a"))
    await handshake(tls.context, tls.authority, "history.example")
    (tmp_path / "a" / "ca.crt").write_text("half written")
    following = asyncio.create_task(tls.renewed())
    await asyncio.sleep(0.05)
    assert not following.done(), "what cannot be used does not replace what works"
    settings(tmp_path / "b")
    for path in (tmp_path / "b").iterdir():
        shutil.copy(path, tmp_path / "a" / path.name)
    await following
    assert tls.authority == (tmp_path / "b" / "ca.crt").read_text()
    # The pair is read again at its own pace.
    while True:
        try:
            await handshake(tls.context, tls.authority, "history.example")
            return
        except ssl.SSLCertVerificationError:
            again = asyncio.create_task(tls.renewed())
            await asyncio.sleep(0.05)
            again.cancel()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    good = settings(tmp_path)
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(TlsError, match=r"ca\.crt cannot be used"):
        FileHistoryTls(good)
    (tmp_path / "server.key").unlink()
    with pytest.raises(TlsError, match=r"server\.key"):
        FileHistoryTls(good)


@pytest.mark.parametrize(
    ("host", "server", "address"),
    [
        ("10.1.2.3", "https://127.0.0.1:6443", "10.1.2.3"),
        ("0.0.0.0", "https://127.0.0.1:6443", "127.0.0.1"),
        ("::", "https://[::1]:6443", "::1"),
        ("", "https://localhost", "127.0.0.1"),
    ],
)
def test_the_own_address_is_the_one_towards_the_api_server(host: str, server: str, address: str) -> None:
    assert own_address(host, server) in (address, "::1" if "localhost" in server else address)
