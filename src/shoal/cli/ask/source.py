"""Where a command takes its facts from: the cluster as it is now, or a snapshot of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.ask.connection import Connection, ask, connected
from shoal.model.contract.gpushare import MemoryUnit

if TYPE_CHECKING:
    from shoal.cli.ask.picture.facts import Facts
    from shoal.kube.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])
_DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Read:
    """Facts, and the namespace that counts when none is named."""

    facts: Facts
    namespace: str


@dataclass(frozen=True, slots=True)
class Source:
    """A cluster, or a snapshot of one."""

    connection: Connection
    snapshot: Path | None = None
    unit: MemoryUnit | None = None

    def read(self) -> Read:
        """The facts. What cannot be read ends the command with a message."""
        if self.snapshot is not None:
            return Read(load_snapshot(self.snapshot), _DEFAULT_NAMESPACE)
        return ask(self.connection, self.of_cluster)

    async def of_cluster(self, client: Client, namespace: str) -> Read:
        """The facts of a live cluster, for a command that asks it more."""
        from shoal.cli.ask.picture.read import read_facts

        return Read(await read_facts(client, unit=self.unit), namespace)


def load_snapshot(path: Path) -> Facts:
    """The facts of a snapshot; one that cannot be read ends the command with a message."""
    from shoal.cli.ask.picture.archive import SnapshotError, load

    try:
        return load(path).facts
    except SnapshotError as error:
        raise click.ClickException(str(error)) from error


def sourced(command: Command) -> Command:
    """The options that name a cluster, `--snapshot` and `--memory-unit`; the command gets a `source`."""

    @connected
    @click.option(
        "--snapshot",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Ask what `shoal snapshot` wrote instead of the cluster.",
    )
    @click.option(
        "--memory-unit",
        type=click.Choice([unit.value for unit in MemoryUnit]),
        help="What 1 of aliyun.com/gpu-mem means; else found out by itself.",
    )
    @functools.wraps(command)
    def with_source(
        *args: Any, connection: Connection, snapshot: Path | None, memory_unit: str | None, **given: Any
    ) -> Any:
        if snapshot is not None and memory_unit is not None:
            raise click.UsageError("a snapshot knows its memory unit: leave out --memory-unit")
        unit = None if memory_unit is None else MemoryUnit(memory_unit)
        return command(*args, source=Source(connection, snapshot, unit), **given)

    return with_source  # type: ignore[return-value]
