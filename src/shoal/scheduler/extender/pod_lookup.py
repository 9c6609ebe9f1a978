"""The pods that may be decided on: those that the watch shows waiting, under their UID.

What a caller writes of a pod counts for nothing but its UID. kube-scheduler hears of pods by a watch of its own, which
may be faster: a pod that is not shown yet, or only in an older version than the caller has, is waited for a moment.
Without that a pod whose mistake was just put right is refused once more, and kube-scheduler does not ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change
from shoal.scheduler.errors import UnknownPodError
from shoal.scheduler.state.cluster_state import ClusterState

#: Longer than a watch lags unless it is broken; kube-scheduler's one cycle waits for that long.
SECONDS: Final = 1.0
#: Requests that wait at one time; more are answered at once.
MOST: Final = 64


class PodLookup:
    """Looks up pods that wait. `on_pod` must be told of changes after the cluster state was."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}
        self._count = 0

    def pod(self, asked: ObjectMeta, *, newest: bool = False) -> Pod:
        """The pod as the watch has shown it.

        Raises UnknownPodError when it does not wait for a node; if `newest`, also when the caller has a newer one.
        """
        pod = self._state.pod(asked.uid)
        if pod is None or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp:
            raise UnknownPodError(asked)
        if newest and _newer(asked.resource_version, pod.metadata.resource_version):
            raise UnknownPodError(asked)
        return pod

    async def until_shown(self, asked: ObjectMeta, *, seconds: float = SECONDS) -> None:
        """Wait until the watch has shown the pod as new as the caller has it, but not longer than `seconds`."""
        if self._count >= MOST:
            return
        self._count += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not self._shown(asked):
                        await self._news(asked.uid)
        finally:
            self._count -= 1

    def _shown(self, asked: ObjectMeta) -> bool:
        try:
            return bool(self.pod(asked, newest=True))
        except UnknownPodError:
            return False

    async def _news(self, uid: str) -> None:
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(uid, []).append(heard)
        try:
            await heard
        finally:
            left = self._awaited[uid]
            left.remove(heard)
            if not left:
                del self._awaited[uid]

    def on_pod(self, change: Change[Pod]) -> None:
        """A pod appeared, changed or went away."""
        for heard in self._awaited.get(change.object.metadata.uid, ()):
            if not heard.done():
                heard.set_result(None)


def _newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is the later one: the API server counts up. What is no number is not compared."""
    return version.isdecimal() and than.isdecimal() and (len(version), version) > (len(than), than)
