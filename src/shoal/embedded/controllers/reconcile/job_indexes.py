"""The indexes of an Indexed Job: sets of numbers, and the text that a status keeps them in (`0-2,4,7,8`)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from shoal.embedded.store import Object

ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"
_VARIABLE: Final = "JOB_COMPLETION_INDEX"
_LONGEST_BASE: Final = 58


def parsed(text: str, completions: int) -> frozenset[int]:
    """The numbers that a text stands for, of those below the number of completions."""
    numbers: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            numbers.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return frozenset(number for number in numbers if number < completions)


def text_of(numbers: Iterable[int]) -> str:
    """Numbers as a status keeps them: two in a row with a comma, more with a dash."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    return ",".join(parts)


def index_of(pod: Object) -> int | None:
    """The index that a pod was made for."""
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    return int(text) if text.isdigit() else None


def first_free(taken: Set[int], count: int, completions: int) -> list[int]:
    """The lowest indexes that nobody works on."""
    free: list[int] = []
    for number in range(completions):
        if len(free) == count:
            break
        if number not in taken:
            free.append(number)
    return free


def doubled(active: list[Object], completions: int) -> list[Object]:
    """Pods too many: those beyond the completions, and all but one of each index."""
    seen: set[int] = set()
    spare = []
    for pod in active:
        index = index_of(pod)
        if index is None or index >= completions or index in seen:
            spare.append(pod)
        else:
            seen.add(index)
    return spare


def indexed(pod: Object, job: str, index: int) -> Object:
    """The pod for one index: its annotation and label, its host name, and the variable its containers read."""
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["annotations"] = {**metadata.get("annotations", {}), ANNOTATION: str(index)}
    metadata["labels"] = {**metadata.get("labels", {}), ANNOTATION: str(index)}
    ending = f"-{index}-"
    metadata["generateName"] = f"{job[: _LONGEST_BASE - len(ending)]}{ending}"
    spec["hostname"] = f"{job}-{index}"
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{ANNOTATION}']"}}
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        if not any(one.get("name") == _VARIABLE for one in container.get("env") or ()):
            container["env"] = [*(container.get("env") or ()), {"name": _VARIABLE, "valueFrom": source}]
    return pod
