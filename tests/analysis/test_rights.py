"""The commands with few rights: a viewer's are enough, and with less it is said what is not known."""

import json
import uuid
from pathlib import Path

import yaml

from tests.analysis.small import shoal
from tests.suites.scheduling import shorthand
from tests.suites.scheduling.cluster import Cluster
from tests.testbed.control_plane import ControlPlane

DEPLOY = Path(__file__).parents[2] / "deploy"
VIEWER = DEPLOY / "rbac" / "viewer.yaml"
COLLECTORS = DEPLOY / "metrics" / "history.yaml"
ONLY_LISTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: only-lists}
rules: [{apiGroups: [""], resources: [nodes, pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: only-lists}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: only-lists}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: only-lists}]
"""
POD = yaml.safe_dump(shorthand.pod("x", {"mem": 1}))


def test_a_viewer_lacks_the_lists_of_sick_cards_alone(plane: ControlPlane, tmp_path: Path) -> None:
    plane.api.kubectl("apply", "-f", str(VIEWER))
    config = plane.api.kubeconfig("viewer", ["shoal-viewers"])
    result = shoal("what-if", "-f", "-", "--kubeconfig", config, stdin=POD)
    assert result.stdout.startswith("Policy fragmentation")
    assert result.stderr.splitlines() == [
        "Note: you may not read configmaps in kube-system: cards that gpushare's lists call unhealthy count as healthy."
    ]
    file = tmp_path / "s.json"
    assert shoal("snapshot", "-o", file, "--kubeconfig", config).exit_code == 0
    assert json.loads(file.read_text())["facts"]["missing"]
    assert "there is no pod 'x'" in shoal("why", "x", "--kubeconfig", config).stderr


def test_every_command_runs_with_the_rights_of_a_viewer(plane: ControlPlane, tmp_path: Path) -> None:
    plane.api.kubectl("apply", "-f", str(VIEWER), "-f", str(COLLECTORS))
    cluster = Cluster(plane.api, f"viewed-{uuid.uuid4().hex[:6]}")
    cluster.create({"kind": "Node", **shorthand.node("viewed", {"gpus": 1}, mib=False)})
    cluster.create(shorthand.pod("viewed", {"mem": 1}))
    place = ("--kubeconfig", plane.api.kubeconfig("viewer", ["shoal-viewers"]))
    for command in (
        ("inspect",),
        ("inspect", "-d", "viewed"),
        ("inspect", "-o", "json", "-n", cluster.namespace),
        ("top", "--once"),
        ("top", "-o", "json"),
        ("why", "viewed", "-n", cluster.namespace),
        ("why", "viewed", "-A"),
        ("what-if", "--policy", "spread"),
        ("policy", "show"),
        ("policy", "diff", "binpack", "spread"),
        ("snapshot", "-o", str(tmp_path / "s.json")),
        ("snapshot", "-o", "-"),
    ):
        result = shoal(*command, *place)
        assert result.exit_code == 0, (command, result.stderr)
        told = [line for line in result.stderr.splitlines() if "may not" in line and "in kube-system" not in line]
        assert told == [], command
    cluster.close()


def test_what_may_not_be_read_is_said(plane: ControlPlane) -> None:
    plane.api.kubectl("apply", "-f", "-", input=ONLY_LISTS)
    result = shoal("what-if", "-f", "-", "--kubeconfig", plane.api.kubeconfig("lister", ["only-lists"]), stdin=POD)
    assert result.stdout.startswith("Policy fragmentation")
    for kind in ("namespaces", "persistentvolumes", "poddisruptionbudgets", "priorityclasses", "configmap gpu/"):
        assert f"you may not read {kind}" in result.stderr


def test_without_nodes_and_pods_there_is_no_answer(plane: ControlPlane) -> None:
    result = shoal("policy", "show", "--kubeconfig", plane.api.kubeconfig("nobody"))
    assert result.exit_code == 1
    assert "403" in result.stderr
    assert "grant the verb on this resource" in result.stderr
