"""What the agents of nodes say is held of their cards, and which pods that are over still hold theirs. Pure.

The API server forgets a pod that is deleted by force at once, and whoever may write a pod's status can say that it has
ended; its containers use their cards until they are gone. Of that the node's agent knows (`shoal.dev/held`). On a node
without it the pod's last status is believed, and a pod that vanished while its containers ran has a time to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.model.allocation import CardShare, Held
from shoal.model.contract import shoal

#: How long containers of a pod that vanished may go on where nobody tells of their end: kubelet's default of 30 s.
GRACE_SECONDS: Final = 30.0
#: The phases of a pod whose containers have ended and do not start again.
FINISHED: Final = ("Succeeded", "Failed")


class HeldByNodes:
    """The last word of every agent, by node."""

    def __init__(self) -> None:
        self._written: dict[str, str] = {}
        self._held: dict[str, Held] = {}

    def take(self, node: Node) -> set[str] | None:
        """Take in what the node says; the pods of which it says something else now, None if it says what it said.

        CodecError if that cannot be read: what it said before holds.
        """
        name = node.metadata.name
        written = node.metadata.annotations.get(shoal.ANNOTATION_HELD)
        if written == self._written.get(name):
            return None
        held = None if written is None else shoal.decode_held(written)
        before = self.pods(name)
        if written is None or held is None:
            self.drop(name)
        else:
            self._written[name], self._held[name] = written, held
        after = self.pods(name)
        return {uid for uid in {**before, **after} if before.get(uid) != after.get(uid)}

    def drop(self, node: str) -> None:
        """The node is gone, or has no agent any more."""
        self._written.pop(node, None)
        self._held.pop(node, None)

    def of(self, node: str) -> Held | None:
        """What the node's agent says; None where there is none."""
        return self._held.get(node)

    def pods(self, node: str) -> dict[str, tuple[CardShare, ...]]:
        """What pods hold on a node by the word of its agent."""
        held = self._held.get(node)
        return {} if held is None else dict(held.pods)

    def cards(self, node: str, uid: str) -> tuple[CardShare, ...] | None:
        """What a pod has been given on a node; None if its agent does not say."""
        held = self._held.get(node)
        return None if held is None else held.pods.get(uid)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod that is over by the API server and may still hold its cards: until its node, or the time, says otherwise.

    `version` is that of the API server in which the pod was over.
    """

    node: str
    version: int
    until: float


def has_left(pod: Pod, version: int, held: Held | None) -> bool:
    """Whether a pod that is over has left its cards; `held` is the word of its node's agent."""
    if held is not None:
        return held.releases(pod.metadata.uid, version)
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    runs = any(one.state is not None and one.state.running is not None for one in statuses)
    return pod.status.phase in FINISHED or not runs
