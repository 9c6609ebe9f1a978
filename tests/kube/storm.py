"""A writer that changes objects at a steady rate and knows the truth, and a consumer that checks what it is told."""

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict

from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.objects.others import ConfigMap
from shoal.kube.resources import CONFIG_MAPS
from shoal.kube.store import Change, ChangeType
from tests.kube.objects import config_map

Identity = tuple[str, str]  # uid and version


class Writer:
    """Creates, patches and deletes ConfigMaps. Each name belongs to one worker, so each knows the state of its own."""

    def __init__(self, client: Client, namespace: str, *, rate: float, workers: int = 16, names: int = 15) -> None:
        self._client = client
        self._namespace = namespace
        self._interval = 1 / rate
        self._workers = workers
        self._names = names
        self._next = 0.0
        #: What is there now, by name.
        self.live: dict[str, Identity] = {}
        #: All versions that ever were, by uid.
        self.versions: dict[str, set[str]] = defaultdict(set)
        self.deleted: set[str] = set()
        self.changes = 0
        self.unsure = 0
        self.kinds: Counter[str] = Counter()
        #: Changes waited for and the seconds they took, which is to say outside outages.
        self.awaited = 0
        self.seconds = 0.0
        self._stop = asyncio.Event()
        self._progress = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def running(self):
        """Write until the block ends; then all changes are known."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(number), name=f"writer {number}")
            try:
                yield self
            finally:
                self._stop.set()

    async def more(self, count: int) -> None:
        """Wait until so many more changes are made."""
        before, started = self.changes, time.monotonic()
        async with asyncio.timeout(300), self._progress:
            await self._progress.wait_for(lambda: self.changes >= before + count)
        self.awaited += self.changes - before
        self.seconds += time.monotonic() - started

    async def _work(self, number: int) -> None:
        rng = random.Random(number)
        while not self._stop.is_set():
            await self._turn()
            name = f"w{number}-{rng.randrange(self._names)}"
            try:
                await self._change(name, rng)
            except KubeError:
                # Perhaps done, perhaps not: only asking tells.
                self.unsure += 1
                await self._settle(name)
                continue
            async with self._progress:
                self.changes += 1
                self._progress.notify_all()

    async def _turn(self) -> None:
        """Wait for the next place in a steady rate."""
        now = time.monotonic()
        self._next = max(self._next + self._interval, now)
        await asyncio.sleep(self._next - now)

    async def _change(self, name: str, rng: random.Random) -> None:
        if name not in self.live:
            self._saw(await self._client.create(CONFIG_MAPS, config_map(name, self._namespace, step="0")))
            self.kinds["create"] += 1
        elif rng.random() < 0.7:
            patch = {"data": {"step": str(rng.random())}}
            self._saw(await self._client.patch(CONFIG_MAPS, name, patch, namespace=self._namespace))
            self.kinds["patch"] += 1
        else:
            uid = self.live[name][0]
            await self._client.delete(CONFIG_MAPS, name, namespace=self._namespace, uid=uid)
            self.deleted.add(uid)
            del self.live[name]
            self.kinds["delete"] += 1

    async def _settle(self, name: str) -> None:
        while True:
            try:
                self._saw(await self._client.get(CONFIG_MAPS, name, namespace=self._namespace))
                return
            except NotFoundError:
                if name in self.live:
                    self.deleted.add(self.live.pop(name)[0])
                return
            except KubeError:
                await asyncio.sleep(0.2)

    def _saw(self, obj: ConfigMap) -> None:
        meta = obj.metadata
        before = self.live.get(meta.name)
        if before is not None and before[0] != meta.uid:
            self.deleted.add(before[0])
        self.live[meta.name] = (meta.uid, meta.resource_version)
        self.versions[meta.uid].add(meta.resource_version)


class Witness:
    """Takes a reflector's changes and holds each to what is possible; what is not is kept in `wrong`."""

    def __init__(self) -> None:
        self.live: dict[str, Identity] = {}
        self.told: list[Identity] = []
        self.deleted: Counter[str] = Counter()
        self.kinds: Counter[ChangeType] = Counter()
        self.wrong: list[str] = []

    def __call__(self, change: Change[ConfigMap]) -> None:
        self.kinds[change.kind] += 1
        meta = change.object.metadata
        known = self.live.get(meta.name)
        old = None if change.old is None else (change.old.metadata.uid, change.old.metadata.resource_version)
        # A deleted object is told as it was at its end, which has a version of its own.
        same = old == known or (change.kind is ChangeType.DELETED and old and known and old[0] == known[0])
        if not same:
            self.wrong.append(f"{change.kind} of {meta.name}: old is {old}, told before was {known}")
        if change.kind is ChangeType.DELETED:
            self.deleted[meta.uid] += 1
            self.live.pop(meta.name, None)
            return
        identity = (meta.uid, meta.resource_version)
        if (known is None) != (change.kind is ChangeType.ADDED):
            self.wrong.append(f"{change.kind} of {meta.name}, which was {known}")
        if known is not None and (known[0] != meta.uid or int(known[1]) >= int(meta.resource_version)):
            self.wrong.append(f"{meta.name} went from {known} to {identity}")
        if self.deleted[meta.uid]:
            self.wrong.append(f"{meta.name} {meta.uid} came back after its delete")
        self.live[meta.name] = identity
        self.told.append(identity)
