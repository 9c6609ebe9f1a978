"""KETI's cluster manager over gRPC: `v1.user.Cluster` and `cluster.Cluster`, one set of messages under both names.

KETI's schedulers push what they know of their nodes, and ask for a cluster. Whoever reaches the port may push, so that
is kept within bounds, under the names of known clusters alone, and never counts against what a member says itself: the
choice is the same as that for pods, by asking. Only between clusters that have no Shoal to ask do pushed nodes decide,
as KETI has it: a node with as many GPUs, and the best mean of scores. `filtered_cluster` names clusters that it shall
not be. Nothing is held for who asks here, for there is no pod. Callers show no token and members are asked with the
manager's own, so questions to members are limited: a flood of them takes no time from the pods that are dispatched.

In plain text and without a password only if the settings say so, as KETI's clients call it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import grpc
import grpc.aio
import msgspec

from shoal.clusters.api import cluster_pb2 as wire
from shoal.clusters.asking import FRESH_SECONDS
from shoal.clusters.choice import ClusterChoice, keti_lines
from shoal.clusters.member import Member, MemberTable
from shoal.http.grpc_front import serving_grpc
from shoal.kube.resources import RawObject
from shoal.kube.reviews import Bucket, Rate
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import clusters as contract
from shoal.model.contract import keti
from shoal.model.contract.clusters import ClusterSelector
from shoal.model.errors import shown

log = logging.getLogger(__name__)

#: The nodes of a large cluster are some hundred kilobytes.
LONGEST_REQUEST: Final = 1 << 20
#: KETI's clients open a connection for each call.
_CONNECTIONS: Final = 64
_CALLS: Final = 16
MAX_NODES: Final = 10_000
MAX_GPUS: Final = 256
_MAX_NAME: Final = 253
#: Questions that members are asked for all callers together; an answer counts for all who ask the same for a while.
QUESTIONS: Final = Rate(32, 4)
_REMEMBERED: Final = 256

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Context = grpc.aio.ServicerContext[Any, Any]
_Method = Callable[[Any, _Context], Awaitable[Any]]


class KetiClusterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where KETI's clients find the manager."""

    host: str = "0.0.0.0"
    port: _Port = keti.PORT_MANAGER
    #: Nobody is asked who they are, and everybody on the way reads along.
    plaintext: bool = False
    #: Files, in PEM.
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        if self.plaintext == bool(self.certificate) or bool(self.certificate) != bool(self.key):
            raise ValueError("keti needs a certificate and its key, or plaintext: true, and not both")


class LookAtClusters(Protocol):
    """What would be chosen for a pod now (`AskingChoice.look`)."""

    async def __call__(self, pod: RawObject, selector: ClusterSelector, members: Mapping[str, Member]) -> ClusterChoice:
        """The choice."""


@dataclass(frozen=True, slots=True)
class _PushedNode:
    """What somebody said of a node."""

    score: int
    gpus: int


class KetiClusters:
    """Answers KETI's clients. `run` until it is cancelled."""

    def __init__(
        self,
        settings: KetiClusterSettings,
        table: MemberTable,
        look: LookAtClusters,
        *,
        serving_at: Callable[[int], None] = lambda port: None,
        fresh_seconds: float = FRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`serving_at` is told the port. The same question within `fresh_seconds` has the same answer."""
        self._settings = settings
        self._table = table
        self._look = look
        self._serving_at = serving_at
        self._fresh_seconds = fresh_seconds
        self._clock = clock
        self._questions = Bucket(QUESTIONS, clock())
        #: By GPUs and filtered clusters: when it was asked, and what would be chosen.
        self._answers: BoundedCache[tuple[int, frozenset[str]], tuple[float, ClusterChoice]] = BoundedCache(_REMEMBERED)
        #: By cluster and node. Clusters are known ones, so there are not many.
        self._pushed: dict[str, dict[str, _PushedNode]] = {}

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError when the port is taken, or a file cannot be read."""
        made = self._settings
        async with serving_grpc(
            [grpc.method_handlers_generic_handler(name, self._methods()) for name in keti.SERVICES_CLUSTER],
            made.host,
            [made.port],
            connections=_CONNECTIONS,
            longest_request=LONGEST_REQUEST,
            calls=_CALLS,
            credentials=await asyncio.to_thread(_credentials, made),
        ) as (port,):
            self._serving_at(port)
            await asyncio.Event().wait()

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "InitMyCluster": _method(self._init_mine, wire.InitMyClusterRequest),
            "InitOtherCluster": _method(self._init_other, wire.InitOtherClusterRequest),
            "UpdateMyCluster": _method(self._update_mine, wire.UpdateMyClusterRequest),
            "UpdateOtherCluster": _method(self._update_other, wire.UpdateOtherClusterRequest),
            "RequestClusterScheduling": _method(self._request, wire.ClusterSchedulingRequest),
        }

    async def _init_mine(self, request: wire.InitMyClusterRequest, context: _Context) -> wire.ResponseMessage:
        return await self._init(self._own(), request.request_message, context)

    async def _init_other(self, request: wire.InitOtherClusterRequest, context: _Context) -> wire.ResponseMessage:
        return await self._init(await self._known(request.cluster_name, context), request.request_message, context)

    async def _update_mine(self, request: wire.UpdateMyClusterRequest, context: _Context) -> wire.ResponseMessage:
        return await self._update(self._own(), request.request_message, context)

    async def _update_other(self, request: wire.UpdateOtherClusterRequest, context: _Context) -> wire.ResponseMessage:
        return await self._update(await self._known(request.cluster_name, context), request.request_message, context)

    async def _init(
        self, cluster: str, nodes: Sequence[wire.RequestMessage], context: _Context
    ) -> wire.ResponseMessage:
        """All nodes of a cluster, instead of those that were pushed before."""
        if len(nodes) > MAX_NODES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_NODES} nodes: send fewer")
        made = {node.node_name: await _node(node, context) for node in nodes}
        self._forget()
        self._pushed[cluster] = made
        return wire.ResponseMessage(success=True)

    async def _update(self, cluster: str, node: wire.RequestMessage, context: _Context) -> wire.ResponseMessage:
        """One node of a cluster that was pushed before. KETI sends no count of GPUs then: it stays."""
        made = await _node(node, context)
        before = self._pushed.get(cluster, {}).get(node.node_name)
        if before is None:
            words = f"no node {shown(node.node_name)} was sent before: send InitMyCluster or InitOtherCluster first"
            await context.abort(grpc.StatusCode.NOT_FOUND, words)
            raise AssertionError  # abort raises
        self._pushed[cluster][node.node_name] = _PushedNode(made.score, made.gpus or before.gpus)
        return wire.ResponseMessage(success=True)

    async def _request(
        self, request: wire.ClusterSchedulingRequest, context: _Context
    ) -> wire.ClusterSchedulingResponse:
        filtered = list(request.filtered_cluster)
        if not 0 <= request.gpu_count <= MAX_GPUS:
            words = f"gpu_count is {request.gpu_count}: send a number from 0 to {MAX_GPUS}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        if len(filtered) > contract.MAX_CLUSTERS or any(len(name) > _MAX_NAME for name in filtered):
            words = f"filtered_cluster has more than {contract.MAX_CLUSTERS} names, or one that is too long: send fewer"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        gpus = max(1, request.gpu_count)
        choice = await self._choice(gpus, frozenset(filtered), context)
        chosen = self._tried_or(choice, gpus)
        for line in keti_lines(ClusterChoice(chosen, choice.ranking), gpus=request.gpu_count):
            log.info("%s", line)
        return wire.ClusterSchedulingResponse(cluster_name=chosen, success=bool(chosen))

    async def _choice(self, gpus: int, filtered: frozenset[str], context: _Context) -> ClusterChoice:
        """What members say, asked now unless somebody has just asked the same."""
        # Names that no cluster has make no other question.
        filtered &= {*self._table.members, *self._table.problems}
        now = self._clock()
        found = self._answers.get((gpus, filtered))
        if found is not None and now - found[0] < self._fresh_seconds:
            return found[1]
        if not self._questions.take(now):
            words = f"more than {QUESTIONS.each_second:g} different questions a second: ask again in a second"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        choice = await self._look(_pod(gpus), ClusterSelector(avoid=filtered), self._table.members)
        self._answers.put((gpus, filtered), (now, choice))
        return choice

    def _tried_or(self, choice: ClusterChoice, gpus: int) -> str:
        """The choice; where it would be a trial, the one that pushed nodes speak for, if any were pushed."""
        trials = [row.cluster for row in choice.ranking if row.trial]
        if choice.cluster not in trials:
            return choice.cluster
        self._forget()

        def worth(cluster: str) -> float | None:
            """The mean score of nodes with so many GPUs; None if all that were pushed have fewer."""
            fitting = [node.score for node in self._pushed.get(cluster, {}).values() if node.gpus >= gpus]
            if not fitting:
                return None if self._pushed.get(cluster) else float("-inf")
            return sum(fitting) / len(fitting)

        found = [(-mean, place, name) for place, name in enumerate(trials) if (mean := worth(name)) is not None]
        return min(found)[2] if found else ""

    def _own(self) -> str:
        """The own cluster's name; empty when it is no member, and then nothing is asked of it."""
        return next((name for name, member in self._table.members.items() if member.own), "")

    async def _known(self, name: str, context: _Context) -> str:
        if name in self._table.members or name in self._table.problems:
            return name
        known = ", ".join(sorted(self._table.members)[:20]) or "none"
        await context.abort(grpc.StatusCode.NOT_FOUND, f"no cluster is called {shown(name)}: known are {known}")
        raise AssertionError  # abort raises

    def _forget(self) -> None:
        """Drop what was pushed of clusters that are not joined any more."""
        known = {"", *self._table.members, *self._table.problems}
        for name in [name for name in self._pushed if name not in known]:
            del self._pushed[name]


async def _node(node: wire.RequestMessage, context: _Context) -> _PushedNode:
    if not 0 < len(node.node_name) <= _MAX_NAME:
        words = f"node_name is {shown(node.node_name)}: send a name of 1 to {_MAX_NAME} characters"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
    if node.gpu_count < 0:
        words = f"gpu_count of node {shown(node.node_name)} is {node.gpu_count}: send 0 or more"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
    return _PushedNode(node.node_score, node.gpu_count)


def _pod(gpus: int) -> RawObject:
    """The pod that KETI's schedulers ask for: so many cards of one node, of any size."""
    limits = {keti.RESOURCE_MPS: str(gpus)}
    return {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def _credentials(settings: KetiClusterSettings) -> grpc.ServerCredentials | None:
    if settings.plaintext:
        return None
    key, certificate = Path(settings.key).read_bytes(), Path(settings.certificate).read_bytes()
    return grpc.ssl_server_credentials([(key, certificate)])


def _method(answer: _Method, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=lambda message: message.SerializeToString()
    )
    return handler
