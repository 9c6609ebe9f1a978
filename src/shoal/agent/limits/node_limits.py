"""The limits of one node: what limits shares of each GPU, the edits of containers, the hook's socket, the MPS daemon.

Where a GPU has both, the driver limits the memory of cgroups and MPS limits compute. MPS alone limits compute, and
memory by a convention that a program can lift.

With protocol 2 of MPS every client can change the limits of all others, or end the daemon. So namespaces opt in to it,
by a label.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from shoal.agent.config import AgentConfig
from shoal.agent.errors import AgentConfigError, RefusedError
from shoal.agent.limits import ContainerStart, cgroup
from shoal.agent.limits.mps import Mps, MpsClient, client_of, set_exclusive, set_open
from shoal.agent.limits.tiers import ContainerLimits, IsolationSetting, Means, chosen, container_limits, weakest
from shoal.agent.node.cards import NodeCards
from shoal.gpu.errors import GpuError, MpsError
from shoal.gpu.mps import MpsDaemon
from shoal.gpu.protocol import LIMITING_CUDA, Driver, Nvml, Survey
from shoal.kube.client import Client
from shoal.kube.objects.node import Namespace
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NAMESPACES
from shoal.kubelet.cdi import ContainerEdits
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import shoal
from shoal.model.errors import shown
from shoal.model.gpu import Isolation, LimitedBy

log = logging.getLogger(__name__)


class NodeLimits:
    """Keeps the containers of a node to their shares. `run` until it is cancelled."""

    def __init__(
        self,
        nvml: Nvml,
        survey: Survey,
        means: Means,
        wanted: IsolationSetting,
        *,
        program: Path,
        socket_path: Path,
        cgroups: Path,
        mps: Mps | None,
        exclusive: bool,
        isolated: Callable[[], bool],
        may_share: Callable[[str], bool] = lambda namespace: True,
    ) -> None:
        """`program` is where the hook is on the host, `socket_path` the socket it asks, `cgroups` the root of cgroups.

        `may_share` says whether pods of a namespace may share an MPS daemon with pods of others.
        """
        self._nvml = nvml
        self._program = program
        self._socket = socket_path
        self._cgroups = cgroups
        self._mps = mps
        self._exclusive = exclusive
        self._isolated = isolated
        self._wanted = wanted
        self._may_share = may_share
        #: The UIDs of the pods, and of the claims, that are clients of MPS.
        self.client_pods: frozenset[str] = frozenset()
        self._modes = {card.uuid: chosen(card, means, wanted) for card in survey.cards}
        #: GPUs of which every share is a client of MPS.
        self._served = [uuid for uuid, (mode, _) in self._modes.items() if mode.memory.by_mps]
        #: Whether no program computes without MPS on a GPU that MPS limits. Under `cgroup` some containers need no MPS.
        self._closed = exclusive and all(
            uuid in self._served for uuid, (mode, _) in self._modes.items() if mode.compute.by_mps
        )
        for card in survey.cards:
            mode, problem = self._modes[card.uuid]
            log.info("shares of GPU %d are limited by: %s%s", card.index, mode, f" ({problem})" if problem else "")

    @property
    def mps(self) -> Mps | None:
        """The node's MPS daemon under the agent's care, if there is one."""
        return self._mps

    def isolation(self, uuid: str) -> LimitedBy:
        """What limits shares of a GPU."""
        return self._modes.get(uuid, (LimitedBy(), ""))[0] if self._isolated() else LimitedBy()

    def faults(self) -> Mapping[str, str]:
        """GPUs whose shares need an MPS daemon that does not answer, or a server that a client's fault has stopped.

        A daemon that only just starts is no fault.
        """
        if self._mps is None:
            return {}
        if self._mps.failing:
            return dict.fromkeys(self._served, self._mps.fault)
        stopped = self._mps.faulted.items()
        return {uuid: words for gpus, words in stopped for uuid in self._served if not gpus or uuid in gpus}

    def lost(self) -> str:
        """Why limits by MPS do not hold for programs that start now, in words; empty if they do.

        On GPUs in exclusive mode such programs cannot compute at all.
        """
        if self._mps is None or not self._mps.failing or self._closed:
            return ""
        return f"limits by MPS do not hold for programs that start now, until the MPS daemon answers: {self._mps.fault}"

    def restarted(self) -> tuple[int, str]:
        """How often the MPS daemon was started, and what that means for running containers.

        With protocol 2 they find the new daemon where the old one was.
        """
        if self._mps is None or not self._mps.namespaces or self._closed:
            return 0, ""
        return self._mps.started, (
            "the MPS daemon ended and was started again, and this pod's containers still have the directory of the old "
            "one: limits by MPS do not hold for programs that start in them now, until the containers are restarted"
        )

    def edits(self, start: ContainerStart) -> ContainerEdits:
        """The edits that limit the container. RefusedError if the tier that was asked for cannot be had."""
        limits = container_limits(start.container, yields=start.yields)
        if not limits:
            return ContainerEdits()
        mode, client = self._kept(start, limits) if self._isolated() else (LimitedBy(), False)
        edits = ContainerEdits(env=(f"{shoal.ENV_ISOLATION}={mode}",))
        if mode.memory is Isolation.CGROUP and limits.memory_mib:
            vendors = cgroup.vendor_edits(start.hooks, limits.memory_mib)
            edits += vendors or cgroup.hook_edits(self._program, self._socket, limits.memory_mib)
        if self._mps is not None and client:
            edits += self._mps.edits(_client(start, mode, limits))
        return edits

    async def prepare(self, start: ContainerStart) -> None:
        """Have the container's MPS namespace ready."""
        for client in self._clients([start]):
            assert self._mps is not None
            await self._mps.prepare(client)

    async def keep_only(self, starts: Iterable[ContainerStart]) -> None:
        """Remove the MPS namespaces of all other containers."""
        if self._mps is not None:
            found = [(start.pod_uid, client) for start in starts for client in self._clients([start])]
            self.client_pods = frozenset(uid for uid, _ in found)
            await self._mps.keep_only([client for _, client in found])

    async def run(self) -> None:
        """Answer hooks, and look after the MPS daemon."""
        async with contextlib.AsyncExitStack() as stack:
            if any(mode.memory is Isolation.CGROUP for mode, _ in self._modes.values()):
                await stack.enter_async_context(cgroup.serve(self._nvml, self._socket, self._cgroups))
            if self._mps is None:
                await asyncio.Event().wait()
                return
            if self._exclusive:
                await asyncio.to_thread(set_exclusive, self._nvml, self._served)
            await self._mps.run()

    def _mode(self, start: ContainerStart) -> LimitedBy:
        """What limits the container: the weakest of its GPUs."""
        found = [self._modes.get(card.uuid, (LimitedBy(), "")) for card in start.cards]
        for _, problem in found:
            if problem:
                raise RefusedError(problem)
        return weakest(mode for mode, _ in found) or LimitedBy()

    def _kept(self, start: ContainerStart, limits: ContainerLimits) -> tuple[LimitedBy, bool]:
        """What limits the container, and whether it is a client of MPS. RefusedError if it must be one and may not."""
        mode = self._mode(start)
        client = mode.memory.by_mps or limits.client or limits.threads is not None
        if self._mps is None or mode.compute is Isolation.NONE or not client:
            return replace(mode, compute=Isolation.NONE), False
        if self._mps.namespaces or self._may_share(start.namespace):
            return _as_client(mode, start, limits), True
        if limits.client or self._wanted is IsolationSetting.MPS:
            raise RefusedError(
                f"namespace {shown(start.namespace)} has not opted in to MPS, and the node's MPS daemon lets every "
                f"client change the limits of others: label the namespace {shoal.LABEL_MPS}={shoal.MPS_ALLOW}, or set "
                "mpsForAll on the node if it has one tenant"
            )
        return LimitedBy(Isolation.NONE if mode.memory.by_mps else mode.memory), False

    def _clients(self, starts: Iterable[ContainerStart]) -> list[MpsClient]:
        """Those of these containers that are clients of MPS."""
        found: list[MpsClient] = []
        for start in starts:
            limits = container_limits(start.container, yields=start.yields)
            if self._mps is None or not limits or not self._isolated():
                continue
            try:
                mode, client = self._kept(start, limits)
            except RefusedError:  # it is refused when it starts
                continue
            if client:
                found.append(_client(start, mode, limits))
        return found


def _as_client(mode: LimitedBy, start: ContainerStart, limits: ContainerLimits) -> LimitedBy:
    """What limits a client of MPS. MPS limits memory of containers with one GPU only.

    A program that narrows CUDA_VISIBLE_DEVICES no longer sees all GPUs that the limits name, and drops all of them.
    """
    if not mode.memory.by_mps:
        return mode if limits.threads is not None else LimitedBy(mode.memory)
    if len(start.gpus) == 1:
        return mode
    return LimitedBy(compute=Isolation.NONE if limits.threads is None else mode.compute)


def _client(start: ContainerStart, mode: LimitedBy, limits: ContainerLimits) -> MpsClient:
    """A container as a client of MPS, with the limits that MPS has to set: of memory only where MPS limits it."""
    inside = limits if mode.memory.by_mps else replace(limits, memory_mib={})
    return client_of(start.pod_uid, start.container.name, start.gpus, inside)


def build(
    config: AgentConfig,
    cards: NodeCards,
    paths: HostPaths,
    *,
    cdi: bool,
    environment: Mapping[str, str],
    isolated: Callable[[], bool],
    opted_in: Callable[[str], bool],
    changed: Callable[[], None],
) -> NodeLimits:
    """The limits that a node's configuration and means allow. `environment` is for the programs of MPS.

    `opted_in` says of a namespace that its pods may be clients of an MPS daemon that cannot keep them apart.
    """
    driver = cards.driver.driver()
    source, program = Path(config.limit_hook), paths.programs / cgroup.PROGRAM
    hook = source.is_file()
    if hook and cdi and paths.cgroup2.exists():
        program = cgroup.install(source, paths.programs)
    daemon = mps_daemon(config, driver, environment)
    means = Means(
        driver=driver,
        cgroup2=paths.cgroup2.exists(),
        hook=hook,
        cdi=cdi,
        mps=daemon is not None,
        namespaces=daemon is not None and daemon.protocol == 3,
    )
    shared = Path(config.mps_shared_memory) if config.mps_shared_memory else None
    return NodeLimits(
        cards.driver,
        cards.survey,
        means,
        config.isolation,
        program=program,
        socket_path=paths.limit_socket,
        cgroups=paths.cgroups,
        mps=None
        if daemon is None
        else Mps(
            daemon,
            changed=changed,
            starts=config.mps_start,
            exclusive=config.mps_exclusive,
            shared_memory=shared,
        ),
        exclusive=config.mps_exclusive,
        isolated=isolated,
        may_share=opted_in if asks_consent(config, driver) else lambda namespace: True,
    )


def asks_consent(config: AgentConfig, driver: Driver) -> bool:
    """Whether namespaces must opt in to MPS on the node."""
    daemon = mps_daemon(config, driver, {})
    return daemon is not None and daemon.protocol != 3 and not config.mps_for_all


def mps_daemon(config: AgentConfig, driver: Driver, environment: Mapping[str, str]) -> MpsDaemon | None:
    """The node's MPS daemon, if one is configured. Protocol 2 if the driver has no other, or it is asked for."""
    if not config.mps_program or config.isolation is IsolationSetting.NONE:
        return None
    newer = driver.cuda is not None and driver.cuda >= LIMITING_CUDA and config.isolation is not IsolationSetting.MPS
    return MpsDaemon(
        pipe_directory=Path(config.mps_directory),
        log_directory=Path(config.mps_log_directory),
        environment=environment,
        protocol=3 if newer else 2,
        multi_user=newer,
        program=config.mps_program,
    )


async def keep_daemon(config: AgentConfig, cards: NodeCards, environment: Mapping[str, str]) -> None:
    """Keep the node's MPS daemon running until cancelled, in a process that does nothing else."""
    await cards.wait(lambda: None)
    daemon = mps_daemon(config, cards.driver.driver(), environment)
    if daemon is None:
        raise AgentConfigError("there is no MPS daemon to keep: set mpsProgram, and isolation to another than none")
    await Mps(daemon).run()


async def cleanup(config: AgentConfig, paths: HostPaths, cards: NodeCards, environment: Mapping[str, str]) -> None:
    """Leave nothing of the limits on the node: the hook, its socket, and the MPS daemon with its clients."""
    paths.limit_socket.unlink(missing_ok=True)
    (paths.programs / cgroup.PROGRAM).unlink(missing_ok=True)
    if not config.mps_program:
        return
    try:
        await asyncio.to_thread(cards.open)
        daemon = mps_daemon(config, cards.driver.driver(), environment)
        if daemon is not None:
            await daemon.quit()
        if config.mps_exclusive:
            await asyncio.to_thread(set_open, cards.driver, [card.uuid for card in cards.survey.cards])
    except (GpuError, MpsError) as error:
        log.warning("the MPS daemon is left as it is: %s", error)


class MpsConsents:
    """The namespaces that have the label. Only they are read, and only while `reflector` runs."""

    def __init__(self, client: Client) -> None:
        self.reflector: Reflector[Namespace] = Reflector(
            client, NAMESPACES, labels=f"{shoal.LABEL_MPS}={shoal.MPS_ALLOW}"
        )

    def given(self, namespace: str) -> bool:
        """Whether the namespace has opted in. RefusedError while that is not known: kubelet asks again."""
        if not self.reflector.synced.is_set():
            why = self.reflector.last_error or "no answer yet"
            raise RefusedError(f"which namespaces have opted in to MPS is still being read: {why}")
        return self.reflector.store.get(namespace) is not None
