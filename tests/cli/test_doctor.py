"""`shoal doctor` as it is typed: at clusters that answer, and at none."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.analysis.doctor.findings import Level
from shoal.analysis.doctor.machine import examine_machine
from shoal.gpu.describe import parse_cards
from shoal.gpu.errors import NoDriverError
from shoal.gpu.protocol import Nvml
from shoal.gpu.simulated import SimulatedNvml
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import gpushare
from tests.cli.shoal_up import running
from tests.testbed.apiserver import ApiServer
from tests.testbed.fake_nodes import node
from tests.testbed.nvidia import SERIES, parts_or_skip

DEPLOY = Path(__file__).parents[2] / "deploy"


def doctor(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, output and complaints."""
    command = [sys.executable, "-c", "from shoal.cli.main import main; main()", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def findings(*arguments: str) -> list[dict[str, Any]]:
    _, said, complaint = doctor(*arguments, "-o", "json")
    assert not complaint
    found: list[dict[str, Any]] = json.loads(said)
    return found


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    code, said, complaint = doctor("--kubeconfig", str(tmp_path / "none"))
    assert (code, said) == (1, "")
    assert str(tmp_path / "none") in complaint
    assert "Traceback" not in complaint


def test_the_embedded_cluster_is_sound() -> None:
    with running("--nodes", "2", "--gpus", "2xT4") as (_, told):
        (kubeconfig,) = re.findall(r"KUBECONFIG=(\S+)", told)
        code, said, _ = doctor("--kubeconfig", kubeconfig)
    assert "ok       cards       2 node(s) show their cards" in said
    assert "warning" not in said
    assert code == 0, said


@pytest.mark.kube
class TestRealApiServer:
    """With the rights of a viewer, and no more."""

    def test_an_empty_cluster(self, new_apiserver: Callable[[], ApiServer]) -> None:
        api = new_apiserver()
        api.kubectl("apply", "-f", str(DEPLOY / "rbac" / "viewer.yaml"), "--validate=strict")
        viewer = ["--kubeconfig", str(api.kubeconfig("eve", ("shoal-viewers",)))]
        code, said, _ = doctor(*viewer)
        assert code == 1
        assert "FAILED   cards       no node shows any" in said
        assert "fix: kubectl apply -k deploy/agent" in said
        assert "\x1b" not in said

    def test_all_that_is_installed_is_seen(self, new_apiserver: Callable[[], ApiServer]) -> None:
        api = new_apiserver()
        viewer = ["--kubeconfig", str(api.kubeconfig("eve", ("shoal-viewers",)))]
        code, _, complaint = doctor(*viewer)
        assert code == 1
        assert "403 Forbidden" in complaint
        for folder in ("scheduler", "agent"):
            api.kubectl("apply", "-k", str(DEPLOY / folder))
        api.kubectl("apply", "-f", str(DEPLOY / "rbac" / "viewer.yaml"))
        api.request("POST", "/api/v1/nodes", node("n1", 2))
        found = {(one["check"], one["level"]): one["says"] for one in findings(*viewer)}
        unknown = [says for (_, level), says in found.items() if level == Level.UNKNOWN]
        assert unknown == ["no ready node renews a lease"], "a viewer may read all that is looked at"
        assert found["cards", "ok"] == "1 node(s) show their cards"
        assert found["admission", "ok"] == "bad GPU requests are refused, and decisions are guarded"
        assert found["rights", "ok"] == "shoal-agent, shoal-scheduler have their ClusterRoleBinding"
        assert found["scheduler", "failed"].startswith("nobody")
        for verb, kind in (("get", "secrets"), ("delete", "pods"), ("create", "pods/exec"), ("patch", "nodes")):
            may = api.kubectl("auth", "can-i", verb, kind, "--as=eve", "--as-group=shoal-viewers", "-A", check=False)
            assert may.strip() == "no", (verb, kind)


# This machine


def test_a_node_in_good_health(tmp_path: Path) -> None:
    paths = _host(tmp_path)
    (paths.cdi[0] / "nvidia.yaml").write_text(f"kind: {gpushare.RESOURCE_MEMORY}\n")
    levels = {one.check: one.level for one in examine_machine(paths, _cards)}
    assert levels == {
        "driver": Level.OK,
        "kubelet": Level.FAILED,
        "cdi": Level.NOTE,
        "cgroups": Level.OK,
        "toolkit": Level.NOTE,
    }
    (paths.cdi[0] / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert [one.says for one in examine_machine(paths, _cards) if one.check == "cdi"] == ["NVIDIA's own spec is there"]


@pytest.mark.parametrize(
    ("written", "level"),
    [
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n[nvidia-container-cli]\n", Level.OK),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = true\n", Level.WARNING),
        ("#accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", Level.WARNING),
        ("accept = [", Level.WARNING),
    ],
)
def test_whether_the_toolkit_believes_containers(tmp_path: Path, written: str, level: Level) -> None:
    paths = _host(tmp_path)
    paths.toolkit[0].write_text(written)
    assert [one.level for one in examine_machine(paths, _cards) if one.check == "toolkit"] == [level]


def test_a_node_without_a_driver(tmp_path: Path) -> None:
    def none() -> Nvml:
        raise NoDriverError("libnvidia-ml.so.1 is not on this machine")

    (told,) = [one for one in examine_machine(_host(tmp_path), none) if one.check == "driver"]
    assert (told.level, told.says) == (Level.FAILED, "libnvidia-ml.so.1 is not on this machine")


@pytest.mark.kube
@pytest.mark.parametrize("series", SERIES)
def test_nvidias_library_without_a_driver(series: str) -> None:
    """NVIDIA's own library is there, and the kernel module is not."""
    _, said, complaint = doctor("--here", "-o", "json", LD_LIBRARY_PATH=str(parts_or_skip(series).libraries))
    assert not complaint
    (told,) = [one for one in json.loads(said) if one["check"] == "driver"]
    assert (told["says"], told["fix"]) == ("NVIDIA's driver is not loaded", "load the kernel module nvidia")


def _cards() -> Nvml:
    return SimulatedNvml(parse_cards("2xT4"), clock=time.monotonic)


def _host(folder: Path) -> HostPaths:
    for name in ("cdi", "cdi-own"):
        (folder / name).mkdir()
    (folder / "cgroup.controllers").touch()
    return HostPaths(
        device_plugins=folder / "plugins",
        pod_resources=folder / "pods.sock",
        cdi=(folder / "cdi", folder / "cdi-own"),
        cgroup2=folder / "cgroup.controllers",
        toolkit=(folder / "config.toml",),
    )
