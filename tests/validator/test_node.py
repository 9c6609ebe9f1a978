"""The validators of a node on the embedded API server, with real processes that ask the stand-in for the library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import NODES
from shoal.model.contract.operator import ANNOTATION_VALIDATION
from shoal.validator.errors import StartAnewError, ValidatorError
from shoal.validator.files import FINDINGS
from shoal.validator.node import NodeValidator
from tests.discovery.site import eventually
from tests.validator.conftest import NewRoot, compiled
from tests.validator.site import ValidatedNode

SHARES = {"aliyun.com/gpu-mem": "30"}
CONTAINER_READY = ".driver-ctr-ready"
CRASHES = "int nvmlInitWithFlags(int flags) { return *(volatile int *)0; }"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(tmp_path / "api") as api:
        yield api


@pytest.fixture
async def node(api: EmbeddedApi, new_root: NewRoot, tmp_path: Path) -> AsyncIterator[ValidatedNode]:
    access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
    async with Client(access) as client:
        yield ValidatedNode(access, client, new_root, tmp_path)


@pytest.fixture
def brought(node: ValidatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime brings the library of the host into this process."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(node.host.install().directory))


@pytest.mark.usefixtures("brought")
async def test_from_nothing_to_ready_and_then_nothing_is_written(node: ValidatedNode) -> None:
    await node.register(SHARES)
    async with node.validator() as validator:
        await node.stands(driver=True, toolkit=False)
        assert "set toolkit.enabled=true" in await node.why("toolkit")
        await node.there("driver-ready")
        async with node.runtime():
            await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
            await node.there("driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready")
            report = await node.report()
            assert report is not None
            assert (report.driver_version, report.boot) == ("615.71.05", "this-boot")
            before = (await node.node()).metadata.resource_version
            await node.rest(5)  # several checks
            assert (await node.node()).metadata.resource_version == before
            assert validator.writes <= 4
    assert (node.files.read("driver-ready") or b"").startswith(b"IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\n")
    await node.there("driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready")


@pytest.mark.usefixtures("brought")
async def test_a_restart_writes_nothing(node: ValidatedNode) -> None:
    await node.register(SHARES)
    async with node.validator(), node.runtime():
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
    before = (await node.node()).metadata.resource_version
    inodes = {path.name: path.stat().st_ino for path in node.files.folder.iterdir() if path.name != FINDINGS}
    async with node.validator() as validator, node.runtime():
        await eventually(lambda: not validator.waiting_for(), "it has asked")
        await node.rest(4)
        assert validator.writes == 0
    assert (await node.node()).metadata.resource_version == before
    after = {path.name: path.stat().st_ino for path in node.files.folder.iterdir() if path.name != FINDINGS}
    assert after == inodes


async def test_a_driver_container(node: ValidatedNode) -> None:
    await node.register()
    node.driver.install("usr/lib64")
    async with node.validator():
        await node.stands(driver=False)
        assert "no driver container of this node has said that it is ready" in await node.why("driver")
        node.files.write(CONTAINER_READY)
        await node.stands(driver=True, toolkit=False)
        content = (node.files.read("driver-ready") or b"").decode()
        assert "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n" in content
        assert "NVIDIA_DEV_ROOT=/\nDEV_ROOT_CTR_PATH=/host\n" in content, "it has no folder of devices"
        node.files.write("toolkit-ready")
        node.files.remove(CONTAINER_READY)
        await node.stands(driver=False)
        assert "driver container of this node" in await node.why("driver")
        await node.there()
        (node.driver.path / "dev").mkdir()
        node.files.write(CONTAINER_READY)
        await node.stands(driver=True, toolkit=False)
        content = (node.files.read("driver-ready") or b"").decode()
        assert "NVIDIA_DEV_ROOT=/run/nvidia/driver\nDEV_ROOT_CTR_PATH=/driver-root\n" in content


async def test_a_driver_that_another_program_put_there(node: ValidatedNode) -> None:
    await node.register()
    node.driver.install("lib64")
    async with node.validator(driver_container=False):
        await node.stands(driver=True, toolkit=False)
        assert b"SHOAL_WHILE" not in (node.files.read("driver-ready") or b"")


async def test_no_driver_anywhere_is_words(node: ValidatedNode) -> None:
    await node.register()
    node.files.write(CONTAINER_READY)
    async with node.validator(root_path="/", driver_install_dir="/opt/driver"):
        await node.stands(driver=False)
        assert await node.why("driver") == (
            "libnvidia-ml.so.1 was not found under /opt/driver or /: install NVIDIA's driver on the node or set "
            "driver.enabled=true; with that, the log of the node's driver pod says how far it is"
        )
        node.host.install()
        await node.stands(driver=True, toolkit=False)


async def test_the_host_has_a_driver_that_fails_and_the_container_one_that_works(node: ValidatedNode) -> None:
    await node.register()
    node.host.install(errors={"nvmlInitWithFlags": 18})
    async with node.validator():
        await node.stands(driver=False)
        assert "of different versions" in await node.why("driver")
        node.driver.install()
        node.files.write(CONTAINER_READY)
        await node.stands(driver=True, toolkit=False)


async def test_a_library_that_crashes_closes_no_gate_at_once(node: ValidatedNode) -> None:
    await node.register()
    shim = node.host.install()
    async with node.validator(grace_seconds=3600.0):
        await node.stands(driver=True, toolkit=False)
        compiled(shim.directory, "crash.so", CRASHES).replace(shim.library)
        await node.rest(4)
        await node.there("driver-ready")
        await node.stands(driver=True, toolkit=False)
    async with node.validator():  # without grace
        await node.stands(driver=False)
        assert "NVML crashed (SIGSEGV)" in await node.why("driver")
        await node.there()


async def test_another_version_is_told(node: ValidatedNode) -> None:
    await node.register()
    node.host.install(version="570.10.1")
    async with node.validator() as validator:
        await node.stands(driver=True, toolkit=False)
        node.host.have(version="580.20.2")

        async def so() -> bool:
            report = await node.report()
            return report is not None and report.driver_version == "580.20.2"

        await eventually(so, "the new version")
        assert validator.writes == 2


@pytest.mark.usefixtures("brought")
async def test_after_a_reboot_all_steps_come_again(node: ValidatedNode) -> None:
    await node.register(SHARES)
    async with node.validator(), node.runtime():
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
    for path in node.files.folder.iterdir():
        path.unlink()
    async with node.validator(boot="next-boot"):
        await node.stands(driver=True, toolkit=False)
    report = await node.report()
    assert report is not None
    assert report.boot == "next-boot"


@pytest.mark.usefixtures("brought")
async def test_files_that_somebody_removes_come_back(node: ValidatedNode) -> None:
    await node.register(SHARES)
    async with node.validator() as validator, node.runtime():
        await node.there("driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready")
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
        for name in ("plugin-ready", "cuda-ready", "toolkit-ready", "driver-ready"):
            node.files.remove(name)
            await node.there("driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready")
        assert validator.waiting_for() == ""


async def test_a_plugin_that_comes_and_goes(node: ValidatedNode) -> None:
    await node.register()
    node.host.install()
    async with node.validator():
        await node.stands(driver=True, toolkit=False)
        node.files.write("toolkit-ready")  # NVIDIA's validator has written it
        node.files.write("cuda-ready")
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=False)
        assert "the node offers no GPU resource" in await node.why("plugin")
        await node.offer({"nvidia.com/mig-1g.5gb": "7"})
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
        await node.there("driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready")
        await node.offer({"nvidia.com/mig-1g.5gb": "0"})
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=False)
        await node.there("driver-ready", "toolkit-ready", "cuda-ready")


async def test_the_annotation_is_put_right(node: ValidatedNode) -> None:
    await node.register()
    node.host.install()
    async with node.validator():
        await node.stands(driver=True, toolkit=False)
        for wrong in (None, "{", "x" * 5000):
            patch = {"metadata": {"annotations": {ANNOTATION_VALIDATION: wrong}}}
            await node.client.patch(NODES, node.name, patch)

            async def right(wrong: str | None = wrong) -> bool:
                return (await node.node()).metadata.annotations.get(ANNOTATION_VALIDATION) not in (None, wrong)

            await eventually(right, "written again")
        await node.stands(driver=True, toolkit=False)


async def test_what_the_watch_has_not_shown_yet_is_not_written_again(node: ValidatedNode) -> None:
    await node.register()
    node.host.install()
    async with Client(node.access) as client:
        validator = NodeValidator(node.config(), client, boot="this-boot")
        await validator.reflector.__aenter__()
        await validator.reflector.wait_synced()
        await validator.reflector.stop()  # it shows nothing from here on
        assert await validator.ask()
        assert await validator.tell()
        assert not await validator.tell()
        assert validator.writes == 1


async def test_a_node_that_is_not_registered_yet(node: ValidatedNode) -> None:
    node.host.install()
    async with node.validator() as validator:
        await node.there("driver-ready")
        assert validator.writes == 0
        await node.register()
        await node.stands(driver=True, toolkit=False)


async def test_files_go_on_without_an_api_server(node: ValidatedNode, api: EmbeddedApi) -> None:
    await node.register()
    node.host.install()
    await api.__aexit__(None, None, None)
    try:
        async with node.validator() as validator:
            await node.there("driver-ready")
            assert "still reading the node" in validator.waiting_for()
    finally:
        await api.__aenter__()


async def test_a_folder_that_cannot_be_written_is_words(node: ValidatedNode) -> None:
    await node.register()
    node.host.install()
    node.files.folder.mkdir()
    if not ran("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", node.files.folder):
        pytest.skip("only root can mount")
    try:
        async with node.validator():
            await node.stands(driver=False)
            assert "driver-ready cannot be written: Read-only file system" in await node.why("driver")
            assert ran("mount", "-o", "remount,rw", node.files.folder)
            await node.stands(driver=True, toolkit=False)
    finally:
        assert ran("umount", node.files.folder)


async def test_hostile_findings(node: ValidatedNode) -> None:
    await node.register(SHARES)
    node.host.install()
    async with node.validator():
        await node.stands(driver=True, toolkit=False)
        for content in (b"[" * 10_000, b"\xff" * 100_000, b'{"version":1}'):
            node.files.write(FINDINGS, content)
            await node.rest(1.5)
            await node.stands(driver=True, toolkit=False)
        assert "remove the file .shoal-runtime" in await node.why("toolkit")
        node.files.remove(FINDINGS)
        os.mkfifo(node.files.folder / FINDINGS)
        await node.rest(1.5)
        await node.stands(driver=True, toolkit=False)


async def test_files_go_on_the_way_out_only_if_told(node: ValidatedNode) -> None:
    await node.register()
    node.host.install()
    async with node.validator(remove_on_exit=True):
        await node.there("driver-ready")
    await node.there()


async def test_it_must_know_its_node(node: ValidatedNode) -> None:
    with pytest.raises(ValidatorError, match="NODE_NAME"):
        NodeValidator(node.config(node_name=None), node.client)


# Under the runtime class


async def test_the_runtime_brings_nothing(node: ValidatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.register(SHARES)
    shim = node.host.install()
    async with node.validator(), node.runtime() as runtime:
        await node.stands(driver=True, toolkit=False)
        await eventually(lambda: node.files.read(FINDINGS) is not None, "findings")
        await eventually(lambda: "did not bring it" in str(node.files.read(FINDINGS)), "words")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(shim.directory))
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
        assert runtime.waiting_for() == ""


@pytest.mark.usefixtures("brought")
async def test_no_cuda(node: ValidatedNode) -> None:
    await node.register(SHARES)
    assert node.host.shim is not None
    (node.host.shim.directory / "libcuda.so.1").unlink()
    async with node.validator():
        async with node.runtime():
            await node.stands(driver=True, toolkit=True, cuda=False, plugin=True)
            assert "libcuda.so.1 is not in a container" in await node.why("cuda")
            await node.there("driver-ready", "toolkit-ready", "plugin-ready")
        async with node.runtime(cuda=False):
            await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
            await node.there("driver-ready", "toolkit-ready", "plugin-ready")


@pytest.mark.usefixtures("brought")
async def test_a_driver_that_goes_takes_all_with_it(node: ValidatedNode) -> None:
    await node.register(SHARES)
    async with node.validator(), node.runtime() as runtime:
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
        node.host.have(errors={"nvmlInitWithFlags": 9})
        await node.stands(driver=False)
        await node.there()
        await eventually(lambda: "driver-ready" in runtime.waiting_for(), "it waits")
        node.host.have(version="580.20.2")
        await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)


async def test_without_success_it_ends_to_start_anew(node: ValidatedNode) -> None:
    node.files.write("driver-ready", b"IS_HOST_DRIVER=true\n")
    from shoal.validator.runtime import RuntimeValidator

    validator = RuntimeValidator(node.config(restart_seconds=0.5))
    with pytest.raises(StartAnewError, match="a new container may get it"):
        await validator.run()
    assert node.files.read(FINDINGS) is not None
    assert node.files.read("toolkit-ready") is None


# As programs


def ran(*command: str | Path) -> bool:
    return subprocess.run(command, check=False).returncode == 0


def started(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command: list[str | Path] = [Path(sys.executable).parent / "shoal", "validator", *arguments]
    return subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)


async def test_killed_at_any_moment(node: ValidatedNode, api: EmbeddedApi) -> None:
    """Whatever a kill leaves behind, the next process comes to the same end; no process is left."""
    await node.register()
    node.host.install()
    config = node.config()
    command = [
        *("node", f"--kubeconfig={api.kubeconfig()}"),
        *(f"--node-name={node.name}", f"--validations={config.validations}", f"--host-root={config.host_root}"),
        *(f"--driver-root={config.driver_root}", "--interval-seconds=0.2"),
    ]
    for pause in (0.3, 0.6, 0.9, 1.2, 1.5, 2.0, 3.0):
        process = started(*command)
        await node.rest(pause)
        process.send_signal(signal.SIGKILL)
        process.wait()
    async with node.validator():
        await node.stands(driver=True, toolkit=False)
        await node.there("driver-ready")
    names = {path.name for path in node.files.folder.iterdir()}
    assert names == {"driver-ready"}, "no drafts"
    node.files.remove("driver-ready")
    process = started(*command)
    await node.there("driver-ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    await node.there("driver-ready")


async def test_the_one_under_the_runtime_class_as_a_program(node: ValidatedNode) -> None:
    shim = node.host.install()
    node.files.write("driver-ready", b"IS_HOST_DRIVER=true\n")
    process = started("runtime", f"--validations={node.files.folder}", LD_LIBRARY_PATH=str(shim.directory))
    try:
        await node.there("driver-ready", "toolkit-ready", "cuda-ready")
    finally:
        process.terminate()
    assert process.wait() == 0
    await node.there("driver-ready", "toolkit-ready", "cuda-ready")
