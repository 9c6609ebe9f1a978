"""Pods come and go by the hundred while schedulers are killed, connections break and the API server restarts.

Two replicas take turns to lead. At no moment of the API server's own history may a card be over-booked; no pod's record
may disagree with its node; and in the end every pod that was not deleted has had a node.

`make test-kube` takes a minute for it. `make chaos` makes 2,000 pods, in some five minutes of a machine of its own.
SHOAL_CHAOS_PODS says how many pods, SHOAL_CHAOS_SEED repeats a run as far as the machine lets it.
"""

import asyncio
import os
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.resources import NODES, PODS
from tests.scheduler.chaos.churn import Churn
from tests.scheduler.chaos.history import Card, History
from tests.scheduler.chaos.replicas import Trouble, replicas
from tests.suites.scheduling.ways import kubelets, service_account
from tests.testbed.apiserver import ApiServer
from tests.testbed.fake_nodes import each, made_up, node
from tests.testbed.processes import Process, Run

PODS_MADE = int(os.environ.get("SHOAL_CHAOS_PODS", "500"))
SEED = int(os.environ.get("SHOAL_CHAOS_SEED", "0")) or uuid.uuid4().int % 2**32
NODE_COUNT, CARDS = 100, 2
#: Pods a second. With the lives below they fill nine tenths of the cards when nobody is killed.
RATE = 20.0
LONGEST = 45.0
API_RESTARTS = 2 if PODS_MADE >= 2000 else 1


async def make_nodes(client: Client) -> dict[str, Card]:
    """The nodes, without the taint that new ones have; their cards by UUID."""
    names = [f"node-{number}" for number in range(NODE_COUNT)]

    async def make(name: str) -> None:
        await client.create(NODES, node(name, CARDS))
        await client.patch(NODES, name, {"spec": {"taints": None}})

    await each(names, make)
    cards = {gpu.uuid: (name, gpu) for name in names for gpu in made_up(name, CARDS)}
    return {uuid: Card(name, gpu.memory_mib, gpu.mps_clients) for uuid, (name, gpu) in cards.items()}


async def harm(trouble: Trouble, churn: Churn, api: ApiServer, kubelet: Process, rng: random.Random) -> None:
    """Trouble until all pods are made; the API server is killed on the way."""
    restarts = [PODS_MADE * (turn + 1) // (API_RESTARTS + 1) for turn in range(API_RESTARTS)]
    while churn.made < PODS_MADE:
        await asyncio.sleep(rng.uniform(1, 5))
        await trouble.once()
        if restarts and churn.made >= restarts[0]:
            restarts.pop(0)
            trouble.done["restart the API server"] += 1
            api.kill()
            kubelet.kill()
            await asyncio.sleep(rng.uniform(0, 3))
            api.start()
            kubelet.start()


async def test_no_card_is_over_booked_at_any_moment(
    new_apiserver: Callable[[], ApiServer], testbed_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(SEED)
    api = new_apiserver()
    api.create_namespace("chaos")
    started = time.monotonic()
    async with Client(load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())) as client:
        account = await service_account(api)
        history = History(client, "chaos", await make_nodes(client))
        kubelet = kubelets(testbed_run, api)
        churn = Churn(client, "chaos", rng, count=PODS_MADE, rate=RATE, longest=LONGEST)
        following = asyncio.create_task(history.run())
        async with replicas(testbed_run, api, account, 2) as made:
            trouble = Trouble(made, rng)
            await asyncio.gather(churn.run(), harm(trouble, churn, api, kubelet, rng))
            quiet = time.monotonic()
            await until_all_have_been_bound(client, history)
        following.cancel()
        await asyncio.wait({following})
    kubelet.kill()
    state = history.state
    with capsys.disabled():
        print(  # noqa: T201
            f"\nseed {SEED}: {PODS_MADE} pods, {history.events} events in {time.monotonic() - started:.0f} s, of which "
            f"{time.monotonic() - quiet:.0f} s after the last harm; at most {state.most_pods} pods at once, "
            f"{len(state.bound)} bound; changes in gaps {history.gaps}; {dict(trouble.done)}"
        )
    assert state.wrong == []
    assert len(state.bound) >= PODS_MADE - len(churn.deleted)
    assert trouble.done.total() > PODS_MADE / 200


async def until_all_have_been_bound(client: Client, history: History) -> None:
    """Wait until every pod that is left has, or had, a node; what the watcher knows is what the server says."""
    end = time.monotonic() + 300
    while True:
        left = (await client.list(PODS, namespace="chaos")).items
        waiting = [pod for pod in left if not pod.spec.node_name]
        if not waiting and {pod.metadata.uid for pod in left} == set(history.pods):
            return
        assert time.monotonic() < end, [
            (pod.metadata.name, [condition.message for condition in pod.status.conditions]) for pod in waiting[:5]
        ]
        await asyncio.sleep(0.5)
