import asyncio
import os
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from tests.testbed import binaries

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: 'nginx:1'}]}
"""


@pytest.fixture
def program() -> Path:
    try:
        return binaries.find("kubectl")
    except binaries.BinariesError as error:
        pytest.skip(f"kubectl: {error}")


async def kubectl(program: Path, api: EmbeddedApi, *arguments: str, given: str = "") -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(api.directory), "KUBECONFIG": str(api.kubeconfig())}
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(given.encode())
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_apply_get_scale_delete(api: EmbeddedApi, program: Path) -> None:
    assert "created" in await kubectl(program, api, "apply", "-f", "-", given=DEPLOYMENT)
    changed = DEPLOYMENT.replace("nginx:1", "nginx:2")
    assert "configured" in await kubectl(program, api, "apply", "-f", "-", given=changed)
    assert "unchanged" in await kubectl(program, api, "apply", "-f", "-", given=changed)
    await kubectl(program, api, "scale", "deployment/web", "--replicas=3")
    wide = await kubectl(program, api, "get", "deploy", "-o", "wide")
    assert wide.splitlines()[0].split() == (
        ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"]
    )
    assert wide.splitlines()[1].split()[:2] == ["web", "0/3"]
    assert "nginx:2" in wide
    await kubectl(program, api, "label", "deploy", "web", "tier=front")
    assert "web" in await kubectl(program, api, "get", "deploy", "-l", "tier=front", "-o", "name")
    await kubectl(program, api, "delete", "deploy", "web", "--timeout=60s")
    assert await kubectl(program, api, "get", "deploy", "-o", "name") == ""


async def test_server_side_apply_keeps_managers_apart(api: EmbeddedApi, program: Path) -> None:
    await kubectl(program, api, "apply", "--server-side", "-f", "-", given=DEPLOYMENT)
    shown = await kubectl(program, api, "get", "deploy", "web", "-o", "yaml", "--show-managed-fields")
    assert "manager: kubectl" in shown
    assert "operation: Apply" in shown
