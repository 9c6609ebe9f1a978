"""Whether containers of a pod still run on this node, by its cgroups.

The API server shows what was written to it: a pod that is deleted by force is gone there at once, and its status can be
written by others than kubelet. A cgroup with processes in it is evidence from the node itself. Both versions of cgroups
are known, and both ways of naming (`…/pod<uid>`, and systemd's `…-pod<uid with underscores>.slice`), wherever kubelet's
tree begins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: How far below the root pods are looked for: kubelet's own root, its tree, the class, and some for nested nodes.
_DEPTH: Final = 7
#: The hierarchies of version 1: the first one that exists is enough.
_HIERARCHIES: Final = ("pids", "memory", "cpu", "cpuacct", "devices")
_PROCESSES: Final = "cgroup.procs"
#: A pod in a path: `…/pod<uid>`, or systemd's `…-pod<uid with underscores>.slice`.
_POD: Final = re.compile(r"[/-]pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})(?=[/.:]|$)")


class PodCgroups:
    """The pods' cgroups below one root, `/sys/fs/cgroup` on a real node."""

    def __init__(self, root: Path) -> None:
        self._root = root
        #: Folders in which pods were found before; they are searched first.
        self._places: set[str] = set()

    def runs(self, uid: str) -> bool:
        """Whether a pod has processes on the node. False where no cgroups can be seen."""
        return any(map(_is_populated, self._of(uid)))

    def _of(self, uid: str) -> Iterator[str]:
        names = (f"pod{uid}", f"-pod{uid.replace('-', '_')}.slice")
        known = [path for place in self._places for path in _folders(place) if path.endswith(names)]
        if known:
            yield from known
            return
        for path in _below(self._base(), names, _DEPTH):
            self._places.add(path.rpartition("/")[0])
            yield path

    def _base(self) -> str:
        if (self._root / "cgroup.controllers").exists():
            return str(self._root)
        found = (self._root / name for name in _HIERARCHIES)
        return str(next((path for path in found if path.is_dir()), self._root))


def pod_of(cgroups: str) -> str:
    """The UID of the pod that `/proc/PID/cgroup` names; empty if it names none.

    The first one in a path counts: what a container makes below its own cgroup, whatever its name, is the container's.
    """
    for line in cgroups.split("\n"):  # a container can name cgroups of its own with other line breaks
        found = _POD.search(line.partition(":")[2])
        if found is not None:
            return found[1].replace("_", "-")
    return ""


# Paths are texts here: a node has thousands of cgroups, and objects for each of them cost most of the search.


def _below(folder: str, names: tuple[str, ...], depth: int) -> Iterator[str]:
    """The folders whose names end so, without those inside of another."""
    for path in _folders(folder):
        if path.endswith(names):
            yield path
        elif depth:
            yield from _below(path, names, depth - 1)


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it was removed meanwhile, or is no folder
        return []


def _is_populated(folder: str) -> bool:
    """Whether a cgroup or one below it has processes."""
    try:
        with open(f"{folder}/{_PROCESSES}", "rb", buffering=0) as file:  # noqa: PTH123
            if file.read(64).strip():
                return True
    except OSError:  # removed meanwhile, or a threaded cgroup of version 2: those below tell
        pass
    return any(map(_is_populated, _folders(folder)))
