"""Makes up writes about claims: by tenants, on the status of pods and on their claims, and by root on a node.

The second node of the arena serves `keti.com/mpsgpu` through claims, and all nodes offer claims.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from shoal.model.allocation import CardShare, Held
from shoal.model.contract import dra, keti, shoal
from shoal.model.request import Share
from tests.attacks import truth
from tests.attacks.arena import Object, Tenant
from tests.attacks.forger import ALLOWANCE, MERGE, Forger, Made, Wanted
from tests.attacks.truth import Asked
from tests.scheduler.claims.test_costs import bound

#: A client whose limit is far above what the claim has that its status names.
GREEDY = Wanted({"mps": 1, "annotations": {"GPUlimits": "9Gi"}}, 1, 9 * truth.UNIT, 1)

#: Parts of costly selectors: a value, how it grows with each step, and the question that is asked of it at the end.
VALUES = ("[device.attributes]", "[1]", "'a'", "{'a': 1}")
GROWTHS = ("[$, $]", "{'a': $, 'b': $}", "$ + $", "[$].map(one, one)")
QUESTIONS = ("$ == $", "$ in [$, $]", "[$, $].all(one, one == $)", "size($) > 0", "'{text}b'.matches('^{pattern}$')")


class ClaimForger(Forger):
    """Attempts with claims beside those with records."""

    def _attempts(self) -> list[Callable[[], None]]:
        return [
            *super()._attempts(),
            *(partial(self.map_and_end, how) for how in ("delete", "force", "agents")),
            *(partial(self.borrow, how) for how in ("named", "owned")),
            *(self.lie, self.lie),
            *(self.select, self.select),
        ]

    def map_and_end(self, how: str) -> None:
        """The status of a pod that has its GPUs as devices names a claim, and the pod ends or the agents restart."""
        found = self._running()
        if found is None:
            return
        given, one = found
        self._map(one, "none", "main")
        self.play.look()
        if how == "agents":
            self.restart(how)
            return
        force = "?gracePeriodSeconds=0" if how == "force" else ""
        one.tenant.send("DELETE", f"pods/{one.name}{force}")
        self.told.append({"delete": one.name, "how": how})
        self.play.wait_or(lambda: all(now.uid != given.uid for now in self.arena.given()), 1.0)

    def borrow(self, how: str) -> None:
        """A pod that asks for much by name takes over the small claim of another, which may say that it is its own."""
        node, tenant = self.arena.nodes[1], self.rng.choice(self.tenants)
        claim = self._claimed(tenant, node, 1)
        if claim is None:
            return
        uid = self._create(GREEDY, {"spec": {"schedulerName": "nobody"}}, tenant=tenant)
        one = self.made[uid]
        if not one.amount:
            return
        self._map(one, claim, "main")
        user = {"resource": "pods", "name": one.name, "uid": uid}
        self._patch_claim(tenant, claim, {"status": {"reservedFor": [user]}}, "/status")
        if how == "owned":
            owner = {"apiVersion": "v1", "kind": "Pod", "name": one.name, "uid": uid, "controller": True}
            made = {"annotations": {dra.ANNOTATION_EXTENDED_RESOURCE: "true"}, "ownerReferences": [owner]}
            self._patch_claim(tenant, claim, {"metadata": made})
        # It stays allocated, since somebody uses it; and it is prepared again for the next pod.
        tenant.send("DELETE", f"pods/{claim}")
        self.play.wait_or(lambda: tenant.pod(claim) is None, 2.0)
        target = {"metadata": {"name": one.name}, "target": {"kind": "Node", "name": node}}
        tenant.send("POST", f"pods/{one.name}/binding", target)
        self.told.append({"bind": one.name, "node": node})
        self._judged()

    def lie(self) -> None:
        """Root on one node says that the node holds a claim which is another's."""
        first, second = self.rng.sample(list(self.arena.nodes), 2)
        tenant = self.rng.choice(self.tenants)
        claim = self._claimed(tenant, first, self.rng.choice([1, 3]))
        if claim is None:
            return
        uid = tenant.send("GET", self._claims(tenant, claim)).body["metadata"]["uid"]
        path = f"/api/v1/nodes/{second}"
        said = self.arena.api.request("GET", path).body["metadata"]["annotations"].get(shoal.ANNOTATION_HELD)
        held = Held({}) if said is None else shoal.decode_held(said)
        nothing = (CardShare("GPU-none", 0, Share(1)),)
        for claims in ({**held.claims, uid: nothing}, held.claims):
            lie = shoal.encode_held(replace(held, claims=claims))
            body = {"metadata": {"annotations": {shoal.ANNOTATION_HELD: lie}}}
            written = self.arena.api.request("PATCH", path, json.dumps(body).encode(), {"Content-Type": MERGE})
            assert written.status == 200, written
            self.told.append({"node": second, "holds": sorted(claims)})
            self.play.look()

    def select(self) -> None:
        """The selector of a claim is costly. Its pod is placed, or its status says why not: no try goes on for ever."""
        tenant, question = self.rng.choice(self.tenants), self.rng.choice(QUESTIONS)
        question = question.replace("{text}", "a" * 80).replace("{pattern}", "(?:a|aa)" * self.rng.randint(2, 24))
        expression = bound(self.rng.choice(VALUES), self.rng.choice(GROWTHS), self.rng.randint(8, 40), question)
        self._claimed(tenant, self._node(), 1, [{"cel": {"expression": expression}}])
        name = f"c{self._number}"

        def answered() -> bool:
            pod = tenant.pod(name)
            conditions = [] if pod is None else pod["status"].get("conditions", [])
            return pod is None or bool(pod["spec"].get("nodeName")) or any(one.get("message") for one in conditions)

        self.play.wait(answered, f"placed, or why not: {name} with {expression}", lambda: tenant.pod(name))

    # Writes

    def _claimed(self, tenant: Tenant, node: str, amount: int, selectors: Sequence[Object] = ()) -> str | None:
        """The claim of a pod that runs on a node with so many GiB; None if it does not come to run."""
        self._make_room(amount)
        if self.asked() + amount > ALLOWANCE:
            return None
        self._number += 1
        name = f"c{self._number}"
        exactly: Object = {"deviceClassName": dra.DEVICE_CLASS, "capacity": {"requests": {"memory": f"{amount}Gi"}}}
        exactly["selectors"] = list(selectors)
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        assert tenant.send("POST", self._claims(tenant), {"metadata": {"name": name}, "spec": spec}).status == 201
        main = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
        source = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
        answer = self.play.create({"name": name, "at": node, "containers": [main], "spec": source}, tenant)
        assert answer.status == 201, answer
        uid = answer.body["metadata"]["uid"]
        self.play.allowed[uid] = {"main": Asked(1, amount * truth.UNIT)}
        self.made[uid] = Made(name, Wanted({}, 1, amount * truth.UNIT), tenant, amount)
        self.told.append({"create": name, "claim": amount, "at": node})
        self._judged()
        return name if any(one.uid == uid for one in self.arena.given()) else None

    def _map(self, one: Made, claim: str, container: str) -> None:
        resources = {"mem": truth.MEMORY, "gpu": truth.WHOLE, "mps": keti.RESOURCE_MPS}
        resource = next((resources[key] for key in one.wanted.short if key in resources), truth.MEMORY)
        mapping = {"containerName": container, "resourceName": resource, "requestName": "gpu"}
        status = {"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": [mapping]}}
        one.tenant.send("PATCH", f"pods/{one.name}/status", {"status": status}, MERGE)
        self.told.append({"status": one.name, **status})

    def _patch_claim(self, tenant: Tenant, name: str, body: Object, part: str = "") -> None:
        tenant.send("PATCH", f"{self._claims(tenant, name)}{part}", body, MERGE)
        self.told.append({"claim": name, **body})

    def _claims(self, tenant: Tenant, name: str = "") -> str:
        path = f"/apis/resource.k8s.io/v1/namespaces/{tenant.namespace}/resourceclaims"
        return f"{path}/{name}" if name else path
