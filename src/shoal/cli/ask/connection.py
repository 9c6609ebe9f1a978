"""Which cluster a command asks, and in which namespace; what is said when it cannot be read."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.ask.patience import saying

if TYPE_CHECKING:
    from shoal.kube.access.credentials import Access
    from shoal.kube.client import Client

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster as kubectl's options name it."""

    kubeconfig: Path | None = None
    context: str = ""

    def access(self) -> Access:
        """How to reach it. Raises KubeError."""
        from shoal.kube.access.load import load_access

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
        return command(*args, connection=Connection(kubeconfig, context), **given)

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


def ask(connection: Connection, question: Callable[[Client, str], Awaitable[T]], *, reading: str = "the cluster") -> T:
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


async def _ask(connection: Connection, question: Callable[[Client, str], Awaitable[T]]) -> T:
    from shoal.kube.client import Client

    access = connection.access()
    async with Client(access) as client:
        try:
            return await question(client, access.namespace)
        finally:
            await _end_others()


async def _end_others() -> None:
    """Of several requests at once, one that fails leaves the others behind: they end before the client does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
