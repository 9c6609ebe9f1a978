"""Plain HTTP to an API server, as its kubeconfig says: independent of the client under test, and without any kinds."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

#: Seconds for one answer, or for the next line of a watch. Generous: it only ends what would hang.
DEADLINE = 120.0


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Connection:
    """Requests as the user of a kubeconfig. Every request has a connection of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        self.deadline = DEADLINE
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"]).netloc
        self._anonymous = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._token = user.get("token")
        if "client-certificate" in user:
            self._tls.load_cert_chain(user["client-certificate"], user["client-key"])

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
    ) -> Answer:
        """One request; with `token` as whoever that stands for, instead of as the kubeconfig's user."""
        with self._open(method, path, body, headers or {}, token) as response:
            return Answer(response.status, dict(response.getheaders()), parsed(response.read()))

    @contextmanager
    def watch(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[tuple[int, Iterator[Any]]]:
        """The status and the lines of a watch, one after another; it ends with the block."""
        with self._open("GET", path, None, headers or {}, None) as response:
            yield response.status, (json.loads(line) for line in response)

    @contextmanager
    def _open(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], token: str | None
    ) -> Iterator[http.client.HTTPResponse]:
        tls, bearer = (self._tls, self._token) if token is None else (self._anonymous, token)
        sent = {**headers, **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
        with closing(http.client.HTTPSConnection(self._address, context=tls, timeout=self.deadline)) as connection:
            connection.request(method, path, body, sent)
            with connection.getresponse() as response:
                yield response


def parsed(text: bytes) -> Any:
    """JSON, or what else it is as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")
