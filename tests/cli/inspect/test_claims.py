"""Claims of devices in the tables: by the pods that use them, as soon as that is known."""

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from shoal.model.allocation import CardShare, Held
from shoal.model.contract import shoal
from shoal.model.request import Share
from tests.cli.inspect.cluster import Cluster, objects
from tests.cli.terminal import COMMAND
from tests.suites.embedded import EmbeddedServer

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture
def held(cluster: Cluster) -> Iterator[str]:
    """The claim `c` and a pod, on a node that says that it holds 3 GiB for the claim; the pod's UID."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "x"}}
    claim = cluster.demand("POST", CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})
    given = {claim["metadata"]["uid"]: (CardShare("GPU-n1-0", 0, Share(3 * 1024)),)}
    annotations = {shoal.ANNOTATION_HELD: shoal.encode_held(Held({}, 1, given))}
    node = {"n1": {"cards": {0: 16 * 1024}, "mem": 16, "count": 1, "annotations": annotations}}
    cluster.put(objects(node, {"user": {"node": "n1", "mem": [{}]}}))
    yield cluster.demand("GET", "/api/v1/namespaces/default/pods/user")["metadata"]["uid"]
    cluster.demand("DELETE", f"{CLAIMS}/c")


def reserve(cluster: Cluster, uid: str) -> None:
    result = {"request": "gpu", "driver": "gpu.shoal.dev", "pool": "n1", "device": "gpu-n1-0"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "user", "uid": uid}],
    }
    cluster.demand("PATCH", f"{CLAIMS}/c/status", {"status": status}, "application/merge-patch+json")


def test_a_claim_stands_with_the_pod_that_uses_it(cluster: Cluster, held: str) -> None:
    assert "(claim) c default 3" in " ".join(cluster.inspect("-d").output.split())
    reserve(cluster, held)
    assert "user (c) default 3" in " ".join(cluster.inspect("-d").output.split())
    (gpu,) = json.loads(cluster.inspect("-o", "json").output)["nodes"][0]["gpus"]
    assert [(pod["name"], pod["claims"], pod["memoryMiB"]) for pod in gpu["pods"]] == [("user", ["c"], 3072)]
    if not isinstance(cluster.api, EmbeddedServer):
        told = cluster.inspect("-d", "--pending", "--kubeconfig", str(cluster.viewer())).output
        assert "(claim) 3 " in " ".join(told.split())
        assert "claims are shown by their UIDs: " in told


def test_a_table_that_follows_learns_who_uses_a_claim(cluster: Cluster, held: str) -> None:
    command = [*COMMAND, "inspect", "-w", "-d", "--kubeconfig", str(cluster.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("(claim) c" in line for line in process.stdout)
        reserve(cluster, held)
        assert any("user (c)" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.communicate()
