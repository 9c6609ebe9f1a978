"""The clusters that writes are tried on: the embedded one in `make test`, a real one in `make test-kube`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.model.contract import dra
from tests.admission.guarded import (
    ALLOCATED,
    DEPLOY,
    FAR,
    LEASES,
    NODE,
    SYSTEM,
    Guarded,
    binding,
    claim,
    deployment,
    event,
    lease,
    pod,
    refusals,
)
from tests.suites.connection import Connection
from tests.suites.embedded import EmbeddedServer
from tests.testbed import binaries
from tests.testbed.control_plane import own_control_plane
from tests.testbed.features import Features, claims
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

MADE = {dra.ANNOTATION_EXTENDED_RESOURCE: "true"}


@pytest.fixture(scope="session")
def _guarded_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = EmbeddedServer(tmp_path_factory.mktemp("guarded"), controllers=True, admission="GiB")
    guarded = Guarded(Connection(server.kubeconfig()), server.create_namespace, real=False)
    guarded.prepare()
    yield guarded
    server.stop()


def _before_1_36() -> Features:
    """A server that checks no rights on parts of a claim's status, so that the policies alone do."""
    if int(binaries.kube_version().split(".")[1]) < 36:
        return claims()
    return Features({"DRAResourceClaimGranularStatusAuthorization": False})


@pytest.fixture(scope="module")
def _guarded_real(testbed_run: Run) -> Iterator[Guarded]:
    with own_control_plane(testbed_run, "guarded", _before_1_36()) as plane:
        server = plane.api
        server.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / "admission"))
        server.kubectl("apply", "--validate=strict", "-f", str(DEPLOY / "agent" / "own-node.yaml"))
        server.kubectl("apply", "--validate=strict", "-f", str(DEPLOY / "metrics" / "own-lease.yaml"))
        guarded = Guarded(Connection(server.kubeconfig()), server.create_namespace, real=True, plane=plane)
        guarded.prepare()
        room = guarded.room()
        where = f"/api/v1/namespaces/{room}"
        label = {"metadata": {"labels": {"shoal.dev/mps": "allow"}}}
        # Policies come into force one by one.
        for who, method, path, body in (
            ("tenant", "POST", f"{where}/pods", pod("probe", annotations={"UUID": "x"})),
            ("tenant", "POST", f"{where}/pods", pod("probe", annotations={"cdi.k8s.io/x": "x"})),
            ("tenant", "POST", f"{where}/bindings", binding("probe", {"UUID": "x"})),
            ("tenant", "POST", f"{where}/bindings", binding("probe", {"cdi.k8s.io/x": "x"})),
            ("tenant", "POST", f"/apis/apps/v1/namespaces/{room}/deployments", deployment({"UUID": "x"})),
            ("tenant", "POST", f"/apis/apps/v1/namespaces/{room}/deployments", deployment({"cdi.k8s.io/x": "x"})),
            ("tenant", "POST", f"/apis/resource.k8s.io/v1/namespaces/{room}/resourceclaims", claim(MADE)),
            ("tenant", "PATCH", where, label),
            ("tenant", "PATCH", guarded.claim_status(room), ALLOCATED),
            ("shoal-agent", "PATCH", f"/api/v1/nodes/{NODE}", label),
            ("shoal-agent", "PATCH", f"{SYSTEM}/pods/agent", label),
            ("far-metrics", "POST", LEASES, lease(NODE)),
            ("shoal-agent", "POST", f"{where}/events", event("probe", room, {"kind": "Secret", "namespace": room})),
        ):
            answer = lambda: guarded.ask(who, method, f"{path}?dryRun=All", body)  # noqa: E731, B023
            wait_for(lambda: any(refusals(answer())), f"refusing {method} {path}")  # noqa: B023
        yield guarded


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.kube)])
def guarded(request: pytest.FixtureRequest) -> Guarded:
    """A cluster with all policies in force."""
    made: Guarded = request.getfixturevalue(f"_guarded_{request.param}")
    return made


@pytest.fixture
def room(guarded: Guarded) -> str:
    """A new namespace of the tenant, with a pod that waits and one that was placed."""
    name = guarded.room()
    pods = f"/api/v1/namespaces/{name}/pods"
    limits = {"aliyun.com/gpu-mem": "12"}
    guarded.must("POST", pods, pod("waiting", annotations={"note": "a"}, limits=limits))
    decided = {"note": "a", "shoal.dev/allocation": "{}", "ALIYUN_COM_GPU_MEM_IDX": "0"}
    for place, node in (("placed", NODE), ("far", FAR)):
        placed = pod(place, annotations=decided, labels={"app": "a"}, limits=limits, nodeName=node)
        guarded.must("POST", pods, placed)
    return name
