"""The ClusterPolicy on a real API server: no warnings, defaults, words of refusal, and what kubectl shows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from shoal.cli.main import main
from shoal.operator.crd import FILE, NAME
from shoal.operator.migrate import migrate
from shoal.operator.policy import ClusterPolicySpec, read_policy, written
from shoal.operator.policy_status import (
    ClusterPolicyStatus,
    ComponentStatus,
    PolicyCondition,
    ProblemStatus,
    TroubledNode,
)
from tests.operator.migration_cases import MIGRATIONS, MigrationCase, nvidia_policy
from tests.operator.policy_cases import CASES, PolicyCase, at, policy
from tests.operator.policy_strategies import SPECS
from tests.soak import times
from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.kube

CRD = Path(__file__).parents[2] / "charts" / "shoal" / "crds" / FILE
POLICIES = "/apis/shoal.dev/v1/clusterpolicies"
#: Nothing but the names of it: a kind of another project with the same plural.
FOREIGN = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: clusterpolicies.{group}}}
spec:
  group: {group}
  scope: Cluster
  names: {{kind: ClusterPolicy, plural: clusterpolicies, singular: clusterpolicy, shortNames: {short}}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"""


@pytest.fixture(scope="module")
def server(testbed_run: Run) -> Iterator[ApiServer]:
    """A server that has the definition."""
    server = ApiServer(testbed_run, "policies")
    said = server.kubectl("apply", "--validate=strict", "-f", str(CRD), check=False)
    assert said == f"customresourcedefinition.apiextensions.k8s.io/{NAME} created\n"  # and no warning
    wait_for(lambda: server.try_request("GET", POLICIES)[0] == 200, "serving policies")
    yield server
    server.stop()


def create(server: ApiServer, spec: object) -> tuple[int, dict[str, Any]]:
    return server.try_request("POST", f"{POLICIES}?dryRun=All&fieldValidation=Strict", policy(spec))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_policy_is_taken_with_its_defaults_or_refused_in_words(server: ApiServer, case: PolicyCase) -> None:
    status, answer = create(server, case.spec)
    if case.refused:
        assert status in (400, 422)
        for words in case.refused:
            assert words in answer["message"]
        return
    assert status == 201, answer
    # The server's defaults are the reader's.
    reading = read_policy(policy(case.spec))
    assert read_policy(answer) == reading
    assert (answer["spec"] == written(reading.spec)) is not case.stored
    assert {path: at(answer["spec"], path) for path in case.reads} == case.reads


@pytest.mark.parametrize("case", MIGRATIONS, ids=lambda case: case.name)
def test_a_migrated_policy_is_taken(server: ApiServer, case: MigrationCase) -> None:
    (made,) = migrate([nvidia_policy(case.nvidia)])
    status, answer = server.try_request("POST", f"{POLICIES}?dryRun=All&fieldValidation=Strict", made.policy)
    assert status == 201, answer
    assert read_policy(answer) == read_policy(made.policy)
    assert written(read_policy(made.policy).spec) == answer["spec"]


def test_the_definition_is_applied_by_the_command(server: ApiServer) -> None:
    """As the chart's hook does, with its rights: over what another version left, and where there is none."""
    for one in yaml.safe_load_all(rendered("hooks/crds.yaml")):
        if one["kind"] == "ClusterRole":
            server.kubectl("apply", "-f", "-", input=yaml.safe_dump(one))
            server.kubectl(
                "create", "clusterrolebinding", "hook", f"--clusterrole={one['metadata']['name']}", "--user=hook"
            )
    old = yaml.safe_load(CRD.read_text())
    versions = old["spec"]["versions"][0]
    del versions["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["sharing"]
    del versions["additionalPrinterColumns"]
    server.kubectl("replace", "-f", "-", input=yaml.safe_dump(old))
    for before in ("there", "there", "gone"):
        if before == "gone":
            server.kubectl("delete", "crd", NAME)
        done = CliRunner().invoke(main, ["crds", "apply", "--kubeconfig", str(server.kubeconfig("hook"))])
        assert (done.exit_code, done.output) == (0, f"customresourcedefinition {NAME} is served\n")
    found = server.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}")
    assert "sharing" in found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    wait_for(lambda: server.try_request("GET", POLICIES)[0] == 200, "serving policies")
    assert CliRunner().invoke(main, ["crds", "print"]).output == CRD.read_text()


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["driver.enabled=false", "migManager.enabled=false", "vgpuManager.enabled=false", "vfioManager.enabled=false"],
        ["driver.enabled=true", "driver.repository=r.example.org", "driver.image=driver", "driver.version=1.2.3"],
        ["driver.upgradePolicy.maxUnavailable=3", "sharing.memoryUnit=MiB", "devicePlugin.config.name=profiles"],
    ],
)
def test_what_the_chart_makes_is_taken(server: ApiServer, values: list[str]) -> None:
    made = yaml.safe_load(rendered("operator/clusterpolicy.yaml", values))
    status, answer = server.try_request("POST", f"{POLICIES}?dryRun=All&fieldValidation=Strict", made)
    assert status == 201, answer
    reading = read_policy(made)
    assert reading.problems == ()
    assert read_policy(answer) == reading


def rendered(template: str, values: Sequence[str] = ()) -> str:
    """A template of the chart."""
    sets = [option for value in values for option in ("--set", value)]
    chart = str(CRD.parents[1])
    command = [str(binaries.find("helm")), "template", "shoal", chart, "--show-only", f"templates/{template}", *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_who_may_not_apply_the_definition_is_told(server: ApiServer) -> None:
    done = CliRunner().invoke(main, ["crds", "apply", "--kubeconfig", str(server.kubeconfig("nobody"))])
    assert done.exit_code == 1
    assert "403" in done.output
    assert "Traceback" not in done.output


@settings(deadline=None, max_examples=times(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=SPECS)
def test_server_and_reader_agree(server: ApiServer, spec: dict[str, Any]) -> None:
    status, answer = create(server, spec)
    reading = read_policy(policy(spec))
    refused = [str(one) for one in reading.problems if one.effect != "ignored" and "limit lets" not in one.why]
    assert (status == 201) is not bool(refused), (refused, answer)
    if status == 201:
        assert read_policy(answer) == reading
        if not any(one.effect != "ignored" for one in reading.problems):
            assert written(reading.spec) == answer["spec"]


def test_a_policy_without_a_spec_is_the_default(server: ApiServer) -> None:
    body = policy({})
    del body["spec"]
    status, answer = server.try_request("POST", f"{POLICIES}?dryRun=All&fieldValidation=Strict", body)
    assert status == 201
    assert answer["spec"] == written(ClusterPolicySpec())


def test_a_refusal_names_the_value(server: ApiServer) -> None:
    _, answer = create(server, {"driver": {"upgradePolicy": {"maxUnavailable": "0"}}})
    assert "spec.driver.upgradePolicy.maxUnavailable: Invalid value: " in answer["message"]
    assert "'0' lets no node change, or cannot be read: write a number from 1" in answer["message"]


def test_kubectl_explain_teaches(server: ApiServer) -> None:
    told = server.kubectl("explain", f"{NAME}.spec.driver")
    assert "NVIDIA's driver, by NVIDIA's image. Nodes that have a driver keep theirs." in " ".join(told.split())
    assert "kernelModuleType\t<string>" in told
    assert "enum: auto, open, proprietary" in told
    leaf = server.kubectl("explain", f"{NAME}.spec.driver.upgradePolicy.maxUnavailable")
    assert "1% to 100% of all, rounded up" in " ".join(leaf.split())
    assert "troubled" not in leaf
    status = server.kubectl("explain", f"{NAME}.status.nodes")
    assert "What keeps the node at this step." in status


def test_kubectl_get_shows_status_ready_and_what_is_waited_for(server: ApiServer) -> None:
    for group, short in (("kyverno.io", "[cpol]"), ("nvidia.com", "[]")):
        server.kubectl("apply", "--server-side", "-f", "-", input=FOREIGN.format(group=group, short=short))
        foreign = f"/apis/{group}/v1/clusterpolicies"
        wait_for(lambda: server.try_request("GET", foreign)[0] == 200, f"serving {group}")  # noqa: B023
    server.kubectl(
        "apply", "--validate=strict", "-f", "-", input=yaml.safe_dump(policy({"driver": {"enabled": False}}))
    )
    status = ClusterPolicyStatus(
        state="notReady",
        namespace="gpu-operator",
        ready="48/50",
        waiting_for="driver on 2 nodes",
        observed_generation=1,
        conditions=(
            PolicyCondition(
                type="Ready", status="False", reason="NodesNotReady", last_transition_time="2026-01-01T00:00:00Z"
            ),
        ),
        components=(ComponentStatus(name="driver", state="notReady", ready="48/50", message="m"),),
        nodes=tuple(
            TroubledNode(name=f"node-{number}", step="driver", since="2026-01-01T00:00:00Z", why="w", fix="f")
            for number in range(100)
        ),
        more_nodes=1,
        problems=(ProblemStatus(field="spec.x", value="'1'", why="w", fix="f", effect="ignored"),),
    )
    path = f"{POLICIES}/cluster-policy/status?fieldValidation=Strict"
    answer = server.request("PATCH", path, {"status": status.document()}, "application/merge-patch+json")
    assert answer["status"] == status.document()
    header, line = server.kubectl("get", "shoalpolicy").splitlines()
    assert header.split() == ["NAME", "STATUS", "READY", "WAITING-FOR", "AGE"]
    assert line.split()[:-1] == ["cluster-policy", "notReady", "48/50", "driver", "on", "2", "nodes"]
    for name in (NAME, "shoal"):
        assert line.split()[:-1] == server.kubectl("get", name).splitlines()[1].split()[:-1]
    # A whole status stays within the bounds, and a longer one is refused.
    too_long = {"status": {"state": "ready", "waitingFor": "x" * 1025}}
    code, answer = server.try_request("PATCH", path, too_long, "application/merge-patch+json")
    assert (code, "waitingFor" in answer["message"]) == (422, True)
    server.kubectl("delete", "shoalpolicy", "cluster-policy")


def test_a_policy_can_be_applied_again_and_changed(server: ApiServer) -> None:
    server.kubectl(
        "apply", "--server-side", "-f", "-", input=yaml.safe_dump(policy({"gfd": {"enabled": False}}, "one"))
    )
    first = server.request("GET", f"{POLICIES}/one")
    server.kubectl(
        "apply", "--server-side", "-f", "-", input=yaml.safe_dump(policy({"gfd": {"enabled": False}}, "one"))
    )
    assert (
        server.request("GET", f"{POLICIES}/one")["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    )
    server.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump(policy({}, "one")))
    again = server.request("GET", f"{POLICIES}/one")
    assert again["spec"]["gfd"]["enabled"] is True
    assert again["metadata"]["generation"] == 2
    server.kubectl("delete", "shoalpolicy", "one")
