"""Removes from a node what Shoal's services have written there, and nothing else: `shoal uninstall --node`.

What is ours is known by its folder, its name and its kind of file, of CDI specs by their content too. Folders are
opened one by one and links are never followed, so that nobody can point it elsewhere. A socket on which somebody
answers is somebody's and stays. It can be repeated, and containers that run keep what they have: the files are read
when a container starts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from shoal.kubelet import cdi, constants
from shoal.kubelet.host_paths import DriverSockets, HostPaths
from shoal.model.contract import dra, gpushare, keti, node_files, nvidia, shoal
from shoal.model.errors import shown

#: The kinds of CDI specs that are ours, and how the names of their files begin.
_KINDS: Final = (shoal.CDI_KIND, dra.CDI_KIND)
_CDI: Final = tuple(cdi.file_name(kind, "").removesuffix(".json") for kind in _KINDS)
_DRAFTS: Final = tuple(f".{name}" for name in _CDI)
_SOCKETS: Final = (
    gpushare.PLUGIN_SOCKET,
    keti.PLUGIN_SOCKET,
    nvidia.DEVICE_PLUGIN_SOCKET,
    node_files.SOCKET_SLOT,
)
_VALIDATIONS: Final = (
    nvidia.VALIDATION_DRIVER,
    nvidia.VALIDATION_TOOLKIT,
    nvidia.VALIDATION_CUDA,
    nvidia.VALIDATION_PLUGIN,
    nvidia.VALIDATION_DRIVER_CONTAINER,
    node_files.VALIDATION_FINDINGS,
)
#: What NVIDIA's MPS daemon is asked on, in its folder, and what it writes in its folder of logs.
_MPS_SOCKET: Final = "control"
_MPS_LOGS: Final = ("control.log", "server.log")
_HISTORY: Final = re.compile(rf"({'|'.join(node_files.HISTORY_LEVELS)})-[0-9]+{re.escape(node_files.HISTORY_SUFFIX)}")
#: How deep the folders go that clients of MPS share; what is deeper stays.
_DEPTH: Final = 8
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOOK_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 2.0


class _Kind(msgspec.Struct, frozen=True):
    kind: str


_SPEC: Final = msgspec.json.Decoder(_Kind)


@dataclass
class NodeRemovalReport:
    """What became of a node's files. Paths are as the node knows them."""

    removed: list[str] = field(default_factory=list)
    #: Somebody else's, and why that is known.
    kept: list[str] = field(default_factory=list)
    #: Shoal's, and why they stay.
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """The node whose file system is at `root`."""

    root: Path = Path("/")
    #: NVIDIA's operator goes on, and the files of validation are its own.
    keep_validations: bool = False

    def run(self, *, patience: float = 30.0) -> NodeRemovalReport:
        """Remove all files. Nothing is touched while an agent serves the node; `patience` is how long it may take."""
        report = NodeRemovalReport()
        paths = HostPaths()
        with contextlib.ExitStack() as held:
            plugins = held.enter_context(self._folder(paths.device_plugins, report))
            if plugins is not None and not _locked(plugins.descriptor, patience):
                report.failed.append(
                    f"{paths.device_plugins}: an agent still serves this node: end its pod, and run this again"
                )
                return report
            if plugins is not None:
                plugins.remove(_is_socket_of_ours)
            self._driver(paths.driver(dra.DRIVER), report)
            self._run_folder(paths.run, report)
            self._programs(paths.programs, report)
            for folder in (Path("/run/cdi"), *paths.cdi):
                with self._folder(folder, report) as found:
                    if found is not None:
                        found.remove(_is_spec_of_ours)
            self._mps(report)
            if not self.keep_validations:
                self._validations(report)
        return report

    def _driver(self, sockets: DriverSockets, report: NodeRemovalReport) -> None:
        """The sockets of the DRA driver, and its folder."""
        for path in (sockets.registration, sockets.calls):
            with self._folder(path.parent, report) as found:
                if found is not None:
                    found.remove(_unused_socket(path.name))
        self._remove_folder(sockets.calls.parent, report)

    def _run_folder(self, run: Path, report: NodeRemovalReport) -> None:
        with self._folder(run, report) as found:
            if found is None:
                return
            found.remove(_named(node_files.LIMIT_SOCKET, kind=stat.S_ISSOCK))
            found.remove(_named(node_files.BOOTED, kind=stat.S_ISREG))
            with found.folder(node_files.GIVEN_FOLDER) as given:
                if given is not None:
                    given.remove(_with_drafts(lambda name: name.endswith(node_files.GIVEN_SUFFIX)))
            with found.folder(node_files.SHARED_MEMORY_FOLDER) as shared:
                if shared is not None:
                    shared.remove_all()
            found.remove_folders(node_files.GIVEN_FOLDER, node_files.SHARED_MEMORY_FOLDER)
        self._remove_folder(run, report)

    def _programs(self, programs: Path, report: NodeRemovalReport) -> None:
        with self._folder(programs, report) as found:
            if found is None:
                return
            found.remove(_with_drafts(lambda name: name == node_files.LIMIT_PROGRAM))
            with found.folder(node_files.HISTORY_FOLDER) as history:
                if history is not None:
                    history.remove(_regular(lambda name: _HISTORY.fullmatch(name) is not None))
            with found.folder(node_files.CLAIMS_FOLDER) as claims:
                if claims is not None:
                    claims.remove(_with_drafts(lambda name: name.endswith(node_files.CLAIMS_SUFFIX)))
            found.remove_folders(node_files.HISTORY_FOLDER, node_files.CLAIMS_FOLDER)
        self._remove_folder(programs, report)

    def _mps(self, report: NodeRemovalReport) -> None:
        """The MPS daemon's folders. Others may have one there too, so one that answers is let alone."""
        pipes, logs = Path(keti.MPS_DIRECTORY), Path(nvidia.MPS_LOG_DIRECTORY)
        with self._folder(pipes, report) as found:
            if found is not None:
                if found.answers(_MPS_SOCKET):
                    report.kept.append(f"{pipes}: an MPS daemon answers there")
                    return
                found.remove_all()
        self._remove_folder(pipes, report)
        with self._folder(logs, report) as found:
            if found is not None:
                found.remove(_regular(lambda name: name in _MPS_LOGS))
        self._remove_folder(logs, report)

    def _validations(self, report: NodeRemovalReport) -> None:
        folder = Path(nvidia.VALIDATIONS_DIRECTORY)
        with self._folder(folder, report) as found:
            if found is not None:
                found.remove(_with_drafts(lambda name: name in _VALIDATIONS))
        self._remove_folder(folder, report)
        with self._folder(folder.parent.parent, report) as parent:
            if parent is not None:
                parent.remove_if_empty(folder.parent.name)

    @contextlib.contextmanager
    def _folder(self, path: Path, report: NodeRemovalReport) -> Iterator[_Folder | None]:
        """A folder of the node; None if it is not there, or not on a way without links."""
        with contextlib.ExitStack() as stack:
            here: _Folder | None = None
            try:
                here = _Folder(os.open(self.root, _FOLDER & ~os.O_NOFOLLOW), Path("/"), report)
                stack.callback(os.close, here.descriptor)
                for part in path.parts[1:]:
                    here = stack.enter_context(here.folder(part))
                    if here is None:
                        break
            except FileNotFoundError:
                here = None
            yield here

    def _remove_folder(self, path: Path, report: NodeRemovalReport) -> None:
        with self._folder(path.parent, report) as parent:
            if parent is not None:
                parent.remove_folders(path.name)


_Accepts = Callable[["_Folder", str, os.stat_result], bool | str]


@dataclass(frozen=True, slots=True)
class _Folder:
    """An open folder."""

    descriptor: int
    path: Path
    report: NodeRemovalReport

    def remove(self, accepts: _Accepts) -> None:
        """Remove the files that are accepted. Words instead of yes or no: why one stays that has a name of ours."""
        for name, status in self._entries():
            answer = accepts(self, name, status)
            if isinstance(answer, str):
                self.report.kept.append(f"{self._shown(name)}: {answer}")
            elif answer:
                self._unlink(name)

    def remove_all(self, depth: int = 0) -> None:
        """Remove whatever is in it. A link goes, what it points to stays."""
        for name, status in self._entries():
            if not stat.S_ISDIR(status.st_mode):
                self._unlink(name)
            elif depth < _DEPTH:
                with self.folder(name) as below:
                    if below is not None:
                        below.remove_all(depth + 1)
                self.remove_folders(name)
            else:
                self.report.failed.append(f"{self._shown(name)}: more than {_DEPTH} folders deep: remove it by hand")

    def remove_folders(self, *names: str) -> None:
        """Remove folders that are empty."""
        for name in names:
            try:
                os.rmdir(name, dir_fd=self.descriptor)
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:
                    self.report.kept.append(f"{self._shown(name)}: it holds files that are not Shoal's")
                elif error.errno == errno.EBUSY:
                    self.report.kept.append(f"{self._shown(name)}: something is mounted there")
                elif error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    self._failed(name, error)
            else:
                self.report.removed.append(self._shown(name))

    def remove_if_empty(self, name: str) -> None:
        """Remove a folder that others use too."""
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self.descriptor)
            self.report.removed.append(self._shown(name))

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[_Folder | None]:
        """A folder in it; None if it is not there, or a link or a file."""
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._failed(name, error)
            yield None
            return
        try:
            yield _Folder(descriptor, self.path / name, self.report)
        finally:
            os.close(descriptor)

    def answers(self, name: str) -> bool:
        """Whether somebody listens on a socket in it, of whatever type: NVIDIA's MPS daemon has one of packets."""
        try:
            if not stat.S_ISSOCK(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode):
                return False
        except FileNotFoundError:
            return False
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            probe.settimeout(_ANSWER_SECONDS)
            try:
                # By the descriptor: nobody can put a link in its way, and the path has room in 107 bytes.
                probe.connect(f"/proc/self/fd/{self.descriptor}/{name}")
            except (ConnectionRefusedError, FileNotFoundError):
                return False
            except OSError:  # another type of socket, or one that is too busy: there is somebody
                return True
        return True

    def content(self, name: str, most: int) -> bytes:
        """The beginning of a regular file."""
        descriptor = os.open(name, _FILE, dir_fd=self.descriptor)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""

    def _entries(self) -> list[tuple[str, os.stat_result]]:
        found = []
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        return sorted(found)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._failed(name, error)
        else:
            self.report.removed.append(self._shown(name))

    def _failed(self, name: str, error: OSError) -> None:
        self.report.failed.append(f"{self._shown(name)}: {error.strerror}")

    def _shown(self, name: str) -> str:
        path = str(self.path / name)
        return path if path.isprintable() and len(path) < 300 else shown(path)


def _regular(accepts: Callable[[str], bool]) -> _Accepts:
    def accepted(folder: _Folder, name: str, status: os.stat_result) -> bool | str:
        if not accepts(name):
            return False
        return True if stat.S_ISREG(status.st_mode) else "it is no regular file"

    return accepted


def _named(wanted: str, *, kind: Callable[[int], bool]) -> _Accepts:
    def accepted(folder: _Folder, name: str, status: os.stat_result) -> bool | str:
        if name != wanted:
            return False
        return True if kind(status.st_mode) else "it is another kind of file"

    return accepted


def _unused_socket(wanted: str) -> _Accepts:
    def accepted(folder: _Folder, name: str, status: os.stat_result) -> bool | str:
        if name != wanted:
            return False
        if not stat.S_ISSOCK(status.st_mode):
            return "it is no socket"
        return "a driver answers there" if folder.answers(name) else True

    return accepted


def _with_drafts(accepts: Callable[[str], bool]) -> _Accepts:
    """Files, and what `write_whole` leaves of one when it is killed: `.name.PID`."""

    def ours(name: str) -> bool:
        draft, _, number = name.rpartition(".")
        return accepts(name) or (name.startswith(".") and number.isdigit() and accepts(draft.removeprefix(".")))

    return _regular(ours)


def _is_spec_of_ours(folder: _Folder, name: str, status: os.stat_result) -> bool | str:
    draft = name.startswith(_DRAFTS)
    if not draft and not (name.startswith(_CDI) and name.endswith(".json")):
        return False
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if draft:
        return True
    try:
        spec = _SPEC.decode(folder.content(name, cdi.MAX_BYTES))
    except (OSError, msgspec.MsgspecError):
        return "it is no CDI spec that can be read"
    return True if spec.kind in _KINDS else f"it is a CDI spec of {shown(spec.kind)}"


def _is_socket_of_ours(folder: _Folder, name: str, status: os.stat_result) -> bool | str:
    more = name.startswith(node_files.SOCKET_NVIDIA_PREFIX) and name.endswith(".sock")
    if name == constants.REGISTRATION_SOCKET or not (name in _SOCKETS or more):
        return False
    if not stat.S_ISSOCK(status.st_mode):
        return "it is no socket"
    return "another device plugin answers there" if folder.answers(name) else True


def _locked(descriptor: int, patience: float) -> bool:
    """Whether no agent serves in a folder of plugins; none begins to until the folder is closed."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_SECONDS)
        else:
            return True
