"""Plain HTTP to an API server, as its kubeconfig says: independent of the client under test, and without any kinds."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
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
    """Requests as the user of a kubeconfig, one at a time. Every watch has a connection of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        self.deadline = DEADLINE
        #: Connections that are kept, by whether they show who we are: handshakes are dear.
        self._kept: dict[bool, http.client.HTTPSConnection] = {}
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"]).netloc
        self._anonymous = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._token = user.get("token")
        if "client-certificate" in user:
            self._tls.load_cert_chain(user["client-certificate"], user["client-key"])

    def __del__(self) -> None:
        for connection in self._kept.values():
            connection.close()

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
        anonymous = token is not None
        sent = self._headers(headers or {}, token)
        connection = self._kept.pop(anonymous, None)
        if connection is not None:
            # The server may have ended it meanwhile, or be another one.
            with suppress(ConnectionError, http.client.BadStatusLine, ssl.SSLError):
                return self._ask(connection, anonymous, method, path, body, sent)
            connection.close()
        return self._ask(self._new(anonymous), anonymous, method, path, body, sent)

    @contextmanager
    def watch(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[tuple[int, Iterator[Any]]]:
        """The status and the lines of a watch, one after another; it ends with the block."""
        with self._open(path, headers or {}) as response:
            yield response.status, (json.loads(line) for line in response)

    def _ask(
        self,
        connection: http.client.HTTPSConnection,
        anonymous: bool,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        connection.timeout = self.deadline
        if connection.sock is not None:
            connection.sock.settimeout(self.deadline)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, dict(response.getheaders()), parsed(response.read()))
        except BaseException:
            connection.close()
            raise
        self._kept[anonymous] = connection
        return answer

    @contextmanager
    def _open(self, path: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        with closing(self._new(anonymous=False)) as connection:
            connection.request("GET", path, None, self._headers(headers, None))
            with connection.getresponse() as response:
                yield response

    def _new(self, anonymous: bool) -> http.client.HTTPSConnection:
        tls = self._anonymous if anonymous else self._tls
        return http.client.HTTPSConnection(self._address, context=tls, timeout=self.deadline)

    def _headers(self, headers: Mapping[str, str], token: str | None) -> dict[str, str]:
        bearer = self._token if token is None else token
        return {**headers, **({"Authorization": f"Bearer {bearer}"} if bearer else {})}


def parsed(text: bytes) -> Any:
    """JSON, or what else it is as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")
