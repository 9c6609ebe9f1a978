"""Replicas of `shoal scheduler` that are killed and come back, each behind a relay that breaks its connections."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from tests.kube.relay import Relay
from tests.suites.scheduling.process import SchedulerProcess
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run


class Replica:
    """One replica and the relay between it and the API server."""

    def __init__(self, process: SchedulerProcess, relay: Relay) -> None:
        self.process = process
        self.relay = relay

    async def decides(self) -> bool:
        """Whether it leads and is ready."""
        return self.process.serves() and await asyncio.to_thread(self.process.readiness) == ""


@contextlib.asynccontextmanager
async def replicas(run: Run, api: ApiServer, kubeconfig: Path, count: int) -> AsyncIterator[list[Replica]]:
    """So many replicas, started anew whenever one has ended."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number in range(count):
            relay = await stack.enter_async_context(Relay(api.port))
            own = run.folder("chaos") / f"replica-{number}.kubeconfig"
            through(kubeconfig, own, relay.port)
            made.append(Replica(SchedulerProcess(run, f"replica-{number}", own), relay))
        keeper = asyncio.create_task(_keep(made), name="keeper of replicas")
        try:
            yield made
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})
            for replica in made:
                replica.process.kill()


def through(kubeconfig: Path, to: Path, port: int) -> None:
    """The same kubeconfig, by way of another port."""
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    to.touch(mode=0o600)
    to.write_text(yaml.safe_dump(document))


async def _keep(made: list[Replica]) -> None:
    """As a Deployment does: what has ended is started again."""
    while True:
        for replica in made:
            if not replica.process.alive:
                replica.process.launch()
        await asyncio.sleep(0.2)


class Trouble:
    """Does harm, one thing at a time; `done` counts what."""

    def __init__(self, made: list[Replica], rng: random.Random) -> None:
        self._replicas = made
        self._rng = rng
        self.done: Counter[str] = Counter()

    async def once(self) -> None:
        """Some harm. Killing the leader is the worst and the most frequent; nobody is killed while nobody leads."""
        leader = await self._leader()
        deaths = ("kill leader", "kill leader", "kill leader", "end leader", "kill other") if leader is not None else ()
        kind = self._rng.choice((*deaths, "cut", "stall", "lose", "block"))
        self.done[kind] += 1
        match kind:
            case "kill leader":
                assert leader is not None
                leader.process.kill()
            case "end leader":
                assert leader is not None
                leader.process.terminate()
            case "kill other":
                self._any(but=leader).process.kill()
            case "cut":
                for replica in self._replicas:
                    await replica.relay.cut()
            case "stall":
                self._any().relay.stall()
            case "lose":
                (leader or self._any()).relay.lose_answers(5)
            case "block":
                relay = self._any().relay
                await relay.block()
                await asyncio.sleep(self._rng.uniform(0.5, 4))
                relay.unblock()

    async def _leader(self) -> Replica | None:
        for replica in self._replicas:
            if await replica.decides():
                return replica
        return None

    def _any(self, but: Replica | None = None) -> Replica:
        return self._rng.choice([replica for replica in self._replicas if replica is not but])
