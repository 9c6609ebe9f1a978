"""gpushare's inspect: what is used of every card and by whom, in units of `aliyun.com/gpu-mem`.

The document is upstream's; nodes, cards and pods come in order. A card taken whole counts as used whole. Pods that are
being deleted hold their share until they are gone and are listed until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from shoal.model.request import Share
from shoal.placement.ledger import CardLedger, NodeLedger
from shoal.scheduler.state.cluster_state import ClusterState


class _Pod(msgspec.Struct):
    name: str
    namespace: str
    used: int = msgspec.field(name="usedGPU")


class _Card(msgspec.Struct):
    id: int
    total: int = msgspec.field(name="totalGPU")
    used: int = msgspec.field(name="usedGPU")
    pods: list[_Pod]


class _Node(msgspec.Struct):
    name: str
    total: int = msgspec.field(name="totalGPU")
    used: int = msgspec.field(name="usedGPU")
    devs: list[_Card]


_encode = msgspec.json.Encoder().encode


def inspect(state: ClusterState, node: str | None = None) -> Iterator[bytes]:
    """The document on all nodes with cards, or the one asked for, node by node so that others can run in between."""
    ledger = state.engine.ledger
    if node is None:
        found = [known for known in ledger.nodes() if known.slots]
    else:
        known = ledger.node(node)
        found = [] if known is None or known.inventory is None else [known]
    yield b'{"nodes":['
    separator = b""
    for known in sorted(found, key=lambda known: known.name):
        yield separator + _encode(_node(state, known))
        separator = b","
    if node is not None and not found:
        problem = f"node {node} is not known: it is not in the cluster, or has no readable cards"
        yield b'],"error":' + _encode(problem) + b"}"
    else:
        yield b"]}"


def _node(state: ClusterState, node: NodeLedger) -> _Node:
    holders: dict[str, list[tuple[str, Share]]] = {}
    for uid, booking in node.pods.items():
        for uuid, share in booking.allocation.held().items():
            holders.setdefault(uuid, []).append((uid, share))
    cards = [_card(state, card, holders.get(card.inventory.uuid, ())) for card in node.slots]
    return _Node(node.name, sum(card.total for card in cards), sum(card.used for card in cards), cards)


def _card(state: ClusterState, card: CardLedger, holders: Iterable[tuple[str, Share]]) -> _Card:
    gpu, unit = card.inventory, state.unit
    pods = []
    for uid, share in holders:
        pod = state.pod(uid)
        used = unit.floor(gpu.memory_mib) if share.exclusive else unit.ceil(share.memory_mib)
        if pod is not None:
            pods.append(_Pod(pod.metadata.name, pod.metadata.namespace, used))
    used = gpu.memory_mib if card.exclusive else card.memory_mib
    return _Card(
        gpu.index,
        unit.floor(gpu.memory_mib),
        unit.ceil(used) if not card.exclusive else unit.floor(used),
        sorted(pods, key=lambda pod: (pod.namespace, pod.name)),
    )
