"""Why a pod fits nowhere, and the smallest changes that would help."""

from __future__ import annotations

from shoal.cli.ask.answers.nodes import Answer, NodeAnswer, by_node
from shoal.cli.ask.answers.room import Room, least_clearing, preempts
from shoal.cli.ask.answers.smaller import would_fit_mib
from shoal.cli.ask.picture.picture import Picture
from shoal.kube.objects.pod import Pod
from shoal.scheduler.reporting.diagnosis import diagnose


class Unplaced(Answer, frozen=True):
    """A pod that fits nowhere now."""

    #: What the scheduler would write on the pod.
    message: str
    nodes: tuple[NodeAnswer, ...] = ()
    #: Whom the scheduler would make give way by itself.
    preempts: Room | None = None
    #: Who would have to go if somebody made room by hand.
    clearing: Room | None = None
    #: The memory per card with which it would fit now.
    would_fit_mib: int | None = None


def unplaced(picture: Picture, pod: Pod, *, details: int) -> Unplaced:
    """Why the pod, which does not fit, does not. Raises RequestError and PolicyError."""
    engine = picture.engine
    verdict = picture.feasibility.verdict(pod)
    diagnosis = diagnose(engine.ledger, engine.class_of(picture.check(pod)), verdict)
    giving_way = preempts(picture, pod, diagnosis.candidates)
    return Unplaced(
        message=diagnosis.message,
        nodes=tuple(by_node(picture, pod, details=details)),
        preempts=giving_way,
        clearing=None if giving_way else least_clearing(picture, pod, diagnosis.candidates),
        would_fit_mib=would_fit_mib(picture, pod),
    )
