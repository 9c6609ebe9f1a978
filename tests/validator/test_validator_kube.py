"""The validator on a real API server, under the account, the rights and the fence that the chart has for it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from deploy.generate import documents, render
from shoal.cli.main import main
from shoal.model.contract.operator import ANNOTATION_VALIDATION, MAX_VALIDATION, NAME_VALIDATOR
from tests.discovery.site import SYSTEM, Site, eventually
from tests.testbed.apiserver import ApiServer
from tests.testbed.binaries import find
from tests.testbed.processes import Run
from tests.validator.conftest import NewRoot
from tests.validator.site import ValidatedNode


@pytest.fixture(scope="module")
def server(testbed_run: Run) -> Iterator[ApiServer]:
    server = ApiServer(testbed_run, "validator")
    yield server
    server.stop()


@pytest.fixture
async def site(server: ApiServer, tmp_path: Path) -> AsyncIterator[Site]:
    """What the chart has for the validator."""
    site = Site(server.kubeconfig(), tmp_path)
    async with site.client:
        for _, text in documents(render(find("helm"), namespace=SYSTEM)):
            document = yaml.safe_load(text)
            about = (document or {}).get("metadata", {}).get("labels", {}).get("app.kubernetes.io/name")
            if about == NAME_VALIDATOR:
                await site.apply(document)
        yield site
        await site.remove()


async def test_it_writes_one_annotation_of_its_own_node(site: Site) -> None:
    own, other = await site.new_node(), await site.new_node()
    access = await site.as_pod_of(NAME_VALIDATOR, own)

    async def refused() -> bool:
        return "is not for the validator" in await site.refusal(access, own, {"annotations": {"x": uuid.uuid4().hex}})

    await eventually(refused, "the fence in force")
    told = {ANNOTATION_VALIDATION: "x" * MAX_VALIDATION}
    assert await site.refusal(access, own, {"annotations": told}) == ""
    too_long = {ANNOTATION_VALIDATION: "x" * (MAX_VALIDATION + 1)}
    assert "more than 4096 characters" in await site.refusal(access, own, {"annotations": too_long})
    assert "own node only" in await site.refusal(access, other, {"annotations": told})
    assert "annotations of a node only" in await site.refusal(
        access, own, {"labels": {"nvidia.com/gpu.present": "true"}}
    )
    assert "annotations of a node only" in await site.refusal(access, own, {}, spec={"unschedulable": True})
    assert "cannot patch resource" in await site.refusal_of_status(access, own)
    anybody = await site.as_account(NAME_VALIDATOR)
    assert "does not say on which node" in await site.refusal(
        anybody, own, {"annotations": {ANNOTATION_VALIDATION: "y"}}
    )


async def test_from_nothing_to_ready_with_the_rights_of_its_account(
    site: Site, new_root: NewRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ValidatedNode(site.access, site.client, new_root, tmp_path)
    await node.register({"aliyun.com/gpu-mem": "30"})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(node.host.install().directory))
    access = await site.as_pod_of(NAME_VALIDATOR, node.name)
    try:
        async with node.validator(access) as validator, node.runtime():
            await node.stands(driver=True, toolkit=True, cuda=True, plugin=True)
            before = (await node.node()).metadata.resource_version
            await node.rest(10)
            assert (await node.node()).metadata.resource_version == before
            writes = validator.writes
            async with node.written() as said:
                node.host.have(errors={"nvmlInitWithFlags": 9})
                await node.stands(driver=False)
                await eventually(lambda: said[-1:] == [{"driver": False}], "the write")
            # The validator under the runtime class may notice first. Nothing is written twice.
            assert all(one["driver"] and not all(one.values()) for one in said[:-1])
            await eventually(lambda: validator.writes >= writes + len(said), "all answered")
            assert validator.writes == writes + len(said) <= writes + 2
    finally:
        await site.forget(node.name)


@pytest.mark.usefixtures("testbed_run")
def test_the_manifests_name_what_the_programs_take() -> None:
    """Probes ask the ports that are served, and flags are those of the command."""
    rendered = {source: yaml.safe_load(text) for source, text in documents(render(find("helm"), namespace=SYSTEM))}
    operands = rendered["operator/operands.yaml"]["data"]
    for name, command in (("validator", "node"), ("validator-runtime", "runtime")):
        (daemon_set,) = [one for one in yaml.safe_load_all(operands[f"{name}.yaml"]) if one["kind"] == "DaemonSet"]
        pod = daemon_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["args"][:2] == ["validator", command]
        (port,) = container["ports"]
        assert f"--port={port['containerPort']}" in container["args"]
        help_of = CliRunner().invoke(main, ["validator", command, "--help"]).output
        assert all(flag.partition("=")[0] in help_of for flag in container["args"][2:])
        assert {"nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.operator-validator"} <= set(pod["nodeSelector"])
        assert ("runtimeClassName" in pod) is (name == "validator-runtime")
        assert bool(container["securityContext"].get("privileged")) is (name == "validator")
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
