"""`shoal discovery` as a program: the leader leads until it is told to end, and clean-up ends by itself."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.worker import Worker
from shoal.embedded.app import EmbeddedApi
from shoal.gpu.nvml import open_nvml
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import LEASES, NODES
from shoal.model.contract import nvidia
from shoal.model.contract.discovery import ANNOTATION_FACTS, NAME_LEADER, encode_facts
from tests.discovery.facts import T4, node
from tests.discovery.machine import FakeSys
from tests.discovery.site import eventually


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(tmp_path / "api") as api:
        yield api


async def start(api: EmbeddedApi, *arguments: str) -> asyncio.subprocess.Process:
    given = ["discovery", "--kubeconfig", str(api.kubeconfig()), *arguments]
    code = "from shoal.cli.main import main; main()"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *given, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def test_worker_leader_and_cleanup(api: EmbeddedApi, tmp_path: Path) -> None:
    kernel = FakeSys(tmp_path / "sys")
    kernel.add("0000:3b:00.0")
    async with Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client:
        for name in ("told", "read"):
            await client.create(NODES.raw, {"metadata": {"name": name}})
        facts = {"metadata": {"annotations": {ANNOTATION_FACTS: encode_facts(node(T4))}}}
        await client.patch(NODES, "told", facts)
        leader = await start(api, "--leader")
        worker = await start(api, "--node-name", "read", "--sys-root", str(kernel.root), "--no-driver")

        async def labelled() -> bool:
            found = [(await client.get(NODES, name)).metadata.labels for name in ("told", "read")]
            return [one.get(nvidia.LABEL_PRESENT) for one in found] == ["true", "true"]

        await eventually(labelled, "labelled")
        told = (await client.get(NODES, "told")).metadata.labels
        assert told[nvidia.LABEL_PRODUCT] == "Tesla-T4"
        for process in (worker, leader):
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            assert process.returncode == 0
        assert (await client.get(LEASES, NAME_LEADER, namespace="kube-system")).spec.holder_identity in ("", None)
        cleanup = await start(api, "--cleanup")
        said, _ = await cleanup.communicate()
        assert (cleanup.returncode, said) == (0, b"discovery's labels and annotations are gone from 2 nodes\n")
        for name in ("told", "read"):
            meta = (await client.get(NODES, name)).metadata
            assert (meta.labels, meta.annotations) == ({}, {})


async def test_a_worker_that_is_woken_and_ended_at_once_ends(api: EmbeddedApi, tmp_path: Path) -> None:
    """Up to Python 3.11 `asyncio.wait_for` forgets a cancellation that comes together with what it waited for."""
    kernel = FakeSys(tmp_path / "sys")
    kernel.add("0000:3b:00.0")
    async with Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client:
        await client.create(NODES.raw, {"metadata": {"name": "read"}})
        config = DiscoveryConfig(node_name="read", sys_root=str(kernel.root), driver=False)
        worker = Worker(config, client, open_nvml)
        running = asyncio.create_task(worker.run())

        async def written() -> bool:
            return ANNOTATION_FACTS in (await client.get(NODES, "read")).metadata.annotations

        await eventually(written, "written")
        await eventually(lambda: worker._wake._waiters, "waiting")
        worker._wake.set()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "a worker must know its node: give --node-name"),
        (("--leader", "--cleanup"), "exclude each other"),
        (("--node-name", "a/b"), "nodeName"),
        (("--leader", "--nvidia-config-map", "x"), "write namespace/name"),
        (("--node-name", "n", "--interval-seconds", "0"), "intervalSeconds"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(api: EmbeddedApi, arguments: tuple[str, ...], word: str) -> None:
    process = await start(api, *arguments)
    _, said = await process.communicate()
    assert process.returncode == 1
    assert word in said.decode()
    assert "Traceback" not in said.decode()
