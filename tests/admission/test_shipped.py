"""The shipped policies: the names in them are those of the code, and they are read as kubectl reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from shoal.embedded.policies.shipped import ManifestError, rendered, shipped
from shoal.model.contract import decisions
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.pod import ANNOTATIONS_READ, LABELS_READ
from tests.admission.guarded import DEPLOY, Object
from tests.testbed.apiserver import ApiServer

OBJECTS = shipped(MemoryUnit.GIB)
POLICIES = {obj["metadata"]["name"]: obj for obj in OBJECTS if obj["kind"] == "ValidatingAdmissionPolicy"}


def variable(policy: Object, name: str) -> str:
    (found,) = [one["expression"] for one in policy["spec"]["variables"] if one["name"] == name]
    return str(found)


def lists(expression: str) -> list[list[str]]:
    """The lists of names in an expression, in their order."""
    return [re.findall(r"'([^']*)'", found) for found in re.findall(r"\[\s*('[^]]*)\]", expression)]


@pytest.mark.parametrize("name", decisions.POLICIES_DECISIONS)
def test_decisions_are_those_of_the_contract(name: str) -> None:
    assert lists(variable(POLICIES[name], "decided")) == [list(decisions.DECISION_ANNOTATIONS)]


def test_what_a_request_is_read_from_is_what_the_model_reads() -> None:
    asked = variable(POLICIES[decisions.POLICY_DECISIONS], "asked")
    assert lists(asked) == [list(LABELS_READ), list(ANNOTATIONS_READ)]


def test_exemptions_are_those_of_the_contract() -> None:
    assert lists(variable(POLICIES[decisions.POLICY_EXEMPTIONS], "changed")) == [list(decisions.EXEMPTION_LABELS)]


def test_an_agent_writes_decisions() -> None:
    assert lists(variable(POLICIES["shoal-agent-own-node-pods"], "foreign")) == [list(decisions.DECISION_ANNOTATIONS)]


def test_every_policy_fails_closed_and_is_bound() -> None:
    bound = {
        obj["spec"]["policyName"]: obj["spec"]["validationActions"]
        for obj in OBJECTS
        if obj["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bound == {name: ["Deny"] for name in POLICIES}
    assert {policy["spec"]["failurePolicy"] for policy in POLICIES.values()} == {"Fail"}


@pytest.mark.parametrize(
    "name",
    [
        *(*decisions.POLICIES_DECISIONS, *decisions.POLICIES_FENCE),
        *(decisions.POLICY_EXEMPTIONS, decisions.POLICY_MADE_CLAIMS),
    ],
)
def test_no_namespace_can_opt_out_of_being_guarded(name: str) -> None:
    assert "namespaceSelector" not in POLICIES[name]["spec"]["matchConstraints"]


def test_the_right_is_granted_to_the_components_and_asked_cluster_wide() -> None:
    rule = {
        "apiGroups": ["shoal.dev"],
        "resources": [decisions.RESOURCE_DECISIONS],
        "verbs": [decisions.VERB_WRITE],
    }
    for file in ("scheduler/rbac.yaml", "agent/rbac.yaml", "admission/writers.yaml"):
        roles = [one for one in yaml.safe_load_all((DEPLOY / file).read_text()) if one["kind"] == "ClusterRole"]
        assert rule in roles[0]["rules"], file
    for name in decisions.POLICIES_DECISIONS:
        for validation in POLICIES[name]["spec"]["validations"]:
            assert ".namespace(" not in validation["expression"]
            assert "authorizer.group('shoal.dev').resource('decisions').check('write')" in validation["expression"]


@pytest.mark.parametrize("folder", ["admission", "admission-mib"])
def test_kubectl_reads_them_the_same(apiserver: ApiServer, folder: str) -> None:
    theirs = yaml.safe_load_all(apiserver.kubectl("kustomize", str(DEPLOY / folder)))
    ours = rendered(DEPLOY / folder)
    by_name = lambda objects: {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}  # noqa: E731
    assert by_name(ours) == by_name(theirs)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\nresources: []\n")
    with pytest.raises(ManifestError, match="uses namePrefix"):
        rendered(tmp_path)
