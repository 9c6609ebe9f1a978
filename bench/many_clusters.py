"""The cluster manager with ten clusters: what a choice among them costs, and what a live one with 10,000 copies keeps.

The choice is asked of ten processes, each with the books of 1,000 nodes with 8 cards and the scheduler's own code for
offers, over TLS, with pods that come and go meanwhile; beside it one question to one of them. The memory is that of
`shoal cluster-manager`, whose API servers are embedded ones in another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import yaml

import bench.results as results
from bench.bench_offer import Bench, offering, templates
from bench.bench_offer import rows as timed_rows
from bench.usage import cpu_seconds, most_resident, resident
from shoal.clusters.asking import AskingChoice
from shoal.clusters.member import Member
from shoal.clusters.offers import OfferClient, asked_pod
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import NAMESPACES, PODS
from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import RawObject
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterSelector, CopyOrigin, Offer, OfferRequest, Sent
from tests.clusters.site import pod

MEMBERS: Final = 10
CALLS: Final = 120
ROUNDS: Final = 3
COPIES: Final = 10_000
SHOAL: Final = (sys.executable, "-c", "from shoal.cli.main import main; main()")

# The choice


def choice() -> list[results.Row]:
    """Milliseconds of a choice among ten clusters that are all asked, held at the best."""
    books = Bench()
    forking = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        answering, pids = [], []
        for number in range(MEMBERS):
            here, there = forking.Pipe()
            process = forking.Process(target=_offer, args=(books, number, Path(folder) / str(number), there))
            process.start()
            stack.callback(process.kill)
            answering.append(here)
            pids.append(process.pid or 0)
        del books  # theirs, not the manager's
        gc.collect()
        return asyncio.run(_choose([one.recv() for one in answering], pids))


def _offer(books: Bench, number: int, folder: Path, tell: Connection) -> None:
    """One member's process: other pods than in the others, and some that come and go."""
    books.rng.seed(number)
    for _ in range(100):
        books.churn()

    async def answer() -> None:
        async with contextlib.AsyncExitStack() as stack:
            api = await stack.enter_async_context(EmbeddedApi(folder))
            access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
            client = await stack.enter_async_context(Client(access))
            told = await stack.enter_async_context(offering(books, client))
            gc.collect()
            gc.freeze()  # as the scheduler does when it has read everything
            tell.send(told)
            while True:
                await asyncio.sleep(0.2)
                books.churn()

    asyncio.run(answer())


async def _choose(asked: list[dict[str, Any]], pids: list[int]) -> list[results.Row]:
    members = {f"cluster-{number}": _member(number, known) for number, known in enumerate(asked)}
    pods = [
        {"metadata": {"name": f"p{number}", "namespace": "bench", "uid": f"u{number}"}, "spec": spec}
        for number, spec in enumerate(templates(Random(7)))
    ]
    async with OfferClient() as offers:
        choosing = AskingChoice(offers, fresh_seconds=0.0)
        first = members["cluster-0"]

        async def all_of_them(one: RawObject) -> None:
            await choosing(one, ClusterSelector(), members)

        async def only_one(one: RawObject) -> None:
            answer = await offers.ask(first, OfferRequest(asked_pod(one)))
            assert isinstance(answer, Offer), answer

        await _times(all_of_them, pods)  # connections are made
        single, every, busy, theirs = [], [], [], []
        for _ in range(ROUNDS):
            single.append(await _times(only_one, pods))
            began, before = time.process_time(), sum(map(cpu_seconds, pids))
            every.append(await _times(all_of_them, pods))
            busy.append((time.process_time() - began) * 1000 / CALLS)
            theirs.append((sum(map(cpu_seconds, pids)) - before) * 1000 / CALLS)
    alone = min(float(np.median(one)) for one in single)
    together = min(float(np.median(one)) for one in every)
    return [
        *timed_rows("one cluster of 1,000 nodes asked", single),
        *timed_rows(f"choice among {MEMBERS} clusters of 1,000 nodes", every, limit=15),
        results.Row("choice, CPU of the manager", min(busy), "ms"),
        results.Row("choice, CPU of all clusters together", min(theirs), "ms"),
        results.below(f"choice among {MEMBERS} to one question", together / alone, "x", MEMBERS),
    ]


def _member(number: int, known: dict[str, Any]) -> Member:
    token = StoredCredential(token=Inline(known["token"].encode()))
    client = Client(Access(server="https://127.0.0.1:1", credentials=token))
    url = f"https://127.0.0.1:{known['port']}"
    return Member(
        f"cluster-{number}", f"uid-{number}", client, offer_url=url, offer_authority=known["authority"].encode()
    )


async def _times(call: Callable[[RawObject], Awaitable[None]], pods: list[RawObject]) -> list[float]:
    taken = []
    for number in range(CALLS):
        start = time.perf_counter()
        await call(pods[number % len(pods)])
        taken.append((time.perf_counter() - start) * 1000)
        # A caller that asked without any pause would be told to wait (429).
        await asyncio.sleep(0.01)
    return taken


# A live manager


def memory(copies: int) -> list[results.Row]:
    """What `shoal cluster-manager` keeps once it has read everything and has nothing to do."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        serving = subprocess.Popen(
            [sys.executable, "-m", "bench.many_clusters", folder, str(copies)], stdout=subprocess.PIPE, text=True
        )
        stack.callback(serving.kill)
        assert serving.stdout is not None
        assert serving.stdout.readline() == "ready\n"
        port = int((Path(folder) / "port").read_text())
        command = [*SHOAL, "cluster-manager", f"--config={folder}/settings.yaml", f"--kubeconfig={folder}/home.yaml"]
        manager = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        stack.callback(manager.kill)
        _until_idle(port, copies)
        peak, now = most_resident(manager.pid), resident(manager.pid)
    name = f"live manager, {copies:,} copies in {MEMBERS} clusters"
    return [results.below(f"{name}, memory", now, "MB", 250), results.Row(f"{name}, peak", peak, "MB")]


def _until_idle(port: int, copies: int) -> None:
    """Until it has all copies, and has seen to every pod."""
    quiet = 0
    while quiet < 5:
        time.sleep(1)
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
            known = sum(float(one) for one in re.findall(r"^shoal_clusters_copies\{.*\} (\S+)$", text, re.MULTILINE))
            queue = float(re.findall(r"^shoal_clusters_queue (\S+)$", text, re.MULTILINE)[0])
            leads = float(re.findall(r"^shoal_clusters_leads (\S+)$", text, re.MULTILINE)[0])
            quiet = quiet + 1 if known == copies and leads and not queue else 0


async def _serve(folder: Path, copies: int) -> None:
    """Home and ten members with pods in them; their kubeconfigs, and the manager's settings."""
    async with contextlib.AsyncExitStack() as stack:
        home, *members = [
            await stack.enter_async_context(EmbeddedApi(folder / str(number))) for number in range(MEMBERS + 1)
        ]
        (folder / "home.yaml").write_text(home.kubeconfig().read_text())
        merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []}
        for number, one in enumerate(members):
            name = f"cluster-{number}"
            config = yaml.safe_load(one.kubeconfig().read_text())
            merged["clusters"].append({"name": name, "cluster": config["clusters"][0]["cluster"]})
            merged["users"].append({"name": name, "user": config["users"][0]["user"]})
            merged["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
        (folder / "members.yaml").write_text(yaml.safe_dump(merged))
        _fill(home, members, copies)
        port = os.getpid() % 20_000 + 30_000
        settings = {
            "namespace": "default",
            "clusterName": "",
            "kubeconfigs": [str(folder / "members.yaml")],
            "host": "127.0.0.1",
            "probePort": None,
            "metricsPort": port,
        }
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        (folder / "port").write_text(str(port))
        print("ready", flush=True)
        await asyncio.Event().wait()


def _uid(api: EmbeddedApi) -> str:
    return str(api.registry.get(NAMESPACES, "", "kube-system")["metadata"]["uid"])


def _fill(home: EmbeddedApi, members: list[EmbeddedApi], copies: int) -> None:
    for api in (home, *members):
        for number in range(50):
            api.registry.create(NAMESPACES, "", {"metadata": {"name": f"team-{number}"}})
    uids, cluster = [_uid(one) for one in members], _uid(home)
    for number in range(copies):
        place = number % len(members)
        sent = clusters.encode(Sent(attempt=1, cluster=f"cluster-{place}", uid=uids[place]), what="bench")
        made = played(number, sent)
        stored = _put(home, made)
        _put(members[place], copied(made, number, cluster, stored["metadata"]["uid"]))


def _put(api: EmbeddedApi, made: RawObject) -> RawObject:
    """With its status, which no server takes from who makes a pod."""
    stored = api.registry.create(PODS, made["metadata"]["namespace"], made)
    return api.registry.write(PODS, {**stored, "status": made["status"]}, stored)


def played(number: int, sent: str) -> RawObject:
    """A pod that runs elsewhere, as home's server shows it."""
    made = pod(f"training-job-{number}-abcde")
    state = {"running": {"startedAt": "2026-11-17T12:00:00Z"}}
    container = {"name": "main", "image": "registry.example/team/image:1", "imageID": "sha256:" + "0" * 64}
    containers = [{**container, "ready": True, "restartCount": 0, "state": state, "lastState": {}, "started": True}]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-11-17T12:00:00Z", "message": "m" * 80}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready", clusters.CONDITION_DISPATCHED)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **made["metadata"],
            "namespace": f"team-{number % 50}",
            "annotations": {clusters.ANNOTATION_DISPATCH: sent, "long": "x" * 2000},
        },
        "spec": {**made["spec"], "tolerations": [{"key": "k", "operator": "Exists"}] * 5},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": containers},
    }


def copied(one: RawObject, number: int, home: str, uid: str) -> RawObject:
    """Its copy, on a node."""
    origin = CopyOrigin(cluster=home, uid=uid, attempt=1)
    meta = {
        **one["metadata"],
        "labels": {clusters.LABEL_ORIGIN: origin.cluster},
        "finalizers": [clusters.FINALIZER_COPY],
        "annotations": {clusters.ANNOTATION_ORIGIN: clusters.encode(origin, what="bench")},
    }
    spec = {key: value for key, value in one["spec"].items() if key != "schedulingGates"}
    return {**one, "metadata": meta, "spec": {**spec, "nodeName": f"node-{number % 1000}"}}


def main() -> None:
    """The process of the API servers."""
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
