"""The table, and what changes of objects are let through, asked of a real kube-apiserver with `deploy/admission`."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.model.contract import decisions, load, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import RequestError
from shoal.model.manifest import read_pod
from shoal.model.pod import request_of
from tests.admission.table import CASES, KINDS, Case, Change, Object, denial, every_change, manifest
from tests.soak import times
from tests.testbed.apiserver import ApiServer
from tests.testbed.control_plane import ControlPlane
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDERS = {MemoryUnit.GIB: "admission", MemoryUnit.MIB: "admission-mib"}


@pytest.fixture(scope="module")
def server(testbed_run: Run) -> Iterator[ApiServer]:
    """A server of this module's own: what it refuses, other tests make."""
    server = ApiServer(testbed_run, "admission")
    server.create_namespace("cases")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def unit(request: pytest.FixtureRequest, server: ApiServer) -> MemoryUnit:
    """The unit whose policies are in force on the server."""
    unit: MemoryUnit = request.param
    install(server, unit)
    return unit


@pytest.fixture(scope="module")
def guarded(server: ApiServer) -> ApiServer:
    """The server with the policies for GiB in force."""
    install(server, MemoryUnit.GIB)
    return server


def install(server: ApiServer, unit: MemoryUnit) -> None:
    server.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / FOLDERS[unit]))
    probe = next(case for case in CASES if case.name == f"10G in {unit}")
    in_force = lambda: all(  # noqa: E731
        create(server, kind, probe.object(kind))[1] == denial(kind, probe.refused) for kind in KINDS
    )
    wait_for(in_force, f"refusing in {unit}")


def create(server: ApiServer, kind: str, obj: Object, namespace: str = "cases") -> tuple[int, Object]:
    return server.try_request("POST", f"{path(kind, namespace)}?dryRun=All", obj)


def path(kind: str, namespace: str) -> str:
    group, plural, _ = KINDS[kind]
    return f"/{f'apis/{group}' if group else 'api'}/v1/namespaces/{namespace}/{plural}"


@pytest.mark.parametrize(
    ("unit", "case"),
    [
        pytest.param(case.unit, case, id=case.name)
        for case in sorted(CASES, key=lambda case: case.unit)
        if not case.server
    ],
    indirect=["unit"],
)
def test_policies(case: Case, server: ApiServer, unit: MemoryUnit) -> None:
    assert unit is case.unit
    for kind in KINDS:
        status, told = create(server, kind, case.object(kind))
        if case.denied:
            assert (status, told) == (403, denial(kind, case.refused))
        else:
            assert status == 201, told


# Older servers say some of it in other words.
@pytest.mark.min_kube("1.36")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.server])
def test_what_the_server_refuses_by_itself(case: Case, guarded: ApiServer) -> None:
    status, told = create(guarded, "Pod", case.object("Pod"))
    assert status in (400, 422)
    assert told["message"].endswith(f": {case.server}")


@every_change
def test_changes(change: Change, guarded: ApiServer) -> None:
    namespace = f"change-{uuid.uuid4().hex[:12]}"
    guarded.create_namespace(namespace)
    probe = next(case for case in CASES if case.name == "10G in GiB")
    mark(guarded, namespace, "ignore")
    wait_for(lambda: create(guarded, "Pod", probe.object("Pod"), namespace)[0] == 201, "ignored")
    guarded.request("POST", path(change.kind, namespace), change.before)
    mark(guarded, namespace, None)
    wait_for(lambda: create(guarded, "Pod", probe.object("Pod"), namespace)[0] != 201, "looked at again")
    status, told = guarded.try_request(
        "PATCH", f"{path(change.kind, namespace)}/web", change.patch, "application/merge-patch+json"
    )
    if change.refused:
        assert (status, told) == (403, denial(change.kind, change.refused))
    else:
        assert status == 200, told


def mark(server: ApiServer, namespace: str, value: str | None) -> None:
    patch = {"metadata": {"labels": {"shoal.dev/admission": value}}}
    server.request("PATCH", f"/api/v1/namespaces/{namespace}", patch, "application/merge-patch+json")


def test_kubectl_shows_the_words(guarded: ApiServer) -> None:
    case = next(case for case in CASES if case.name == "memory does not divide")
    told = guarded.kubectl(
        "apply", "-n", "cases", "-f", "-", input=yaml.safe_dump(case.object("Deployment")), check=False
    )
    assert told.startswith("Error from server (Forbidden): ")
    assert told.rstrip().endswith(f"denied request: {case.refused}")


AMOUNTS = st.sampled_from(
    [
        *("0", "1", "3", "+4", "010", "12", "100", "101", "257", "300", "1e2", "12e3", "16000", "2048", "2049"),
        *("2k", "1Ki", "1.5k", "1.500M", "3M", "8G", "10G", "1500M", "80Gi", "10240Mi", "1T", "1P", "1E", "1e19"),
    ]
)
RESOURCES = st.dictionaries(
    st.sampled_from(["aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "keti.com/mpsgpu", "nvidia.com/gpu"]),
    AMOUNTS,
    max_size=2,
)
LABELS = st.fixed_dictionaries(
    {},
    optional={
        "aliyun.com/gpu-count": st.sampled_from(["1", "2", "3", "04", "256", "257", "0", "", "x", "1.0", "9" * 30]),
        "ack.gpushare.placement": st.sampled_from(["require-whole-device", "", "x", "W" * 63]),
    },
)
#: Python and Go agree about what is blank but for these four.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x1c\x1d\x1e\x1f"), max_size=70)
SIZES = TEXT | st.sampled_from(
    ["1Gi", "2Gi", " 4G", "1e9\n", "-1", "1.5", "1e-64", "9e64", "3Ti", "0", "1m", "2.Ki", ".5G"]
)
LISTS = TEXT | st.lists(
    st.sampled_from(["A100", "a100 SXM4", "A100-SXM4-80GB", "T4", "-", "", "GPU-1", " GPU-2 ", "ß", "\t", "X" * 70]),
    max_size=4,
).map(",".join)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["GPUrequest", "GPUlimits"], SIZES),
        **dict.fromkeys(["shoal.dev/use-gpu-model", "shoal.dev/avoid-gpu-model"], LISTS),
        **dict.fromkeys(["shoal.dev/use-gpu-uuid", "shoal.dev/avoid-gpu-uuid"], LISTS),
        "shoal.dev/policy": TEXT | st.sampled_from(["binpack", " spread ", "a b", "A" * 63, "A" * 64]),
    },
)


@settings(max_examples=times(300), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(RESOURCES, min_size=1, max_size=3), LABELS, ANNOTATIONS)
def test_policy_and_model_agree(guarded: ApiServer, asks: list[Object], labels: Object, annotations: Object) -> None:
    """Whatever kube-apiserver takes for a pod, the policy says of it what the model says."""
    containers = [{"name": f"c{n}", "image": "x", "resources": {"limits": ask}} for n, ask in enumerate(asks)]
    pod = manifest("Pod", labels=labels, annotations=annotations, spec={"containers": containers})
    try:
        request_of(read_pod(pod), unit=MemoryUnit.GIB)
        expected = None
    except RequestError as error:
        expected = denial("Pod", str(error))
    status, told = create(guarded, "Pod", pod)
    assert (status, told if status != 201 else None) == (403 if expected else 201, expected)


def test_policies_are_type_checked(control_plane: ControlPlane) -> None:
    """kube-controller-manager finds no fault with them, and would have found one."""
    policies = {
        obj["metadata"]["name"]: obj
        for folder in ("admission", "agent", "metrics")
        for obj in yaml.safe_load_all(
            control_plane.api.kubectl("kustomize", str(DEPLOY / folder))
            if folder != "metrics"
            else (DEPLOY / "metrics" / "own-lease.yaml").read_text()
        )
        if obj["kind"] == "ValidatingAdmissionPolicy"
    }
    assert policies.keys() == {
        *(policy for _, _, policy in KINDS.values()),
        *(*decisions.POLICIES_DECISIONS, *decisions.POLICIES_VISIBLE_DEVICES),
        *(decisions.POLICY_EXEMPTIONS, decisions.POLICY_CLAIMS, decisions.POLICY_MADE_CLAIMS),
        *("shoal-agent-own-node", "shoal-agent-own-node-pods", "shoal-agent-own-node-events"),
        load.POLICY_LOAD,
    }
    for name, policy in policies.items():
        assert warnings_about(control_plane.api, policy) == [], name
        assert warnings_about(control_plane.api, with_variables_checked(policy)) == [], name
    mistaken = copy.deepcopy(policies[shoal.POLICY_PODS])
    mistaken["spec"]["variables"][2]["expression"] += ".mistake"
    found = warnings_about(control_plane.api, with_variables_checked(mistaken))
    assert "undefined field 'mistake'" in found[0]["warning"]


def with_variables_checked(policy: Object) -> Object:
    """The same variables in a validation: a mistake in a variable itself is not reported."""
    expressions = [f"[{variable['expression']}].size() == 1" for variable in policy["spec"]["variables"]]
    return {**policy, "spec": {**policy["spec"], "validations": [{"expression": " && ".join(expressions)}]}}


def warnings_about(server: ApiServer, policy: Object) -> list[Object]:
    """What kube-controller-manager says about a policy. It has no binding, so it changes nothing for other tests."""
    where = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    name = f"checked-{uuid.uuid4().hex[:12]}"
    server.request("POST", where, {**policy, "metadata": {"name": name}})
    wait_for(lambda: "typeChecking" in server.request("GET", f"{where}/{name}").get("status", {}), "type-checked")
    status = server.request("GET", f"{where}/{name}")["status"]
    server.request("DELETE", f"{where}/{name}")
    warnings: list[Object] = status["typeChecking"].get("expressionWarnings", [])
    return warnings
