"""What is really used, asked of the nodes' collectors: all at once within bounds, each with a deadline of its own.

Where collectors answer stands in Leases of one namespace, which tenants cannot write. They are shown a token that is
good for them alone, made for the occasion: a node gets nothing from those who ask that it could use elsewhere. What a
node says is bounded, and believed of that node alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from shoal.analysis.errors import NotMeasuredError
from shoal.analysis.inspect.use import printable
from shoal.analysis.installed import namespace_of
from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.client import Client
from shoal.kube.errors import ApiError, ForbiddenError, KubeError, NotFoundError, UnreachableError
from shoal.kube.objects.others import Lease
from shoal.kube.resources import LEASES, PODS
from shoal.kube.transport import TransportLimits
from shoal.metrics import history_wire as wire
from shoal.metrics.history_wire import Announcement, HistoryReading, NodeReading
from shoal.model.contract import load

T = TypeVar("T")

#: Seconds for the answer of one collector.
DEADLINE: Final = 10.0
_CONNECT_SECONDS: Final = 3.0
#: Collectors that are asked at once.
_AT_ONCE: Final = 16
_MOST_BYTES: Final = 16 << 20
_TOKEN_SECONDS: Final = 600
#: A token is used for so long.
_TOKEN_USED: Final = 420.0
#: Where collectors are is looked at again after so long.
_DOORS_USED: Final = 60.0
#: What was measured longer ago is not shown.
OLD_SECONDS: Final = 60.0
_MOST_WORDS: Final = 200


class WayIn(StrEnum):
    """How collectors are reached."""

    #: Through the API server where the user may and the collector is a pod, else directly.
    AUTO = "auto"
    DIRECT = "direct"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Measured:
    """What collectors say, by node, and why others say nothing."""

    nodes: Mapping[str, NodeReading] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Door:
    """A collector as it is reached now: a client, and what comes before its paths."""

    access: Access
    prefix: str = ""


class Collectors:
    """The collectors of a cluster, for one user. It asks for a token when it needs one."""

    def __init__(
        self,
        client: Client,
        *,
        account: str = "",
        way: WayIn = WayIn.AUTO,
        namespace: str = wire.NAMESPACE,
        deadline: float = DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`account` is the ServiceAccount whose token is shown, as NAMESPACE/NAME; empty for the documented one."""
        self._client = client
        self._account = account
        self._way = way
        self._namespace = namespace
        self._deadline = deadline
        self._clock = clock
        self._doors: dict[str, _Door | None] = {}
        self._doors_made = float("-inf")
        self._token = ""
        self._token_made = float("-inf")

    async def snapshots(self, nodes: Collection[str]) -> Measured:
        """What is used on these nodes now. Raises NotMeasuredError and KubeError."""

        async def ask(node: str, door: _Door) -> NodeReading:
            reading = await self._get(door, wire.PATH_SNAPSHOT, {}, NodeReading)
            if reading.node != node:
                raise _AnswerError("it answers for another node")
            if reading.age_seconds > max(OLD_SECONDS, 5 * reading.interval_seconds):
                raise _AnswerError(f"its last sample is {reading.age_seconds:.0f} s old: see the collector's log")
            return _printable(reading)

        found, silent = await self._all(nodes, ask)
        return Measured(found, silent)

    async def history(self, nodes: Collection[str], query: Mapping[str, str]) -> dict[str, HistoryReading]:
        """The first page of the past of these nodes; those that say nothing are left out. Raises NotMeasuredError."""

        async def ask(node: str, door: _Door) -> HistoryReading:
            return await self._get(door, wire.PATH_HISTORY, query, HistoryReading)

        return (await self._all(nodes, ask))[0]

    async def _all(
        self, nodes: Collection[str], ask: Callable[[str, _Door], Awaitable[T]]
    ) -> tuple[dict[str, T], dict[str, str]]:
        doors = await self._known_doors()
        if not doors.keys() & set(nodes):
            raise NotMeasuredError(_NOBODY)
        silent = {node: _NO_COLLECTOR for node in nodes if node not in doors}
        found: dict[str, T] = {}
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(node: str) -> None:
            async with at_once:
                door = doors[node]
                try:
                    if door is None:
                        raise _AnswerError("its pod is not there: leave out --metrics-way proxy")
                    async with asyncio.timeout(self._deadline):
                        found[node] = await ask(node, door)
                except TimeoutError:
                    silent[node] = f"no answer within {self._deadline:g} s"
                except (KubeError, _AnswerError) as error:
                    silent[node] = _words(error)

        await asyncio.gather(*(one(node) for node in nodes if node in doors))
        if silent:
            self._doors_made = float("-inf")  # some may be somewhere else now
        return found, silent

    async def _known_doors(self) -> dict[str, _Door | None]:
        """How each collector is reached, looked at once a minute while all answer; None: not in the way asked for."""
        now = self._clock()
        if now - self._doors_made > _DOORS_USED:
            announced = await self._announced()
            self._doors = await self._find_doors(list(announced.values())) if announced else {}
            self._doors_made = now
        return self._doors

    async def _get(self, door: _Door, path: str, query: Mapping[str, str], answer: type[T]) -> T:
        limits = TransportLimits(connect_seconds=_CONNECT_SECONDS, request_seconds=2 * self._deadline, attempts=1)
        async with Client(door.access, limits=limits) as client:
            content = await client.request("GET", door.prefix + path, query=query, max_bytes=_MOST_BYTES)
        try:
            return msgspec.json.decode(content, type=answer)
        except msgspec.MsgspecError as error:
            raise _AnswerError("its answer cannot be read: it may be of another version") from error

    async def _announced(self) -> dict[str, Announcement]:
        try:
            leases = await self._client.list(LEASES, namespace=self._namespace)
        except ForbiddenError as error:
            raise NotMeasuredError(
                f"you may not list leases in {self._namespace}, where collectors say how they are reached: {_RIGHTS}"
            ) from error
        found = [announcement_of(lease) for lease in leases.items]
        return {one.node: one for one in found if one is not None}

    async def _find_doors(self, announced: Collection[Announcement]) -> dict[str, _Door | None]:
        token = await self._fresh_token()
        home = await namespace_of(self._client, load.NAME_COLLECTOR) if self._way is not WayIn.DIRECT else ""
        pods = await self._pods(home) if home and await self._may_proxy(home) else {}
        doors: dict[str, _Door | None] = {}
        for one in announced:
            if one.node in pods:
                headers = (*self._client.access.headers, (wire.TOKEN_HEADER, token))
                prefix = f"/api/v1/namespaces/{home}/pods/https:{pods[one.node]}:{one.port}/proxy"
                doors[one.node] = _Door(replace(self._client.access, headers=headers), prefix)
            else:
                doors[one.node] = None if self._way is WayIn.PROXY else _Door(_direct(one, token))
        return doors

    async def _may_proxy(self, home: str) -> bool:
        if self._way is WayIn.PROXY:
            return True
        wanted = {"verb": "get", "resource": "pods", "subresource": "proxy", "namespace": home}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        try:
            answer = await self._client.request("POST", path, body=body)
            return bool(msgspec.json.decode(answer, type=_Review).status.get("allowed", False))
        except (ApiError, msgspec.MsgspecError):
            return False

    async def _pods(self, home: str) -> dict[str, str]:
        """The names of the collectors' pods, by node."""
        try:
            pods = await self._client.list(PODS, namespace=home, labels=wire.POD_LABEL)
        except ForbiddenError:
            return {}
        return {pod.spec.node_name: pod.metadata.name for pod in pods.items if pod.status.phase == "Running"}

    async def _fresh_token(self) -> str:
        """A token for collectors. Raises NotMeasuredError when the user may make none."""
        if self._clock() - self._token_made > _TOKEN_USED:
            namespace, _, name = (self._account or f"{self._namespace}/{wire.VIEWER_ACCOUNT}").rpartition("/")
            place = namespace or self._client.namespace
            began = self._clock()
            try:
                made = await self._client.token(
                    name, namespace=place, audiences=[wire.AUDIENCE], seconds=_TOKEN_SECONDS
                )
            except ForbiddenError as error:
                raise NotMeasuredError(
                    f"you may make no token of the account {place}/{name}: {_RIGHTS}, or name another account"
                ) from error
            except NotFoundError as error:
                raise NotMeasuredError(f"there is no account {place}/{name}: apply deploy/metrics") from error
            self._token, self._token_made = made.token, began
        return self._token


class _AnswerError(Exception):
    """What a collector answered cannot be used."""


class _Review(msgspec.Struct, frozen=True):
    status: dict[str, object] = {}


_RIGHTS: Final = "apply deploy/metrics if it is not there, or ask for the rights of the group shoal-viewers"
_NO_COLLECTOR: Final = "no collector runs there: apply deploy/metrics"
_NOBODY: Final = "no collector has said where it answers: apply deploy/metrics, which measures what is used"


def announcement_of(lease: Lease) -> Announcement | None:
    """Where a collector says it answers; None for what cannot be read, or is said in another's name."""
    try:
        told = msgspec.json.decode(lease.metadata.annotations.get(wire.ANNOTATION, ""), type=Announcement)
    except msgspec.MsgspecError:
        return None
    return told if lease.metadata.name == told.node else None


def _direct(announcement: Announcement, token: str) -> Access:
    host = f"[{announcement.host}]" if ":" in announcement.host else announcement.host
    return Access(
        f"https://{host}:{announcement.port}",
        StoredCredential(token=Inline(token.encode())),
        authority=Inline(announcement.authority.encode()),
        server_name=announcement.server_name,
    )


def _words(error: Exception) -> str:
    if isinstance(error, ForbiddenError):
        return "it shows you nothing: there are no pods that you may see"
    said = str(error) if not isinstance(error, UnreachableError) else f"it does not answer: {error}"
    return printable(said if len(said) <= _MOST_WORDS else said[:_MOST_WORDS] + "…")


def _printable(reading: NodeReading) -> NodeReading:
    """The reading with text that a terminal can show: a node may write what it likes."""
    cards = tuple(
        msgspec.structs.replace(
            card,
            uuid=printable(card.uuid),
            model=printable(card.model),
            containers=tuple(
                msgspec.structs.replace(
                    one,
                    namespace=printable(one.namespace),
                    pod=printable(one.pod),
                    container=printable(one.container),
                )
                for one in card.containers
            ),
        )
        for card in reading.cards
    )
    return msgspec.structs.replace(reading, cards=cards)
