"""The node's DRA driver: publishes its devices, serves kubelet, and says so where the cluster cannot do that.

Devices are published when kubelet knows the driver: one that does not starts pods without the cards of their claims, or
never.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from shoal.agent.claims.devices import HeldOfCard, NodeDevices, PoolSlice, pool_slices, whole_slices
from shoal.agent.claims.preparing import PreparedClaims
from shoal.agent.claims.slices import SlicePublisher
from shoal.agent.errors import AgentError
from shoal.agent.node.cards import NodeCards
from shoal.agent.node.pods import NodePods
from shoal.gpu.errors import GpuError
from shoal.gpu.protocol import Driver
from shoal.kube.claims_api import GROUP, V1BETA1, ClaimsApi, ClaimsVersion
from shoal.kube.errors import KubeError, NotFoundError, UnservedError
from shoal.kubelet.dra import DeviceHealth, DraDriver
from shoal.kubelet.host_paths import DriverSockets, HostPaths
from shoal.model.contract import dra
from shoal.model.request import NO_SHARE

log = logging.getLogger(__name__)

#: How often it is tried whether the cluster can do it by now.
_AGAIN_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
#: How often cards and what is held of them are looked at; nothing is written unless they changed.
_LOOK_SECONDS: Final = 0.25
#: After this long without a word of kubelet's that is told. It looks for drivers each second.
_SILENCE_SECONDS: Final = 30.0
_GATE: Final = "DynamicResourceAllocation"
_HOW_TO_HAVE_IT: Final = (
    f"Kubernetes 1.34 and newer have it; 1.32 and 1.33 do with the feature gate {_GATE} on (API server, "
    f"controller-manager, scheduler, kubelet) and --runtime-config={GROUP}/{V1BETA1.name}=true of the API server"
)


class ClaimsDriver:
    """The driver of one node. `run` until it is cancelled."""

    def __init__(
        self,
        cards: NodeCards,
        pods: NodePods,
        claims: PreparedClaims,
        api: ClaimsApi,
        publisher: Callable[[ClaimsVersion], SlicePublisher],
        sockets: DriverSockets,
        *,
        complain: Callable[[str], None],
        in_use: Callable[[str], bool] = lambda uuid: False,
        clients: Callable[[], bool] = lambda: False,
    ) -> None:
        """`publisher` writes slices in one version of `api`; `complain` is told why there are no claims on this
        cluster; `in_use` says whether a container has a MIG partition by number, and raises AgentError when that is not
        known; `clients` whether slices list MPS clients.
        """
        self._cards = cards
        self._pods = pods
        self._claims = claims
        self._api = api
        self._publisher = publisher
        self._complain = complain
        self._in_use = in_use
        self._clients = clients
        self._given: frozenset[str] = frozenset()
        self._sockets = sockets
        #: What was complained of last.
        self._told = ""
        #: Whether the cluster takes the node's devices.
        self.offered = False
        self.server = DraDriver(
            dra.DRIVER, sockets, prepare=claims.prepare, unprepare=claims.unprepare, health=self._health
        )

    async def run(self, *, publishing: bool, rebooted: bool) -> None:
        """Serve, and publish the devices as soon as the cluster takes them.

        Without `publishing` no device is offered, and claims are served until the last one was taken back.
        """
        async with asyncio.TaskGroup() as group:
            serves = len(self._claims) > 0
            if serves:
                group.create_task(self.server.run(), name="claims")
                if rebooted:
                    group.create_task(self._claims.forget_gone(), name="claims that are gone")
            if not publishing:
                return
            publisher = await self._wait_available()
            if not serves:
                group.create_task(self.server.run(), name="claims")
            await self._wait_registered()
            while True:
                self.offered = True
                async with publisher.reflector:
                    writing = group.create_task(publisher.run(), name="slices")
                    await self._follow(publisher)
                    writing.cancel()
                self.offered = False
                self._api.look_again()
                publisher = await self._wait_available()

    def _tell(self, words: str) -> None:
        """Complain, once of each thing; empty words if there is nothing to complain of."""
        if words and words != self._told:
            self._complain(words)
        self._told = words

    async def _wait_available(self) -> SlicePublisher:
        """What publishes the node's slices, when the cluster takes them."""
        while True:
            try:
                publisher = self._publisher(await self._api.version())
                words = await publisher.unavailable()
                if not words:
                    self._tell("")
                    return publisher
                pause = _AGAIN_SECONDS
            except UnservedError as error:
                words, pause = f"{error}: {_HOW_TO_HAVE_IT}", _AGAIN_SECONDS
            except KubeError as error:
                words, pause = "", _RETRY_SECONDS
                log.warning("whether the cluster takes slices is not known: %s", error)
            if words:
                self._tell(words)
            await asyncio.sleep(pause)

    async def _wait_registered(self) -> None:
        """Return when kubelet knows the driver."""
        waited = 0.0
        while not self.server.registered.is_set():
            silent = (
                f"kubelet has not asked for the driver at {self._sockets.registration}: does it run, and look there?"
            )
            self._tell(self._refused() or (silent if waited >= _SILENCE_SECONDS else ""))
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
        self._tell("")

    def _refused(self) -> str:
        """Why kubelet does not take the driver, and what to do; empty while it has not said so."""
        why = self.server.refused
        return why and f"kubelet does not take the driver: switch its feature gate {_GATE} on ({why})"

    async def _follow(self, publisher: SlicePublisher) -> None:
        """Publish the devices as they are, and tell kubelet of their health, while the API server has this version."""
        before: object = None
        driver = await self._driver()
        while not isinstance(publisher.reflector.last_error, NotFoundError):
            self._look_at_partitions()
            node, pods, clients = self._pods.node, self._pods, self._clients()
            refused = self._refused()
            self._tell(refused)
            now = (node, pods.totals.version, pods.held_version, self._cards.survey, self._given, clients, refused)
            if now != before:
                before = now
                publisher.publish(() if refused else self._slices(driver, publisher.version, clients=clients))
                self.server.tell_health()
            await asyncio.sleep(_LOOK_SECONDS)

    def _slices(self, driver: Driver, version: ClaimsVersion, *, clients: bool) -> tuple[PoolSlice, ...]:
        gpus, cards = self._pods.node.gpus, self._cards.survey.cards
        if version.shares:
            return pool_slices(gpus, cards, driver, self._use(), self._given, clients=clients)
        return whole_slices(gpus, cards, driver, self._use(), self._given)

    def _look_at_partitions(self) -> None:
        """Which partitions containers have by number; what was known stays while kubelet's record cannot be read."""
        with contextlib.suppress(AgentError):
            self._given = frozenset(part.uuid for _, part in self._pods.node.partitions() if self._in_use(part.uuid))

    async def _driver(self) -> Driver:
        """The GPU driver's versions; without them if it does not tell."""
        try:
            return await asyncio.to_thread(self._cards.driver.driver)
        except GpuError as error:
            log.warning("devices are published without the driver's versions: %s", error)
            return Driver("")

    def _use(self) -> dict[str, HeldOfCard]:
        found = {}
        for gpu in self._pods.node.gpus:
            pods = (one.holding.held()[gpu.uuid] for one in self._pods.on_card(gpu.uuid) if one.counts)
            found[gpu.uuid] = HeldOfCard(self._pods.claims.on_card(gpu.uuid), sum(pods, NO_SHARE))
        return found

    def _health(self) -> Iterator[DeviceHealth]:
        devices = NodeDevices.of(self._pods.node.gpus)
        for name in devices:
            fault = devices.fault(name)
            yield DeviceHealth(self._pods.node.name, name, not fault, fault)


def rebooted(paths: HostPaths) -> bool:
    """Whether the machine was started since the agent was here last; that is remembered from now on."""
    try:
        if paths.booted.exists():
            return False
        paths.booted.parent.mkdir(parents=True, exist_ok=True)
        paths.booted.touch()
    except OSError as error:
        log.warning("whether the machine was restarted is not known: %s", error)
        return False
    return True
