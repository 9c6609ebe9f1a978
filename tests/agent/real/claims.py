"""A cluster with the stock scheduler and a node whose agent offers cards as claims, and pods with claims on it."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shoal.model.contract import dra, shoal
from tests.agent.lab import TELL
from tests.agent.real.conftest import RealLab, describe_machine
from tests.agent.real.test_deploy import kubeconfig_of
from tests.kube.relay import Relay
from tests.kubelet.device_plugin import PluginLoop
from tests.kubelet.pods import Pods, container, is_ready
from tests.testbed import binaries, features
from tests.testbed.control_plane import own_control_plane
from tests.testbed.images import BUSYBOX
from tests.testbed.node import Node
from tests.testbed.nvml.shim import Shim
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

ROOT = Path(__file__).parents[3]
#: The version of claims on the Kubernetes under test; v1beta1 is for whole cards alone.
VERSION = "v1" if features.claims() == features.DEFAULTS else "v1beta1"
RESOURCES = f"/apis/resource.k8s.io/{VERSION}"


class ClaimsLab(RealLab):
    """A node whose agent offers claims."""

    between: "Between | None" = None
    given_settings: dict[str, Any]

    def again(self, *, wait: bool = True) -> None:
        """Start the agent with the settings it had at first."""
        self.start(wait=wait, **self.given_settings)

    def command(self, *more: str) -> Sequence[str | Path]:
        root = self.node.device_plugins.parent
        return super().command(
            f"--plugins-registry={root / 'plugins_registry'}", f"--plugins={root / 'plugins'}", *more
        )

    def wait_ready(self) -> None:
        super().wait_ready()
        if self.settings.get("claims"):
            wait_for(lambda: len(self.devices()) == len(self.gpus), "publishing devices")

    @contextlib.contextmanager
    def beside(
        self,
        run: Run,
        library: Path,
        folder: Path,
        cards: object,
        *,
        gates: Mapping[str, bool] | None = None,
        wait: bool = True,
    ) -> Iterator["ClaimsLab"]:
        """A second node on the same control plane, named after the folder, with its own agent; it goes afterwards."""
        node = Node(run, self.pods.apiserver, f"{self.node.name}-{folder.name}", gates=gates)
        node.start()
        shim = Shim(library, folder)
        shim.write(describe_machine(cards))
        lab = ClaimsLab(node, self.pods, run, shim, {})
        lab.kubeconfig = kubeconfig_of(lab, folder)
        try:
            lab.start(wait=False, claims=True)
            if wait:
                wait_for(lambda: bool(lab.devices()), "publishing devices")
            yield lab
        finally:
            lab.stop()
            lab.clean()
            node.stop()
            self.pods.apiserver.request("DELETE", f"/api/v1/nodes/{node.name}")

    def wait_for_running(self, count: int) -> None:
        """Wait until so many pods of the namespace run."""
        wait_for(lambda: sum(map(is_ready, self.pods.all())) == count, f"{count} pods that run")

    # Objects

    def slices(self) -> list[dict]:
        """The node's slices."""
        found: list[dict] = self.pods.apiserver.request("GET", f"{RESOURCES}/resourceslices")["items"]
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
    def _path(self) -> str:
        return f"{RESOURCES}/namespaces/{self.pods.namespace}"

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
            self.pods.apiserver.kubectl("-n", self.pods.namespace, "apply", "-f", "-", input=yaml.safe_dump(document))
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

    def wait_logged(self, *words: str) -> None:
        """Wait until the agent has said all of these words in one line."""
        assert self.program is not None
        path = self.program.process.log

        def said() -> bool:
            return any(all(one in line for one in words) for line in path.read_text().splitlines())

        wait_for(said, f"said by the agent: {' … '.join(words)}")

    def as_agent(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess has it
        """What kubectl says with the agent's account."""
        command = [str(binaries.find("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def sweep(self) -> None:
        """Remove all pods and claims of the namespace, and wait until the node holds none."""
        self.pods.apiserver.request("DELETE", f"/api/v1/namespaces/{self.pods.namespace}/pods")
        wait_for(lambda: not self.pods.all(), "without pods")
        for kind in ("resourceclaims", "resourceclaimtemplates"):
            self.pods.apiserver.request("DELETE", f"{self._path}/{kind}")
        wait_for(lambda: not self.held() and not self.claims(), "given back")


def asking(name: str = "gpu", memory: str | None = None, **more: object) -> dict:
    """A request of a claim."""
    exactly: dict = {"deviceClassName": dra.DEVICE_CLASS, **more}
    if memory is not None:
        exactly["capacity"] = {"requests": {"memory": memory}}
    return {"name": name, "exactly": exactly} if VERSION == "v1" else {"name": name, **exactly}


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


def grant(lab: ClaimsLab, folder: Path) -> Path:
    """Rights, fences and class as they are deployed; the kubeconfig of the agent's account on the lab's node."""
    for part in ("agent", "agent-claims"):
        for path in sorted((ROOT / "deploy" / part).glob("*.yaml")):
            if path.name not in ("kustomization.yaml", "daemonset.yaml", "device-class.yaml"):
                lab.pods.apiserver.kubectl("apply", "-f", str(path))
    overlay = "agent-claims" if VERSION == "v1" else f"agent-claims-{VERSION}"
    made = yaml.safe_load_all(lab.pods.apiserver.kubectl("kustomize", str(ROOT / "deploy" / overlay)))
    (device_class,) = [one for one in made if one["kind"] == "DeviceClass"]
    lab.pods.apiserver.kubectl("apply", "-f", "-", input=yaml.safe_dump(device_class))
    return kubeconfig_of(lab, folder)


class Between:
    """Stands between an agent and the API server."""

    def __init__(self, kubeconfig: Path, port: int) -> None:
        self._loop = PluginLoop()
        self._relay = Relay(port)
        self._loop.run(self._relay.__aenter__())
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._relay.port}"
        kubeconfig.write_text(yaml.safe_dump(config))

    def away(self) -> None:
        """Nobody answers any more."""
        self._loop.run(self._relay.block())

    def back(self) -> None:
        """All is as before."""
        self._relay.unblock()

    def close(self) -> None:
        """End it."""
        self._loop.run(self._relay.__aexit__(None, None, None))
        self._loop.close()


@contextlib.contextmanager
def claims_lab(
    run: Run,
    library: Path,
    folder: Path,
    cards: object = "4xT4",
    environment: Mapping[str, str] | None = None,
    *,
    between: bool = True,
    kind: type[ClaimsLab] = ClaimsLab,
    **settings: Any,
) -> Iterator[ClaimsLab]:
    """A control plane with the stock scheduler, a node, and its agent with the rights that are deployed.

    `between` puts a relay between the agent and the API server, which can be cut.
    """
    with own_control_plane(run, "claims", features.claims()) as plane:
        plane.start_scheduler()
        plane.api.create_namespace("tenant")
        node = Node(run, plane.api, f"{plane.name}-node")
        node.start()
        shim = Shim(library, folder)
        shim.write(describe_machine(cards))
        lab = kind(node, Pods(plane.api, "tenant"), run, shim, environment or {})
        lab.kubeconfig = grant(lab, folder)
        if between:
            lab.between = Between(lab.kubeconfig, plane.api.port)
        lab.given_settings = {"claims": True, **settings}
        try:
            lab.start(**lab.given_settings)
            yield lab
        finally:
            lab.stop()
            if lab.between is not None:
                lab.between.close()
            node.stop()
