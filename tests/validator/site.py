"""A node with a validator: roots that it looks under, the folder of files, and its object on an API server."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.objects.node import Node
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES
from shoal.kube.store import Change
from shoal.model.contract.operator import ANNOTATION_VALIDATION, ValidationReport, decode_validation
from shoal.validator.config import ValidatorConfig
from shoal.validator.files import ValidationFiles
from shoal.validator.node import NodeValidator
from shoal.validator.runtime import RuntimeValidator
from tests.discovery.site import eventually, running
from tests.validator.conftest import NewRoot

CLIENT = dict[str, Any]


class ValidatedNode:
    """One node, whose driver a test can change."""

    def __init__(self, access: Access, client: Client, new_root: NewRoot, folder: Path) -> None:
        self.name = f"node-{uuid.uuid4().hex[:8]}"
        self.access = access
        self.client = client
        self.host = new_root(f"{self.name}-host")
        self.driver = new_root(f"{self.name}-driver")
        self.files = ValidationFiles(folder / f"{self.name}-validations")
        self.settings: dict[str, Any] = {"grace_seconds": 0.0, "interval_seconds": 1.0, "answer_seconds": 120.0}

    async def register(self, allocatable: Mapping[str, str] | None = None) -> None:
        """Have the node's object."""
        await self.client.create(NODES.raw, {"metadata": {"name": self.name}})
        await self.offer(allocatable or {})

    async def offer(self, allocatable: Mapping[str, str | None]) -> None:
        """What kubelet says that the node has."""
        amounts = {"capacity": allocatable, "allocatable": allocatable}
        await self.client.patch(NODES, self.name, {"status": amounts}, subresource="status")

    def config(self, **settings: Any) -> ValidatorConfig:
        return ValidatorConfig(
            **{
                "node_name": self.name,
                "validations": str(self.files.folder),
                "host_root": str(self.host.path),
                "driver_root": str(self.driver.path),
                **self.settings,
                **settings,
            }
        )

    @contextlib.asynccontextmanager
    async def validator(self, access: Access | None = None, **more: Any) -> AsyncIterator[NodeValidator]:
        """The validator of the node."""
        boot = more.pop("boot", "this-boot")
        async with Client(access or self.access) as client:
            validator = NodeValidator(self.config(**more), client, boot=boot)
            async with running(validator.run()):
                yield validator

    @contextlib.asynccontextmanager
    async def runtime(self, **more: Any) -> AsyncIterator[RuntimeValidator]:
        """The one under the runtime class; which libraries it has is in LD_LIBRARY_PATH."""
        validator = RuntimeValidator(self.config(**more), boot="this-boot")
        async with running(validator.run()):
            yield validator

    async def node(self) -> Node:
        return await self.client.get(NODES, self.name)

    @contextlib.asynccontextmanager
    async def written(self) -> AsyncIterator[list[dict[str, bool]]]:
        """What the annotation says from now on, each time that it changes: by step, whether it is ready."""
        found: list[dict[str, bool]] = []
        last = (await self.node()).metadata.annotations.get(ANNOTATION_VALIDATION)

        def on_node(change: Change[Node]) -> None:
            nonlocal last
            text = change.object.metadata.annotations.get(ANNOTATION_VALIDATION)
            if text is not None and text != last:
                last = text
                found.append({name: one.ready for name, one in decode_validation(text).steps.items()})

        async with Reflector(self.client, NODES, fields=f"metadata.name={self.name}", consumers=[on_node]) as watch:
            await watch.wait_synced()
            yield found

    async def report(self) -> ValidationReport | None:
        """What the node's annotation says."""
        try:
            text = (await self.node()).metadata.annotations.get(ANNOTATION_VALIDATION)
        except NotFoundError:
            return None
        return None if text is None else decode_validation(text)

    async def stands(self, **steps: bool) -> None:
        """Wait until the annotation has just these steps, ready or not."""
        last: object = None

        async def so() -> bool:
            nonlocal last
            last = await self.report()
            return last is not None and {name: one.ready for name, one in last.steps.items()} == steps

        try:
            await eventually(so, "")
        except TimeoutError as error:
            raise AssertionError(f"not {steps}: {last}") from error

    async def why(self, step: str) -> str:
        report = await self.report()
        assert report is not None
        found = report.steps[step]  # type: ignore[index]
        return f"{found.why}: {found.fix}"

    async def there(self, *names: str) -> None:
        """Wait until just these files of readiness are there."""

        def so() -> bool:
            try:
                found = {path.name for path in self.files.folder.iterdir()}
            except FileNotFoundError:
                found = set()
            return {name for name in found if name.endswith("-ready")} == set(names)

        await eventually(so, f"the files {names}")

    async def rest(self, seconds: float) -> None:
        """Let time pass in which nothing may happen."""
        await asyncio.sleep(seconds)
