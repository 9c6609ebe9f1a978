"""Certificates of a test cluster, made by openssl: one authority, everything else signed by it, valid for two days."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
_DAYS = "2"


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """The cluster's certificate authority."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        _openssl(
            *("req", "-x509", *_KEY, "-subj", "/CN=shoal-testbed", "-days", _DAYS),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def server(self, name: str, hosts: Sequence[str]) -> Certificate:
        """A serving certificate for these host names and addresses."""
        names = ",".join(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)
        usage = f"extendedKeyUsage=serverAuth\nsubjectAltName={names}\n"
        return self._sign(f"server-{name}", f"/CN={name}", usage)

    def client(self, user: str, groups: Sequence[str] = ()) -> Certificate:
        """A client certificate: user and groups as the API server reads them."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        name = "-".join(("client", user, *groups)).replace(":", "_").replace("/", "_")
        return self._sign(name, subject, "extendedKeyUsage=clientAuth\n")

    def signing_key(self) -> Path:
        """A key for service account tokens."""
        path = self._folder / "service-accounts.key"
        if not path.exists():
            _openssl("genrsa", "-out", str(path), "2048")
        return path

    def _sign(self, name: str, subject: str, usage: str) -> Certificate:
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        if made.certificate.exists():
            return made
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(
            "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
            f"subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n{usage}"
        )
        _openssl("req", "-new", *_KEY, "-subj", subject, "-keyout", str(made.key), "-out", str(request))
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", _DAYS, "-extfile", str(extensions), "-out", str(made.certificate)),
        )
        return made


def _is_address(host: str) -> bool:
    return host.replace(".", "").isdigit() or ":" in host


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)} failed:\n{done.stderr}")
