"""Certificates of Shoal's own making: an authority, and what it signs for servers and for clients.

Keys are ECDSA on P-256, all is PEM in memory. Where it is kept, and when it is made anew, is the caller's matter.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.kube.access.credentials import KeyPair

#: Clocks differ: a new certificate counts from a while ago.
_BACKDATED: Final = timedelta(hours=1)


class CertificateError(ValueError):
    """PEM that is no certificate or key."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that can sign."""

    certificate: bytes
    key: bytes = field(repr=False)

    def server(self, hosts: Sequence[str], *, now: datetime, life: timedelta) -> KeyPair:
        """A certificate for a server that is reached by these names and addresses."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        return self._signed(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, names, now=now, life=life)

    def client(self, name: str, *, now: datetime, life: timedelta) -> KeyPair:
        """A certificate for a client."""
        return self._signed(name, ExtendedKeyUsageOID.CLIENT_AUTH, None, now=now, life=life)

    def _signed(
        self,
        name: str,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
        *,
        now: datetime,
        life: timedelta,
    ) -> KeyPair:
        issuer, signer = _read(self.certificate), _read_key(self.key)
        key = ec.generate_private_key(ec.SECP256R1())
        # Nothing signed may outlive its authority.
        end = min(now + life, issuer.not_valid_after_utc)
        builder = (
            _begun(name, issuer.subject, key, now=now, end=end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return KeyPair(_pem(builder.sign(signer, hashes.SHA256())), _key_pem(key))


def new_authority(name: str, *, now: datetime, life: timedelta) -> Authority:
    """An authority of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _begun(name, subject, key, now=now, end=now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(_pem(certificate), _key_pem(key))


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """From when until when a certificate counts."""
    read = _read(certificate)
    return read.not_valid_before_utc, read.not_valid_after_utc


def hosts_of(certificate: bytes) -> frozenset[str]:
    """The names and addresses a server's certificate is for."""
    try:
        names = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value) for name in names)


def fingerprint(certificate: bytes) -> str:
    """What tells one certificate from all others."""
    return der_fingerprint(_read(certificate).public_bytes(serialization.Encoding.DER))


def der_fingerprint(certificate: bytes) -> str:
    """The same of a certificate as TLS hands it over."""
    return hashlib.sha256(certificate).hexdigest()


def matches(pair: KeyPair) -> bool:
    """Whether the key is that of the certificate."""
    public = _read_key(pair.key).public_key()
    return _read(pair.certificate).public_key() == public


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether an authority has signed a certificate."""
    try:
        _read(certificate).verify_directly_issued_by(_read(authority))
    except (ValueError, TypeError, InvalidSignature) as error:
        if isinstance(error, CertificateError):
            raise
        return False
    return True


def _begun(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before((now - _BACKDATED).astimezone(UTC))
        .not_valid_after(end.astimezone(UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise CertificateError("no certificate in PEM") from error


def _read_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        read = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError("no private key in PEM") from error
    if not isinstance(read, ec.EllipticCurvePrivateKey):
        raise CertificateError("no ECDSA key: Shoal's own authorities have no other")
    return read
