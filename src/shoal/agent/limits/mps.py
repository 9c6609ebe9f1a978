"""Looks after the node's MPS daemon: starts it, sees that it answers, and gives containers their part of it.

With protocol 3 each container has a namespace with its limits, and sees that directory alone. The limits are read back
before the container starts, since a daemon may refuse in silence; another amount keeps it from starting. Namespaces are
on servers, one for each set of GPUs that a container has: a client's fault stops a server, and so no other GPU. With
protocol 2 limits stand in the container's environment. A daemon that runs is taken as it is, and never stopped here:
its end would be the end of its clients. One that answers no more is told, and not killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.agent.errors import RefusedError
from shoal.agent.limits.tiers import ContainerLimits
from shoal.gpu import mps as control
from shoal.gpu.errors import GpuError, MpsError, MpsRefusalError, NoMpsDaemonError
from shoal.gpu.mps import MpsDaemon, MpsHealth, MpsNamespace, MpsServer
from shoal.gpu.protocol import ComputeMode, Nvml
from shoal.kubelet.cdi import ContainerEdits, Mount
from shoal.model.backoff import Backoff
from shoal.model.contract import nvidia

log = logging.getLogger(__name__)

#: The server on all GPUs. A GPU in exclusive mode takes one server, so that containers with one and with several GPUs
#: must share it.
SERVER: Final = "shoal"
_SERVER_PREFIX: Final = "s_"
_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")
_EMPTY: Final = ("nosuid", "nodev", "noexec", "mode=755", "size=64k")
_SHARED_MEMORY: Final = "/dev/shm"
_FOR_ALL: Final = 0o1777
_LOOK_SECONDS: Final = 15.0
_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A container that is a client: the name of its namespace, all GPUs that it may see, and its limits."""

    name: str
    gpus: frozenset[str]
    limits: ContainerLimits


def client_of(pod_uid: str, container: str, gpus: frozenset[str], limits: ContainerLimits) -> MpsClient:
    """A container's part of the daemon. Other limits have another name: those of clients cannot be changed."""
    text = "\n".join((pod_uid, container, *map(str, sorted(limits.memory_mib.items())), str(limits.threads)))
    return MpsClient(f"n_{_digest(text)}", gpus, limits)


def server_of(gpus: Iterable[str]) -> str:
    """The name of the server on some GPUs, the same in every process."""
    return f"{_SERVER_PREFIX}{_digest(','.join(sorted(gpus)))}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


class Mps:
    """The daemon of a node. `changed` is called when it comes or goes."""

    def __init__(
        self,
        daemon: MpsDaemon,
        *,
        changed: Callable[[], None] = lambda: None,
        starts: bool = True,
        exclusive: bool = False,
        shared_memory: Path | None = None,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """`starts`: a daemon that does not run is started here. `exclusive`: a GPU takes one server.

        `shared_memory` is the host's folder that daemon and clients both have as /dev/shm, if that is set up.
        """
        self.daemon = daemon
        self._starts = starts
        self._exclusive = exclusive
        self._changed = changed
        self._shared_memory = shared_memory
        self._look_seconds = look_seconds
        self._lock = asyncio.Lock()
        #: By the names of their namespaces.
        self._wanted: dict[str, MpsClient] = {}
        #: Whether all that are wanted are known, so that others can go.
        self._told = False
        #: Why no client can be served; empty while the daemon answers.
        self.fault = "the MPS daemon has not answered yet"
        #: Whether it has been looked at and does not answer.
        self.failing = False
        #: How often the daemon was started, by this process or, as its namespaces were gone, by another.
        self.started = 0
        #: The namespaces that were ready.
        self._ready: set[str] = set()
        #: By the GPUs of a server that a client's fault has stopped, the words for it. No GPUs: all of the node.
        self.faulted: dict[frozenset[str], str] = {}
        self._looked = asyncio.Event()
        self._look_now = asyncio.Event()

    @property
    def namespaces(self) -> bool:
        """Whether containers have namespaces."""
        return self.daemon.protocol == 3

    async def run(self) -> None:
        """Keep the daemon running until cancelled; it goes on after that."""
        pause = _BACKOFF.first
        while True:
            try:
                await self._look()
                pause = _BACKOFF.first
                self._say("")
                self._looked.set()
            except MpsError as error:
                self._say(f"no MPS client can be served: {error}")
                self._looked.set()
                await asyncio.sleep(pause)
                pause = _BACKOFF.longer(pause)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_seconds):
                    await self._look_now.wait()
            self._look_now.clear()

    async def _look(self) -> None:
        self._share_memory()
        if problem := not_roots(self.daemon.pipe_directory, absent=True):
            raise MpsError(problem)
        health = await self.daemon.health()
        if health is MpsHealth.SILENT:
            raise MpsError(
                f"the daemon in {self.daemon.pipe_directory} does not answer; it is not ended, since its clients would "
                "end with it: drain the node and restart it"
            )
        if health is MpsHealth.ABSENT:
            if not self._starts:
                raise MpsError(
                    f"no daemon runs in {self.daemon.pipe_directory}, and it is not started here: see to it that "
                    "`shoal agent --mps-only` runs on the node, or set mpsStart"
                )
            if not self.fault:
                log.warning("the MPS daemon has ended, and its clients with it: it is started again")
            await self.daemon.start()
            log.info("the MPS daemon in %s is started", self.daemon.pipe_directory)
            self._ready.clear()
            self.started += 1
            self._changed()
        if not self.namespaces:
            stopped = await control.faulted_servers(self.daemon)
            self._note_faults({frozenset(): _fault_words(f"process {pid}") for pid in stopped[:1]})
            return
        async with self._lock:
            for name, error in (await self._make(self._wanted.values())).items():
                log.warning("MPS namespace %s is not as wanted: %s", name, error)
            if self._told:
                await self._drop()

    def _note_faults(self, found: dict[frozenset[str], str]) -> None:
        if found != self.faulted:
            for gpus, words in found.items():
                if gpus not in self.faulted:
                    log.warning("%s", words)
            for gpus in self.faulted.keys() - found.keys():
                log.info("the MPS server of %s takes clients again", _names(gpus))
            self.faulted = found
            self._changed()

    def _share_memory(self) -> None:
        """Have the folder that daemon and clients share: for all users, as /dev/shm is."""
        if self._shared_memory is not None:
            try:
                self._shared_memory.mkdir(parents=True, exist_ok=True)
                self._shared_memory.chmod(_FOR_ALL)
            except OSError as error:
                raise MpsError(f"{self._shared_memory} cannot be shared with clients: {error.strerror}") from error

    def _say(self, fault: str) -> None:
        if fault != self.fault:
            self.failing = bool(fault)
            log.log(logging.WARNING if fault else logging.INFO, "%s", fault or "the MPS daemon answers")
            self.fault = fault
            self._changed()

    # Containers

    async def terminate(self, belongs: Callable[[int], bool]) -> int:
        """End the clients whose processes belong to somebody, by PID on the host, in order; how many were ended.

        A client that is killed while it computes leaves its server, and so its neighbours, in an undefined state.
        """
        ended = 0
        for process in await control.list_processes(self.daemon):
            for pid in filter(belongs, process.numbers):
                try:
                    await control.terminate_process(self.daemon, process, pid)
                    ended += 1
                except MpsRefusalError as error:
                    log.warning("the MPS client with PID %d is not terminated: %s", pid, error)
        return ended

    def server(self, gpus: frozenset[str]) -> str:
        """The name of the server for containers with these GPUs."""
        return SERVER if self._exclusive else server_of(gpus)

    def edits(self, client: MpsClient) -> ContainerEdits:
        """What makes a container's programs clients."""
        pipe, limits = self.daemon.pipe_directory, client.limits
        if self.namespaces:
            place = pipe / self.server(client.gpus) / client.name
            env = {nvidia.ENV_MPS_PIPE_DIRECTORY: str(place)}
            # A pod may mount the host's directory itself, as for protocol 2: it finds its own namespace in it alone.
            mounts = [Mount("tmpfs", str(pipe), _EMPTY, type="tmpfs"), Mount(str(place), str(place), _OPTIONS)]
        else:
            mounts = [Mount(str(pipe), str(pipe), _OPTIONS)]
            env = control.client_environment(
                pipe, memory_mib=_memory(limits), threads=limits.threads, yields=limits.yields
            )
        if self._shared_memory is not None:
            mounts.append(Mount(str(self._shared_memory), _SHARED_MEMORY, _OPTIONS))
        return ContainerEdits(env=tuple(f"{key}={value}" for key, value in env.items()), mounts=tuple(mounts))

    async def prepare(self, client: MpsClient) -> None:
        """Have a container's namespace ready. RefusedError while that cannot be."""
        await self._looked.wait()
        if self.fault:
            raise RefusedError(self.fault)
        if not self.namespaces:
            if self.faulted:
                raise RefusedError(next(iter(self.faulted.values())))
            return
        async with self._lock:
            self._wanted[client.name] = client
            try:
                failed = await self._make([client])
                if client.name in failed:
                    raise failed[client.name]
                if problem := not_roots(self.daemon.pipe_directory, self.server(client.gpus), client.name):
                    raise MpsRefusalError(problem)
            except MpsError as error:
                self._look_now.set()
                raise RefusedError(f"its MPS namespace could not be made: {error}") from error

    async def keep_only(self, wanted: Iterable[MpsClient]) -> None:
        """Remove the namespaces of all other containers. One whose clients still run is removed later."""
        if not self.namespaces:
            return
        async with self._lock:
            self._wanted = {client.name: client for client in wanted}
            self._ready &= self._wanted.keys()
            self._told = True
            if self.fault:
                return
            try:
                await self._drop()
            except MpsError as error:
                log.info("MPS namespaces that nobody needs are left for now: %s", error)

    async def _drop(self) -> None:
        """Remove what is there and not wanted. What cannot go yet does not hold up the rest."""
        wanted: dict[str, set[str]] = {}
        for client in self._wanted.values():
            wanted.setdefault(self.server(client.gpus), set()).add(client.name)
        for server in sorted(await self._servers()):
            kept = wanted.get(server, set())
            for name in sorted(set(await self._present(server)) - kept - {control.DEFAULT_NAMESPACE}):
                await self._remove(f"namespace {name}", control.delete_namespace(name, server=server))
            if server not in wanted and server != SERVER and len(await self._present(server)) <= 1:
                await self._remove(f"server {server}", control.delete_server(server))

    async def _remove(self, what: str, command: control.Command) -> None:
        try:
            await self.daemon.tell(command)
            log.info("the MPS %s is removed", what)
        except NoMpsDaemonError:
            raise
        except MpsError as error:
            log.info("the MPS %s is left for now: %s", what, error)

    async def _make(self, clients: Iterable[MpsClient]) -> dict[str, MpsRefusalError]:
        """Make what clients lack, since nothing outlives a daemon; by name the namespaces that are not as wanted.

        One that cannot be made does not hold up the others, nor does a server.
        """
        by_server: dict[str, list[MpsClient]] = {}
        for client in clients:
            by_server.setdefault(self.server(client.gpus), []).append(client)
        unusable = await self._make_servers({name: found[0].gpus for name, found in by_server.items()})
        failed: dict[str, MpsRefusalError] = {}
        for server, found in by_server.items():
            if server in unusable:
                failed.update(dict.fromkeys((client.name for client in found), unusable[server]))
            else:
                failed.update(await self._make_namespaces(server, found))
        return failed

    async def _make_servers(self, wanted: Mapping[str, frozenset[str]]) -> dict[str, MpsRefusalError]:
        """Make the servers that are not there; by name why one cannot be used."""
        present = await self._servers()
        unusable: dict[str, MpsRefusalError] = {}
        missing = [name for name in wanted if name not in present]
        for name in missing:
            try:
                gpus = () if name == SERVER else wanted[name]
                await self.daemon.tell(control.create_server(name, gpus=gpus))
            except MpsRefusalError as error:
                unusable[name] = error
        if missing:
            present = await self._servers()
        for name, gpus in wanted.items():
            if name not in present and name not in unusable:
                unusable[name] = MpsRefusalError(
                    f"the MPS server of {_names(gpus)} is not there: the MPS daemon was told to make it and has none; "
                    "see its log"
                )
            elif name in present and present[name].faulted:
                unusable[name] = MpsRefusalError(_fault_words(f"of {_names(gpus)}"))
        return unusable

    async def _make_namespaces(self, server: str, clients: Sequence[MpsClient]) -> dict[str, MpsRefusalError]:
        present = await self._present(server)
        made = [client for client in clients if client.name not in present]
        failed: dict[str, MpsRefusalError] = {}
        for client in made:
            try:
                await self.daemon.tell(control.create_namespace(client.name, server=server))
                await self._limit(server, client)
            except MpsRefusalError as error:
                failed[client.name] = error
        if made:
            present = await self._present(server)
        if self._ready & {client.name for client in made}:
            self._ready.clear()
            log.warning("the MPS daemon has ended, and its clients with it: another one was started")
            self.started += 1
            self._changed()
        for client in clients:
            difference = _difference(present.get(client.name), client.limits)
            if client.name not in failed and difference:
                failed[client.name] = MpsRefusalError(f"{difference}: see the log of the MPS daemon")
        self._ready |= {client.name for client in clients if client.name not in failed}
        for client in made:
            if client.name in failed and client.name in present:
                # Without its limits it must not be found, and taken for ready, the next time.
                await self.daemon.tell(control.delete_namespace(client.name, server=server, force=True))
        return failed

    async def _limit(self, server: str, client: MpsClient) -> None:
        memory, limits = _memory(client.limits), client.limits
        if memory is not None or limits.threads is not None or limits.yields:
            await self.daemon.tell(
                control.set_namespace(
                    client.name, server=server, memory_mib=memory, threads=limits.threads, yields=limits.yields
                )
            )

    async def _servers(self) -> dict[str, MpsServer]:
        """The servers that were made here, in this process or an earlier one; notes which of them are stopped."""
        listed = control.parse_servers(await self.daemon.tell(control.list_servers()))
        ours = {one.name: one for one in listed if one.name == SERVER or one.name.startswith(_SERVER_PREFIX)}
        self._note_faults({one.gpus: _fault_words(f"of {_names(one.gpus)}") for one in ours.values() if one.faulted})
        return ours

    async def _present(self, server: str) -> dict[str, MpsNamespace]:
        answer = await self.daemon.tell(control.list_namespaces(server))
        return {namespace.name: namespace for namespace in control.parse_namespaces(answer)}


def not_roots(folder: Path, *names: str, absent: bool = False) -> str:
    """Why a folder below another is not root's own, or not this user's; empty if it is. `absent`: it need not exist.

    Clients of protocol 2 that run as root can write into the daemon's directory. What they leave there must not lead
    the runtime, which mounts folders of it into containers, to another place of the host.
    """
    place, held = folder, os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Of the folder itself only the last part is looked at: who may change those above it is root.
        for part in (str(folder), *names):
            place = place / part
            inside = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inside
            if os.fstat(held).st_uid not in (0, os.geteuid()):
                return f"{place} belongs to user {os.fstat(held).st_uid}, not to root: remove it"
    except FileNotFoundError:
        return "" if absent else f"{place} is not there"
    except OSError as error:
        return f"{place} is not a folder of the MPS daemon ({error.strerror}): remove it"
    finally:
        os.close(held)
    return ""


def _fault_words(server: str) -> str:
    return (
        f"the MPS server {server} is in status FAULT, since a program of one of its clients failed: it takes no new "
        "clients until all that it has have ended; delete the pods that do not end by themselves"
    )


def _names(gpus: Iterable[str]) -> str:
    return ", ".join(sorted(gpus)) or "all GPUs"


def _difference(found: MpsNamespace | None, limits: ContainerLimits) -> str:
    """What is not as wanted of a container's namespace, in words."""
    if found is None:
        return "the MPS daemon was told to make it and has none"
    return found.difference(memory_mib=_memory(limits), threads=limits.threads)


def _memory(limits: ContainerLimits) -> int | None:
    """The memory limit in MiB. MPS limits the memory of containers with one GPU only."""
    assert len(limits.memory_mib) <= 1
    return next(iter(limits.memory_mib.values()), None)


def set_exclusive(nvml: Nvml, uuids: Iterable[str]) -> None:
    """Let nobody but the MPS server compute on cards. What cannot be set is told: MPS serves all the same."""
    _set_mode(nvml, uuids, ComputeMode.EXCLUSIVE_PROCESS)


def set_open(nvml: Nvml, uuids: Iterable[str]) -> None:
    """Let everybody compute on cards again."""
    _set_mode(nvml, uuids, ComputeMode.DEFAULT)


def _set_mode(nvml: Nvml, uuids: Iterable[str], mode: ComputeMode) -> None:
    for uuid in uuids:
        try:
            if nvml.compute_mode(uuid) is not mode:
                nvml.set_compute_mode(uuid, mode)
        except GpuError as error:
            log.warning("card %s cannot be put into compute mode %s: %s", uuid, mode.value, error)
