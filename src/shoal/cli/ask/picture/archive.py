"""Snapshots: cleaned facts in one JSON file, compressed when its name ends in `.gz`.

The format has a version. A file of another version, one that is no snapshot, and one too large to be one are refused
with what to do.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

import msgspec

from shoal.cli.ask.picture.cleaned import cleaned
from shoal.cli.ask.picture.facts import Facts
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import key_of
from shoal.model.errors import shown
from shoal.placement.errors import PolicyError
from shoal.placement.policies import policy_named

KIND: Final = "ShoalSnapshot"
VERSION: Final = 1
#: Larger than a snapshot of 10,000 nodes and 100,000 pods.
MAX_BYTES: Final = 1 << 29


class SnapshotError(Exception):
    """A file that cannot be written, or is no snapshot that can be read; the message says what to do."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The whole file."""

    kind: Literal["ShoalSnapshot"]
    version: Literal[1]
    #: When the cluster was read, and by which version of Shoal.
    taken: str
    shoal: str
    facts: Facts


class _Head(msgspec.Struct):
    kind: str = ""
    version: int = 0


def content_of(facts: Facts, *, taken: str, shoal: str) -> bytes:
    """The JSON of the file. Raises SnapshotError."""
    document = Snapshot(kind=KIND, version=VERSION, taken=taken, shoal=shoal, facts=cleaned(facts))
    content = msgspec.json.encode(document)
    if len(content) > MAX_BYTES:
        raise SnapshotError(f"the cluster takes {len(content)} bytes, a snapshot holds at most {MAX_BYTES}")
    return content


def save(facts: Facts, path: Path, *, taken: str, shoal: str) -> int:
    """Write the file, readable by its owner alone, whole or not at all: how many bytes it has."""
    content = content_of(facts, taken=taken, shoal=shoal)
    if path.suffix == ".gz":
        content = gzip.compress(content)
    try:
        _write(path, content)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror or error}: give another file") from error
    return len(content)


def _write(path: Path, content: bytes) -> None:
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a pipe, or /dev/stdout
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def load(path: Path) -> Snapshot:
    """Read the file. Raises SnapshotError."""
    try:
        with _opened(path) as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise SnapshotError(f"{path} cannot be read: {why}: give a file that `shoal snapshot` wrote") from error
    if len(content) > MAX_BYTES:
        raise SnapshotError(f"{path} holds more than {MAX_BYTES} bytes: give a file that `shoal snapshot` wrote")
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.kind != KIND:
            raise SnapshotError(f"{path} is no snapshot: give a file that `shoal snapshot` wrote")
        if head.version != VERSION:
            raise SnapshotError(
                f"{path} has version {head.version} of the format, this Shoal reads {VERSION}: take the snapshot again"
            )
        snapshot = msgspec.json.decode(content, type=Snapshot)
        _check(snapshot.facts)
        return snapshot
    except (msgspec.MsgspecError, PolicyError, ValueError, RecursionError) as error:
        raise SnapshotError(f"{path} is no snapshot: {error}: give a file that `shoal snapshot` wrote") from error


def _check(facts: Facts) -> None:
    """What the API server sees to and a file that was written by hand may lack. Raises ValueError and PolicyError."""
    policy_named(facts.settings.policy)
    known: dict[str, Pod] = {}
    for pod in facts.pods:
        name, uid = "/".join(key_of(pod)), pod.metadata.uid
        if not uid:
            raise ValueError(f"pod {name} has no metadata.uid, by which its cards are known")
        other = known.setdefault(uid, pod)
        if other is not pod:
            raise ValueError(f"pods {'/'.join(key_of(other))} and {name} have one metadata.uid, {shown(uid)}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The content, unpacked if it is packed, whatever the file is called."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            opened: Any = unpacked
            yield cast(BinaryIO, opened)
