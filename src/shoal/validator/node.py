"""The validator of a node: keeps the files of readiness and the node's annotation at what is true.

It runs without NVIDIA's runtime, so that it is there before the driver is. The driver is asked through NVML, by a
process that ends at once; of what the runtime brings it hears by a file of the validator under the runtime class; the
plugin has done its work when the node offers a resource. Files are the node's own business: they go on while the API
server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.objects.node import Node
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES
from shoal.kube.store import Change
from shoal.model.backoff import Backoff
from shoal.model.contract import nvidia
from shoal.model.contract.operator import (
    ANNOTATION_VALIDATION,
    Step,
    ValidationReport,
    decode_validation,
    encode_validation,
)
from shoal.model.errors import CodecError
from shoal.validator.config import ValidatorConfig
from shoal.validator.errors import CheckError, ValidatorError
from shoal.validator.files import FINDINGS, OF_THE_DRIVER, ValidationFiles, driver_ready
from shoal.validator.questions import AbsentError, DriverAnswer, DriverQuestions
from shoal.validator.steps import READY, Seen, StepStanding, plugin_seen, report_of, runtime_seen, standing

log = logging.getLogger(__name__)

#: How often files are looked at.
_LOOK_SECONDS: Final = 1.0
#: How often a driver that is not ready is asked again.
_ASK_AGAIN: Final = Backoff(first=2.0, longest=30.0)
_WRITE_AGAIN: Final = Backoff(first=0.5, longest=60.0)
#: The least time between two writes of the annotation.
_WRITE_GAP_SECONDS: Final = 2.0
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MARKER: Final = nvidia.VALIDATION_DRIVER_CONTAINER


def boot_id() -> str:
    """Which boot of the machine this is; empty where the kernel does not say."""
    try:
        return _BOOT_ID.read_text().strip()[:64]
    except OSError:
        return ""


def since_boot() -> float:
    """Seconds since the boot, the same for all processes of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class FoundDriver:
    """A driver that answers, and what `driver-ready` says of it."""

    answer: DriverAnswer
    of_container: bool
    content: bytes


class DriverSearch:
    """Looks for the driver of the node: on its root, and where a driver container has its own."""

    def __init__(self, config: ValidatorConfig, files: ValidationFiles, questions: DriverQuestions) -> None:
        self._config = config
        self._files = files
        self._questions = questions
        self._host = Path(config.host_root)
        self._driver = Path(config.driver_root)

    @property
    def container_ready(self) -> bool:
        """Whether the driver container says that it is ready, or need not say so."""
        return not self._config.driver_container or self._files.read(_MARKER) is not None

    async def find(self) -> FoundDriver:
        """The driver. CheckError if none answers."""
        config = self._config
        try:
            answer = await self._questions.nvml(str(self._host))
            content = driver_ready(is_host=True, driver_root=config.root_path, dev_root=config.root_path)
            return FoundDriver(answer, False, content)
        except CheckError as error:
            on_host = error
        if not self.container_ready:
            raise self._neither(on_host)
        try:
            answer = await self._questions.nvml(str(self._driver))
        except AbsentError:
            raise self._neither(on_host) from None
        # As NVIDIA's: the devices are where the driver is, if it has a folder of them.
        has_devices = (self._driver / "dev").is_dir()
        content = driver_ready(
            is_host=False,
            driver_root=config.driver_install_dir,
            dev_root=config.driver_install_dir if has_devices else config.root_path,
            marker=_MARKER if config.driver_container else "",
        )
        return FoundDriver(answer, True, content)

    def _neither(self, on_host: CheckError) -> CheckError:
        if not isinstance(on_host, AbsentError):
            return on_host
        config = self._config
        if self.container_ready:
            why = f"libnvidia-ml.so.1 was not found under {config.driver_install_dir} or {config.root_path}"
        else:
            why = (
                f"libnvidia-ml.so.1 was not found under {config.root_path}, and no driver container of this node has "
                f"said that it is ready ({self._files.folder / _MARKER})"
            )
        return CheckError(
            why,
            "install NVIDIA's driver on the node or set driver.enabled=true; with that, the log of the node's driver "
            "pod says how far it is",
        )


class NodeValidator:
    """The validator of one node. `run` goes on until it is cancelled."""

    def __init__(
        self,
        config: ValidatorConfig,
        client: Client,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = since_boot,
        boot: str | None = None,
    ) -> None:
        if config.node_name is None:
            raise ValidatorError("the validator must know its node: give --node-name, or set NODE_NAME")
        self._name = config.node_name
        self._config = config
        self._client = client
        self._now = now
        self._clock = clock
        self._boot = boot_id() if boot is None else boot
        self.files = ValidationFiles(Path(config.validations))
        self._search = DriverSearch(config, self.files, DriverQuestions(config.answer_seconds))
        self._found: FoundDriver | None = None
        #: None until the driver was asked once; what an earlier process has found stands until then.
        self._driver: StepStanding | None = None
        self._plugin: StepStanding | None = None
        self._asked = False
        self._ask_now = asyncio.Event()
        self._changed = asyncio.Event()
        self._report: ValidationReport | None = None
        self._told: dict[str, str] = {}
        #: The annotation was written so often.
        self.writes = 0
        #: The node as it was after the last write.
        self._written: Node | None = None
        self.reflector: Reflector[Node] = Reflector(
            client, NODES, fields=f"metadata.name={self._name}", consumers=[self._on_node]
        )

    def waiting_for(self) -> str:
        """What keeps the validator from its work, in words; how the node stands is no such thing."""
        if not self.reflector.synced.is_set():
            return f"still reading the node: {self.reflector.last_error or 'no answer yet'}"
        return "" if self._asked else "still asking the driver"

    async def run(self) -> None:
        """Check, write and tell until cancelled."""
        self.files.remove_drafts()
        if self.files.counts(nvidia.VALIDATION_DRIVER):
            self._driver = StepStanding(READY)
        if self.files.counts(nvidia.VALIDATION_PLUGIN):
            self._plugin = StepStanding(READY)
        try:
            async with self.reflector, asyncio.TaskGroup() as group:
                group.create_task(self._ask(), name="driver")
                group.create_task(self._look(), name="files")
                group.create_task(self._tell(), name="annotation")
        finally:
            if self._config.remove_on_exit:
                with contextlib.suppress(CheckError):
                    self.files.remove(*OF_THE_DRIVER)

    # The driver

    async def _ask(self) -> None:
        failures = 0
        while True:
            self._ask_now.clear()
            failures = 0 if await self.ask() else failures + 1
            pause = _ASK_AGAIN.after(failures) or self._config.interval_seconds
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ask_now.wait()
                    failures = 0

    async def ask(self) -> bool:
        """Ask the driver once; whether it answered."""
        try:
            found = await self._search.find()
        except CheckError as error:
            self._see_driver(Seen(False, str(error), error.fix))
            return False
        if found.of_container and not self._search.container_ready:
            self._take_back()
            return False
        if self._found != found:
            log.info(
                "driver %s of the %s answers, with %d cards",
                *(found.answer.version, "driver container" if found.of_container else "node", found.answer.cards),
            )
        self._found = found
        self._see_driver(READY)
        return True

    def _see_driver(self, seen: Seen) -> None:
        self._asked = True
        self._driver = standing(self._driver, seen, clock=self._clock(), grace=self._config.grace_seconds)
        if not self._driver.ready:
            self._found = None
        self.look()

    def _take_back(self) -> None:
        """The driver container has taken its word back."""
        why = f"the driver container of this node is not ready any more ({self.files.folder / _MARKER} was removed)"
        fix = "it is being replaced, or was removed: the log of the node's driver pod says how far it is"
        self._see_driver(Seen(False, why, fix, certain=True))

    # Files

    async def _look(self) -> None:
        before = self._search.container_ready
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            ready = self._search.container_ready
            if ready != before:
                self._ask_now.set()
            before = ready
            if self._found is not None and self._found.of_container and not ready:
                self._take_back()
            self.look()

    def look(self) -> None:
        """Keep the files at how the steps stand, and see whether the node's annotation must change."""
        if self._driver is None or not self._asked:
            return
        steps = self._steps(self._driver)
        for name, seen in steps.items():
            self._say(name, "" if seen.ready else f"{seen.why}: {seen.fix}")
        if not self.reflector.synced.is_set():
            return  # since when a step stands as it does, the annotation knows
        known = self._report or self._known()
        version = "" if self._found is None else self._found.answer.version
        if not version and self._driver.ready and known is not None and known.boot == self._boot:
            version = known.driver_version  # an earlier process has asked
        report = report_of(steps, boot=self._boot, driver_version=version, known=known, now=int(self._now()))
        if report != self._report:
            self._report = report
            self._changed.set()

    def _steps(self, driver: StepStanding) -> dict[Step, Seen]:
        try:
            if not driver.ready:
                self.files.remove(*OF_THE_DRIVER)
                return {"driver": driver.seen}
            if self._found is not None:
                self.files.write(nvidia.VALIDATION_DRIVER, self._found.content)
        except CheckError as error:
            return {"driver": Seen(False, str(error), error.fix)}
        steps: dict[Step, Seen] = {"driver": READY}
        toolkit, cuda = runtime_seen(
            self.files.read(FINDINGS),
            counts=self.files.counts,
            driver_version="" if self._found is None else self._found.answer.version,
            boot=self._boot,
            now=self._clock(),
        )
        steps["toolkit"] = toolkit
        if cuda is not None:
            steps["cuda"] = cuda
        if toolkit.ready and (plugin := self._see_plugin()) is not None:
            steps["plugin"] = plugin
        return steps

    def _see_plugin(self) -> Seen | None:
        node = self.reflector.store.get(self._name)
        if node is not None:
            seen = plugin_seen(node.status.allocatable)
            self._plugin = standing(self._plugin, seen, clock=self._clock(), grace=self._config.grace_seconds)
        if self._plugin is None:
            return None
        try:
            if self._plugin.ready:
                self.files.write(nvidia.VALIDATION_PLUGIN)
            else:
                self.files.remove(nvidia.VALIDATION_PLUGIN)
        except CheckError as error:
            return Seen(False, str(error), error.fix)
        return self._plugin.seen

    def _say(self, step: Step, problem: str) -> None:
        if self._told.get(step) != problem:
            self._told[step] = problem
            log.info("step %s: %s", step, problem or "ready")

    # The annotation

    def _on_node(self, change: Change[Node]) -> None:
        self._changed.set()

    def _known(self) -> ValidationReport | None:
        node = self.reflector.store.get(self._name)
        written = None if node is None else node.metadata.annotations.get(ANNOTATION_VALIDATION)
        if written is None:
            return None
        try:
            return decode_validation(written)
        except CodecError:
            return None  # it is written anew

    async def _tell(self) -> None:
        failures = 0
        await self.reflector.wait_synced()
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.look()
            try:
                wrote = await self.tell()
                failures, pause = 0, _WRITE_GAP_SECONDS if wrote else 0.0
            except KubeError as error:
                log.warning("node %s: %s", self._name, error)
                failures += 1
                pause = _WRITE_AGAIN.after(failures)
                self._changed.set()
            await asyncio.sleep(pause)

    async def tell(self) -> bool:
        """Write the annotation if it differs, once; whether it was written."""
        node = self.reflector.store.get(self._name)
        if node is None or self._report is None:
            return False
        try:
            words = encode_validation(self._report)
        except CodecError as error:
            log.error("the node's state cannot be told: %s", error)
            return False
        if self._written is not None and _is_older(node, self._written):
            node = self._written  # the watch lags behind the last write
        if node.metadata.annotations.get(ANNOTATION_VALIDATION) == words:
            return False
        with contextlib.suppress(NotFoundError):
            patch = {"metadata": {"annotations": {ANNOTATION_VALIDATION: words}}}
            self._written = await self._client.patch(NODES, self._name, patch)
            self.writes += self._written.metadata.resource_version != node.metadata.resource_version
        return True


def _is_older(node: Node, than: Node) -> bool:
    """Whether this is an earlier version of the same node."""
    metas = (node.metadata, than.metadata)
    return (
        metas[0].uid == metas[1].uid
        and all(meta.resource_version.isdigit() for meta in metas)
        and int(metas[0].resource_version) < int(metas[1].resource_version)
    )
