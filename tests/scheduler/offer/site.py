"""The port of offers on an API server's tokens and rights, and callers with accounts of their own."""

import contextlib
import io
import itertools
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec

from shoal.http.server import Bounds
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError
from shoal.kube.resources import NAMESPACES
from shoal.model.contract import clusters
from shoal.scheduler.certificates import OFFER_SERVER_NAME, BundleSecret
from shoal.scheduler.offer.server import BOUNDS, TIME_OF_ONE, OfferAddress, OfferServer
from shoal.scheduler.tls import OwnTls
from tests.scheduler.extender.requests import pod
from tests.scheduler.offer.scene import OfferScene

NAMESPACE = "kube-system"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
_LIVES = itertools.count(600)


class ManualTime:
    """A clock that the test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class OfferSite:
    """The server, and how to ask it."""

    scene: OfferScene
    clock: ManualTime
    port: int
    tls: ssl.SSLContext
    session: aiohttp.ClientSession
    #: Why the server is not ready.
    not_ready: str = ""

    async def ask(
        self,
        token: str = "",
        *,
        header: str = "Authorization",
        body: bytes | None = None,
        path: str = clusters.PATH_OFFER,
        method: str = "POST",
        **asked: Any,
    ) -> tuple[int, Any]:
        """Status and answer, decoded if it is JSON."""
        shown = f"Bearer {token}" if header == "Authorization" else token
        content = msgspec.json.encode({"pod": pod(gpu="1"), **asked}) if body is None else body
        async with self.session.request(
            method,
            f"https://127.0.0.1:{self.port}{path}",
            data=io.BytesIO(content),
            headers={header: shown} if token else {},
            ssl=self.tls,
            server_hostname=OFFER_SERVER_NAME,
        ) as response:
            answer = await response.read()
            if response.content_type == "application/json":
                return response.status, msgspec.json.decode(answer)
            return response.status, answer.decode()


@contextlib.asynccontextmanager
async def served(
    client: Client, *, admin: Client | None = None, bounds: Bounds = BOUNDS, audience: str = "", rate: Any = TIME_OF_ONE
) -> AsyncIterator[OfferSite]:
    """Serve offers of two nodes with two cards, on loopback, while the block runs."""
    clock = ManualTime()
    scene = OfferScene(client=client)
    for name in ("a", "b"):
        scene.add_node(name, 2)
    secret = BundleSecret(admin or client, namespace=NAMESPACE, name="offer-test-tls", now=lambda: datetime.now(UTC))
    tls = await OwnTls.begun(secret, clients=False)
    bundle = await secret.ensure()
    context = ssl.create_default_context(cadata=bundle.authority.certificate.decode())
    async with aiohttp.ClientSession() as session:
        site = OfferSite(scene, clock, 0, context, session)
        server = OfferServer(
            scene.offers,
            client,
            namespace=NAMESPACE,
            audience=audience,
            metrics=scene.metrics,
            not_ready=lambda: site.not_ready,
            clock=clock,
            time_of_one=rate,
        )
        async with server.serve(OfferAddress("127.0.0.1", 0, tls, bounds)) as site.port:
            yield site


async def account(client: Client, name: str, *, namespace: str = "shoal-members", may: str = "") -> None:
    """An account in a namespace; `may`: the namespace in which it may ask for offers, `*` for all."""
    for each in {namespace, may} - {"", "*"}:
        with contextlib.suppress(AlreadyExistsError):
            await client.create(NAMESPACES.raw, {"metadata": {"name": each}})
    with contextlib.suppress(AlreadyExistsError):
        await client.request(
            "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", body={"metadata": {"name": name}}
        )
    if not may:
        return
    kind = "ClusterRole" if may == "*" else "Role"
    root = RBAC if may == "*" else f"{RBAC}/namespaces/{may}"
    rule = {"apiGroups": ["shoal.dev"], "resources": ["offers"], "verbs": ["create"]}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    meta = {"metadata": {"name": name}}
    await client.request("POST", f"{root}/{kind.lower()}s", body={**meta, "rules": [rule]})
    await client.request(
        "POST", f"{root}/{kind.lower()}bindings", body={**meta, "roleRef": role, "subjects": [subject]}
    )


async def token_of(client: Client, name: str, *, namespace: str = "shoal-members", audience: str = "") -> str:
    """A token of an account, each another one."""
    audiences = [audience] if audience else []
    return (await client.token(name, namespace=namespace, audiences=audiences, seconds=next(_LIVES))).token
