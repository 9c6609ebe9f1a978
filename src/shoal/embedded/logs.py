"""Where the API server finds the logs of containers: the nodes say here that they have them."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

Line = tuple[datetime, str]


class LogReader(Protocol):
    """The log of one run of one container."""

    def written(self) -> list[Line]:
        """All lines so far, from the first."""

    async def more(self) -> bool:
        """Wait until there may be more; False once the container has ended and all is written."""


class LogSource(Protocol):
    """A node that has logs."""

    def reader(self, pod_uid: str, container: str, *, previous: bool) -> LogReader | None:
        """The log of a container, or of its run before; None if the node has none."""


class LogSources:
    """All nodes that have logs, by name."""

    def __init__(self) -> None:
        self._sources: dict[str, LogSource] = {}

    def add(self, node: str, source: LogSource) -> None:
        """A node has logs from now on."""
        self._sources[node] = source

    def remove(self, node: str) -> None:
        """A node has no logs any more."""
        self._sources.pop(node, None)

    def find(self, node: str) -> LogSource | None:
        """The node of this name."""
        return self._sources.get(node)
