"""The embedded cluster as a whole: an API server with certificates, token, kubeconfig and a socket, and controllers.

`python -m shoal.embedded.app DIRECTORY` prints the path of a kubeconfig and serves until SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType

import yaml
from aiohttp import web

from shoal.embedded.admission import PolicyAdmission
from shoal.embedded.catalogue import Definitions
from shoal.embedded.certificates import make_pki
from shoal.embedded.controllers.loop import NODE_AWAY, Controllers
from shoal.embedded.deletion import SYSTEM_NAMESPACES, Deletion
from shoal.embedded.http.server import Server
from shoal.embedded.kinds import NAMESPACES, Catalogue
from shoal.embedded.policies.shipped import shipped
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object, ObjectStore
from shoal.kube.access.secret_files import write_secret
from shoal.model.contract.gpushare import MemoryUnit


def _now() -> datetime:
    return datetime.now(UTC)


class EmbeddedApi:
    """An API server on 127.0.0.1, with its files in a directory. Use it in `async with`."""

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        *,
        clock: Callable[[], datetime] = _now,
        history: int = 10_000,
        admission: MemoryUnit | None = None,
    ) -> None:
        """`admission` has the policies of Shoal in force, with memory in this unit; without it the server is bare.

        CelError if there is no runtime to evaluate them.
        """
        self.directory = directory
        self.port = port
        self.token = secrets.token_urlsafe(32)
        self.registry = Registry(ObjectStore(history=history), Catalogue(), clock=clock)
        self.deletion = Deletion(self.registry)
        Definitions(self.registry, self.deletion)
        policies = PolicyAdmission(self.registry.store)
        self.registry.validators.append(policies)
        self.registry.mutator = policies
        if admission is not None:
            policies.load()
        for name in SYSTEM_NAMESPACES:
            self.registry.create(NAMESPACES, "", {"metadata": {"name": name}})
        self._pki = make_pki(directory, now=_now())
        self._server = Server(self.registry, self.deletion, token=self.token)
        for obj in () if admission is None else shipped(admission):
            self._install(obj)
        #: Where simulated nodes say that they have the logs of containers.
        self.logs = self._server.logs
        self.gate = self._server.gate
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
        """A kubeconfig with the token, which may do everything. It is there once the server listens."""
        return self.directory / "kubeconfig"

    def _install(self, obj: Object) -> None:
        group, _, version = obj["apiVersion"].rpartition("/")
        plural = {"y": f"{obj['kind'][:-1]}ies"}.get(obj["kind"][-1], f"{obj['kind']}s").lower()
        kind = self.registry.catalogue.find(group, version, plural)
        assert kind is not None, f"{obj['kind']} is not among the kinds"
        self.registry.create(kind, obj["metadata"].get("namespace", ""), obj, manager="shoal")

    def _write_kubeconfig(self) -> None:
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
        write_secret(self.kubeconfig(), yaml.safe_dump(content, encoding="utf-8"))

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
        self._write_kubeconfig()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _end_watches(self, _: web.Application) -> None:
        self._server.watches.end()


async def run(
    directory: Path,
    port: int = 0,
    *,
    controllers: bool = True,
    node_away: timedelta = NODE_AWAY,
    admission: MemoryUnit | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, with the workload controllers or without."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    async with (
        EmbeddedApi(directory, port, admission=admission) as api,
        _running(api if controllers else None, node_away),
    ):
        sys.stdout.write(f"{api.kubeconfig()}\n")
        sys.stdout.flush()
        await over.wait()


@contextlib.asynccontextmanager
async def _running(api: EmbeddedApi | None, node_away: timedelta) -> AsyncIterator[None]:
    """The controllers of an API server, while the block lasts. Should they break, so does the block."""
    if api is None:
        yield
        return
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Controllers(api.registry, api.deletion, node_away=node_away).run())
        yield
        task.cancel()


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m shoal.embedded.app", description="A Kubernetes cluster in memory.")
    parser.add_argument("directory", type=Path, help="where its certificates and its kubeconfig go")
    parser.add_argument("port", type=int, nargs="?", default=0, help="the port to listen on; any free one unless given")
    parser.add_argument("--no-controllers", action="store_true", help="only the API server: nothing makes pods")
    away = NODE_AWAY.total_seconds()
    parser.add_argument(
        "--node-away", type=float, default=away, help=f"seconds until the pods of a deleted node go too; {away:.0f}"
    )
    parser.add_argument(
        "--admission", type=MemoryUnit, choices=list(MemoryUnit), help="have Shoal's policies in force, in this unit"
    )
    arguments = parser.parse_args()
    node_away = timedelta(seconds=arguments.node_away)
    controllers = not arguments.no_controllers
    asyncio.run(
        run(
            arguments.directory,
            arguments.port,
            controllers=controllers,
            node_away=node_away,
            admission=arguments.admission,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
