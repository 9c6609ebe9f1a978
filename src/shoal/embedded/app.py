"""The embedded API server as a whole: certificates, token, kubeconfig, the listening socket.

`python -m shoal.embedded.app DIRECTORY` prints the path of a kubeconfig and serves until SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import yaml
from aiohttp import web

from shoal.embedded.certificates import make_pki
from shoal.embedded.definitions import Definitions
from shoal.embedded.deletion import SYSTEM_NAMESPACES, Deletion
from shoal.embedded.http.server import Server
from shoal.embedded.kinds import NAMESPACES, Catalogue
from shoal.embedded.registry import Registry
from shoal.embedded.store import Store


def _now() -> datetime:
    return datetime.now(UTC)


class EmbeddedApi:
    """An API server on 127.0.0.1, with its files in a directory. Use it in `async with`."""

    def __init__(
        self, directory: Path, port: int = 0, *, clock: Callable[[], datetime] = _now, history: int = 10_000
    ) -> None:
        self.directory = directory
        self.port = port
        self.token = secrets.token_urlsafe(32)
        self.registry = Registry(Store(history=history), Catalogue(), clock=clock)
        self.deletion = Deletion(self.registry)
        Definitions(self.registry, self.deletion)
        for name in SYSTEM_NAMESPACES:
            self.registry.create(NAMESPACES, "", {"metadata": {"name": name}})
        self._pki = make_pki(directory, now=_now())
        self._server = Server(self.registry, self.deletion, token=self.token)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate that its own is signed with."""
        return self._pki.authority

    def kubeconfig(self) -> Path:
        """A kubeconfig with the token, which may do everything."""
        path = self.directory / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "shoal", "cluster": {"server": self.url, "certificate-authority": str(self.ca.absolute())}}
            ],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "shoal", "context": {"cluster": "shoal", "user": "admin"}}],
            "current-context": "shoal",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content))
        return path

    async def __aenter__(self) -> EmbeddedApi:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._pki.certificate, self._pki.key)
        app = self._server.application()
        # Otherwise the streams would hold up the end until they are over by themselves.
        app.on_shutdown.append(self._end_watches)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._server.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _end_watches(self, _: web.Application) -> None:
        self._server.watches.end()


async def run(directory: Path, port: int = 0) -> None:
    """Serve until SIGTERM or SIGINT."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    async with EmbeddedApi(directory, port) as api:
        sys.stdout.write(f"{api.kubeconfig()}\n")
        sys.stdout.flush()
        await over.wait()


def main() -> int:
    """The program."""
    if len(sys.argv) not in (2, 3):
        sys.stderr.write("usage: python -m shoal.embedded.app DIRECTORY [PORT]\n")
        return 2
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
