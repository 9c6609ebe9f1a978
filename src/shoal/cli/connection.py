"""Which cluster or snapshot a command asks, and in which namespace; what is said when it cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.output import saying
from shoal.model.contract.gpushare import MemoryUnit

if TYPE_CHECKING:
    from shoal.analysis.collectors import Collectors
    from shoal.analysis.inspect.watch import ClusterWatch
    from shoal.analysis.snapshot import ClusterSnapshot
    from shoal.kube.access.credentials import Access
    from shoal.kube.client import Client


T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """A cluster as kubectl's options name it."""

    kubeconfig: Path | None = None
    context: str = ""

    def access(self) -> Access:
        """How to reach it. Raises KubeError."""
        from shoal.kube.access.kubeconfig import load_access

        return load_access(
            environ=os.environ,
            home=Path.home(),
            kubeconfig=self.kubeconfig,
            context=self.context,
            terminal=sys.stdin.isatty(),
        )


def connected(command: Command) -> Command:
    """The options `--kubeconfig` and `--context`; the command gets a `connection`."""

    @click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="How to reach the cluster.")
    @click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
    @functools.wraps(command)
    def with_connection(*args: Any, kubeconfig: Path | None, context: str, **given: Any) -> Any:
        return command(*args, connection=ClusterConnection(kubeconfig, context), **given)

    return with_connection  # type: ignore[return-value]


def in_namespace(command: Command) -> Command:
    """The option `-n`; the command gets `namespace`, empty for the context's own."""
    return click.option("-n", "--namespace", default="", metavar="NAME", help="The namespace; else the context's own.")(
        command
    )


def across_namespaces(command: Command) -> Command:
    """The options `-n` and `-A` of commands that show all namespaces; the command gets `namespace`, empty for all."""

    @click.option("-n", "--namespace", default="", metavar="NAME", help="Only the pods of this namespace.")
    @click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="The pods of all namespaces: the default.")
    @functools.wraps(command)
    def with_namespace(*args: Any, namespace: str, everywhere: bool, **given: Any) -> Any:
        return command(*args, namespace="" if everywhere else namespace, **given)

    return with_namespace  # type: ignore[return-value]


def counted_in_unit(command: Command) -> Command:
    """The option `--memory-unit`; the command gets `unit`, None to find it out."""

    @click.option(
        "--memory-unit",
        type=click.Choice([unit.value for unit in MemoryUnit]),
        help="What 1 of aliyun.com/gpu-mem means; else found out.",
    )
    @functools.wraps(command)
    def with_unit(*args: Any, memory_unit: str | None, **given: Any) -> Any:
        return command(*args, unit=None if memory_unit is None else MemoryUnit(memory_unit), **given)

    return with_unit  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class CollectorChoice:
    """With whose rights collectors are asked, and by which way."""

    account: str = ""
    way: str = "auto"

    def collectors(self, client: Client, *, deadline: float | None = None) -> Collectors:
        """The collectors of a cluster."""
        from shoal.analysis.collectors import DEADLINE, Collectors, WayIn

        return Collectors(client, account=self.account, way=WayIn(self.way), deadline=deadline or DEADLINE)


def measuring(command: Command) -> Command:
    """The options `--metrics-account` and `--metrics-way`; the command gets a `choice`."""

    @click.option(
        "--metrics-account",
        default="",
        metavar="NAMESPACE/NAME",
        help="The ServiceAccount whose token collectors are shown; else shoal-history/shoal-metrics-viewer.",
    )
    @click.option(
        "--metrics-way",
        type=click.Choice(["auto", "direct", "proxy"]),
        default="auto",
        help="Ask collectors directly or through the API server; else as your rights allow.",
    )
    @functools.wraps(command)
    def with_choice(*args: Any, metrics_account: str, metrics_way: str, **given: Any) -> Any:
        return command(*args, choice=CollectorChoice(metrics_account, metrics_way), **given)

    return with_choice  # type: ignore[return-value]


def ask(
    connection: ClusterConnection, question: Callable[[Client, str], Awaitable[T]], *, reading: str = "the cluster"
) -> T:
    """Put a question to the cluster. It gets the client and the namespace that the context names.

    A cluster that cannot be reached or refuses ends the command with a message and exit code 1.
    """
    from shoal.kube.errors import KubeError

    answers: list[T] = []

    async def run() -> None:
        answers.append(await _ask(connection, question))

    try:
        with saying(f"reading {reading} …"):
            # The loop must not see the answer: on its way out it makes a text of the main task's result.
            asyncio.run(run())
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    return answers[0]


async def _ask(connection: ClusterConnection, question: Callable[[Client, str], Awaitable[T]]) -> T:
    from shoal.kube.client import Client

    access = connection.access()
    async with Client(access) as client:
        try:
            return await question(client, access.namespace)
        finally:
            await _end_others()


async def _end_others() -> None:
    """Cancel requests that are left over because one of several at once failed, before the client closes."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class NamespacedSnapshot:
    """A snapshot, and the namespace that counts when none is named."""

    snapshot: ClusterSnapshot
    namespace: str


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A cluster, or a snapshot of one."""

    connection: ClusterConnection
    snapshot: Path | None = None
    unit: MemoryUnit | None = None

    def read(self) -> NamespacedSnapshot:
        """The snapshot. What cannot be read ends the command with a message."""
        if self.snapshot is not None:
            return NamespacedSnapshot(load_snapshot(self.snapshot), _DEFAULT_NAMESPACE)
        return ask(self.connection, self.of_cluster)

    async def of_cluster(self, client: Client, namespace: str) -> NamespacedSnapshot:
        """The snapshot of a live cluster, for a command that asks it more."""
        from shoal.analysis.snapshot import read_snapshot

        return NamespacedSnapshot(await read_snapshot(client, unit=self.unit), namespace)


def load_snapshot(path: Path) -> ClusterSnapshot:
    """The snapshot of a file; one that cannot be read ends the command with a message."""
    from shoal.analysis.errors import SnapshotError
    from shoal.analysis.snapshot_file import load

    try:
        return load(path).snapshot
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
        *args: Any, connection: ClusterConnection, snapshot: Path | None, memory_unit: str | None, **given: Any
    ) -> Any:
        if snapshot is not None and memory_unit is not None:
            raise click.UsageError("a snapshot knows its memory unit: leave out --memory-unit")
        unit = None if memory_unit is None else MemoryUnit(memory_unit)
        return command(*args, source=SnapshotSource(connection, snapshot, unit), **given)

    return with_source  # type: ignore[return-value]


def watching(connection: ClusterConnection, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run what watches the cluster. Raises KubeError when it cannot be reached."""
    from shoal.kube.client import Client

    logging.getLogger("shoal.kube").setLevel(logging.CRITICAL)  # trouble is shown, not logged

    async def run() -> T:
        async with Client(connection.access()) as client:
            return await work(client)

    return asyncio.run(run())


@contextlib.asynccontextmanager
async def watched(
    client: Client, *, names: Sequence[str] = (), unit: MemoryUnit | None = None
) -> AsyncIterator[ClusterWatch]:
    """What is allocated on these nodes, kept up to date; says so while it takes long to be read for the first time."""
    from shoal.analysis.inspect.watch import ClusterWatch

    async with contextlib.AsyncExitStack() as stack:
        with saying("reading nodes and pods …"):
            live = await stack.enter_async_context(ClusterWatch(client, names=names, unit=unit))
        yield live
