"""Who may edit the ClusterPolicy: it changes images, variables and folders of operands, and not what they may do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from shoal.kube.resources import RawObject
from shoal.operator.components import COMPONENTS
from shoal.operator.nvidia import NvidiaOperator
from shoal.operator.operands import desired
from shoal.operator.policy import ClusterPolicySpec, read_policy
from tests.operator.policy_strategies import mappings
from tests.operator.scene import NAMESPACE, operands, policy, world

#: Fields of a pod that decide what it may do on its node.
RIGHTS = ("serviceAccountName", "automountServiceAccountToken", "hostPID", "hostIPC", "securityContext", "shareProcess")
#: Folders that the operator adds for MPS and for waiting, whatever the policy says.
ADDED = {"/tmp/nvidia-mps", "/var/log/nvidia-mps", "/run/nvidia/validations"}
#: Texts with which a template of text, a shell or a path would be left.
HOSTILE = (
    *("x\nhostPID: true", "x: {y: z}", '"}, {"', "{{ .Values }}", "$(NODE_NAME)", "; reboot", "`reboot`", "--", "#"),
    *("/../../etc", "/run/..", "/", "//", "/x\n", "../x", "/x/./y", "a/../b", "@sha256:" + "0" * 64),
)


def made(spec: dict[str, Any]) -> list[RawObject]:
    wish = policy(**spec)
    return desired(world(policies=(wish,)), wish, read_policy(wish).spec, NvidiaOperator())


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in (*pod.get("initContainers", ()), *pod["containers"])}


def folders(pod: dict[str, Any]) -> set[str]:
    return {one["hostPath"]["path"] for one in pod.get("volumes", ()) if "hostPath" in one}


def check(spec: dict[str, Any]) -> None:
    """What a policy brings about: objects that are known, with the rights that their manifests have."""
    read = read_policy(policy(**spec)).spec
    known = {name: (one, component) for name, one, component in _manifests()}
    for one in made(spec):
        kind, meta = one["kind"], one["metadata"]
        if kind == "RuntimeClass":
            assert meta["name"] == one["handler"]
            continue
        assert meta["namespace"] == NAMESPACE
        assert meta["name"] in known
        if kind != "DaemonSet":
            assert kind == "ConfigMap"
            continue
        manifest, account = known[meta["name"]]
        before, after = manifest["spec"]["template"]["spec"], one["spec"]["template"]["spec"]
        assert {key: after.get(key) for key in RIGHTS} == {key: before.get(key) for key in RIGHTS}
        assert after.get("serviceAccountName", "") == account
        for name, container in containers(after).items():
            if name not in containers(before):
                assert name.startswith("wait-")
                continue
            was = containers(before)[name]
            for key in ("securityContext", "command"):
                assert container.get(key) == was.get(key)
            assert container.get("args", [])[: len(was.get("args", []))] == was.get("args", [])
        paths = read.host_paths
        moved = {
            "/var/lib/kubelet": paths.kubelet_root_dir.rstrip("/"),
            "/run/nvidia/driver": paths.driver_install_dir.rstrip("/"),
            "/usr/local/nvidia": read.toolkit.install_dir.rstrip("/"),
        }
        allowed = folders(before) | ADDED | {paths.root_fs} if "/" in folders(before) else folders(before) | ADDED
        for path in folders(before):
            allowed |= {new + path.removeprefix(old) for old, new in moved.items() if path.startswith(old)}
        assert folders(after) <= allowed
        assert not [path for path in folders(after) if ".." in path.split("/") or not path.startswith("/")]


def _manifests() -> list[tuple[str, RawObject, str]]:
    found = operands()
    return [
        (component.daemon_set, one, component.account)
        for component in COMPONENTS
        for one in found[component.operand]
        if one["kind"] == "DaemonSet"
    ]


@given(mappings(ClusterPolicySpec))
def test_no_policy_gives_operands_other_rights(spec: dict[str, Any]) -> None:
    check(spec)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_stays_within_its_field(text: str) -> None:
    image = {"repository": text, "image": text, "version": text, "imagePullSecrets": [text]}
    fields = {**image, "args": [text], "env": [{"name": "X", "value": text}, {"name": text, "value": "x"}]}
    check(
        {
            "driver": {**fields, "secretEnv": text, "manager": {**image, "env": fields["env"]}},
            "toolkit": {**fields, "installDir": text},
            "devicePlugin": {**fields, "config": {"name": text, "default": text}},
            "dcgmExporter": {
                **fields,
                "config": {"name": text},
                "annotations": {text: text},
                "settings": {"influx": {"url": text, "database": text, "username": text, "passwordFile": text}},
            },
            "gfd": fields,
            "validator": {**fields, "driver": {"env": fields["env"]}},
            "hostPaths": {"rootFS": text, "driverInstallDir": text, "kubeletRootDir": text},
            "operator": {"runtimeClass": text, "labels": {text: text}, "annotations": {text: text}},
            "daemonsets": {
                "labels": {text: text},
                "annotations": {text: text},
                "priorityClassName": text,
                "tolerations": [{"key": text, "operator": "Exists"}],
            },
        }
    )
