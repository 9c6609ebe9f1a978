"""Programs of containers on a node's simulated cards: which cards they see, the memory they take, where that fails.

It plays the CUDA runtime: a program that asks for more than its card, its cgroup or its MPS limit has is told so and
ends by itself. The cards are those of `shoal.gpu.simulated`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from shoal.embedded.nodes.pods.workload import Plan
from shoal.gpu.errors import GpuError, OutOfMemoryError
from shoal.gpu.protocol import Card, Survey
from shoal.kubelet.cdi import ContainerEdits
from shoal.model import quantity
from shoal.model.contract import nvidia
from shoal.model.errors import QuantityError

#: A program that takes its memory slowly takes it in this many pieces.
_PIECES: Final = 10
_DEVICE: Final = re.compile(r"/dev/nvidia(\d+)")


class Cards(Protocol):
    """What is asked of simulated cards."""

    def survey(self) -> Survey:
        """All cards."""

    def add_process(
        self, uuid: str, pid: int, memory_bytes: int, utilisation: int, *, cgroup: str | None = None, mps: bool = False
    ) -> None:
        """Start a program on a card, or change what it uses."""

    def remove_process(self, uuid: str, pid: int) -> None:
        """End a program."""


@dataclass(slots=True)
class _Program:
    pid: int
    cards: tuple[str, ...]
    plan: Plan
    cgroup: str
    mps: bool
    started: datetime
    pieces: int = 0


class Programs:
    """The programs on the cards of one node, by container ID."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._programs: dict[str, _Program] = {}
        self._next_pid = 1000
        #: By PID, the cgroup of each program that runs, as `/proc` would tell it.
        self.cgroups: dict[int, str] = {}

    def begin(
        self, container_id: str, plan: Plan, env: Mapping[str, str], edits: ContainerEdits, cgroup: str, now: datetime
    ) -> list[str]:
        """Start a program; what it prints if it fails at once."""
        visible = visible_cards(self._cards.survey(), env, edits)
        if not visible:
            return ["RuntimeError: No CUDA GPUs are available"]
        beyond = _beyond_limit(plan.memory_bytes, [card.uuid for card in visible], env)
        if beyond:
            return [beyond]
        self._next_pid += 1
        mps = nvidia.ENV_MPS_PIPE_DIRECTORY in env
        program = _Program(self._next_pid, tuple(card.uuid for card in visible), plan, cgroup, mps, now)
        self._programs[container_id] = program
        self.cgroups[program.pid] = cgroup
        failure = self._move(program, now)
        if failure:
            self.end(container_id)
        return failure

    def move(self, container_id: str, now: datetime) -> list[str]:
        """Let a program take what it has by now; what it prints if it fails."""
        program = self._programs.get(container_id)
        failure = [] if program is None else self._move(program, now)
        if failure:
            self.end(container_id)
        return failure

    def next_move(self, container_id: str) -> datetime | None:
        """When a program takes more."""
        program = self._programs.get(container_id)
        if program is None or program.pieces >= _PIECES:
            return None
        return program.started + timedelta(seconds=program.plan.ramp_seconds * program.pieces / _PIECES)

    def end(self, container_id: str) -> None:
        """End a program; one that does not run is no error."""
        program = self._programs.pop(container_id, None)
        if program is not None:
            for uuid in program.cards:
                self._cards.remove_process(uuid, program.pid)
            del self.cgroups[program.pid]

    def keep_only(self, running: Iterable[str]) -> None:
        """End the programs of all containers but these."""
        for container_id in set(self._programs) - set(running):
            self.end(container_id)

    def _move(self, program: _Program, now: datetime) -> list[str]:
        ramp = program.plan.ramp_seconds
        passed = (now - program.started).total_seconds()
        program.pieces = _PIECES if passed >= ramp else 1 + int(_PIECES * passed / ramp)
        memory = program.plan.memory_bytes * program.pieces // _PIECES
        try:
            for uuid in program.cards:
                self._cards.add_process(
                    uuid, program.pid, memory, program.plan.utilisation, cgroup=program.cgroup, mps=program.mps
                )
        except OutOfMemoryError as error:
            return [out_of_memory(memory), str(error)]
        except GpuError as error:
            return [f"RuntimeError: CUDA error: {error}"]
        return []


def visible_cards(survey: Survey, env: Mapping[str, str], edits: ContainerEdits) -> list[Card]:
    """The cards a container sees: by their device nodes, or by the variable that NVIDIA's runtime reads."""
    minors = {int(match[1]) for node in edits.device_nodes if (match := _DEVICE.fullmatch(node.path))}
    if minors:
        return [card for card in survey.cards if card.minor in minors]
    named = env.get(nvidia.ENV_VISIBLE_DEVICES, "")
    if named == "all":
        return list(survey.cards)
    wanted = {word.strip() for word in named.split(",") if word.strip()}
    return [card for card in survey.cards if wanted & _names(card)]


def _names(card: Card) -> set[str]:
    """By what a card is asked for: itself, or one of its partitions, which are not told apart any further here."""
    return {card.uuid, str(card.index), *(partition.uuid for partition in card.mig_instances)}


def _beyond_limit(memory_bytes: int, cards: list[str], env: Mapping[str, str]) -> str:
    """What a program prints that MPS refuses memory. A limit that cannot be read is none, as for the real server."""
    for entry in env.get(nvidia.ENV_MPS_MEMORY_LIMIT, "").split(","):
        ordinal, _, amount = entry.strip().partition("=")
        try:
            limit = quantity.parse(f"{amount}i" if amount[-1:] in ("K", "M", "G") else amount)
        except QuantityError:
            continue
        named = ordinal in cards or (ordinal.isdigit() and int(ordinal) < len(cards))
        if named and memory_bytes > limit:
            return f"{out_of_memory(memory_bytes)} ({nvidia.ENV_MPS_MEMORY_LIMIT}: {entry.strip()})"
    return ""


def out_of_memory(memory_bytes: int) -> str:
    """The words by which programs tell of it."""
    return f"RuntimeError: CUDA out of memory. Tried to allocate {memory_bytes / 2**20:.2f} MiB"
