"""Tells in Events that limits do not hold: about the node, and about the pods whose programs are concerned.

A program that finds no MPS daemon computes without one, and without its limits; only GPUs in exclusive mode stop it. So
a daemon that is away, or was started again, is told also for containers that run already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from shoal.agent.errors import AgentError
from shoal.agent.node.object import NodeObject
from shoal.agent.node.pods import NodePod, NodePods
from shoal.kube.events import EventType, Recorder, reference_to
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS
from shoal.model.gpu import LimitedBy

log = logging.getLogger(__name__)

REASON_FAULT: Final = "GPUUnhealthy"
REASON_RECOVERED: Final = "GPURecovered"
REASON_LOST: Final = "GPULimitsLost"
REASON_RESTORED: Final = "GPULimitsRestored"
REASON_WAITING: Final = "GPUClientsWait"


class LimitReports:
    """Compares what limits say now with what they said before."""

    def __init__(
        self,
        node: NodeObject,
        pods: NodePods,
        recorder: Recorder,
        *,
        limited: Callable[[str], LimitedBy | None],
        runs: Callable[[str], bool],
    ) -> None:
        """`limited` gives what limits the pod of a UID, `runs` whether it has processes."""
        self._node = node
        self._pods = pods
        self._recorder = recorder
        self._limited = limited
        self._runs = runs
        self._faults: Mapping[str, str] = {}
        self._lost = ""
        self._starts = 0
        #: By UID, the pods that were told that they wait for those of other users.
        self._waiting: set[str] = set()

    def look(self, faults: Mapping[str, str], *, lost: str, restarted: tuple[int, str]) -> None:
        """Tell what has changed.

        `faults` are the GPUs of which no share can be given now, `lost` why limits do not hold now, `restarted` how
        often the MPS daemon was started, and what that means for running containers.
        """
        for uuid in faults.keys() - self._faults.keys():
            self._tell("Warning", REASON_FAULT, f"GPU {uuid} is unhealthy: {faults[uuid]}")
        for uuid in self._faults.keys() - faults.keys():
            self._tell("Normal", REASON_RECOVERED, f"GPU {uuid} is healthy again; it was: {self._faults[uuid]}")
        self._faults = dict(faults)
        if lost and not self._lost:
            self._tell("Warning", REASON_LOST, lost)
            self._tell_pods(lost)
        elif self._lost and not lost:
            self._tell("Normal", REASON_RESTORED, "the MPS daemon answers again")
        self._lost = lost
        starts, words = restarted
        if starts > self._starts and words:
            self._tell_pods(words)
        self._starts = starts

    def look_at_users(self, clients: Collection[str]) -> None:
        """Tell the clients of an MPS daemon of protocol 2, pods by UID, if they run as several users.

        Such a daemon has a server for one user at a time: the others wait, and nothing else says so.
        """
        users: dict[int, list[NodePod]] = {}
        for known in self._pods:
            for user in _users(known.pod) if known.uid in clients else ():
                users.setdefault(user, []).append(known)
        waiting = {known.uid: known for pods in users.values() for known in pods} if len(users) > 1 else {}
        words = (
            "the MPS daemon of this node serves one user at a time, and its clients are pods of users "
            f"{', '.join(map(str, sorted(users)))}: programs of one user wait until all clients of another have ended; "
            "run them as one user (runAsUser), or use driver R615"
        )
        for uid in waiting.keys() - self._waiting:
            log.warning("pod %s: %s", "/".join(waiting[uid].key), words)
            self._recorder.record(reference_to(PODS, waiting[uid].pod), "Warning", REASON_WAITING, words)
        self._waiting = set(waiting)

    def _tell(self, kind: EventType, reason: str, words: str) -> None:
        if self._node.node is not None:
            self._recorder.record(reference_to(NODES, self._node.node), kind, reason, words)

    def _tell_pods(self, words: str) -> None:
        """Tell it of the running pods that MPS limits."""
        for known in self._pods:
            if not known.holding.resources or not self._is_limited(known.uid) or not self._runs(known.uid):
                continue
            log.warning("pod %s: %s", "/".join(known.key), words)
            self._recorder.record(reference_to(PODS, known.pod), "Warning", REASON_LOST, words)

    def _is_limited(self, uid: str) -> bool:
        """Whether MPS limits a pod; not known if kubelet's record cannot be read."""
        try:
            limited = self._limited(uid)
        except AgentError as error:
            log.warning("whether MPS limits the pod with UID %s is not known: %s", uid, error)
            return False
        return limited is not None and (limited.memory.by_mps or limited.compute.by_mps)


def _users(pod: Pod) -> set[int]:
    """The users of a pod's running containers, where kubelet says them."""
    running = [one for one in pod.status.container_statuses if one.state is not None and one.state.running is not None]
    found = [one.user.linux.uid for one in running if one.user is not None and one.user.linux is not None]
    return {uid for uid in found if uid is not None}
