"""How the steps of a node stand, given what was seen of them. Pure.

A step that was ready is not ready any more only when it has failed for a while, unless that is certain: so a driver
that is slow once, or a plugin that restarts, closes no gate and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from shoal.kube.objects.pod import Quantities
from shoal.model import quantity
from shoal.model.contract import gpushare, keti, nvidia, shoal, text
from shoal.model.contract.operator import Step, StepReport, ValidationReport
from shoal.model.errors import CodecError, QuantityError
from shoal.validator.files import FINDINGS, MOST

#: Silence of the validator under the runtime class after which its complaint is not repeated.
STALE_SECONDS: Final = 300.0

#: Most characters of a step's words in the node's annotation; JSON may need twice as many.
_MOST_WORDS: Final = 400

_Words = Annotated[str, msgspec.Meta(max_length=512)]


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a step."""

    ready: bool
    why: str = ""
    fix: str = ""
    #: A failure that needs no second look.
    certain: bool = False


READY: Final = Seen(True)


@dataclass(frozen=True, slots=True)
class StepStanding:
    """How a step stands: as it was seen, or as it was before if that was better and not long ago."""

    seen: Seen
    #: Since when it fails while it still counts as ready.
    failing: float | None = None

    @property
    def ready(self) -> bool:
        """Whether the step counts as ready."""
        return self.seen.ready


def standing(before: StepStanding | None, seen: Seen, *, clock: float, grace: float) -> StepStanding:
    """How a step stands after another look."""
    if seen.ready or seen.certain or before is None or not before.ready:
        return StepStanding(seen)
    failing = clock if before.failing is None else before.failing
    return StepStanding(seen) if clock - failing >= grace else StepStanding(before.seen, failing)


# What the validator under the runtime class tells


class StepFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step, as it stands in a container of the runtime class."""

    ready: bool
    why: _Words = ""
    fix: _Words = ""


class RuntimeFindings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The file `.shoal-runtime`."""

    version: Literal[1]
    boot: Annotated[str, msgspec.Meta(max_length=64)]
    #: When it was written, in seconds since the boot.
    at: Annotated[float, msgspec.Meta(ge=0, le=2**40)]
    driver_version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    toolkit: StepFinding
    #: None if it was not reached; ready if it is not looked at.
    cuda: StepFinding | None = None


_FINDINGS: Final = msgspec.json.Decoder(RuntimeFindings)
_BEGIN: Final = Seen(
    False,
    "no pod of shoal-validator-runtime has told anything yet: it begins when the node has the runtime of its "
    "runtime class",
    "set toolkit.enabled=true, or install NVIDIA's container toolkit on the node and configure it for the container "
    "runtime (nvidia-ctk runtime configure); kubectl describe pod says what the pod waits for",
)


def decode_findings(content: bytes) -> RuntimeFindings:
    """What the file says; CodecError if it is not what it should be."""
    if len(content) > MOST:
        raise CodecError(f"{FINDINGS} has more than {MOST} bytes")
    try:
        words = content.decode()
    except UnicodeDecodeError as error:
        raise CodecError(f"{FINDINGS} is no text") from error
    return text.from_json(words, _FINDINGS, what=FINDINGS, limit=MOST)


def encode_findings(findings: RuntimeFindings) -> bytes:
    """The content of the file."""
    return msgspec.json.encode(findings)


def runtime_seen(
    content: bytes | None, *, counts: Callable[[str], bool], driver_version: str, boot: str, now: float
) -> tuple[Seen, Seen | None]:
    """How toolkit and CUDA stand by the file of the validator under the runtime class; None: CUDA was not reached.

    `counts` tells which files of readiness there are: without that file another validator has written them. `now` is in
    seconds since the boot.
    """
    if content is None:
        if not counts(nvidia.VALIDATION_TOOLKIT):
            return _BEGIN, None
        return READY, READY if counts(nvidia.VALIDATION_CUDA) else None
    try:
        found = decode_findings(content)
    except CodecError as error:
        return Seen(False, str(error)[:512], f"remove the file {FINDINGS} of the node: it is written anew"), None
    if found.boot != boot:
        return _BEGIN, None
    if found.toolkit.ready and found.driver_version and driver_version and found.driver_version != driver_version:
        why = f"containers of the runtime class were given driver {found.driver_version}, the node has {driver_version}"
        return Seen(False, why, "a container that starts anew gets it: that happens by itself within minutes"), None
    if not found.toolkit.ready and now - found.at > STALE_SECONDS:
        why = f"shoal-validator-runtime is silent; the last it said: {found.toolkit.why}"
        return Seen(False, why[:512], found.toolkit.fix or _BEGIN.fix), None
    return _seen(found.toolkit), None if found.cuda is None else _seen(found.cuda)


def _seen(found: StepFinding) -> Seen:
    return READY if found.ready else Seen(False, found.why, found.fix)


# The plugin


def plugin_seen(allocatable: Quantities) -> Seen:
    """Whether a node offers a GPU resource of any family."""
    if any(_is_gpu(name) and _amount(value) >= 1 for name, value in allocatable.items()):
        return READY
    return Seen(
        False,
        "the node offers no GPU resource",
        "look at the log and /readyz of the node's shoal-agent; a node whose cards are all lost or unhealthy has none",
    )


def _is_gpu(name: str) -> bool:
    known = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, shoal.RESOURCE_SLOT, nvidia.RESOURCE_GPU)
    return name in known or name.startswith((f"{nvidia.RESOURCE_GPU}.", nvidia.RESOURCE_MIG_PREFIX))


def _amount(value: object) -> float:
    try:
        return float(quantity.parse(value))
    except (QuantityError, OverflowError):
        return 0.0


# The report


def report_of(
    steps: Mapping[Step, Seen], *, boot: str, driver_version: str, known: ValidationReport | None, now: int
) -> ValidationReport:
    """What the node's annotation shall say. A step that stands as the annotation has it does so since then."""
    same_boot = known is not None and known.boot == boot
    before = known.steps if known is not None and same_boot else {}

    def since(name: Step, seen: Seen) -> int:
        last = before.get(name)
        return last.since if last is not None and last.ready == seen.ready else now

    return ValidationReport(
        version=1,
        boot=boot,
        driver_version=driver_version,
        steps={
            name: StepReport(ready=seen.ready, since=since(name, seen), why=_cut(seen.why), fix=_cut(seen.fix))
            for name, seen in steps.items()
        },
    )


def _cut(words: str) -> str:
    """As much as an annotation has room for, with two steps that are not ready."""
    shown = "".join(letter if letter.isprintable() else " " for letter in words)
    return shown if len(shown) <= _MOST_WORDS else shown[: _MOST_WORDS - 1] + "…"
