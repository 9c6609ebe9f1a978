"""kubectl on an embedded API server of the test's own, without holding up the event loop that serves it."""

import asyncio
import os
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from tests.testbed import binaries
from tests.testbed.processes import Run


@pytest.fixture
def program(testbed_run: Run) -> Path:
    """The real kubectl, one of the programs of `make kube`."""
    return binaries.find("kubectl")


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
