"""What a container does on a simulated node: from an annotation, from a command that is trivial, or from its owner.

The annotation `shoal.dev/simulate`, or `shoal.dev/simulate.NAME` for one container, holds words such as
`duration=30s memory=2Gi utilisation=60 exit=1`:

    duration     how long it runs; `forever`
    exit         its exit code at the end
    memory       memory it takes of each of its cards
    utilisation  percent it computes on each of them
    ramp         time until it has all its memory
    ram          memory of the node it takes: more than its limit is OOMKilled
    ready        time until it is ready; `never`
    stop         time it takes to end when it is told to; `never`: until it is killed

Without any of this, a container whose command is one of `scripts` does that; the pods of a Job run some seconds and
succeed; all others run until they are deleted and print their environment, without the values of Secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shoal.embedded.nodes.errors import SimulatedWorkloadError
from shoal.embedded.nodes.pods.scripts import Script, interpret
from shoal.model import quantity
from shoal.model.contract import shoal
from shoal.model.contract.kubernetes import LABEL_JOB
from shoal.model.errors import QuantityError, shown

#: How long the pods of a Job run that say nothing about it.
JOB_SECONDS: Final = 5.0
MAX_LENGTH: Final = 1000
HIDDEN: Final = "(from a Secret)"
_MAX_SECONDS: Final = 10 * 365 * 86400.0
_DURATION: Final = re.compile(r"(?:(?P<h>\d{1,6})h)?(?:(?P<m>\d{1,6})m)?(?:(?P<s>\d{1,9}(?:\.\d{1,3})?)s?)?")
_MILLISECONDS: Final = re.compile(r"(\d{1,9})ms")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run of a container does."""

    #: None: until it is stopped.
    seconds: float | None = None
    code: int = 0
    lines: tuple[tuple[float, str], ...] = ()
    memory_bytes: int = 0
    utilisation: int = 0
    ramp_seconds: float = 0.0
    ram_bytes: int = 0
    #: None: never.
    ready_seconds: float | None = 0.0
    #: From SIGTERM to its end. None: it does not listen, and is killed when its grace is over.
    stop_seconds: float | None = 0.0
    stop_code: int = 0
    #: Why it ends, where that is not told by the code.
    reason: str = ""

    @property
    def uses_cards(self) -> bool:
        """Whether there is something to show on a card."""
        return bool(self.memory_bytes or self.utilisation)


def plan_of(
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
    env: Mapping[str, str],
    secret: frozenset[str] = frozenset(),
) -> Plan:
    """What a container of a pod does in its environment. WorkloadError if its annotation cannot be read.

    `secret` are the variables that it does not print by itself.
    """
    annotations = pod["metadata"].get("annotations") or {}
    name = container["name"]
    words = [
        (key, annotations[key])
        for key in (shoal.ANNOTATION_SIMULATE, f"{shoal.ANNOTATION_SIMULATE_PREFIX}{name}")
        if key in annotations
    ]
    plan = _default(container, pod, env, secret)
    for key, text in words:
        plan = read(text, plan, where=f"annotation {key}")
    return _within_limits(plan, container)


def _default(
    container: Mapping[str, Any], pod: Mapping[str, Any], env: Mapping[str, str], secret: frozenset[str]
) -> Plan:
    argv = [*(container.get("command") or ()), *(container.get("args") or ())]
    script = interpret([_substituted(word, env) for word in argv], env)
    if script is not None:
        return _scripted(script)
    shown_env = tuple((0.0, f"{name}={HIDDEN if name in secret else value}") for name, value in env.items())
    init = any(one is container for one in pod["spec"].get("initContainers") or ())
    if init and container.get("restartPolicy") != "Always":
        return Plan(seconds=0.0, lines=shown_env)
    # A copy of another cluster's pod has no owner here.
    is_of_job = LABEL_JOB in (pod["metadata"].get("labels") or {})
    return Plan(seconds=JOB_SECONDS if is_of_job and not init else None, lines=shown_env)


def _scripted(script: Script) -> Plan:
    return Plan(
        seconds=script.seconds,
        code=script.code,
        lines=script.lines,
        stop_seconds=None if script.term_code is None else 0.0,
        stop_code=script.term_code or 0,
    )


def _substituted(word: str, env: Mapping[str, str]) -> str:
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", lambda match: env.get(match[1], match[0]), word)


def _within_limits(plan: Plan, container: Mapping[str, Any]) -> Plan:
    """A container that takes more memory of the node than it may is killed as soon as it does."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    if limit is None or plan.ram_bytes <= quantity.parse(limit):
        return plan
    return replace(plan, seconds=plan.ramp_seconds, code=137, reason="OOMKilled")


def read(text: str, plan: Plan = Plan(), *, where: str) -> Plan:  # noqa: B008 - it is frozen
    """The plan with what the text says of it."""
    if len(text) > MAX_LENGTH:
        raise SimulatedWorkloadError(f"{where} is longer than {MAX_LENGTH} characters: shorten it")
    for word in text.split():
        key, equals, value = word.partition("=")
        if key not in _KEYS or not equals:
            known = ", ".join(f"{name}=" for name in _KEYS)
            raise SimulatedWorkloadError(f"{where} holds {shown(word)}: use {known} with blanks between them")
        plan = replace(plan, **_KEYS[key](value, f"{where}: {key}"))
    return plan


def seconds_of(value: str, where: str) -> float:
    """A duration: `30s`, `1m30s`, `500ms` or plain seconds."""
    if match := _MILLISECONDS.fullmatch(value):
        return int(match[1]) / 1000
    match = _DURATION.fullmatch(value)
    if match is None or not value:
        raise SimulatedWorkloadError(f"{where} is {shown(value)}: write a duration such as 30s, 1m30s or 500ms")
    seconds = int(match["h"] or 0) * 3600 + int(match["m"] or 0) * 60 + float(match["s"] or 0)
    return min(seconds, _MAX_SECONDS)


def _duration(value: str, where: str) -> dict[str, Any]:
    return {"seconds": None if value == "forever" else seconds_of(value, where)}


def _exit(value: str, where: str) -> dict[str, Any]:
    return {"code": _number(value, 255, where)}


def _utilisation(value: str, where: str) -> dict[str, Any]:
    return {"utilisation": _number(value.removesuffix("%"), 100, where)}


def _ready(value: str, where: str) -> dict[str, Any]:
    return {"ready_seconds": None if value == "never" else seconds_of(value, where)}


def _stop(value: str, where: str) -> dict[str, Any]:
    return {"stop_seconds": None if value == "never" else seconds_of(value, where)}


def _number(value: str, most: int, where: str) -> int:
    if not re.fullmatch(r"\d{1,3}", value) or int(value) > most:
        raise SimulatedWorkloadError(f"{where} is {shown(value)}: write a whole number from 0 to {most}")
    return int(value)


def _bytes(field: str) -> Callable[[str, str], dict[str, Any]]:
    def read_bytes(value: str, where: str) -> dict[str, Any]:
        try:
            amount = quantity.parse(value)
        except QuantityError as error:
            raise SimulatedWorkloadError(f"{where}: {error}") from error
        if not 0 <= amount < 2**63:
            raise SimulatedWorkloadError(f"{where} is {shown(value)}: write an amount of memory such as 2Gi")
        return {field: int(amount)}

    return read_bytes


_KEYS: Final[Mapping[str, Callable[[str, str], dict[str, Any]]]] = {
    "duration": _duration,
    "exit": _exit,
    "memory": _bytes("memory_bytes"),
    "utilisation": _utilisation,
    "ramp": lambda value, where: {"ramp_seconds": seconds_of(value, where)},
    "ram": _bytes("ram_bytes"),
    "ready": _ready,
    "stop": _stop,
}


def failed(plan: Plan, lines: Sequence[str]) -> Plan:
    """The plan of a program that finds at its start that it cannot do what it wants."""
    return replace(plan, seconds=0.0, code=1, lines=(*plan.lines, *((0.0, line) for line in lines)))
