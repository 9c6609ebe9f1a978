"""`deploy/admission-scheduler`: who asks for a GPU goes to gpu-scheduler by itself, on a real kube-apiserver."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from shoal.model.contract import keti
from shoal.scheduler.kube_scheduler import MANAGED
from tests.admission.guarded import DEPLOY
from tests.admission.test_shipped import lists
from tests.testbed.apiserver import ApiServer
from tests.testbed.control_plane import own_control_plane
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

MEMORY = {"aliyun.com/gpu-mem": "3"}


@pytest.fixture(scope="module")
def server(testbed_run: Run) -> Iterator[ApiServer]:
    """A server of this module's own, with the policy in force in two namespaces, one of which opted out."""
    with own_control_plane(testbed_run, "naming") as plane:
        api = plane.api
        api.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / "admission"))
        api.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / "admission-scheduler"))
        for name in ("team", "other"):
            api.create_namespace(name)
        api.kubectl("label", "namespace", "other", "shoal.dev/scheduler=default")
        wait_for(lambda: scheduler_of(api, MEMORY, dry=True) == keti.SCHEDULER_NAME, "in force")
        yield api


def scheduler_of(
    api: ApiServer,
    limits: dict[str, str],
    *,
    namespace: str = "team",
    labels: dict[str, str] | None = None,
    init: dict[str, str] | None = None,
    dry: bool = False,
    **spec: Any,
) -> str:
    """Who schedules a pod that was made so."""
    main = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    first = [{"name": "first", "image": "busybox", "resources": {"limits": init}}] if init else []
    manifest = {
        "metadata": {"generateName": "pod-", "labels": labels or {}},
        "spec": {"containers": [main], "initContainers": first, **spec},
    }
    made = api.request("POST", f"/api/v1/namespaces/{namespace}/pods{'?dryRun=All' if dry else ''}", manifest)
    return str(made["spec"]["schedulerName"])


@pytest.mark.min_kube("1.36")
@pytest.mark.parametrize("resource", list(MANAGED))
def test_every_family_goes_to_the_gpu_scheduler(server: ApiServer, resource: str) -> None:
    assert scheduler_of(server, {resource: "1", "cpu": "100m"}) == keti.SCHEDULER_NAME
    assert scheduler_of(server, {"cpu": "100m"}, init={resource: "1"}) == keti.SCHEDULER_NAME


@pytest.mark.min_kube("1.36")
def test_others_stay_where_they_are(server: ApiServer) -> None:
    default = "default-scheduler"
    assert scheduler_of(server, {"cpu": "100m"}) == default
    assert scheduler_of(server, {}) == default
    assert scheduler_of(server, {"aliyun.com/gpu-mem": "0"}) == default
    assert scheduler_of(server, {"example.com/gpu": "1"}) == default
    assert scheduler_of(server, MEMORY, schedulerName="volcano") == "volcano"
    assert scheduler_of(server, MEMORY, labels={"shoal.dev/scheduler": "default"}) == default
    assert scheduler_of(server, MEMORY, namespace="other") == default
    assert scheduler_of(server, MEMORY, nodeName="node-1") == default
    assert scheduler_of(server, MEMORY, schedulerName=default) == keti.SCHEDULER_NAME, "cannot be told apart"


@pytest.mark.min_kube("1.36")
def test_pods_of_a_template_too(server: ApiServer) -> None:
    resources = {"limits": MEMORY}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": resources}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    path = "/apis/apps/v1/namespaces/team/deployments"
    server.request("POST", path, {"metadata": {"name": "web"}, "spec": spec})

    def made() -> list[str]:
        found = server.request("GET", "/api/v1/namespaces/team/pods?labelSelector=app%3Dweb")["items"]
        return [pod["spec"]["schedulerName"] for pod in found]

    wait_for(lambda: made() == [keti.SCHEDULER_NAME], "a pod of the template")


def test_resources_are_those_that_the_extender_is_asked_about() -> None:
    policy, _ = yaml.safe_load_all((DEPLOY / "admission-scheduler" / "policy.yaml").read_text())
    (asks,) = [one["expression"] for one in policy["spec"]["matchConditions"] if one["name"] == "asks-for-gpus"]
    assert sorted(MANAGED) == sorted(next(names for names in lists(asks) if names))
