"""A certificate authority and a server certificate for loopback, made with the standard library alone.

ECDSA on P-256 and a little DER, enough for one key pair of a server that only this machine can reach. It is not
hardened against side channels: not for keys that must be kept from somebody on the same machine.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

# The curve NIST P-256.
_P: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None
_LIFE: Final = timedelta(days=365)
_CURVE: Final = "1.2.840.10045.3.1.7"


@dataclass(frozen=True, slots=True)
class Pki:
    """Where the files are."""

    authority: Path
    certificate: Path
    key: Path


def make_pki(directory: Path, *, now: datetime, hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> Pki:
    """Write an authority's certificate and a server's pair that it has signed."""
    directory.mkdir(parents=True, exist_ok=True)
    pki = Pki(directory / "ca.crt", directory / "server.crt", directory / "server.key")
    authority, server = _new_key(), _new_key()
    issuer = "shoal embedded cluster"
    _write(pki.authority, "CERTIFICATE", _certificate(authority, authority, issuer, issuer, now, _authority_usage()))
    usage = _server_usage(hosts)
    _write(pki.certificate, "CERTIFICATE", _certificate(server, authority, hosts[-1], issuer, now, usage))
    pki.key.touch(mode=0o600)
    _write(pki.key, "EC PRIVATE KEY", _private_key(server))
    return pki


def _new_key() -> int:
    return secrets.randbelow(_N - 1) + 1


def _add(left: Point, right: Point) -> Point:
    if left is None or right is None:
        return left or right
    (x1, y1), (x2, y2) = left, right
    if x1 == x2 and (y1 + y2) % _P == 0:
        return None
    slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, _P) if left == right else (y2 - y1) * pow(x2 - x1, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P


def _times(factor: int, point: Point = _G) -> tuple[int, int]:
    result: Point = None
    while factor:
        if factor & 1:
            result = _add(result, point)
        point = _add(point, point)
        factor >>= 1
    assert result is not None  # a factor below the curve's order never ends at infinity
    return result


def _signature(key: int, content: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(content).digest())
    while True:
        once = _new_key()
        r = _times(once)[0] % _N
        s = pow(once, -1, _N) * (digest + r * key) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _public(key: int) -> bytes:
    x, y = _times(key)
    return b"\x04" + x.to_bytes(32) + y.to_bytes(32)


def _certificate(key: int, signer: int, subject: str, issuer: str, now: datetime, usage: list[bytes]) -> bytes:
    algorithm = _sequence(_oid("1.2.840.10045.4.3.2"))
    public = _sequence(_sequence(_oid("1.2.840.10045.2.1"), _oid(_CURVE)), _bits(_public(key)))
    identities = [
        _extension("2.5.29.14", _tlv(0x04, hashlib.sha1(_public(key), usedforsecurity=False).digest())),
        _extension("2.5.29.35", _sequence(_tlv(0x80, hashlib.sha1(_public(signer), usedforsecurity=False).digest()))),
    ]
    body = _sequence(
        _tlv(0xA0, _integer(2)),
        _integer(secrets.randbits(120) | 1),
        algorithm,
        _name(issuer),
        _sequence(_time(now - timedelta(hours=1)), _time(now + _LIFE)),
        _name(subject),
        public,
        _tlv(0xA3, _sequence(*usage, *identities)),
    )
    return _sequence(body, algorithm, _bits(_signature(signer, body)))


def _authority_usage() -> list[bytes]:
    return [
        _extension("2.5.29.19", _sequence(_tlv(0x01, b"\xff")), critical=True),
        _extension("2.5.29.15", _tlv(0x03, b"\x01\x06"), critical=True),  # keyCertSign, cRLSign
    ]


def _server_usage(hosts: Sequence[str]) -> list[bytes]:
    return [
        _extension("2.5.29.19", _sequence(), critical=True),
        _extension("2.5.29.15", _tlv(0x03, b"\x07\x80"), critical=True),  # digitalSignature
        _extension("2.5.29.37", _sequence(_oid("1.3.6.1.5.5.7.3.1"))),  # serverAuth
        _extension("2.5.29.17", _sequence(*(_host(host) for host in hosts))),
    ]


def _host(host: str) -> bytes:
    try:
        return _tlv(0x87, ipaddress.ip_address(host).packed)
    except ValueError:
        return _tlv(0x82, host.encode())


def _private_key(key: int) -> bytes:
    return _sequence(
        _integer(1),
        _tlv(0x04, key.to_bytes(32)),
        _tlv(0xA0, _oid(_CURVE)),
        _tlv(0xA1, _bits(_public(key))),
    )


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _tlv(0x03, b"\x00" + content)


def _oid(text: str) -> bytes:
    first, second, *rest = (int(part) for part in text.split("."))
    content = bytearray([40 * first + second])
    for part in rest:
        digits = [part & 0x7F]
        while part := part >> 7:
            digits.append(0x80 | (part & 0x7F))
        content += bytes(reversed(digits))
    return _tlv(0x06, bytes(content))


def _name(common: str) -> bytes:
    return _sequence(_tlv(0x31, _sequence(_oid("2.5.4.3"), _tlv(0x0C, common.encode()))))


def _time(moment: datetime) -> bytes:
    """GeneralizedTime is for 2050 and later only."""
    late = moment.year >= 2050
    return _tlv(0x18 if late else 0x17, moment.strftime("%Y%m%d%H%M%SZ" if late else "%y%m%d%H%M%SZ").encode())


def _extension(oid: str, content: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(oid), *([_tlv(0x01, b"\xff")] if critical else []), _tlv(0x04, content))


def _write(path: Path, kind: str, content: bytes) -> None:
    encoded = base64.encodebytes(content).decode()
    path.write_text(f"-----BEGIN {kind}-----\n{encoded}-----END {kind}-----\n")
