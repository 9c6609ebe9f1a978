"""Who allocates devices of Shoal's driver to ResourceClaims.

The real server is one before Kubernetes 1.36 in this respect (its own check is switched off), so that the policy alone
refuses. The embedded server has both.
"""

from __future__ import annotations

from typing import Any

import pytest

from shoal.model.contract import decisions, dra
from tests.admission.guarded import NODE, Guarded, Object, pod, refusals
from tests.suites.connection import Answer
from tests.testbed.waiting import wait_for

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{room}/resourceclaims"
OTHER = "gpu.example.com"
SCHEDULER = "system:kube-scheduler"
CLAIM_CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"
TENANT, NOBODY = "tenant", {"resource": "pods", "name": "nobody", "uid": "none"}


def result(driver: str = dra.DRIVER, device: str = "gpu-0") -> Object:
    return {"request": "gpu", "driver": driver, "pool": NODE, "device": device}


def allocated(*results: Object, **more: Any) -> Object:
    return {"status": {"allocation": {"devices": {"results": list(results)}}, **more}}


class Claim:
    """A claim of the tenant's, which everybody tries to write to."""

    def __init__(self, guarded: Guarded) -> None:
        self.guarded = guarded
        room = guarded.room()
        self.path = f"{CLAIMS.format(room=room)}/one"
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "any", "count": 2}}]
        body = {
            "metadata": {"name": "one", "finalizers": ["example.com/stay"]},
            "spec": {"devices": {"requests": requests}},
        }
        answer = guarded.ask(TENANT, "POST", self.path.removesuffix("/one"), body)
        assert answer.status == 201, answer.body

        pods = f"/api/v1/namespaces/{room}/pods"
        uid = guarded.must("POST", pods, pod("user", schedulerName="nobody"))["metadata"]["uid"]
        self.user = {"resource": "pods", "name": "user", "uid": uid}

    def write(self, who: str, status: Object) -> Answer:
        """One PATCH of the status."""
        return self.guarded.ask(who, "PATCH", f"{self.path}/status", status)

    def must(self, who: str, status: Object) -> None:
        answer = self.write(who, status)
        assert answer.status == 200, (who, status, answer.body)

    def must_not(self, who: str, status: Object, field: str) -> None:
        answer = self.write(who, status)
        assert answer.status in (403, 422), (who, status, answer.body)
        assert field in answer.body["message"]
        if self.guarded.real:
            (told,) = refusals(answer)
            assert told.startswith(f"ValidatingAdmissionPolicy '{decisions.POLICY_CLAIMS}' with binding")
            assert f"change {field} of a claim with devices of gpu.shoal.dev" in told
            assert f"bind ClusterRole {decisions.ROLE_CLAIMS}" in told

    def status(self) -> Object:
        return dict(self.guarded.must("GET", self.path).get("status") or {})


@pytest.fixture
def claim(guarded: Guarded) -> Claim:
    return Claim(guarded)


@pytest.mark.parametrize("who", [TENANT, "other-driver"])
def test_who_does_not_schedule_allocates_no_gpu(claim: Claim, who: str) -> None:
    for results in ((result(),), (result(OTHER), result())):
        claim.must_not(who, allocated(*results), "status.allocation")
    assert not claim.status()


@pytest.mark.parametrize("who", [TENANT, "other-driver"])
def test_who_does_not_schedule_changes_no_allocation(claim: Claim, who: str) -> None:
    claim.must(SCHEDULER, allocated(result(), reservedFor=[claim.user]))
    claim.must_not(who, {"status": {"reservedFor": None}}, "status.reservedFor")
    claim.must_not(
        who,
        {"status": {"allocation": None, "reservedFor": None}},
        "status.allocation, status.reservedFor" if claim.guarded.real else "status.allocation",
    )
    devices = [{"driver": dra.DRIVER, "pool": NODE, "device": "gpu-0", "data": {"a": "b"}}]
    claim.must_not(who, {"status": {"devices": devices}}, "status.devices" if claim.guarded.real else "status")
    assert "devices" not in claim.status()
    assert claim.status()["reservedFor"]


@pytest.mark.parametrize("who", ["admin", SCHEDULER, CLAIM_CONTROLLER, "shoal-scheduler", "other-scheduler"])
def test_who_schedules_allocates_and_deallocates(claim: Claim, who: str) -> None:
    claim.must(who, allocated(result(), reservedFor=[claim.user]))
    claim.must(who, {"status": {"allocation": None, "reservedFor": None}})
    assert not claim.status()


def test_devices_of_other_drivers_are_not_guarded(claim: Claim) -> None:
    """On the embedded server Kubernetes' own rule refuses the tenant instead."""
    who = "other-driver" if claim.guarded.real else SCHEDULER
    claim.must(who, allocated(result(OTHER), reservedFor=[claim.user]))
    devices = [{"driver": OTHER, "pool": NODE, "device": "gpu-0", "data": {"a": "b"}}]
    claim.must(TENANT, {"status": {"devices": devices}})
    claim.must(who, {"status": {"reservedFor": None}})
    claim.must(who, {"status": {"allocation": None}})


def test_another_driver_reports_on_its_device_beside_a_gpu(claim: Claim) -> None:
    claim.must(SCHEDULER, allocated(result(), result(OTHER)))
    devices = [{"driver": OTHER, "pool": NODE, "device": "gpu-0", "data": {"a": "b"}}]
    claim.must("other-driver" if claim.guarded.real else TENANT, {"status": {"devices": devices}})


def test_the_claim_controller_deallocates(claim: Claim) -> None:
    """Kubernetes' own, by the account that it has: the pod of the reservation is not there."""
    claim.guarded.must("PATCH", claim.path, {"metadata": {"finalizers": [dra.FINALIZER]}})
    claim.must(SCHEDULER, allocated(result(), reservedFor=[NOBODY]))
    wait_for(lambda: not claim.status(), "deallocated")


@pytest.mark.parametrize("guarded", [pytest.param("real", marks=pytest.mark.kube)], indirect=True)
def test_kube_scheduler_allocates(guarded: Guarded) -> None:
    """The real one: pod and claim have their GPU, with the policies in force."""
    assert guarded.plane is not None
    room = guarded.room()
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2099-01-01T00:00:00Z"}
    guarded.must(
        "PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"allocatable": {"pods": "9"}, "conditions": [ready]}}
    )
    version = "/apis/resource.k8s.io/v1"
    selector = {"cel": {"expression": f'device.driver == "{dra.DRIVER}"'}}
    guarded.must("POST", f"{version}/deviceclasses", {"metadata": {"name": "any"}, "spec": {"selectors": [selector]}})
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": dra.DRIVER, "nodeName": NODE, "pool": pool, "devices": [{"name": "gpu-of-stock"}]}
    guarded.must("POST", f"{version}/resourceslices", {"metadata": {"name": "guarded"}, "spec": spec})
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]
    body = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": requests}}}
    path = CLAIMS.format(room=room)
    assert guarded.ask(TENANT, "POST", path, body).status == 201
    uses: Object = {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
        "tolerations": [{"operator": "Exists"}],
    }
    wanted = pod("user", **uses)
    wanted["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    assert guarded.ask(TENANT, "POST", f"/api/v1/namespaces/{room}/pods", wanted).status == 201
    guarded.plane.start_scheduler()
    try:
        bound = lambda: guarded.must("GET", f"/api/v1/namespaces/{room}/pods/user")["spec"].get("nodeName")  # noqa: E731
        wait_for(lambda: bound() == NODE, "bound to the node of its claim")
    finally:
        guarded.plane.stop_schedulers()
    (given,) = guarded.must("GET", f"{path}/one")["status"]["allocation"]["devices"]["results"]
    assert (given["driver"], given["device"]) == (dra.DRIVER, "gpu-of-stock")
