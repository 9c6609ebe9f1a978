"""Offers on books that the test writes itself, beside the extender's verbs and the loop on the same books."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.contract import clusters
from shoal.model.contract.clusters import CopyOrigin, Offer, OfferRequest
from shoal.placement.ledger import Booking
from shoal.scheduler.loop import Loop
from shoal.scheduler.offer.departures import Departures
from shoal.scheduler.offer.offers import Offers
from shoal.scheduler.volume_claims import VolumeClaims
from tests.scheduler.extender.requests import pod as pod_of
from tests.scheduler.extender.scene import Scene, clearing_of

CALLER = "system:serviceaccount:shoal-members:shoal-manager-home"


class OfferScene(Scene):
    """The extender's scene, and whoever asks for offers there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        clearing = clearing_of(self.context, self.budgets)
        self.departures = Departures(self.state, clock=lambda: self.now)
        self.offers = Offers(self.context, keep_clear=clearing.keep_clear, departures=self.departures, cluster="here")
        self.holds = self.context.offer_holds
        self.loop = Loop(
            self.context,
            claims=VolumeClaims(self.client, self.state.tables, self.context.feasibility),
            clearing=clearing,
            names=["gpu-scheduler"],
            cluster="here",
            binds=8,
        )

    def ask(
        self, pod: Mapping[str, Any], *, count: int = 1, origin: str = "", hold: int = 0, caller: str = CALLER
    ) -> Offer:
        """The offer, as it comes over the wire."""
        asked = OfferRequest(dict(pod), count, origin, hold)
        answer = self.offers.answer(caller, msgspec.json.encode(asked))
        return msgspec.json.decode(answer, type=Offer)

    def see(self, pod: Pod) -> Pod:
        """The watch shows a pod to everybody, in the order of the scheduler's own."""
        change = Change(ChangeType.MODIFIED, self.state.pod(pod.metadata.uid), pod)
        self.holds.on_pod(change)
        self.departures.on_pod(change)
        self.state.on_pod(change)
        self.loop.on_pod(change)
        return pod

    def bookings(self) -> dict[str, Booking]:
        return {booking.pod: booking for booking in self.state.engine.ledger.bookings()}


def copy_of(origin: str, name: str = "copy", *, attempt: int = 1, **limits: Any) -> dict[str, Any]:
    """A copy as the manager makes it."""
    manifest = pod_of(name, **limits)
    written = clusters.encode(CopyOrigin("home", origin, attempt), what=clusters.ANNOTATION_ORIGIN)
    manifest["metadata"]["annotations"] = {clusters.ANNOTATION_ORIGIN: written}
    manifest["spec"]["schedulerName"] = "gpu-scheduler"
    return manifest


def books(scene: OfferScene) -> object:
    """All that a decision depends on, in a form that compares."""
    engine = scene.state.engine
    columns, tables, rows = engine.ledger.columns, scene.state.tables, engine.ledger.columns.rows
    arrays = (columns.code, columns.memory_free, columns.compute_free, columns.clients_free, columns.pods, columns.node)
    return (
        [array[:rows].tolist() for array in arrays],
        sorted((booking.pod, booking.allocation) for booking in engine.ledger.bookings()),
        {
            name: (node.cpu_used, node.memory_used, node.whole, sorted(node.pods))
            for name in scene.state.rows
            if (node := engine.ledger.node(name)) is not None
        },
        sorted((pod_class.request.cpu_milli, count) for pod_class, count in engine.demand.counts.items()),
        (engine.demand.arrivals, engine.demand.waiting),
        sorted(tables.pods.placed),
        json.dumps(sorted((str(port), sorted(rows)) for port, rows in tables.pods.ports.items())),
        sorted(tables.pods._existing_terms, key=repr) == [] or len(tables.pods._existing_terms),
    )
