"""`deploy/admission-strip`: a copied pod comes without what was decided about its model, on a real kube-apiserver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import yaml

from shoal.model.contract import decisions
from tests.admission.guarded import DEPLOY, Guarded, pod
from tests.admission.test_shipped import lists, variable
from tests.suites.connection import Connection
from tests.testbed.control_plane import own_control_plane
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

COPY = {"note": "kept", **dict.fromkeys(decisions.DECISION_ANNOTATIONS, "x")}


@pytest.fixture(scope="module")
def stripping(testbed_run: Run) -> Iterator[Guarded]:
    """A server of this module's own, with both."""
    with own_control_plane(testbed_run, "stripping") as plane:
        server = plane.api
        for folder in ("admission", "admission-strip"):
            server.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / folder))
        guarded = Guarded(Connection(server.kubeconfig()), server.create_namespace, real=True)
        guarded.prepare()
        yield guarded


@pytest.mark.min_kube("1.36")
def test_a_copy_loses_its_record(stripping: Guarded) -> None:
    room = stripping.room()
    pods = f"/api/v1/namespaces/{room}/pods"
    copy = pod("copy", annotations=COPY, limits={"aliyun.com/gpu-mem": "2"})

    def stripped(query: str = "") -> bool:
        made = stripping.ask("tenant", "POST", f"{pods}{query}", copy)
        return made.status == 201 and made.body["metadata"]["annotations"] == {"note": "kept"}

    wait_for(lambda: stripped("?dryRun=All"), "stripping")
    assert stripped()
    # Who may write them keeps them, and after its making nothing is stripped: a change is refused, or not there.
    kept = stripping.must("POST", pods, pod("kept", annotations=COPY))
    assert kept["metadata"]["annotations"] == COPY
    numbers = itertools.count()

    def refused() -> bool:
        """Each time another value: one that was let through before the policies were in force is no change any more."""
        patch = {"metadata": {"annotations": {"UUID": f"y{next(numbers)}"}}}
        return stripping.ask("tenant", "PATCH", f"{pods}/copy", patch).status == 403

    wait_for(refused, "refusing")


def test_annotations_are_those_of_the_contract() -> None:
    policy, _ = yaml.safe_load_all((DEPLOY / "admission-strip" / "policy.yaml").read_text())
    assert lists(variable(policy, "decided")) == [list(decisions.DECISION_ANNOTATIONS)]
