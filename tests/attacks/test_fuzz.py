"""Two tenants write whatever they can think of, in any order, with no policy in the way: nobody steals a card.

Whatever was written: no card is given to more than it has room for, no container has more than its pod asked for when
it was created, and an honest pod that fits runs, as does one that was there before and crashes. One cluster lives
through all of it, since what matters is the sequence; the test's name tells the seed. `SHOAL_FUZZ` asks for more.
"""

import json
import os
import random
import uuid
from typing import Any

import pytest

from tests.attacks import truth
from tests.attacks.arena import Object, Tenant
from tests.attacks.embedded import EmbeddedArena
from tests.attacks.play import RECORD, Play, bloated

EFFORT = int(os.environ.get("SHOAL_FUZZ", "0"))
STEPS = max(64, EFFORT // 1000)
SEEDS = range(1 + EFFORT // 200_000)
#: What the tenants may ask for together, in GiB. Wherever that is, one of the three cards that the resident is not on
#: has room for the honest.
ALLOWANCE, RESIDENT, HONEST = 30, 20, 14
#: An honest pod comes after as many steps.
EVERY = 8
GPUSHARE = ("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_POD")

#: What pods ask for, and how much that is in GiB.
REQUESTS: list[tuple[Object, int]] = [
    *(({"mem": amount}, amount) for amount in (1, 3, 8, 20)),
    *(({"mem": amount, "labels": {truth.COUNT: "2"}}, amount) for amount in (2, 6)),
    *(({"gpu": 1}, 24), ({}, 0), ({}, 0)),
    ({"mps": 1, "annotations": {"GPUrequest": "2Gi", "GPUlimits": "2Gi"}}, 2),
]
LARGE: list[tuple[Object, int]] = [({"mem": 8}, 8), ({"mem": 20}, 20), ({"gpu": 1}, 24)]


class Forger:
    """Makes up writes."""

    def __init__(self, play: Play, rng: random.Random, resident: str) -> None:
        self.play = play
        record = json.loads(play.pod(resident)["metadata"]["annotations"][RECORD])
        #: What is worth stealing: the node and the index of the card that somebody else is on.
        self.target = record["node"], record["containers"][0]["cards"][0]["index"]
        self.rng = rng
        self.arena = play.arena
        self._cards = {node: play.cards(node) for node in self.arena.nodes}
        #: What each pod of the tenants asks for, in GiB, by UID.
        self._asked: dict[str, int] = {}
        self._shorts: dict[str, Object] = {}
        self._number = 0

    def step(self, tenant: Tenant) -> Object:
        """One write of a tenant; what it was, for a message."""
        pods = tenant.pods()
        self._forget()
        if not pods:
            return self.create(tenant, pods)
        if sum(self._asked.values()) > ALLOWANCE // 2 and self.rng.random() < 0.4:
            return self.delete(tenant, pods)
        acts = [self.create, self.create, self.create, self.patch, self.patch, self.crash, self.status, self.bind]
        return self.rng.choice(acts)(tenant, pods)

    def _forget(self) -> None:
        """Only what is gone from the API server and from its node is asked for no more."""
        present = {pod["metadata"]["uid"] for pod in self.arena.api.request("GET", "/api/v1/pods").body["items"]}
        present |= {one.uid for one in self.arena.given()}
        self._asked = {uid: amount for uid, amount in self._asked.items() if uid in present}

    def create(self, tenant: Tenant, _: list[Object]) -> Object:
        self._number += 1
        aimed = self.rng.random() < 0.4
        short, amount = self.rng.choice(LARGE if aimed else REQUESTS)
        if sum(self._asked.values()) + amount > ALLOWANCE:
            short, amount = {}, 0
        node = self.target[0] if aimed else self.rng.choice(list(self.arena.nodes))
        wheres: list[Object] = [{"node": node}, {"at": node}, {}, {"spec": {"schedulerName": "nobody"}}]
        where = wheres[0] if aimed else self.rng.choice(wheres)
        lies = self.near_miss(node, short) if aimed or self.rng.random() < 0.3 else self.lies(node)
        annotations = {**short.get("annotations", {}), **lies, **self._stubborn()}
        annotations = {key: value for key, value in annotations.items() if value is not None}
        made = {"name": f"p{self._number}", **short, **where, "annotations": annotations}
        answer = self.play.create(made, tenant)
        assert answer.status == 201, answer
        self._asked[answer.body["metadata"]["uid"]] = amount
        self._shorts[answer.body["metadata"]["uid"]] = short
        return {"create": made}

    def _stubborn(self) -> Object:
        return {"shoal.dev/simulate": "stop=never"} if self.rng.random() < 0.3 else {}

    def patch(self, tenant: Tenant, pods: list[Object]) -> Object:
        pod = self.rng.choice(pods)
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", self.arena.here)
        part = self.rng.choice(["", "/status"])
        change: Object = {"annotations": self.lies(node, pod)}
        if self.rng.random() < 0.3 and pod["metadata"]["uid"] in self._shorts:
            change = {"annotations": self.near_miss(node, self._shorts[pod["metadata"]["uid"]])}
        elif self.rng.random() < 0.2:
            change = {"labels": {truth.COUNT: self.rng.choice(["1", "2", "7", "many", None])}}
        elif self.rng.random() < 0.1:
            change = {"annotations": {"GPUlimits": self.rng.choice(["24Gi", "lots", None])}}
        tenant.send("PATCH", f"pods/{name}{part}", {"metadata": change}, "application/merge-patch+json")
        return {"patch": name, "part": part, **change}

    def status(self, tenant: Tenant, pods: list[Object]) -> Object:
        name = self.rng.choice(pods)["metadata"]["name"]
        status: Object = {"phase": self.rng.choice(["Succeeded", "Failed", "Pending", "Running"])}
        if self.rng.random() < 0.5:
            ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            one = {"name": "main", "image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": ended}
            status["containerStatuses"] = self.rng.choice([[], [one]])
        tenant.send("PATCH", f"pods/{name}/status", {"status": status}, "application/merge-patch+json")
        return {"status": name, **status}

    def bind(self, tenant: Tenant, pods: list[Object]) -> Object:
        unbound = [pod for pod in pods if not pod["spec"].get("nodeName")]
        name = self.rng.choice(unbound or pods)["metadata"]["name"]
        node = self.rng.choice(list(self.arena.nodes))
        binding = {
            "metadata": {"name": name, "annotations": self.lies(node)},
            "target": {"kind": "Node", "name": node},
        }
        path = self.rng.choice([f"pods/{name}/binding", "bindings"])
        tenant.send("POST", path, binding)
        return {"bind": name, "node": node, "path": path}

    def crash(self, tenant: Tenant, _: list[Object]) -> Object:
        """Have one of its own containers end: what it gets when it starts again is looked at."""
        running = sorted(one.pod for one in self.arena.given() if one.namespace == tenant.namespace)
        if running:
            self.arena.crash(tenant.namespace, self.rng.choice(running))
        return {"crash": running}

    def delete(self, tenant: Tenant, pods: list[Object]) -> Object:
        """Delete a pod, rather one that holds something."""
        holding = [pod for pod in pods if self._asked.get(pod["metadata"]["uid"])]
        name = self.rng.choice(holding or pods)["metadata"]["name"]
        force = self.rng.choice(["", "?gracePeriodSeconds=0"])
        tenant.send("DELETE", f"pods/{name}{force}")
        return {"delete": name, "how": force}

    def lies(self, node: str, pod: Object | None = None) -> Object:
        """Annotations of a decision that nobody made."""
        rng, cards = self.rng, self._cards[node]
        known = (pod or {}).get("metadata", {}).get("annotations", {}).get(RECORD)
        index = rng.randrange(2)
        kinds: list[Object] = [
            {},
            {RECORD: json.dumps(self._record(node))},
            {RECORD: rng.choice(["", "{", "null", bloated(node)])},
            {RECORD: known or json.dumps({"version": 1, "node": node, "containers": []})},
            {GPUSHARE[0]: str(index), GPUSHARE[1]: "24", GPUSHARE[2]: str(rng.choice([1, 4, 24]))},
            {"scheduler.framework.gpushare.allocation": json.dumps({"main": {str(index): rng.choice([0, 3, 24])}})},
            {"UUID": ",".join(rng.sample(cards, rng.randrange(1, 3)))},
        ]
        chosen = {**rng.choice(kinds), **rng.choice(kinds)}
        if pod is not None and rng.random() < 0.3:
            chosen |= dict.fromkeys((RECORD, *GPUSHARE, "UUID", "scheduler.framework.gpushare.allocation"))
        return chosen

    def near_miss(self, node: str, short: Object) -> Object:
        """A decision that is what the pod asks for in everything but the card, in the words of one family."""
        rng, cards = self.rng, self._cards[node]
        count = int(short.get("labels", {}).get(truth.COUNT, "1"))
        indices = rng.sample(range(2), count)
        if node == self.target[0] and rng.random() < 0.7:
            indices = [self.target[1], 1 - self.target[1]][:count]
        each = short.get("mem", 0) // count
        share: Object = {"memory": each * truth.UNIT} if each else {"exclusive": True}
        if "mps" in short:
            share = {"memory": 2 * truth.UNIT, "clients": 1}
        given = [{"uuid": cards[index], "index": index, **share} for index in indices]
        entry: Object = {"name": "main", "cards": given, **({"limit": truth.CARD} if rng.random() < 0.3 else {})}
        record = {"version": 1, "node": node, "containers": [entry]}
        table = {"main": {str(index): each for index in indices}}
        kinds: list[Object] = [
            {RECORD: json.dumps(record)},
            {RECORD: json.dumps(record)},
            {RECORD: None, GPUSHARE[0]: str(indices[0]), GPUSHARE[1]: "24", GPUSHARE[2]: str(each)},
            {RECORD: None, "scheduler.framework.gpushare.allocation": json.dumps(table)},
            {RECORD: None, "UUID": ",".join(cards[index] for index in indices)},
        ]
        return rng.choice(kinds)

    def _record(self, node: str) -> Object:
        rng = self.rng
        names = [*self._cards[node], f"shoal-{node}-0", f"shoal-{node}-1", "GPU-none"]
        cards: list[Any] = [
            {
                "uuid": uuid_,
                "index": self._cards[node].index(uuid_) if uuid_ in self._cards[node] else rng.randrange(3),
                **rng.choice([{"memory": rng.choice([0, 1024, 3072, 24576])}, {"exclusive": True}, {"clients": 1}]),
            }
            for uuid_ in rng.sample(names, rng.randrange(4))
        ]
        entry: Object = {"name": rng.choice(["main", "main", "other"]), "cards": cards}
        if rng.random() < 0.4:
            entry["limit"] = rng.choice([0, 1024, 24576])
        where = rng.choice([node, node, *self.arena.nodes])
        return {"version": 1, "node": where, "containers": [entry] if rng.random() < 0.8 else []}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_writes_steal_nothing(embedded_arena: EmbeddedArena, seed: int) -> None:
    arena = embedded_arena
    arena.policies(on=False)
    rng = random.Random(seed)
    tenants = [Tenant(arena.api, "one"), Tenant(arena.api, "two")]
    play = Play(arena, tenants[0], Tenant(arena.api, "neighbour"))
    play.place({"name": "resident", "of": "neighbour", "mem": RESIDENT})
    forger = Forger(play, rng, "resident")
    told: list[Object] = []
    try:
        for number in range(1, STEPS + 1):
            told.append(forger.step(rng.choice(tenants)))
            play.look()
            if rng.random() < 0.02:
                arena.restart_agents()
                told.append({"agents": "restart"})
            if number % EVERY == 0:
                honest(play, uuid.UUID(int=rng.getrandbits(128)).hex[:6])
            if number % (4 * EVERY) == 0:
                play.hold({"restarts": "resident"})
    except AssertionError as error:
        error.add_note("\n".join(map(str, told[-40:])))
        raise
    finally:
        for whose in (*tenants, play.neighbour):
            whose.leave()
    play.settle()


def honest(play: Play, name: str) -> None:
    """Somebody comes with a pod that fits, is served, and goes."""
    play.place({"name": f"honest-{name}", "of": "neighbour", "mem": HONEST})
    play.hold({"given": {f"honest-{name}": [HONEST * truth.UNIT]}})
    assert not (found := truth.thefts(play.arena.given(), play.allowed)), found
    play.hold({"gone": f"honest-{name}"})
