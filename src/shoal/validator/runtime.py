"""The validator under the runtime class: what NVIDIA's runtime brings into a container that asks for cards.

Here it is this very container: the runtime has put NVIDIA's libraries and devices into it, or has not. What is found
goes into files of the node; the validator of the node tells it. No right on the API server is needed.

A runtime brings libraries when a container starts. One that has been without success for a while ends, so that kubelet
starts another, which gets what the runtime brings now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shoal.model.backoff import Backoff
from shoal.model.contract import nvidia
from shoal.validator.config import ValidatorConfig
from shoal.validator.errors import CheckError, StartAnewError
from shoal.validator.files import FINDINGS, ValidationFiles
from shoal.validator.node import boot_id, since_boot
from shoal.validator.questions import AbsentError, DriverQuestions
from shoal.validator.steps import READY, RuntimeFindings, Seen, StepFinding, StepStanding, encode_findings, standing

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_ASK_AGAIN: Final = Backoff(first=2.0, longest=30.0)
_OWN: Final = (nvidia.VALIDATION_TOOLKIT, nvidia.VALIDATION_CUDA, FINDINGS)
_NO_NVML: Final = Seen(
    False,
    "libnvidia-ml.so.1 is not in a container of the runtime class: the runtime did not bring it",
    "set toolkit.enabled=true, or on the node nvidia-ctk runtime configure and a restart of the container runtime; is "
    "NVIDIA_VISIBLE_DEVICES=all accepted of unprivileged pods (config.toml of NVIDIA's runtime)?",
)
_NO_CUDA: Final = Seen(
    False,
    "libcuda.so.1 is not in a container of the runtime class",
    "the driver must have its compute libraries, and NVIDIA_DRIVER_CAPABILITIES name compute; SHOAL_CUDA=false in "
    "validator.cuda.env switches the check off",
)


class RuntimeValidator:
    """Keeps `toolkit-ready` and `cuda-ready` at what is true. `run` goes on until cancelled, or StartAnewError."""

    def __init__(
        self, config: ValidatorConfig, *, clock: Callable[[], float] = since_boot, boot: str | None = None
    ) -> None:
        self._config = config
        self._clock = clock
        self._boot = boot_id() if boot is None else boot
        self.files = ValidationFiles(Path(config.validations))
        self._questions = DriverQuestions(config.answer_seconds)
        self._toolkit: StepStanding | None = None
        self._cuda: StepStanding | None = None
        #: The driver with which CUDA has begun: it is not asked again.
        self._began_with: str | None = None
        self._told: dict[str, str] = {}
        self._waiting = "still waiting for the driver"

    def waiting_for(self) -> str:
        """What keeps the validator from its work, in words."""
        return self._waiting

    async def run(self) -> None:
        """Check and write until cancelled. StartAnewError when a new container is needed."""
        self.files.remove_drafts()
        if self.files.counts(nvidia.VALIDATION_TOOLKIT):
            self._toolkit = StepStanding(READY)
        try:
            await self._go_on()
        finally:
            if self._config.remove_on_exit:
                with contextlib.suppress(CheckError):
                    self.files.remove(*_OWN)

    async def _go_on(self) -> None:
        failures, failing = 0, None
        while True:
            missing = self.files.missing(nvidia.VALIDATION_DRIVER)
            if missing is not None:
                self._without_driver(missing)
                failures, failing = 0, None
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            well = await self.check()
            now = self._clock()
            failures, failing = (0, None) if well else (failures + 1, now if failing is None else failing)
            if failing is not None and now - failing >= self._config.restart_seconds:
                raise StartAnewError(
                    "the runtime has not brought a driver that answers: ending, since a new container may get it"
                )
            await self._pause(_ASK_AGAIN.after(failures) or self._config.interval_seconds)

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the files are not as they should be meanwhile."""
        end = self._clock() + seconds
        while True:
            left = end - self._clock()
            if left <= 0 or not self.files.counts(nvidia.VALIDATION_DRIVER) or self._lost_file():
                return
            await asyncio.sleep(min(_LOOK_SECONDS, left))

    def _lost_file(self) -> bool:
        """Whether somebody has removed a file that was written."""
        cuda = self._cuda if self._config.cuda else None
        own = ((nvidia.VALIDATION_TOOLKIT, self._toolkit), (nvidia.VALIDATION_CUDA, cuda))
        return any(step is not None and step.ready and self.files.read(name) is None for name, step in own)

    def _without_driver(self, missing: str) -> None:
        self._waiting = f"waiting for {self.files.folder / missing}"
        self._say("driver", self._waiting)
        self._toolkit = self._cuda = self._began_with = None
        try:
            self.files.remove(*_OWN)
        except CheckError as error:
            self._say("files", f"{error}: {error.fix}")

    async def check(self) -> bool:
        """Ask once, and write what was found; whether the driver answered."""
        version = ""
        try:
            version = (await self._questions.nvml()).version
            seen = READY
        except AbsentError:
            seen = _NO_NVML
        except CheckError as error:
            seen = Seen(False, str(error), error.fix)
        grace = self._config.grace_seconds
        self._toolkit = standing(self._toolkit, seen, clock=self._clock(), grace=grace)
        if seen.ready and self._began_with != version:
            cuda = await self._ask_cuda() if self._config.cuda else READY
            self._cuda = standing(self._cuda, cuda, clock=self._clock(), grace=grace)
            self._began_with = version if cuda.ready else None
        self._waiting = ""
        self._write(self._toolkit.seen, None if self._cuda is None else self._cuda.seen, version)
        return seen.ready

    async def _ask_cuda(self) -> Seen:
        try:
            await self._questions.cuda()
            return READY
        except AbsentError:
            return _NO_CUDA
        except CheckError as error:
            return Seen(False, str(error), error.fix)

    def _write(self, toolkit: Seen, cuda: Seen | None, version: str) -> None:
        if not self.files.counts(nvidia.VALIDATION_DRIVER):
            return  # it went while it was asked
        if not toolkit.ready:
            cuda = None  # not reached
        try:
            for name, seen in ((nvidia.VALIDATION_TOOLKIT, toolkit), (nvidia.VALIDATION_CUDA, cuda)):
                if seen is not None and seen.ready and (name != nvidia.VALIDATION_CUDA or self._config.cuda):
                    self.files.write(name)
                else:
                    self.files.remove(name)
        except CheckError as error:
            toolkit = Seen(False, str(error), error.fix)
        for name, seen in (("toolkit", toolkit), ("cuda", cuda)):
            if seen is not None:
                self._say(name, "ready" if seen.ready else f"{seen.why}: {seen.fix}")
        findings = RuntimeFindings(
            version=1,
            boot=self._boot,
            at=self._clock(),
            driver_version=version,
            toolkit=_finding(toolkit),
            cuda=None if cuda is None else _finding(cuda),
        )
        try:
            self.files.write(FINDINGS, encode_findings(findings))
        except CheckError as error:
            self._say("files", f"{error}: {error.fix}")

    def _say(self, what: str, words: str) -> None:
        if self._told.get(what) != words:
            self._told[what] = words
            log.info("%s: %s", what, words)


def _finding(seen: Seen) -> StepFinding:
    return StepFinding(ready=seen.ready, why=seen.why[:512], fix=seen.fix[:512])
