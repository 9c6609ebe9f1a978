"""Makes up the writes of tenants who are after cards: true records with one thing changed, at the worst moments.

Each `step` is one attempt: a few writes that belong together. A pod comes with a record of its own making, or gets one
while it waits for its cards; a running one is rewritten and crashes; one ends by word or by force and another claims
its card. What is written is mostly the record that the scheduler would have made, in the words of one family, with a
single field changed; sometimes it is nonsense.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.attacks import truth
from tests.attacks.arena import Given, Object, Tenant
from tests.attacks.embedded import EmbeddedArena
from tests.attacks.play import RECORD, allocation_of, bloated
from tests.attacks.watched import Watched

#: What the tenants may ask for together, in GiB. Wherever that is, one of the three cards that the resident is not on
#: has room for the honest.
ALLOWANCE, RESIDENT, HONEST = 30, 20, 14
GPUSHARE = ("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_POD")
TABLE = "scheduler.framework.gpushare.allocation"
FAMILIES = (RECORD, TABLE, *GPUSHARE, "UUID")
MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Wanted:
    """What a pod asks for: `each` of so many cards in MiB, all of one for None."""

    short: Object
    count: int
    each: int | None
    clients: int = 0

    @property
    def amount(self) -> int:
        """What that is together, in GiB."""
        return self.count * (truth.CARD if self.each is None else self.each) // truth.UNIT

    def share(self) -> Object:
        """Of one card, as records tell it."""
        if self.each is None:
            return {"exclusive": True}
        return {"memory": self.each, **({"clients": self.clients} if self.clients else {})}


def _memory(amount: int, count: int = 1) -> Wanted:
    labels = {"labels": {truth.COUNT: str(count)}} if count > 1 else {}
    return Wanted({"mem": amount, **labels}, count, amount * truth.UNIT // count)


NOTHING = Wanted({}, 0, 0)
WHOLE = Wanted({"gpu": 1}, 1, None)
MPS = Wanted({"mps": 1, "annotations": {"GPUrequest": "2Gi", "GPUlimits": "2Gi"}}, 1, 2 * truth.UNIT, 1)
REQUESTS = (*map(_memory, (1, 3, 3, 13)), _memory(2, 2), _memory(6, 2), _memory(6, 2), WHOLE, MPS, NOTHING)
SMALL = (_memory(1), _memory(3), _memory(2, 2))
#: What can be wrong with the allocation of a claim for a share; nothing, in the last one.
ALLOCATIONS = ("number", "whole", "memory", "")
#: What can be changed of a record.
CHANGES = ("card", "limit", "share", "number", "containers", "identity")


@dataclass
class Made:
    """A pod of a tenant's that has come."""

    name: str
    wanted: Wanted
    tenant: Tenant
    #: What it takes at most of all cards, in GiB.
    amount: int


@dataclass
class Forger:
    """All attempts on one cluster. `told` says what was written, for a message."""

    play: Watched
    arena: EmbeddedArena
    rng: random.Random
    tenants: list[Tenant]
    #: What is worth stealing: the node and the index of the card that somebody else is on.
    target: tuple[str, int]
    told: list[Object] = field(default_factory=list)
    made: dict[str, Made] = field(default_factory=dict)
    _number: int = 0
    _deck: list[Callable[[], None]] = field(default_factory=list)

    def step(self) -> None:
        """One attempt, with all its writes; each has had its effect when it returns."""
        if not self._deck:
            self._deck = self._attempts()
            self.rng.shuffle(self._deck)
        self._forget()
        self._deck.pop()()
        self.play.wait(self._balanced, "counted as asked for", lambda: (self.arena.given(), self.play.booked()))

    def _attempts(self) -> list[Callable[[], None]]:
        """All of them once, and those often that leave much to chance."""
        changes: list[str] = [*CHANGES, *CHANGES, ""]
        services = ["agents", "scheduler"]
        return [
            *(partial(self.come, change) for change in changes),
            *(partial(self.late, how) for how in ("moved", "moved", "hidden", "")),
            *(partial(self.rewrite, then) for then in (*services, *services, "", "")),
            *(partial(self.end, how, then) for how in ("force", "status") for then in (*services, "")),
            *(self.bind, self.bind),
            *(partial(self.allocate, change) for change in ALLOCATIONS),
        ]

    def _balanced(self) -> bool:
        """Whether the scheduler counts no more than is asked for by those that are bound, or run."""
        self._forget()
        bound = {
            pod["metadata"]["uid"]
            for tenant in self.tenants
            for pod in tenant.pods()
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed")
        }
        bound |= {one.uid for one in self.arena.given()}
        asked = sum(one.amount for uid, one in self.made.items() if uid in bound) + RESIDENT
        return sum(self.play.booked().values()) <= asked * truth.UNIT

    def asked(self) -> int:
        """What all that are there ask for, in GiB."""
        return sum(one.amount for one in self.made.values())

    def _forget(self) -> None:
        """Only what is gone from the API server and from its node is asked for no more."""
        present = {pod["metadata"]["uid"] for pod in self.arena.api.request("GET", "/api/v1/pods").body["items"]}
        present |= {one.uid for one in self.arena.given()}
        self.made = {uid: one for uid, one in self.made.items() if uid in present}

    # Attempts

    def come(self, change: str) -> None:
        """A pod, or two at once, come with what was made up for them."""
        for _ in range(self.rng.choice([1, 1, 2])):
            node = self._node()
            # There is room for what is small, and then only the change can be what is wrong.
            wanted = self.rng.choice(SMALL) if change in ("limit", "share", "number") else self._choice()
            self._create(wanted, {"node": node}, partial(self.forged, node, change=change))
        self._judged()

    def late(self, how: str) -> None:
        """A pod is bound, and before its cards are given out what is written on it changes."""
        node = self._node()
        waits = {"init": [{"name": "wait", "command": ["sleep", "0.15"]}]}
        wanted = _memory(3) if how == "moved" else self._choice()
        uid = self._create(wanted, {**waits, **self.rng.choice([{}, {"at": node}, {"at": node}])})
        one = self.made[uid]
        self.play.wait_or(lambda: bool(self._pod(one)["spec"].get("nodeName")), 1.0)
        pod = self._pod(one)
        node = pod["spec"].get("nodeName", node)
        record = (pod["metadata"].get("annotations") or {}).get(RECORD)
        own: list[int] = []
        if record is not None:
            cards = {card["uuid"]: card for entry in json.loads(record)["containers"] for card in entry["cards"]}
            self.play.placed[uid] = {key: card.get("memory", truth.CARD) for key, card in cards.items()}
            self.play.starting = {uid}
            own = [card["index"] for card in cards.values()]
        if how == "moved" and len(own) == 1:
            self._patch(one, self._claim(node, one.wanted, [1 - own[0]]))
        elif how == "hidden":
            self._patch(one, self._hidden(node))
        else:
            self._patch(one, self.forged(node, one.wanted))
        self._judged()
        self.play.starting = set()

    def _running(self) -> tuple[Given, Made] | None:
        """A pod that runs and has cards; one comes if there is none."""
        for _ in range(2):
            running = [(one, self.made[one.uid]) for one in self.arena.given() if one.uid in self.made]
            if running:
                return self.rng.choice(running)
            self._create(self._choice(), {"at": self._node()})
            self._judged()
        return None

    def rewrite(self, then: str) -> None:
        """What is written on a running pod changes, and a service or the pod itself starts again."""
        found = self._running()
        if found is None:
            return
        given, one = found
        kinds: list[Callable[[], None]] = [
            lambda: self._patch(one, self.forged(given.node, one.wanted)),
            lambda: self._patch(one, self._hidden(given.node)),
            lambda: self._patch(one, {}, labels={truth.COUNT: self.rng.choice(["1", "2", "7", "many", None])}),
            lambda: self._patch(one, {"GPUlimits": self.rng.choice(["24Gi", "lots", None])}),
        ]
        # A record that was put back is not put back again for a while.
        for kind in (*self.rng.choices(kinds, [3, 3, 1, 1], k=2), self.rng.choice(kinds[:2])):
            kind()
        self.restart(then)
        self.play.look()
        if not then and any(now.uid == given.uid for now in self.arena.given()):
            self.told.append({"crash": one.name})
            self.arena.crash(one.tenant.namespace, one.name)
            self._judged()

    def end(self, how: str, then: str) -> None:
        """A pod that does not end is said to, or deleted by force, and another claims what it had."""
        # Of either the cards have room for one alone: of the large, or beside the one that was there before.
        if self.rng.random() < 0.25:
            uid = self._create(_memory(13), {"at": self._node()}, stubborn=True)
        else:
            node, index = self.target
            uid = self._create(
                _memory(3), {"node": node}, lambda wanted: self._claim(node, wanted, [index]), stubborn=True
            )
        self._judged()
        given = next((one for one in self.arena.given() if one.uid == uid), None)
        if given is None:
            return
        one = self.made[uid]
        if how == "status":
            self._say_over(one)
        else:
            one.tenant.send("DELETE", f"pods/{one.name}?gracePeriodSeconds=0")
            self.told.append({"delete": one.name, "how": "by force"})
        self.play.look()
        self.restart(then)
        self.play.look()
        cards = self.play.cards(given.node)
        indices = [cards.index(uuid) for uuid in given.limits]
        self._create(one.wanted, {"node": given.node}, lambda wanted: self._claim(given.node, wanted, indices))
        self._judged()

    def bind(self) -> None:
        """A tenant binds a pod of its own, with a record in the Binding."""
        node = self._node()
        uid = self._create(self._choice(), {"spec": {"schedulerName": "nobody"}})
        one = self.made[uid]
        forged = {key: value for key, value in self.forged(node, one.wanted).items() if value is not None}
        binding = {"metadata": {"name": one.name, "annotations": forged}, "target": {"kind": "Node", "name": node}}
        path = self.rng.choice([f"pods/{one.name}/binding", "bindings"])
        one.tenant.send("POST", path, binding)
        self.told.append({"bind": one.name, "node": node, "path": path, "annotations": forged})
        self._judged()

    def allocate(self, change: str) -> None:
        """A tenant allocates GPUs to a claim of its own, with one thing changed, and binds a pod that uses it."""
        node, tenant = self._node(), self.rng.choice(self.tenants)
        wanted = Wanted({}, 1, 3 * truth.UNIT)
        self._make_room(wanted.amount)
        if self.asked() + wanted.amount > ALLOWANCE:
            return
        self._number += 1
        name = f"p{self._number}"
        short = {"name": name, "claim": {"memory": "3Gi"}, "spec": {"schedulerName": "nobody"}}
        answer = self.play.create(short, tenant)
        assert answer.status == 201, answer
        uid = answer.body["metadata"]["uid"]
        self.made[uid] = Made(name, wanted, tenant, wanted.amount)
        cards = self.rng.sample(self.play.cards(node), 2)
        memory = self.rng.choice(["24Gi", "20Gi", "3073Mi"]) if change == "memory" else "3Gi"
        devices = [{"card": card, "amounts": {"memory": memory}} for card in cards]
        if change == "whole":
            devices = [{"card": card} for card in cards]
        given = allocation_of(node, devices if change == "number" else devices[:1])
        status = {"allocation": given, "reservedFor": [{"resource": "pods", "name": name, "uid": uid}]}
        answer = tenant.send("PATCH", f"{tenant.claims}/{name}/status", {"status": status}, MERGE)
        assert answer.status == 200, answer
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
        tenant.send("POST", f"pods/{name}/binding", binding)
        self.told.append({"allocate": name, "node": node, "devices": given["devices"]["results"]})
        self._judged()

    def restart(self, which: str) -> None:
        """A service is started again, and knows what it can find."""
        if which:
            (self.arena.restart_agents if which == "agents" else self.arena.restart_scheduler)()
            self.told.append({"restart": which})

    # Writes

    def _choice(self) -> Wanted:
        return self.rng.choice(REQUESTS)

    def _make_room(self, amount: int) -> None:
        """Pods go until the tenants may ask for so much more; or they do not in time."""

        def room() -> bool:
            self._forget()
            return self.asked() + amount <= ALLOWANCE

        for one in sorted(self.made.values(), key=lambda one: -one.amount):
            if room():
                return
            if one.amount:
                one.tenant.send("DELETE", f"pods/{one.name}")
                self.told.append({"delete": one.name})
                self.play.wait_or(room, 0.1)
        self.play.wait_or(room, 1.0)

    def _node(self) -> str:
        return self.target[0] if self.rng.random() < 0.3 else self.rng.choice(list(self.arena.nodes))

    def _create(
        self,
        wanted: Wanted,
        where: Object,
        annotations: Callable[[Wanted], Object] = lambda wanted: {},
        *,
        stubborn: bool = False,
        tenant: Tenant | None = None,
    ) -> str:
        """A pod; what would be more than the tenants may ask for asks for nothing. Its UID."""
        self._number += 1
        self._make_room(wanted.amount)
        wanted = wanted if self.asked() + wanted.amount <= ALLOWANCE else NOTHING
        tenant = tenant or self.rng.choice(self.tenants)
        noted = {
            **wanted.short.get("annotations", {}),
            **annotations(wanted),
            **({"shoal.dev/simulate": "stop=never"} if stubborn else {}),
        }
        own = {key: value for key, value in wanted.short.items() if key in ("mem", "gpu", "mps")}
        containers = [{"name": "main", **own}, {"name": "side"}]
        short = {
            "name": f"p{self._number}",
            "containers": containers,
            "annotations": {key: value for key, value in noted.items() if value is not None},
            **({"labels": wanted.short["labels"]} if "labels" in wanted.short else {}),
            **where,
        }
        answer = self.play.create(short, tenant)
        assert answer.status == 201, answer
        uid = answer.body["metadata"]["uid"]
        self.made[uid] = Made(short["name"], wanted, tenant, wanted.amount)
        self.told.append({"create": short})
        return str(uid)

    def _patch(self, one: Made, annotations: Object, labels: Object | None = None) -> None:
        part = self.rng.choice(["", "/status"])
        body = {"metadata": {"annotations": annotations} if labels is None else {"labels": labels}}
        one.tenant.send("PATCH", f"pods/{one.name}{part}", body, MERGE)
        self.told.append({"patch": one.name, "part": part, **body["metadata"]})

    def _say_over(self, one: Made) -> None:
        status: Object = {"phase": self.rng.choice(["Succeeded", "Failed"])}
        if self.rng.random() < 0.5:
            ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            state = {"name": "main", "image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": ended}
            status["containerStatuses"] = self.rng.choice([[], [state]])
        one.tenant.send("PATCH", f"pods/{one.name}/status", {"status": status}, MERGE)
        self.told.append({"status": one.name, **status})

    # Waits

    def _pod(self, one: Made) -> Object:
        return one.tenant.pod(one.name) or {"spec": {}, "metadata": {}}

    def _judged(self) -> None:
        """The pods of the tenants run, or were refused, or wait for room; nobody steals meanwhile."""

        def judged() -> bool:
            self.play.look()
            pods = [pod for tenant in self.tenants for pod in tenant.pods()]
            return all(_is_judged(pod) for pod in pods if pod["spec"].get("nodeName"))

        self.play.wait_or(judged, 1.0)

    # Words

    def forged(self, node: str, wanted: Wanted, change: str | None = None) -> Object:
        """Annotations of a decision that nobody made: a record with one change, or the words of another family."""
        rng = self.rng
        indices = rng.sample(range(2), 2)
        if node == self.target[0] and rng.random() < 0.5:
            indices = [self.target[1], 1 - self.target[1]]
        if change is None:
            change = rng.choice([*CHANGES, ""])
        if change:
            record = self._true(node, wanted, indices)
            self._change(record, node, change)
            return {RECORD: json.dumps(record)}
        chosen = indices[: wanted.count or 1]
        each = (truth.CARD if wanted.each is None else wanted.each) // truth.UNIT
        claimed = rng.choice([each, each, 0, 24])
        table = {"main": {str(index): claimed for index in chosen}}
        kinds: list[Object] = [
            {RECORD: None, GPUSHARE[0]: str(chosen[0]), GPUSHARE[1]: "24", GPUSHARE[2]: str(claimed)},
            {RECORD: None, TABLE: json.dumps(table)},
            {RECORD: None, "UUID": ",".join(self.play.cards(node)[index] for index in chosen)},
            {RECORD: rng.choice(["", "{", "null", bloated(node)])},
        ]
        return rng.choice(kinds)

    def _hidden(self, node: str) -> Object:
        """What says that a pod holds nothing, or what nobody can read."""
        nothing: list[Object] = [
            {RECORD: json.dumps({"version": 1, "node": node, "containers": []})},
            dict.fromkeys(FAMILIES),
            {**dict.fromkeys(FAMILIES), RECORD: "]"},
        ]
        return self.rng.choice(nothing)

    def _claim(self, node: str, wanted: Wanted, indices: list[int]) -> Object:
        return {RECORD: json.dumps(self._true(node, wanted, indices))} if wanted.amount else {}

    def _true(self, node: str, wanted: Wanted, indices: list[int]) -> Object:
        """The record that the scheduler would write if it had chosen these cards."""
        cards = self.play.cards(node)
        given = [{"uuid": cards[index], "index": index, **wanted.share()} for index in indices[: wanted.count]]
        entry: Object = {"name": "main", "cards": given}
        return {"version": 1, "node": node, "containers": [entry] if given else []}

    def _change(self, record: Object, node: str, change: str) -> None:
        """One thing of a record becomes another; or none, and it is only not the scheduler's."""
        rng, cards = self.rng, self.play.cards(node)
        all_of = [{"uuid": uuid, "index": index, "exclusive": True} for index, uuid in enumerate(cards)]
        if not record["containers"]:
            record["containers"] = [{"name": rng.choice(["main", "side"]), "cards": all_of}]
            return
        (entry,) = record["containers"]
        card: Object = entry["cards"][0]
        rest = next(
            one for one in all_of if one["uuid"] not in [one["uuid"] for one in entry["cards"]] or one is all_of[1]
        )

        def share(**fields: Any) -> None:
            for key in ("memory", "exclusive", "clients"):
                card.pop(key, None)
            card.update(fields)

        def split() -> None:
            if len(entry["cards"]) > 1 and "memory" in card:
                card["memory"] *= 2
                entry["cards"][1]["memory"] = 0
            else:
                entry["cards"].append({**card, "uuid": rest["uuid"], "index": rest["index"]})

        amounts: list[Object] = [{"memory": amount} for amount in (truth.CARD, 0, 16, 1024)]
        amounts += [{"exclusive": True}, {"clients": 1}]
        kinds: dict[str, list[Callable[[], object]]] = {
            "card": [lambda: None],
            "limit": [lambda: entry.update(limit=rng.choice([truth.CARD, 20 * truth.UNIT]))],
            "share": [lambda: share(**rng.choice(amounts))],
            "number": [split, split, lambda: entry["cards"].pop()],
            "containers": [lambda: record["containers"].append({"name": "side", "cards": [rng.choice([card, rest])]})],
            "identity": [
                lambda: entry.update(name="side"),
                lambda: entry.update(kind="init"),
                lambda: card.update(uuid=f"shoal-{node}-{card['index']}"),
                lambda: card.update(uuid="GPU-none"),
                lambda: card.update(index=1 - card["index"]),
                lambda: record.update(node=next(one for one in self.arena.nodes if one != node)),
                lambda: record.update(policy=rng.choice(["time-slicing-4", "mps-2"])),
            ],
        }
        rng.choice(kinds[change])()


def _is_judged(pod: Object) -> bool:
    """Whether the container `main` of a bound pod has started, or has been refused."""
    status = pod["status"]
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    states = [one.get("state", {}) for one in status.get("containerStatuses", ()) if one["name"] == "main"]
    waiting = [state.get("waiting", {}).get("reason", "") for state in states]
    return bool(states) and not any(reason in ("ContainerCreating", "PodInitializing") for reason in waiting)
