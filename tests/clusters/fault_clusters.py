"""The clusters of a fault run, and the witness who sees every write in them.

Each is the product's embedded API server on wires, with a scheduler, a kubelet and PodGC that take their time. What
people do to pods is here too; when they do it is the run's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from shoal.embedded import subresources
from shoal.embedded.deletion import SYSTEM_NAMESPACES, DeleteOptions, Deletion
from shoal.embedded.errors import ApiStatus
from shoal.embedded.http.server import Server
from shoal.embedded.kinds import NAMESPACES, PODS, Catalogue, Kind
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object, ObjectStore
from shoal.model.contract import clusters

NAMESPACE = "team"
TOKEN = "everything"
FINISHED = ("Succeeded", "Failed")
_START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


class Clock:
    """The time of day, as wrong as clocks of different machines may be."""

    def __init__(self, rng: random.Random) -> None:
        self._wrong = datetime.timedelta(seconds=rng.choice([0, 0, -600, 600]))

    def __call__(self) -> datetime.datetime:
        return _START + self._wrong + datetime.timedelta(seconds=asyncio.get_running_loop().time())


@dataclass
class Outcome:
    """What came of a run."""

    number: int
    doubles: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    #: All that happened, in its order.
    story: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Nothing was doubled or lost."""
        return not self.doubles and not self.losses

    def tell(self, what: str) -> None:
        """Remember what happened, and when."""
        self.story.append(f"{asyncio.get_running_loop().time():8.3f} {what}")


class Cluster:
    """An embedded API server on wires, with a scheduler, a kubelet and PodGC that take their time."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self._rng = rng
        #: What each of them does takes up to so many seconds.
        self._pace = rng.choice([0.1, 1.0, 5.0])
        self.registry = Registry(ObjectStore(), Catalogue(), clock=Clock(rng))
        self.deletion = Deletion(self.registry)
        for one in (*SYSTEM_NAMESPACES, NAMESPACE):
            self.make_namespace(one)
        self._server = Server(self.registry, self.deletion, token=TOKEN)
        self._changed = asyncio.Event()
        #: Nothing is bound: it is full.
        self.full = False
        #: When a pod's next step is due, by its UID.
        self._due: dict[str, float] = {}
        self.registry.store.listen(PODS.key, self._changed.set)
        self.uid = str(self.registry.get(NAMESPACES, "", "kube-system")["metadata"]["uid"])

    def make_namespace(self, name: str) -> None:
        """There is such a namespace."""
        if self.registry.store.get(NAMESPACES.key, ("", name)) is None:
            self.registry.create(NAMESPACES, "", {"metadata": {"name": name}})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """It answers, and its parts work."""
        runner = web.AppRunner(self._server.application(), access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        assert runner.server is not None
        self.serve: Callable[[], asyncio.Protocol] = runner.server
        work = asyncio.create_task(self._work())
        try:
            yield
        finally:
            work.cancel()
            await asyncio.wait({work})
            self._server.watches.end()
            await runner.cleanup()

    def pods(self) -> list[Object]:
        """All that there are."""
        return self.registry.store.objects(PODS.key, NAMESPACE)

    def pod(self, name: str) -> Object | None:
        """One of them."""
        return self.registry.store.get(PODS.key, (NAMESPACE, name))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            before, self._due = self._due, {}
            for pod in self.pods():
                step, uid = self._step(pod), pod["metadata"]["uid"]
                if step is None:
                    continue
                due = before.get(uid) or loop.time() + self._pace * self._rng.random() ** 3
                if due <= loop.time():
                    with contextlib.suppress(ApiStatus):
                        step(pod)
                else:
                    self._due[uid] = due
            wait = min(self._due.values(), default=loop.time() + 3600.0) - loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0.001)):
                    await self._changed.wait()

    def _step(self, pod: Object) -> Callable[[Object], Any] | None:
        """What happens to a pod next."""
        spec, phase, deleting = pod["spec"], pod["status"].get("phase"), "deletionTimestamp" in pod["metadata"]
        if not spec.get("nodeName"):
            if deleting:
                return self._collect if phase not in FINISHED else None
            return None if spec.get("schedulingGates") or self.full else self._bind
        if deleting:
            return self._end if not _all_ended(pod) or not pod["metadata"].get("finalizers") else None
        if phase == "Pending":
            return self._start
        runs = pod["metadata"].get("annotations", {}).get("runs")
        return self._finish if phase == "Running" and runs else None

    def _bind(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        subresources.bind(self.registry, NAMESPACE, name, {"target": {"kind": "Node", "name": "node-1"}})

    def _start(self, pod: Object) -> None:
        self.set_status(pod, {"phase": "Running", "containerStatuses": [_container({"running": {}})]})

    def _finish(self, pod: Object) -> None:
        code = 0 if pod["metadata"]["annotations"]["runs"] == "well" else 1
        ended = _container({"terminated": {"exitCode": code}})
        self.set_status(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]})

    def _end(self, pod: Object) -> None:
        """As kubelet: all containers have ended, then it lets the pod go."""
        if not _all_ended(pod):
            phase = {"phase": "Failed"} if pod["status"].get("phase") == "Pending" else {}
            status = {**phase, "containerStatuses": [_container({"terminated": {"exitCode": 143}})]}
            pod = self.set_status(pod, status) if pod["status"].get("phase") not in FINISHED else pod
        self.delete(pod, grace=0)

    def _collect(self, pod: Object) -> None:
        """As PodGC: one that is deleted and has no node has failed."""
        self.delete(self.set_status(pod, {"phase": "Failed"}), grace=0)

    def set_status(self, pod: Object, status: Object) -> Object:
        """Write a part of it."""
        given = {**pod, "status": {**pod["status"], **status}}
        return self.registry.update(PODS, NAMESPACE, pod["metadata"]["name"], given, subresource="status")[0]

    def delete(self, pod: Object, grace: int | None = None) -> None:
        """As anybody does who may."""
        options = DeleteOptions(grace_seconds=grace, uid=pod["metadata"]["uid"])
        self.deletion.delete(PODS, NAMESPACE, pod["metadata"]["name"], options)

    def evict(self, pod: Object) -> None:
        """As a drain does."""
        subresources.evict(self.registry, self.deletion, NAMESPACE, pod["metadata"]["name"], {})

    def force(self, pod: Object) -> None:
        """Remove it, finalizers and all."""
        meta = {**pod["metadata"], "finalizers": []}
        bare, _ = self.registry.update(PODS, NAMESPACE, pod["metadata"]["name"], {**pod, "metadata": meta})
        if self.pod(pod["metadata"]["name"]) is not None:
            self.delete(bare, grace=0)


def _container(state: Object) -> Object:
    return {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def _all_ended(pod: Object) -> bool:
    if pod["status"].get("phase") in FINISHED:
        return True
    states = [one.get("state", {}) for one in pod["status"].get("containerStatuses", ())]
    return bool(states) and all("terminated" in one for one in states)


class Witness:
    """Sees every write in every cluster, and which pods have a node by it."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        #: By the UID of home's pod: the pods that ever had a node for it, and those of them that have not ended.
        self.placed: dict[str, set[str]] = {}
        self.live: dict[str, set[str]] = {}
        #: Home's pods whose copies somebody removed by force: such a copy may count as never started.
        self.forced: set[str] = set()
        #: Home's pods with a copy that succeeded.
        self.succeeded: set[str] = set()

    def watch(self, cluster: Cluster) -> None:
        """Every write of that cluster."""

        def observe(kind: Kind, before: Object | None, after: Object | None) -> None:
            if kind.key == PODS.key:
                self._took(cluster.name, before, after)

        cluster.registry.observers.append(observe)

    def _took(self, cluster: str, before: Object | None, after: Object | None) -> None:
        pod = after or before
        assert pod is not None
        self._tell(cluster, before, after)
        if not pod["spec"].get("nodeName"):
            return
        origin, uid = origin_of(pod), pod["metadata"]["uid"]
        runs = after is not None and not _all_ended(pod)
        live = self.live.setdefault(origin, set())
        (live.add if runs else live.discard)(uid)
        ever = self.placed.setdefault(origin, set())
        ever.add(uid)
        if pod["status"].get("phase") == "Succeeded":
            self.succeeded.add(origin)
        if len(live) > 1:
            self._outcome.doubles.append(f"{pod['metadata']['name']} runs {len(live)} times at once")
        elif len(ever) > 1 and origin not in self.forced:
            self._outcome.doubles.append(f"{pod['metadata']['name']} had {len(ever)} copies with a node")

    def _tell(self, cluster: str, before: Object | None, after: Object | None) -> None:
        pod = after or before
        assert pod is not None
        meta, spec = pod["metadata"], pod["spec"]
        gates = "".join(one["name"][-8:] for one in spec.get("schedulingGates") or ())
        sent = meta.get("annotations", {}).get(clusters.ANNOTATION_DISPATCH, "")
        words = [
            "gone" if after is None else "new" if before is None else "is",
            f"v{meta.get('resourceVersion')}",
            f"gates={gates}" if gates else "open",
            spec.get("nodeName", ""),
            pod["status"].get("phase", ""),
            "deleting" if "deletionTimestamp" in meta else "",
            "kept" if meta.get("finalizers") else "",
            f"origin={origin_of(pod)[:6]}",
            sent,
        ]
        self._outcome.tell(f"{cluster}: {meta['name']} {meta['uid'][:6]} {' '.join(filter(None, words))}")


def origin_of(pod: Object) -> str:
    """The UID of home's pod, for it and for its copies."""
    written = pod["metadata"].get("annotations", {}).get(clusters.ANNOTATION_ORIGIN)
    return str(json.loads(written)["uid"] if written else pod["metadata"]["uid"])
