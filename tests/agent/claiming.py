"""Cards as claims on a node with an agent, real or simulated: slices, claims, and pods that use them."""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shoal.model.allocation import Allocation
from shoal.model.contract import dra, shoal
from tests.agent.lab import MEMORY, TELL, Lab
from tests.kubelet.pods import container, is_ready
from tests.testbed.images import BUSYBOX
from tests.testbed.waiting import wait_for

ROOT = Path(__file__).parents[2]


def spec_for(results: Iterable[Mapping[str, object]]) -> dict:
    """The spec of a claim that these results do not exceed: as many GPUs for each request, with all of their memory."""
    counts = Counter(str(one["request"]) for one in results)
    named = sorted({name.partition("/")[0] for name in counts})
    return {"devices": {"requests": [{"name": name, **_wanted(name, counts)} for name in named]}}


def _wanted(request: str, counts: Mapping[str, int]) -> dict:
    amounts = {"requests": {dra.CAPACITY_COMPUTE: "100", dra.CAPACITY_CLIENTS: "48"}}
    asked = {
        name: {"deviceClassName": dra.DEVICE_CLASS, "count": count, "capacity": amounts}
        for name, count in counts.items()
    }
    alternatives = [
        {"name": name.partition("/")[2], **one} for name, one in asked.items() if name.startswith(f"{request}/")
    ]
    return {"firstAvailable": alternatives} if alternatives else {"exactly": asked[request]}


class Claiming(Lab):
    """A node whose agent offers claims."""

    given_settings: dict[str, Any]
    #: The version of the objects.
    version = "v1"

    # What differs with the kubelet

    def apply(self, document: dict) -> None:
        """Create an object of the namespace."""
        kind = document["kind"]
        path = f"/api/v1/namespaces/{self.pods.namespace}/pods" if kind == "Pod" else f"{self._path}/{kind.lower()}s"
        self.pods.apiserver.request("POST", path, document)

    def wait_logged(self, *words: str) -> None:
        """Wait until the agent has said all of these words in one line."""
        raise NotImplementedError

    def pause_kubelet(self) -> None:
        """Have kubelet do nothing for a while."""
        raise NotImplementedError

    def resume_kubelet(self) -> None:
        """Have it go on."""
        raise NotImplementedError

    def lose_card(self, index: int) -> None:
        """Have a card fall off the bus."""
        raise NotImplementedError

    def mend_cards(self) -> None:
        """Have all cards back."""
        raise NotImplementedError

    # The agent

    def again(self, *, wait: bool = True) -> None:
        """Start the agent with the settings it had at first."""
        self.start(wait=wait, **self.given_settings)

    def wait_ready(self) -> None:
        super().wait_ready()
        if self.settings.get("claims"):
            wait_for(lambda: len(self.devices()) == len(self.gpus), "publishing devices")

    def wait_for_running(self, count: int) -> None:
        """Wait until so many pods of the namespace run."""
        wait_for(lambda: sum(map(is_ready, self.pods.all())) == count, f"{count} pods that run")

    # Objects

    def slices(self) -> list[dict]:
        """The node's slices."""
        found: list[dict] = self.pods.apiserver.request("GET", f"{self.resources}/resourceslices")["items"]
        return [one for one in found if one["spec"].get("nodeName") == self.node.name]

    def devices(self) -> list[dict]:
        """The node's devices in their order."""
        ordered = sorted(self.slices(), key=lambda one: str(one["metadata"]["name"]))
        return [device for one in ordered for device in one["spec"].get("devices", ())]

    def claim(self, name: str) -> dict:
        """A claim of the namespace."""
        return dict(self.pods.apiserver.request("GET", f"{self._path}/resourceclaims/{name}"))

    def claims(self) -> list[dict]:
        """All claims of the namespace."""
        found: list[dict] = self.pods.apiserver.request("GET", f"{self._path}/resourceclaims")["items"]
        return found

    def claim_of(self, pod: str, name: str = "gpu") -> dict:
        """The claim that was made for a pod."""
        statuses = self.pods.get(pod)["status"]["resourceClaimStatuses"]
        return self.claim(next(one["resourceClaimName"] for one in statuses if one["name"] == name))

    def results(self, claim: dict) -> list[dict]:
        """What was allocated to a claim."""
        return list(claim["status"]["allocation"]["devices"]["results"])

    def held(self) -> Mapping[str, dict[str, int]]:
        """By claim, the MiB that the node says it holds of each card; -1 for a whole one."""
        text = self.object["metadata"]["annotations"].get(shoal.ANNOTATION_HELD)
        found = {} if text is None else shoal.decode_held(text).claims
        return {
            uid: {card.uuid: -1 if card.share.exclusive else card.share.memory_mib for card in cards}
            for uid, cards in found.items()
        }

    @property
    def resources(self) -> str:
        """The path of claims and slices."""
        return f"/apis/resource.k8s.io/{self.version}"

    @property
    def _path(self) -> str:
        return f"{self.resources}/namespaces/{self.pods.namespace}"

    def make_template(self, name: str, *requests: dict) -> None:
        """A template of claims with these requests."""
        spec = {"spec": {"devices": {"requests": list(requests)}}}
        self.pods.apiserver.request(
            "POST", f"{self._path}/resourceclaimtemplates", {"metadata": {"name": name}, "spec": spec}
        )

    def make_claim(self, name: str, *requests: dict) -> str:
        """A claim with these requests; its UID."""
        spec = {"devices": {"requests": list(requests)}}
        made = self.pods.apiserver.request(
            "POST", f"{self._path}/resourceclaims", {"metadata": {"name": name}, "spec": spec}
        )
        return str(made["metadata"]["uid"])

    def allocate(self, claim: str, *results: Mapping[str, object], pods: Sequence[str] = ()) -> None:
        """Write an allocation as another scheduler might, checked by nobody, and reserve it for pods."""
        found = self.claim(claim)
        found["status"] = {
            "allocation": {
                "devices": {"results": [{"driver": dra.DRIVER, "pool": self.node.name, **one} for one in results]},
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self.node.name]}]}
                    ]
                },
            },
            "reservedFor": [
                {"resource": "pods", "name": name, "uid": self.pods.get(name)["metadata"]["uid"]} for name in pods
            ],
        }
        self.pods.apiserver.request("PUT", f"{self._path}/resourceclaims/{claim}/status", found)

    def reserve(self, claim: str, user: Mapping[str, str]) -> None:
        """Write that somebody uses a claim, beside those who do."""
        users = [*self.claim(claim)["status"].get("reservedFor", ()), dict(user)]
        path = f"{self._path}/resourceclaims/{claim}/status"
        self.pods.apiserver.request("PATCH", path, {"status": {"reservedFor": users}}, "application/merge-patch+json")

    def drop_claim(self, name: str) -> None:
        """Delete a claim that nobody uses."""
        wait_for(lambda: "allocation" not in self.claim(name).get("status", {}), f"deallocated: {name}")
        self.pods.apiserver.request("DELETE", f"{self._path}/resourceclaims/{name}")

    def create(self, manifest: dict) -> None:
        """Create a pod for the stock scheduler."""
        self.pods.apiserver.request("POST", f"/api/v1/namespaces/{self.pods.namespace}/pods", manifest)

    def bind_to(self, name: str) -> None:
        """Bind a pod to the node, as another scheduler might."""
        path = f"/api/v1/namespaces/{self.pods.namespace}/pods/{name}/binding"
        self.pods.apiserver.request("POST", path, {"metadata": {"name": name}, "target": {"name": self.node.name}})

    def example(self, file: str) -> str:
        """Create what a file of examples/dra holds, with a program that tells its environment; the pod's name."""
        name = ""
        for document in yaml.safe_load_all((ROOT / "examples" / "dra" / file).read_text()):
            if document["kind"] == "Pod":
                name = document["metadata"]["name"]
                document["spec"]["terminationGracePeriodSeconds"] = 1
                for one in document["spec"]["containers"]:
                    one |= {"image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", TELL]}
            self.apply(document)
        return name

    def cards_of(self, claim: dict) -> list[int]:
        """The cards that were allocated to a claim, by index, in order."""
        by_name = {dra.device_name(gpu.uuid): gpu.index for gpu in self.gpus}
        return [by_name[one["device"]] for one in self.results(claim)]

    def touch(self, name: str) -> None:
        """Change a pod, so that kubelet looks at it again."""
        patch = {"metadata": {"annotations": {"touched": str(time.time())}}}
        path = f"/api/v1/namespaces/{self.pods.namespace}/pods/{name}"
        self.pods.apiserver.request("PATCH", path, patch, "application/merge-patch+json")

    def force_delete(self, name: str) -> None:
        """Remove a pod from the API server at once."""
        path = f"/api/v1/namespaces/{self.pods.namespace}/pods/{name}?gracePeriodSeconds=0"
        self.pods.apiserver.request("DELETE", path)

    def sweep(self) -> None:
        """Remove all pods and claims of the namespace, and wait until the node holds none."""
        self.pods.apiserver.request("DELETE", f"/api/v1/namespaces/{self.pods.namespace}/pods")
        wait_for(lambda: not self.pods.all(), "without pods")
        for kind in ("resourceclaims", "resourceclaimtemplates"):
            self.pods.apiserver.request("DELETE", f"{self._path}/{kind}")
        wait_for(lambda: not self.held() and not self.claims(), "given back")


class ByClaims(Claiming):
    """Pods that would ask for memory by number get a claim, with one request for each of their containers.

    It is allocated on the cards that the test chooses, as a scheduler would.
    """

    def place(self, manifest: dict, allocation: Allocation) -> None:
        name = manifest["metadata"]["name"]
        spec = {**manifest["spec"], "schedulerName": "nobody", "tolerations": [{"operator": "Exists"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        for kind in ("initContainers", "containers"):
            spec[kind] = [_by_claim(one) for one in spec.get(kind, ())]
        results = []
        requests = []
        for entry in allocation.containers:
            (memory,) = {f"{card.share.memory_mib}Mi" for card in entry.cards}
            requests.append(asking(entry.name, memory, count=len(entry.cards)))
            results += [
                {
                    "request": entry.name,
                    "device": dra.device_name(card.uuid),
                    "shareID": str(uuid.uuid4()),
                    "consumedCapacity": {"memory": memory, "compute": "0"},
                }
                for card in entry.cards
            ]
        self.make_claim(name, *requests)
        self.create({**manifest, "spec": spec})
        self.allocate(name, *results, pods=[name])
        self.bind_to(name)


def _by_claim(container: dict) -> dict:
    assert list(container["resources"]["limits"]) == [MEMORY]
    return {**container, "resources": {"claims": [{"name": "gpu", "request": container["name"]}]}}


def asking(name: str = "gpu", memory: str | None = None, **more: object) -> dict:
    """A request of a claim."""
    exactly: dict = {"deviceClassName": dra.DEVICE_CLASS, **more}
    if memory is not None:
        exactly["capacity"] = {"requests": {"memory": memory}}
    return {"name": name, "exactly": exactly}


def claim_pod(name: str, claims: Mapping[str, dict], *containers: dict, script: str = TELL, **spec: object) -> dict:
    """A pod with claims; unless told otherwise of one container that uses all of them."""
    used = [{"name": one} for one in claims]
    default = {**container("main", script), "resources": {"claims": used}}
    return {
        "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{"name": one, **source} for one, source in claims.items()],
            "containers": list(containers) or [default],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def using(name: str, *requests: str, claim: str = "gpu") -> dict:
    """A container that uses a claim, or some of its requests."""
    claims = [{"name": claim, "request": one} for one in requests] or [{"name": claim}]
    return {**container(name, TELL), "resources": {"claims": claims}}
