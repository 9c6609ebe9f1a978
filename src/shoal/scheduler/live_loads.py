"""The digests of all nodes, as far as they count.

A digest counts until its time to live is over, by this process's own clock since it last changed here: what clocks of
nodes show does not matter. One that is over, gone or not to be read leaves what was requested alone. When a card has
more free by it, pods that wait are tried again.

No I/O: the watch calls `on_lease`, a source that asks a server `take`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from shoal.kube.objects.others import Lease
from shoal.kube.store import Change
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import load
from shoal.model.contract.load import ANNOTATION_LOAD, LoadDigest, decode_load
from shoal.model.errors import CodecError, shown
from shoal.placement.ledger import Ledger
from shoal.scheduler.cluster_events import ClusterEvent

log = logging.getLogger(__name__)

#: Digests that are kept: more nodes than a cluster has.
MAX_NODES: Final = 20_000
#: Nodes of whose unreadable digests is told once.
_TOLD: Final = 1000


class LiveLoads:
    """What was measured last of each node."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        news: Callable[[ClusterEvent], None],
        ttl: float = load.TTL_SECONDS,
        tolerated_mib: int = load.TOLERATED_MIB,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._news = news
        self._ttl = ttl
        self._tolerated = tolerated_mib
        self._clock = clock
        #: When each digest last changed, the longest ago first.
        self._seen: dict[str, float] = {}
        self._unreadable: BoundedCache[str, str] = BoundedCache(_TOLD)

    def __len__(self) -> int:
        return len(self._seen)

    def on_lease(self, change: Change[Lease]) -> None:
        """The Lease of a node appeared, changed or went away. Its name is the node's: admission sees to that."""
        name = change.object.metadata.name
        written = None if change.new is None else change.new.metadata.annotations.get(ANNOTATION_LOAD)
        if written is None:
            self.drop(name)
            return
        try:
            digest = decode_load(written)
        except CodecError as error:
            self.drop(name)
            if self._unreadable.get(name) != str(error):
                self._unreadable.put(name, str(error))
                log.warning("load of node %s does not count: %s", shown(name), error)
            return
        self.take(name, digest)

    def take(self, node: str, digest: LoadDigest) -> None:
        """A node's load, as it is now."""
        if node not in self._seen and len(self._seen) >= MAX_NODES:
            log.warning("load of node %s does not count: there are %d others", shown(node), MAX_NODES)
            return
        self._seen.pop(node, None)
        self._seen[node] = self._clock()
        if self._ledger.measure(node, digest, tolerated_mib=self._tolerated):
            self._news(ClusterEvent.LIVE_LOAD)

    def drop(self, node: str) -> None:
        """A node's load is not known any more."""
        self._seen.pop(node, None)
        if self._ledger.measure(node, None):
            self._news(ClusterEvent.LIVE_LOAD)

    def expire(self) -> None:
        """Drop what has not changed for its time to live; called from time to time."""
        ends = self._clock() - self._ttl
        while self._seen and (node := next(iter(self._seen))) and self._seen[node] <= ends:
            log.info("load of node %s is older than %g s: requests alone count there", shown(node), self._ttl)
            self.drop(node)
