"""The pods that may be decided on: those that the watch shows waiting, under their UID.

What a caller writes of a pod counts for nothing but its UID. A pod that is not shown yet is waited for a moment, for
kube-scheduler hears of it by a watch of its own, which may be faster.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change
from shoal.scheduler.books.books import Books

#: Longer than a watch lags unless it is broken, and short for whoever holds up kube-scheduler's one cycle.
SECONDS: Final = 1.0
#: Requests that wait at one time; more are answered at once.
MOST: Final = 64
UNKNOWN: Final = "the API server has not shown such a pod waiting here yet: it is tried again"


class UnknownPodError(Exception):
    """A pod that is not shown waiting under this UID, by now."""

    def __init__(self, uid: str) -> None:
        super().__init__(UNKNOWN)
        self.uid = uid


class Waiting:
    """Looks pods up. `on_pod` is to hear of changes after the books have."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}
        self._count = 0

    def pod(self, uid: str) -> Pod:
        """The pod as the watch has shown it. Raises UnknownPodError when it does not wait for a node."""
        pod = self._books.pod(uid)
        if pod is None or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp:
            raise UnknownPodError(uid)
        return pod

    async def until_heard_of(self, uid: str, *, seconds: float = SECONDS) -> None:
        """Return when there is news of a pod, or a moment later."""
        if self._count >= MOST:
            return
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(uid, []).append(heard)
        self._count += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await heard
        finally:
            self._count -= 1
            left = self._awaited[uid]
            left.remove(heard)
            if not left:
                del self._awaited[uid]

    def on_pod(self, change: Change[Pod]) -> None:
        """News of a pod."""
        for heard in self._awaited.get(change.object.metadata.uid, ()):
            if not heard.done():
                heard.set_result(None)
