"""The mutating policies of `deploy/`, all in force at once: on the embedded cluster, and on a real kube-apiserver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from shoal.embedded.policies.shipped import rendered
from shoal.model.contract import decisions, keti
from shoal.scheduler.kube_scheduler import MANAGED
from tests.admission.guarded import DEPLOY, Guarded, pod
from tests.admission.test_shipped import lists, variable
from tests.suites.connection import Connection
from tests.suites.embedded import EmbeddedServer
from tests.testbed.control_plane import own_control_plane
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

Object = dict[str, Any]
FOLDERS = ("admission-slot", "admission-strip", "admission-scheduler")
GROUP = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}
MEMORY = {"aliyun.com/gpu-mem": "3"}
COPY = {"note": "kept", **dict.fromkeys(decisions.DECISION_ANNOTATIONS, "x")}
SLOT = {"shoal.dev/gpu": "1"}


@pytest.fixture(scope="module")
def _embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The objects as kustomize renders them, since kubectl is not there without a Kubernetes."""
    server = EmbeddedServer(tmp_path_factory.mktemp("mutating"), controllers=True, admission="GiB")
    guarded = Guarded(Connection(server.kubeconfig()), server.create_namespace, real=False)
    for folder in FOLDERS:
        for obj in rendered(DEPLOY / folder):
            guarded.must("POST", f"{GROUP}/{PLURALS[obj['kind']]}", obj)
    yield guarded
    server.stop()


@pytest.fixture(scope="module")
def _kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = EmbeddedServer(tmp_path_factory.mktemp("mutating"), controllers=True, admission="GiB")
    for folder in FOLDERS:
        server.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / folder))
    yield Guarded(Connection(server.kubeconfig()), server.create_namespace, real=False)
    server.stop()


@pytest.fixture(scope="module")
def _real(testbed_run: Run) -> Iterator[Guarded]:
    with own_control_plane(testbed_run, "mutating") as plane:
        server = plane.api
        for folder in ("admission", *FOLDERS):
            server.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / folder))
        yield Guarded(Connection(server.kubeconfig()), server.create_namespace, real=True)


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param("kubectl", marks=pytest.mark.kube),
        pytest.param("real", marks=[pytest.mark.kube, pytest.mark.min_kube("1.36")]),
    ],
)
def changing(request: pytest.FixtureRequest) -> Guarded:
    """A cluster with all of them in force, and the refusing ones of `deploy/admission`."""
    made: Guarded = request.getfixturevalue(f"_{request.param}")
    made.prepare()
    room = made.room()
    probe = pod("probe", annotations=COPY, limits=MEMORY)

    def in_force() -> bool:
        answer = made.ask("tenant", "POST", f"/api/v1/namespaces/{room}/pods?dryRun=All", probe)
        if answer.status != 201:
            return False
        spec = answer.body["spec"]
        slot = spec["containers"][0]["resources"]["limits"].get("shoal.dev/gpu")
        return (spec["schedulerName"], slot) == (keti.SCHEDULER_NAME, "1")

    wait_for(in_force, "in force")
    return made


@pytest.fixture
def room(changing: Guarded) -> str:
    """A new namespace of the tenant."""
    return changing.room()


def made_of(changing: Guarded, room: str, obj: Object, query: str = "?dryRun=All") -> Object:
    """What becomes of a pod that the tenant makes."""
    answer = changing.ask("tenant", "POST", f"/api/v1/namespaces/{room}/pods{query}", obj)
    assert answer.status == 201, answer.body
    made: Object = answer.body
    return made


def scheduler_of(
    changing: Guarded, room: str, limits: dict[str, str], init: dict[str, str] | None = None, **more: Any
) -> str:
    """Who schedules a pod that was made so."""
    first = [{"name": "first", "image": "busybox", "resources": {"limits": init}}] if init else []
    return str(
        made_of(changing, room, pod("any", limits=limits, initContainers=first, **more))["spec"]["schedulerName"]
    )


@pytest.mark.parametrize("resource", list(MANAGED))
def test_every_family_goes_to_the_gpu_scheduler(changing: Guarded, room: str, resource: str) -> None:
    assert scheduler_of(changing, room, {resource: "1", "cpu": "100m"}) == keti.SCHEDULER_NAME
    assert scheduler_of(changing, room, {"cpu": "100m"}, init={resource: "1"}) == keti.SCHEDULER_NAME


def test_others_stay_where_they_are(changing: Guarded, room: str) -> None:
    default = "default-scheduler"
    assert scheduler_of(changing, room, {"cpu": "100m"}) == default
    assert scheduler_of(changing, room, {}) == default
    assert scheduler_of(changing, room, {"aliyun.com/gpu-mem": "0"}) == default
    assert scheduler_of(changing, room, {"example.com/gpu": "1"}) == default
    assert scheduler_of(changing, room, MEMORY, schedulerName="volcano") == "volcano"
    assert scheduler_of(changing, room, MEMORY, labels={"shoal.dev/scheduler": "default"}) == default
    assert scheduler_of(changing, room, MEMORY, nodeName="node-1") == default
    assert scheduler_of(changing, room, MEMORY, schedulerName=default) == keti.SCHEDULER_NAME, "cannot be told apart"


def test_a_namespace_that_wants_none_of_it(changing: Guarded, room: str) -> None:
    changing.must("PATCH", f"/api/v1/namespaces/{room}", {"metadata": {"labels": {"shoal.dev/scheduler": "default"}}})
    wait_for(lambda: scheduler_of(changing, room, MEMORY) == "default-scheduler", "left alone")


def test_pods_of_a_template_too(changing: Guarded, room: str) -> None:
    resources = {"limits": MEMORY}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": resources}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    changing.must("POST", f"/apis/apps/v1/namespaces/{room}/deployments", {"metadata": {"name": "web"}, "spec": spec})

    def made() -> list[tuple[str, Object]]:
        found = changing.must("GET", f"/api/v1/namespaces/{room}/pods?labelSelector=app%3Dweb")["items"]
        return [(one["spec"]["schedulerName"], one["spec"]["containers"][0]["resources"]["limits"]) for one in found]

    wait_for(lambda: made() == [(keti.SCHEDULER_NAME, MEMORY | SLOT)], "a pod of the template")


def test_every_container_that_asks_for_memory_gets_a_slot(changing: Guarded, room: str) -> None:
    asks, asks_not = {"limits": MEMORY}, {"limits": {"cpu": "1"}}
    containers = [
        {"name": "one", "image": "x", "resources": asks},
        {"name": "two", "image": "x", "resources": asks_not},
        {"name": "three", "image": "x", "resources": {"limits": MEMORY | SLOT}},
    ]
    first = [{"name": "first", "image": "x", "resources": asks}]
    made = made_of(changing, room, pod("any") | {"spec": {"containers": containers, "initContainers": first}})
    found = {one["name"]: one["resources"] for part in ("containers", "initContainers") for one in made["spec"][part]}
    both = {"limits": MEMORY | SLOT, "requests": MEMORY | SLOT}
    cpu = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    assert found == {"one": both, "two": cpu, "three": both, "first": both}


def test_a_copy_loses_its_record(changing: Guarded, room: str) -> None:
    pods = f"/api/v1/namespaces/{room}/pods"
    copy = pod("copy", annotations=COPY, limits=MEMORY)
    assert made_of(changing, room, copy, "")["metadata"]["annotations"] == {"note": "kept"}
    # Who may write them keeps them, and after its making nothing is stripped: a change is refused, or not there.
    kept = changing.must("POST", pods, pod("kept", annotations=COPY))
    assert kept["metadata"]["annotations"] == COPY
    numbers = itertools.count()

    def refused() -> bool:
        """Each time another value: one that was let through before the policies were in force is no change any more."""
        patch = {"metadata": {"annotations": {"UUID": f"y{next(numbers)}"}}}
        return changing.ask("tenant", "PATCH", f"{pods}/copy", patch).status == 403

    wait_for(refused, "refusing")


def test_annotations_are_those_of_the_contract() -> None:
    policy, _ = yaml.safe_load_all((DEPLOY / "admission-strip" / "policy.yaml").read_text())
    assert lists(variable(policy, "decided")) == [list(decisions.DECISION_ANNOTATIONS)]


def test_resources_are_those_that_the_extender_is_asked_about() -> None:
    policy, _ = yaml.safe_load_all((DEPLOY / "admission-scheduler" / "policy.yaml").read_text())
    (asks,) = [one["expression"] for one in policy["spec"]["matchConditions"] if one["name"] == "asks-for-gpus"]
    assert sorted(MANAGED) == sorted(next(names for names in lists(asks) if names))
