"""Who is above whom among pods that wait.

Between namespaces `spec.priority` decides alone: a PriorityClass is the administrator's to give. KETI's annotation
`priority` is anybody's to write, so it orders the pods of one namespace, among those of one `spec.priority`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.kube.objects.pod import Pod
from shoal.model.contract import keti


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides who goes first, before the time of arrival does."""

    namespace: str
    #: `spec.priority`.
    priority: int = 0
    #: What the annotation is worth.
    urgency: int = 0

    @property
    def group(self) -> tuple[str, int]:
        """The same for pods among which the annotation decides."""
        return self.namespace, self.priority

    def is_above(self, other: Standing) -> bool:
        """The other has to stand back for this one. Of pods of two namespaces with one priority neither has."""
        if self.group == other.group:
            return self.urgency > other.urgency
        return self.priority > other.priority


def standing_of(pod: Pod) -> Standing:
    """The standing of a pod."""
    word = pod.metadata.annotations.get(keti.ANNOTATION_PRIORITY)
    return Standing(pod.metadata.namespace, pod.spec.priority or 0, keti.priority(word))
