"""The CDI files of a node, as its container runtime knows them: a file is read again only when it has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.kubelet.cdi import Found, Spec, load, read
from shoal.kubelet.errors import CdiError


class CdiFiles:
    """All CDI files in some folders."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        #: By path: what marks its state, and what is in it.
        self._known: dict[Path, tuple[tuple[int, int, int], Spec]] = {}

    def load(self) -> Found:
        """All devices as of now."""
        before, self._known = self._known, {}

        def spec_in(path: Path) -> Spec:
            try:
                stat = path.stat()
            except OSError as error:
                raise CdiError(f"failed to read CDI Spec {str(path)!r}: {error.strerror or error}") from error
            # Files are put into place whole: another content is another file.
            mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            known = before.get(path)
            spec = known[1] if known is not None and known[0] == mark else read(path)
            self._known[path] = (mark, spec)
            return spec

        return load(self._folders, spec_in)
