"""What a viewer may see of a picture. Those with the same rights have the same view, and share what is made for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shoal.analysis.inspect.use import ClusterUse, PodUse
from shoal.analysis.inspect.used import PodOnCard, UsedCard
from shoal.dashboard.picture import NodePicture, Picture
from shoal.model.contract.kubernetes import FINISHED_PHASES


@dataclass(frozen=True, slots=True)
class ViewClass:
    """Namespaces whose pods are shown by name, None for all; and whether all nodes are shown, or only those of them."""

    namespaces: frozenset[str] | None = None
    nodes: bool = True

    def shows(self, namespace: str) -> bool:
        """Whether pods of a namespace are shown. Those that are gone belong to nobody any more: who sees all does."""
        return self.namespaces is None or namespace in self.namespaces

    def pods(self, picture: Picture) -> list[PodUse]:
        """The pods that are shown."""
        return [pod for pod in picture.pods() if self.shows(pod.namespace)]

    def of_nodes(self, picture: Picture) -> Iterator[NodePicture]:
        """The nodes that are shown, in the picture's order."""
        return (node for node in picture.nodes.values() if self.shows_node(node))

    def shows_node(self, node: NodePicture) -> bool:
        """Whether a node is shown."""
        return self.nodes or any(self.shows(pod.namespace) for pod in (*node.use.pods, *node.use.pending))

    def cards(self, node: NodePicture) -> list[UsedCard]:
        """The cards of a node that are shown."""
        if self.nodes:
            return list(node.used.cards)
        return [card for card in node.used.cards if any(self.shows(pod.namespace) for pod in card.pods)]

    def cluster(self, picture: Picture) -> ClusterUse:
        """What is allocated, with the pods, nodes and cards that are shown; amounts of a card stay those of all."""
        if self == ALL:
            return picture.cluster

        def own(pods: tuple[PodUse, ...]) -> tuple[PodUse, ...]:
            return tuple(pod for pod in pods if self.shows(pod.namespace))

        nodes = []
        for node in self.of_nodes(picture):
            use = node.use
            if not self.nodes:
                uuids = {card.gpu.uuid for card in self.cards(node)}
                some = replace(use.node, gpus=tuple(gpu for gpu in use.node.gpus if gpu.uuid in uuids))
                use = replace(use, node=some, offered_mib=None)
            nodes.append(replace(use, pods=own(use.pods), pending=own(use.pending)))
        problems = picture.cluster.problems if self.nodes else ()
        cluster = picture.cluster
        waiting, elsewhere = own(cluster.waiting), own(cluster.elsewhere)
        return replace(cluster, nodes=tuple(nodes), waiting=waiting, elsewhere=elsewhere, problems=problems)

    def holders(self, card: UsedCard) -> tuple[list[PodOnCard], PodOnCard | None]:
        """The pods on a card that are shown, and the others as one without a name; None when there are no others."""
        if self.namespaces is None:
            return list(card.pods), None
        named = [pod for pod in card.pods if self.shows(pod.namespace)]
        hidden = [pod for pod in card.pods if not self.shows(pod.namespace)]
        return named, unnamed(hidden) if hidden else None


#: Sees everything.
ALL = ViewClass()


def unnamed(pods: list[PodOnCard]) -> PodOnCard:
    """Pods as one amount."""
    used: int | None = 0
    for pod in pods:
        used = None if used is None or pod.used_bytes is None else used + pod.used_bytes
    return PodOnCard("", "", sum(pod.requested_mib for pod in pods), used)


PodState = Literal["waiting", "starting", "running", "ending", "gone", "elsewhere"]


def pod_state(pod: PodUse) -> PodState:
    """How a pod stands; `gone` is one that only its node still knows, `elsewhere` one sent to a joined cluster."""
    if pod.ending:
        return "ending" if pod.phase else "gone"
    if pod.phase in FINISHED_PHASES:
        return "ending"
    if not pod.held:
        return "elsewhere" if pod.cluster else "waiting"
    return "running" if pod.phase == "Running" else "starting"
