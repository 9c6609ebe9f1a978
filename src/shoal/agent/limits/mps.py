"""Looks after the node's MPS daemon: starts it, sees that it answers, and gives containers their part of it.

With protocol 3 each container has a namespace with its limits, and sees that directory alone. The limits are read back
before the container starts, since a daemon may refuse in silence; another amount keeps it from starting. With protocol
2 limits stand in the container's environment. A daemon that runs is taken as it is, and never stopped here: its end
would be the end of its clients. One that answers no more is told, and not killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from shoal.agent.errors import RefusedError
from shoal.agent.limits.tiers import ContainerLimits
from shoal.gpu import mps as control
from shoal.gpu.errors import GpuError, MpsError, MpsRefusalError, NoMpsDaemonError
from shoal.gpu.mps import MpsDaemon, MpsHealth, MpsNamespace
from shoal.gpu.protocol import ComputeMode, Nvml
from shoal.kubelet.cdi import ContainerEdits, Mount
from shoal.model.backoff import Backoff
from shoal.model.contract import nvidia

log = logging.getLogger(__name__)

#: The one server of protocol 3. One for all cards: a card in exclusive mode takes no second one.
SERVER: Final = "shoal"
_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")
_EMPTY: Final = ("nosuid", "nodev", "noexec", "mode=755", "size=64k")
_SHARED_MEMORY: Final = "/dev/shm"
_FOR_ALL: Final = 0o1777
_LOOK_SECONDS: Final = 15.0
_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
_DIGEST_BYTES: Final = 8


def namespace_of(pod_uid: str, container: str, limits: ContainerLimits) -> str:
    """The name of a container's namespace. Other limits have another name: those of clients cannot be changed."""
    text = "\n".join((pod_uid, container, *map(str, sorted(limits.memory_mib.items())), str(limits.threads)))
    return f"n_{hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"


class Mps:
    """The daemon of a node. `changed` is called when it comes or goes."""

    def __init__(
        self,
        daemon: MpsDaemon,
        *,
        changed: Callable[[], None] = lambda: None,
        starts: bool = True,
        shared_memory: Path | None = None,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """`starts`: a daemon that does not run is started here.

        `shared_memory` is the host's folder that daemon and clients both have as /dev/shm, if that is set up.
        """
        self.daemon = daemon
        self._starts = starts
        self._changed = changed
        self._shared_memory = shared_memory
        self._look_seconds = look_seconds
        self._lock = asyncio.Lock()
        self._wanted: dict[str, ContainerLimits] = {}
        #: Whether all that are wanted are known, so that others can go.
        self._told = False
        #: Why no client can be served; empty while the daemon answers.
        self.fault = "the MPS daemon has not answered yet"
        #: Whether it has been looked at and does not answer.
        self.failing = False
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
        if self.namespaces:
            async with self._lock:
                for name, error in (await self._make()).items():
                    log.warning("MPS namespace %s is not as wanted: %s", name, error)
                if self._told:
                    await self._drop()

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

    def edits(self, name: str, limits: ContainerLimits) -> ContainerEdits:
        """What makes a container's programs clients."""
        pipe = self.daemon.pipe_directory
        if self.namespaces:
            place = pipe / SERVER / name
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

    async def prepare(self, name: str, limits: ContainerLimits) -> None:
        """Have a container's namespace ready. RefusedError while that cannot be."""
        await self._looked.wait()
        if self.fault:
            raise RefusedError(self.fault)
        if not self.namespaces:
            return
        async with self._lock:
            self._wanted[name] = limits
            try:
                failed = await self._make()
                if name in failed:
                    raise failed[name]
            except MpsError as error:
                self._look_now.set()
                raise RefusedError(f"its MPS namespace could not be made: {error}") from error

    async def keep_only(self, wanted: Mapping[str, ContainerLimits]) -> None:
        """Remove the namespaces of all other containers. One whose clients still run is removed later."""
        if not self.namespaces:
            return
        async with self._lock:
            self._wanted = dict(wanted)
            self._told = True
            if self.fault:
                return
            try:
                await self._drop()
            except MpsError as error:
                log.info("MPS namespaces that nobody needs are left for now: %s", error)

    async def _drop(self) -> None:
        """Remove what is there and not wanted. One that cannot go yet does not hold up the others."""
        for name in sorted(set(await self._present()) - set(self._wanted) - {control.DEFAULT_NAMESPACE}):
            try:
                await self.daemon.tell(control.delete_namespace(name, server=SERVER))
                log.info("the MPS namespace %s is removed", name)
            except NoMpsDaemonError:
                raise
            except MpsError as error:
                log.info("the MPS namespace %s is left for now: %s", name, error)

    async def _make(self) -> dict[str, MpsRefusalError]:
        """Make what is wanted and not there, since nothing outlives a daemon; the namespaces that are not as wanted.

        One that cannot be made does not hold up the others.
        """
        if SERVER not in control.parse_servers(await self.daemon.tell(control.list_servers())):
            await self.daemon.tell(control.create_server(SERVER))
        present = await self._present()
        made = [name for name in self._wanted if name not in present]
        failed: dict[str, MpsRefusalError] = {}
        for name in made:
            try:
                await self.daemon.tell(control.create_namespace(name, server=SERVER))
                await self._limit(name, self._wanted[name])
            except MpsRefusalError as error:
                failed[name] = error
        if made:
            present = await self._present()
        for name, limits in self._wanted.items():
            if name not in failed and (difference := _difference(present.get(name), limits)):
                failed[name] = MpsRefusalError(f"{difference}: see the log of the MPS daemon")
        for name in set(made) & set(failed) & set(present):
            # Without its limits it must not be found, and taken for ready, the next time.
            await self.daemon.tell(control.delete_namespace(name, server=SERVER, force=True))
        return failed

    async def _limit(self, name: str, limits: ContainerLimits) -> None:
        memory = _memory(limits)
        if memory is not None or limits.threads is not None or limits.yields:
            await self.daemon.tell(
                control.set_namespace(
                    name, server=SERVER, memory_mib=memory, threads=limits.threads, yields=limits.yields
                )
            )

    async def _present(self) -> dict[str, MpsNamespace]:
        answer = await self.daemon.tell(control.list_namespaces(SERVER))
        return {namespace.name: namespace for namespace in control.parse_namespaces(answer)}


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
