"""Cuts between the manager and members, made by dropping packets in a network namespace of the manager's own.

60, 270 and 400 s, and all settings that count in seconds, are a tenth of that in `make test-kube`; `make soak` has them
in full.
"""

import asyncio
import json
import os
import sys

import pytest

from shoal.kube.resources import PODS
from shoal.model.contract import keti
from tests.clusters import manager_process
from tests.clusters.cut_network import Cut, CutNetwork
from tests.clusters.site import EAST, HOME, MEMBERS, WEST, Site, eventually, pod
from tests.soak import SOAK
from tests.testbed.processes import Process

SCALE = 0.1 if SOAK == 1 else 1.0


def manager(site: Site, network: CutNetwork) -> Process:
    """A manager inside the network, with all its times scaled."""
    given = [str(network.kubeconfig(HOME)), *(f"{place}={network.kubeconfig(place)}" for place in MEMBERS)]
    settings = {
        "lease_name": site.namespace,
        "lease_seconds": max(2, round(15 * SCALE)),
        "member_seconds": 10 * SCALE,
        "place_seconds": 30 * SCALE,
        "refused_seconds": 60 * SCALE,
        "sweep_seconds": 20 * SCALE,
    }
    command = [sys.executable, "-m", manager_process.__name__, *given]
    environment = {**os.environ, manager_process.SETTINGS: json.dumps(settings)}
    return network.enter(site.planes.planes[HOME].run.process(f"{site.namespace}-manager", command, environment))


@pytest.mark.parametrize(
    ("seconds", "cuts"),
    [
        (60, {EAST: Cut.BOTH, WEST: Cut.THERE}),
        (270, {EAST: Cut.BACK, WEST: Cut.BOTH}),
        (400, {EAST: Cut.THERE, WEST: Cut.BACK}),
    ],
    ids=["60s", "270s", "400s"],
)
async def test_members_that_are_cut_off_for_a_while(site: Site, seconds: float, cuts: dict[str, Cut]) -> None:
    """Nothing is assumed of them meanwhile; afterwards all that was asked for is done, once."""
    servers = {place: plane.api for place, plane in site.planes.planes.items()}
    with CutNetwork(site.planes.planes[HOME].run, f"{site.namespace}-cut", servers) as network:
        program = manager(site, network)
        program.start()
        try:
            for place in MEMBERS:
                for name in ("stays", "goes"):
                    await site.create(PODS.raw, pinned(f"{name}-{place}", place))
                await site.create(PODS.raw, pinned(f"ends-{place}", place, runs_for=seconds * SCALE / 2))
            for place in MEMBERS:
                for name in ("stays", "goes", "ends"):
                    await site.until_phase(f"{name}-{place}", "Running")
            for place, cut in cuts.items():
                network.cut(place, cut)
            for place in MEMBERS:
                await site.home.delete(PODS, f"goes-{place}", namespace=site.namespace)
                await site.create(PODS.raw, pinned(f"comes-{place}", place))
            await asyncio.sleep(seconds * SCALE)  # as long as the cut lasts
            for place in MEMBERS:
                assert await site.phase(f"stays-{place}") == "Running"
                assert await site.phase(f"stays-{place}", place) == "Running"
                assert await site.pod(HOME, f"goes-{place}") is not None, "nothing is assumed of it"
            network.heal()
            for place in MEMBERS:
                await site.until_phase(f"goes-{place}", "")
                await site.until_phase(f"ends-{place}", "Succeeded")
                await site.until_phase(f"comes-{place}", "Running")
                assert await site.phase(f"stays-{place}") == "Running"
                assert await site.pod(place, f"goes-{place}") is None
            for one in await site.pods(HOME):
                await site.home.delete(PODS, one["metadata"]["name"], namespace=site.namespace)
            for place in (HOME, *MEMBERS):

                async def empty(place: str = place) -> bool:
                    return not await site.pods(place)

                await eventually(empty, f"nothing is left in {place}")
        finally:
            program.kill()
    assert not site.ledger.doubled()
    assert len(site.ledger.placed) == 8


def pinned(name: str, place: str, runs_for: float | None = None) -> dict[str, object]:
    """A pod for one cluster."""
    return pod(name, runs_for=runs_for, annotations={keti.ANNOTATION_CLUSTER: place})
