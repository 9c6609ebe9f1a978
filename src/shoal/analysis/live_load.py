"""What is measured of the cards, for commands that decide as the scheduler does; and on which nodes it counts.

A command sees each digest once and cannot tell for how long it has not changed. So its age is the one its Lease shows,
by the clocks of the node and of this machine; the scheduler goes by its own clock alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.objects.others import Lease
from shoal.kube.resources import LEASES
from shoal.model.contract import load
from shoal.model.contract.load import ANNOTATION_LOAD, LoadDigest, decode_load
from shoal.model.errors import CodecError
from shoal.placement.ledger import Ledger
from shoal.scheduler.config import LoadSource

#: Nodes without live load that are named.
_NAMED: Final = 3


class LoadRules(msgspec.Struct, frozen=True, rename="camel"):
    """Those of the scheduler's settings of live load that decide; addresses and files of servers are not among them."""

    source: LoadSource = LoadSource.LEASE
    ttl_seconds: float = load.TTL_SECONDS
    tolerated_mib: int = load.TOLERATED_MIB


class NodeDigest(msgspec.Struct, frozen=True, rename="camel"):
    """The digest in a node's Lease, unread, and how old it is."""

    node: str
    digest: str
    age_seconds: float


class SeenLoads(msgspec.Struct, frozen=True, rename="camel"):
    """All digests of a cluster, or why there are none."""

    digests: tuple[NodeDigest, ...] = ()
    #: Why they could not be read, in words.
    problem: str = ""


async def read_loads(client: Client) -> SeenLoads:
    """The digests of all nodes."""
    try:
        leases = (await client.list(LEASES, namespace=load.NAMESPACE)).items
    except ForbiddenError:
        return SeenLoads(problem=f"you may not read leases in {load.NAMESPACE}")
    except NotFoundError:
        return SeenLoads()
    now = datetime.now(UTC)
    return SeenLoads(tuple(_digests(leases, now)))


def _digests(leases: Sequence[Lease], now: datetime) -> Iterable[NodeDigest]:
    for lease in leases:
        written, renewed = lease.metadata.annotations.get(ANNOTATION_LOAD), lease.spec.renew_time
        if written is None or renewed is None:
            continue
        try:
            age = (now - datetime.fromisoformat(renewed)).total_seconds()
        except (ValueError, TypeError):
            continue
        yield NodeDigest(lease.metadata.name, written, max(0.0, age))


def take_loads(ledger: Ledger, seen: SeenLoads, rules: LoadRules) -> str:
    """Have the ledger count what counts of it; on which nodes it does, in words."""
    if rules.source is LoadSource.OFF:
        return "live load is switched off: requests count alone"
    if rules.source is not LoadSource.LEASE:
        return f"live load comes from {rules.source}, which is not asked here: requests count alone"
    if seen.problem:
        return f"live load is not known here, for {seen.problem}: requests count alone"
    why = {node.name: "no digest" for node in ledger.nodes() if node.slots}
    total = len(why)
    for digest in seen.digests:
        problem = _take(ledger, digest, rules)
        if digest.node in why:
            if problem:
                why[digest.node] = problem
            else:
                del why[digest.node]
    if not total:
        return ""
    if len(why) == total:
        reasons = ", ".join(sorted(set(why.values()))[:_NAMED])
        return f"live load is not known of any node ({reasons}): requests count alone"
    if not why:
        return f"live load counts on {total} nodes" if total > 1 else "live load counts"
    named = [f"{node} ({reason})" for node, reason in sorted(why.items())]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return (
        f"live load counts on {total - len(why)} of {total} nodes; requests count alone on "
        f"{', '.join(named[:_NAMED])}{more}"
    )


def _take(ledger: Ledger, digest: NodeDigest, rules: LoadRules) -> str:
    """Why a digest does not count; empty when it does."""
    if digest.age_seconds > rules.ttl_seconds:
        return f"its digest is {digest.age_seconds:.0f} s old"
    try:
        found: LoadDigest = decode_load(digest.digest)
    except CodecError:
        return "its digest cannot be read"
    ledger.measure(digest.node, found, tolerated_mib=rules.tolerated_mib)
    return ""
