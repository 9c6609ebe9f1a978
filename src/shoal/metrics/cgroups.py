"""Where the cgroups of containers are on this node, for the driver's own account of them (R615 and newer).

`/proc/PID/cgroup` does not tell it: seen from another cgroup namespace its paths begin with `/../`, and where that is
depends on who reads. The folders are looked for below the host's root of cgroups instead, and remembered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from shoal.metrics.processes import ContainerRef, container_in

#: How far below the root containers are looked for: kubelet's own root, its tree, the class, the pod, and some more for
#: nodes inside of others.
_DEPTH: Final = 9
#: Folders that one look goes through at most.
_MOST: Final = 20_000


class ContainerFolders(Protocol):
    """Looks up the cgroups of containers."""

    def begin(self) -> None:
        """A new interval begins: what is not known may be looked for again."""
        ...

    def folder(self, container: ContainerRef) -> str | None:
        """The full path of a container's cgroup; None when there is none, or the node has no cgroup v2."""
        ...


class HostCgroups:
    """Looks at the host's cgroups. The driver accounts for those of version 2 alone."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        self._root = root
        self._known: dict[ContainerRef, str] = {}
        self._looked = False

    def begin(self) -> None:
        """A new interval begins: there is one look at most in each."""
        self._looked = False

    def folder(self, container: ContainerRef) -> str | None:
        """The full path of a container's cgroup."""
        known = self._known.get(container)
        if known is None and not self._looked:
            self._looked = True
            self._known = dict(self._look())
            known = self._known.get(container)
        return known

    def _look(self) -> Iterator[tuple[ContainerRef, str]]:
        if not (self._root / "cgroup.controllers").exists():
            return
        base = str(self._root)
        waiting = [(base, _DEPTH)]
        for _ in range(_MOST):
            if not waiting:
                return
            folder, depth = waiting.pop()
            for path in _folders(folder):
                found = container_in(path.removeprefix(base))
                if found is not None:
                    yield found, path
                elif depth:
                    waiting.append((path, depth - 1))


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it was removed meanwhile, or is no folder
        return []
