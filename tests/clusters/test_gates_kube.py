"""`deploy/cluster-manager` on a real control plane: which pods are held, and that nobody but the manager opens them.

The tenant may do everything in its namespace, and tries every way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from shoal.model.contract import clusters as contract
from shoal.scheduler.kube_scheduler import MANAGED
from tests.admission.guarded import DEPLOY, Guarded, Object, binding, pod, refusals
from tests.admission.test_shipped import lists
from tests.suites.connection import Answer, Connection
from tests.testbed.control_plane import own_control_plane
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.min_kube("1.36")

GPU = {"aliyun.com/gpu-mem": "8"}
SENT = '{"attempt":1,"cluster":"c","uid":"u"}'
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
OPENS = "only the cluster manager removes scheduling gate shoal.dev/cluster"
DROPS = "only the cluster manager removes finalizer shoal.dev/cluster"
SAYS = "only the cluster manager says where a pod was sent"


@dataclass
class Home:
    """The cluster where pods are submitted. `team` takes part; `other` does not."""

    guarded: Guarded
    team: str
    other: str

    def ask(self, who: str, method: str, path: str, body: object = None, content: str = "application/json") -> Answer:
        token = None if who == "admin" else self.guarded.tokens[who]
        data = None if body is None else json.dumps(body).encode()
        return self.guarded.connection.request(method, path, data, {"Content-Type": content}, token=token)

    def pods(self, namespace: str = "") -> str:
        return f"/api/v1/namespaces/{namespace or self.team}/pods"

    def make(self, manifest: Object, *, who: str = "tenant", namespace: str = "", query: str = "") -> Object:
        answer = self.ask(who, "POST", f"{self.pods(namespace)}{query}", manifest)
        assert answer.status == 201, answer.body
        made: Object = answer.body
        return made

    def read(self, name: str) -> Object:
        found: Object = self.guarded.must("GET", f"{self.pods()}/{name}")
        return found


@pytest.fixture(scope="module")
def home(testbed_run: Run) -> Iterator[Home]:
    with own_control_plane(testbed_run, "gates") as plane:
        api = plane.api
        api.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / "cluster-manager"))
        guarded = Guarded(Connection(api.kubeconfig()), api.create_namespace, real=True)
        other = guarded.room()
        team = guarded.room()  # the tenant's token is that of the last
        api.kubectl("label", "namespace", team, "shoal.dev/dispatch=enabled")
        guarded.tokens["manager"] = guarded._token("shoal-clusters", contract.NAME_MANAGER)
        guarded.must("POST", "/api/v1/nodes", {"metadata": {"name": "guarded-node"}})
        made = Home(guarded, team, other)
        wait_for(lambda: held(made.make(pod("probe", limits=GPU), query="?dryRun=All")), "in force")
        probe = pod("probe", annotations={contract.ANNOTATION_DISPATCH: SENT})
        wait_for(lambda: any(refusals(made.ask("tenant", "POST", made.pods(), probe))), "refusing")
        bound = binding("probe", {contract.ANNOTATION_DISPATCH: SENT})
        path = f"/api/v1/namespaces/{team}/bindings"
        wait_for(lambda: any(refusals(made.ask("tenant", "POST", path, bound))), "refusing bindings")
        yield made


def held(made: Object) -> bool:
    gates = [gate["name"] for gate in made["spec"].get("schedulingGates") or ()]
    finalizers = made["metadata"].get("finalizers") or []
    assert gates.count(contract.GATE_HOME) == finalizers.count(contract.FINALIZER_HOME) <= 1, made
    return contract.GATE_HOME in gates


@pytest.mark.parametrize("resource", [*MANAGED, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_every_family_is_held(home: Home, resource: str) -> None:
    assert held(home.make(pod("x", limits={resource: "1"}), query="?dryRun=All"))
    first = {"name": "first", "image": "x", "resources": {"limits": {resource: "1"}}}
    assert held(home.make(pod("x", initContainers=[first]), query="?dryRun=All"))


def test_what_is_not_held(home: Home) -> None:
    dry = {"query": "?dryRun=All"}
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    of_daemonset = pod("x", limits=GPU)
    of_daemonset["metadata"]["ownerReferences"] = [owner]
    copy = pod("x", limits=GPU, annotations={contract.ANNOTATION_ORIGIN: "{}"})
    labelled = pod("x", limits=GPU, labels={contract.LABEL_ORIGIN: "u"})
    assert not held(home.make(pod("x"), **dry))
    assert not held(home.make(pod("x", limits={"aliyun.com/gpu-mem": "0"}), **dry))
    assert not held(home.make(pod("x", limits={"example.com/gpu": "1"}), **dry))
    assert not held(home.make(of_daemonset, **dry))
    assert not held(home.make(copy, **dry))
    assert not held(home.make(labelled, **dry))
    assert not held(home.make(pod("x", limits=GPU, nodeName="guarded-node"), **dry))
    assert not held(home.make(pod("x", limits=GPU), who="admin", namespace=home.other, **dry))


def test_what_is_there_does_not_double_and_the_rest_is_added(home: Home) -> None:
    gates = [{"name": "mine"}, {"name": contract.GATE_HOME}]
    gated = pod("x", limits=GPU, schedulingGates=gates)
    gated["metadata"]["finalizers"] = ["example.com/mine"]
    made = home.make(gated, query="?dryRun=All")
    assert held(made)
    assert made["spec"]["schedulingGates"] == gates
    assert made["metadata"]["finalizers"] == ["example.com/mine", contract.FINALIZER_HOME]
    kept = pod("x", limits=GPU, schedulingGates=[{"name": "mine"}])
    kept["metadata"]["finalizers"] = [contract.FINALIZER_HOME]
    made = home.make(kept, query="?dryRun=All")
    assert held(made)
    assert made["spec"]["schedulingGates"] == [{"name": "mine"}, {"name": contract.GATE_HOME}]


def test_another_policy_that_runs_between_does_not_double_it(home: Home) -> None:
    """`admission-slot` changes the pod, so that this policy runs again."""
    for name in ("admission-slot",):
        for obj in yaml.safe_load_all((DEPLOY / name / "policy.yaml").read_text()):
            plural = "mutatingadmissionpolicy" + ("bindings" if obj["kind"].endswith("Binding") else "s")
            plural = plural.replace("policys", "policies")
            home.guarded.must("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", obj)

    def made() -> Object:
        return home.make(pod("x", limits=GPU), query="?dryRun=All")

    wait_for(lambda: "shoal.dev/gpu" in made()["spec"]["containers"][0]["resources"]["limits"], "in force too")
    assert held(made())


def test_pods_of_a_job_are_held_and_the_job_waits(home: Home) -> None:
    template = pod("", limits=GPU, restartPolicy="Never")
    del template["metadata"]["name"]
    path = f"/apis/batch/v1/namespaces/{home.team}/jobs"
    job = {"metadata": {"name": "train"}, "spec": {"template": template}}
    assert home.ask("tenant", "POST", path, job).status == 201

    def made() -> list[Object]:
        found: list[Object] = home.guarded.must("GET", f"{home.pods()}?labelSelector=job-name%3Dtrain")["items"]
        return found

    wait_for(lambda: len(made()) == 1, "a pod of the Job")
    assert held(made()[0])


def _whole(home: Home, name: str, change: Callable[[Object], None]) -> Object:
    found = home.read(name)
    change(found)
    return found


def _open(found: Object) -> None:
    found["spec"].pop("schedulingGates", None)


def _drop(found: Object) -> None:
    found["metadata"].pop("finalizers", None)


def _redirect(found: Object) -> None:
    found["metadata"].setdefault("annotations", {})[contract.ANNOTATION_DISPATCH] = SENT


@pytest.fixture
def victim(home: Home, request: pytest.FixtureRequest) -> str:
    """A pod that is held, with the manager's word on where it was sent."""
    name = f"held-{abs(hash(request.node.name)) % 10**9}"
    home.make(pod(name, limits=GPU, annotations={"note": "a"}))
    sent = {"metadata": {"annotations": {contract.ANNOTATION_DISPATCH: SENT}}}
    assert home.ask("manager", "PATCH", f"{home.pods()}/{name}", sent, MERGE).status == 200
    return name


#: Method, what follows the pod's path, the kind of patch, the body, and the words; none: nothing may come of it.
Attempt = tuple[str, str, str, Any, str]
ATTEMPTS: list[Attempt] = [
    ("PATCH", "", MERGE, {"spec": {"schedulingGates": None}}, OPENS),
    ("PATCH", "", MERGE, {"spec": {"schedulingGates": []}}, OPENS),
    (
        "PATCH",
        "",
        STRATEGIC,
        {"spec": {"schedulingGates": [{"$patch": "delete", "name": "shoal.dev/cluster"}]}},
        OPENS,
    ),
    ("PATCH", "", JSON_PATCH, [{"op": "remove", "path": "/spec/schedulingGates"}], OPENS),
    ("PATCH", "", JSON_PATCH, [{"op": "remove", "path": "/spec/schedulingGates/0"}], OPENS),
    ("PUT", "", "application/json", _open, OPENS),
    ("PATCH", "/status", MERGE, {"spec": {"schedulingGates": None}}, ""),
    ("PUT", "/status", "application/json", _open, ""),
    ("PUT", "/ephemeralcontainers", "application/json", _open, ""),
    ("PATCH", "/ephemeralcontainers", STRATEGIC, {"spec": {"schedulingGates": None}}, ""),
    ("PATCH", "/resize", STRATEGIC, {"spec": {"schedulingGates": None}}, ""),
    ("PATCH", "", MERGE, {"metadata": {"finalizers": None}}, DROPS),
    ("PATCH", "", JSON_PATCH, [{"op": "remove", "path": "/metadata/finalizers/0"}], DROPS),
    ("PATCH", "", STRATEGIC, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["shoal.dev/cluster"]}}, DROPS),
    ("PUT", "", "application/json", _drop, DROPS),
    ("PATCH", "/status", MERGE, {"metadata": {"finalizers": None}}, DROPS),
    ("PUT", "/status", "application/json", _drop, DROPS),
    ("PATCH", "", MERGE, {"metadata": {"annotations": {"shoal.dev/dispatch": None}}}, SAYS),
    ("PATCH", "", MERGE, {"metadata": {"annotations": {"shoal.dev/dispatch": "{}"}}}, SAYS),
    ("PATCH", "/status", MERGE, {"metadata": {"annotations": {"shoal.dev/dispatch": "{}"}}}, SAYS),
    ("PATCH", "", MERGE, {"metadata": {"annotations": None}}, SAYS),
    ("POST", "/binding", "application/json", binding("x"), ""),
    ("POST", "/binding", "application/json", binding("x", {"shoal.dev/dispatch": SENT}), SAYS),
]


@pytest.mark.parametrize(
    "attempt", ATTEMPTS, ids=lambda one: f"{one[0]}{one[1]}-{one[2].rpartition('/')[2]}-{ATTEMPTS.index(one)}"
)
def test_a_tenant_opens_nothing(home: Home, victim: str, attempt: Attempt) -> None:
    method, part, content, body, words = attempt
    before = home.read(victim)
    if callable(body):
        body = _whole(home, victim, body)
    if part == "/binding":
        body["metadata"]["name"] = victim
    answer = home.ask("tenant", method, f"{home.pods()}/{victim}{part}", body, content)
    if words:
        assert (answer.status, any(words in said for said in refusals(answer))) == (403, True), answer.body
    after = home.read(victim)
    assert held(after)
    assert after["metadata"]["finalizers"] == before["metadata"]["finalizers"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert "nodeName" not in after["spec"]


def test_nor_by_server_side_apply(home: Home, victim: str) -> None:
    path = f"{home.pods()}/{victim}?fieldManager=Mozilla&force=true"
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": victim, "finalizers": []}, "spec": {}}
    home.ask("tenant", "PATCH", path, applied, APPLY)
    assert held(home.read(victim))


def test_nor_by_deleting_it_by_force(home: Home, victim: str) -> None:
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    assert home.ask("tenant", "DELETE", f"{home.pods()}/{victim}", options).status in (200, 202)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim}}
    home.ask("tenant", "POST", f"{home.pods()}/{victim}/eviction", eviction)
    assert home.ask("tenant", "DELETE", home.pods()).status in (200, 202)  # the whole collection
    gone = home.ask("tenant", "PATCH", f"{home.pods()}/{victim}", {"metadata": {"finalizers": []}}, MERGE)
    assert any(DROPS in said for said in refusals(gone)), gone.body
    assert home.read(victim)["metadata"]["deletionTimestamp"]
    released = home.ask("manager", "PATCH", f"{home.pods()}/{victim}", {"metadata": {"finalizers": []}}, MERGE)
    assert released.status == 200, released.body
    wait_for(lambda: home.ask("admin", "GET", f"{home.pods()}/{victim}").status == 404, "gone")


@pytest.mark.parametrize("who", ["tenant", "manager", "admin"])
def test_nobody_makes_a_pod_that_was_sent_somewhere(home: Home, who: str) -> None:
    sent = pod("x", limits=GPU, annotations={contract.ANNOTATION_DISPATCH: SENT})
    answer = home.ask(who, "POST", f"{home.pods()}?dryRun=All", sent)
    if who == "manager":  # it may make no pods at all
        assert answer.status == 403
    else:
        assert any("nobody makes a pod that was sent to a cluster already" in said for said in refusals(answer))


def test_what_else_a_tenant_does_is_its_own(home: Home, victim: str) -> None:
    path = f"{home.pods()}/{victim}"
    noted = {"metadata": {"annotations": {"clusterName": "west"}, "finalizers": [contract.FINALIZER_HOME, "a.b/c"]}}
    assert home.ask("tenant", "PATCH", path, noted, MERGE).status == 200
    fewer = {"metadata": {"finalizers": [contract.FINALIZER_HOME]}}
    assert home.ask("tenant", "PATCH", path, fewer, MERGE).status == 200


def test_the_manager_and_an_administrator_may(home: Home, victim: str) -> None:
    opened = [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "remove", "path": "/metadata/finalizers"},
        {"op": "remove", "path": "/metadata/annotations/shoal.dev~1dispatch"},
    ]
    for who in ("manager", "admin"):
        query = "?dryRun=All" if who == "manager" else ""
        assert home.ask(who, "PATCH", f"{home.pods()}/{victim}{query}", opened, JSON_PATCH).status == 200
    assert not held(home.read(victim))


def test_what_is_held_stays_held_when_the_namespace_no_longer_takes_part(home: Home, victim: str) -> None:
    label = {"metadata": {"labels": {contract.LABEL_DISPATCH: None}}}
    space = f"/api/v1/namespaces/{home.team}"
    assert home.ask("admin", "PATCH", space, label, MERGE).status == 200
    try:
        opened = {"spec": {"schedulingGates": None}}
        answer = home.ask("tenant", "PATCH", f"{home.pods()}/{victim}", opened, MERGE)
        assert any(OPENS in said for said in refusals(answer))
    finally:
        back = {"metadata": {"labels": {contract.LABEL_DISPATCH: contract.ENABLED}}}
        assert home.ask("admin", "PATCH", space, back, MERGE).status == 200


def test_the_managers_account_may_do_no_more_than_it_needs(home: Home) -> None:
    for method, path in (
        ("POST", home.pods()),
        ("DELETE", f"{home.pods()}/x"),
        ("GET", f"/api/v1/namespaces/{home.team}/secrets"),
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        ("GET", f"/api/v1/namespaces/{home.team}/configmaps"),
        ("GET", "/api/v1/nodes"),
    ):
        assert home.ask("manager", method, path, {} if method == "POST" else None).status == 403, (method, path)
    for path in (home.pods(), "/api/v1/namespaces/shoal-clusters/secrets", "/api/v1/namespaces/kube-system"):
        assert home.ask("manager", "GET", path).status == 200, path


def test_names_are_those_of_the_contract() -> None:
    text = (DEPLOY / "cluster-manager" / "gates.yaml").read_text()
    documents = [obj for obj in yaml.safe_load_all(text) if obj]
    mutating = next(obj for obj in documents if obj["kind"] == "MutatingAdmissionPolicy")
    (asks,) = [one["expression"] for one in mutating["spec"]["matchConditions"] if one["name"] == "asks-for-gpus"]
    assert set(MANAGED) <= set(next(names for names in lists(asks) if names))
    selector = mutating["spec"]["matchConstraints"]["namespaceSelector"]["matchLabels"]
    assert selector == {contract.LABEL_DISPATCH: contract.ENABLED}
    for name in (contract.GATE_HOME, contract.ANNOTATION_DISPATCH, contract.ANNOTATION_ORIGIN, contract.LABEL_ORIGIN):
        assert f"'{name}'" in text
    assert contract.GATE_HOME == contract.FINALIZER_HOME
