"""The tables beside what the scheduler and the agents of an embedded cluster really decided."""

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from shoal.cli.main import main
from tests.cli.shoal_up import running
from tests.suites.connection import Connection
from tests.testbed.waiting import wait_for

PODS = "/api/v1/namespaces/default/pods"


def create(
    api: Connection, name: str, *limits: dict[str, str], labels: dict[str, str] | None = None, does: str = ""
) -> None:
    containers = [{"name": f"c{n}", "image": "x", "resources": {"limits": one}} for n, one in enumerate(limits)]
    meta = {"name": name, "labels": labels or {}, "annotations": {"shoal.dev/simulate": does} if does else {}}
    pod: dict[str, Any] = {"metadata": meta, "spec": {"containers": containers}}
    answer = api.request("POST", PODS, json.dumps(pod).encode(), {"Content-Type": "application/json"})
    assert answer.status == 201, answer


def statuses(api: Connection) -> list[dict[str, Any]]:
    return [pod["status"] for pod in api.request("GET", PODS).body["items"]]


def waits(status: dict[str, Any]) -> bool:
    return any(condition.get("message") for condition in status.get("conditions", []))


def test_what_was_decided_is_shown() -> None:
    with running("--nodes", "2", "--gpus", "2xT4", "--memory-unit", "MiB") as (_, said):
        kubeconfig = re.findall(r"KUBECONFIG=(\S+)", said)[0]
        api = Connection(Path(kubeconfig))
        create(api, "small", {"aliyun.com/gpu-mem": "3000"})
        create(api, "pair", {"aliyun.com/gpu-mem": "4000"}, labels={"aliyun.com/gpu-count": "2"})
        create(api, "two", {"aliyun.com/gpu-mem": "1000"}, {"aliyun.com/gpu-mem": "500"})
        create(api, "whole", {"nvidia.com/gpu": "1"})
        wait_for(lambda: all(status["phase"] == "Running" for status in statuses(api)), "running")
        create(api, "big", {"aliyun.com/gpu-mem": "15000"}, {"aliyun.com/gpu-mem": "15000"})
        wait_for(lambda: any(map(waits, statuses(api))), "told why big waits")

        def say(*arguments: str) -> str:
            return CliRunner().invoke(main, [*arguments, "--kubeconfig", kubeconfig]).output

        document = json.loads(say("inspect", "-o", "json"))
        assert document["memoryUnit"] == "MiB"
        held: dict[str, list[int]] = {}
        for node in document["nodes"]:
            for gpu in node["gpus"]:
                assert gpu["uuid"].startswith("GPU-")
                assert gpu["healthy"]
                assert gpu["allocatedMiB"] == sum(pod["memoryMiB"] for pod in gpu["pods"])
                for pod in gpu["pods"]:
                    held.setdefault(pod["name"], []).append(pod["memoryMiB"])
        size = document["nodes"][0]["gpus"][0]["totalMiB"]
        assert {name: sum(amounts) for name, amounts in held.items()} == {
            "small": 3000,
            "pair": 4000,
            "two": 1500,
            "whole": size,
        }
        assert len(held["pair"]) == 2
        (waiting,) = document["waiting"]
        assert (waiting["name"], waiting["memoryMiB"]) == ("big", 30000)
        assert "0/2 nodes" in waiting["why"]
        summary = say("inspect").splitlines()
        assert "GPU Memory(MiB)" in summary[0]
        assert summary[-1].startswith(f"{8500 + size}/{4 * size} ")
        picture = say("top", "--once", "--show", "pods")
        assert all(name in picture for name in ("small", "pair", "two", "whole", "waits: default/big"))


def test_what_is_used_is_shown() -> None:
    """On a cluster as `shoal up` starts it: no rights, settings or pods of collectors have to be made."""
    with running("--nodes", "2", "--gpus", "2xT4", "--memory-unit", "MiB") as (_, said):
        kubeconfig = re.findall(r"KUBECONFIG=(\S+)", said)[0]
        api = Connection(Path(kubeconfig))
        create(api, "small", {"aliyun.com/gpu-mem": "3000"}, does="memory=2Gi utilisation=30")
        wait_for(lambda: all(status["phase"] == "Running" for status in statuses(api)), "running")

        def say(*arguments: str) -> Result:
            return CliRunner().invoke(main, [*arguments, "--kubeconfig", kubeconfig])

        seen: list[dict[str, Any]] = []

        def measured() -> bool:
            result = say("inspect", "--used", "-o", "json")
            if result.exit_code:
                return False
            document = json.loads(result.stdout)
            seen[:] = [gpu for node in document["nodes"] for gpu in node["gpus"]]
            small = [pod for gpu in seen for pod in gpu["pods"]]
            # A collector that has just begun does not know the node's pods, and says nothing of nobody's memory.
            known = all(gpu["used"]["unattributedMiB"] is not None for gpu in seen)
            return known and not document["notMeasured"] and [pod["used"]["memoryMiB"] for pod in small] == [2048]

        wait_for(measured, "measured")
        for gpu in seen:
            parts = [pod["used"]["memoryMiB"] for pod in gpu["pods"]]
            assert sum(parts) + gpu["used"]["unattributedMiB"] == gpu["used"]["memoryMiB"]
            assert gpu["used"]["temperatureCelsius"] > 0
        table, picture = say("inspect", "--used", "-d"), say("top", "--once")
        assert (table.stderr, picture.stderr) == ("", "")
        assert "small" in table.stdout
        assert "10 MIN" in picture.stdout
