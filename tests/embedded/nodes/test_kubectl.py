"""kubectl on a cluster with simulated nodes, where there is a kubectl."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import few
from tests.embedded.kubectl import kubectl, program  # noqa: F401 - a fixture

PODS = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeName: node-1
  containers: [{name: main, image: nginx}, {name: other, image: nginx}]
---
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec:
  nodeName: node-1
  restartPolicy: Never
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "echo one; sleep 3; echo $WHO"]
      env: [{name: WHO, value: two}]
"""


@pytest.fixture
async def embedded(tmp_path: Path, short_folder: Path) -> AsyncIterator[EmbeddedApi]:
    """A server with two nodes."""
    async with EmbeddedApi(tmp_path / "api") as server:
        nodes = Nodes(server, few(2, "1xT4"), short_folder / "k")
        await nodes.start()
        yield server
        await nodes.stop()


async def test_get_describe_logs_cordon(embedded: EmbeddedApi, program: Path) -> None:  # noqa: F811
    lines = (await kubectl(program, embedded, "get", "nodes")).splitlines()
    assert [line.split()[:2] + line.split()[-1:] for line in lines[1:]] == [
        ["node-1", "Ready", "v1.36.3"],
        ["node-2", "Ready", "v1.36.3"],
    ]
    await kubectl(program, embedded, "apply", "-f", "-", given=PODS)
    await kubectl(program, embedded, "wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
    assert await kubectl(program, embedded, "logs", "-f", "ends") == "one\ntwo\n"
    described = await kubectl(program, embedded, "describe", "pod", "p")
    for words in ("Node:             node-1/172.16.0.1", "Container started", "State:          Running"):
        assert words in described
    assert "default" in await kubectl(program, embedded, "describe", "node", "node-1")
    assert "HOSTNAME=p" in (await kubectl(program, embedded, "logs", "p", "-c", "other")).splitlines()
    await kubectl(program, embedded, "cordon", "node-2")
    assert "SchedulingDisabled" in await kubectl(program, embedded, "get", "node", "node-2")
    await kubectl(program, embedded, "delete", "pod", "p", "ends", "--grace-period=2", "--timeout=60s")
    assert await kubectl(program, embedded, "get", "pods", "-o", "name") == ""
    drained = await kubectl(program, embedded, "drain", "node-2")
    assert "drained" in drained
