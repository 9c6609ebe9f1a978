"""A cluster with the stock scheduler and a node whose agent offers cards as claims, and pods with claims on it."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.agent import claiming
from tests.agent.claiming import ROOT, Claiming
from tests.agent.real.conftest import RealLab, describe_machine
from tests.agent.real.test_deploy import kubeconfig_of
from tests.kube.relay import Relay
from tests.kubelet.device_plugin import PluginLoop
from tests.kubelet.pods import Pods
from tests.testbed import binaries, features
from tests.testbed.control_plane import own_control_plane
from tests.testbed.node import Node
from tests.testbed.nvml.shim import Shim
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

#: The version of claims on the Kubernetes under test; v1beta1 is for whole cards alone.
VERSION = "v1" if features.claims() == features.DEFAULTS else "v1beta1"


class ClaimsLab(Claiming, RealLab):
    """On a real kubelet."""

    version = VERSION
    between: "Between | None" = None
    cards: object

    def command(self, *more: str) -> Sequence[str | Path]:
        root = self.node.device_plugins.parent
        return super().command(
            f"--plugins-registry={root / 'plugins_registry'}", f"--plugins={root / 'plugins'}", *more
        )

    def apply(self, document: dict) -> None:
        self.pods.apiserver.kubectl("-n", self.pods.namespace, "apply", "-f", "-", input=yaml.safe_dump(document))

    def pause_kubelet(self) -> None:
        self.node.kubelet.pause()

    def resume_kubelet(self) -> None:
        self.node.kubelet.resume()

    def lose_card(self, index: int) -> None:
        self.shim.write(describe_machine(self.cards, lost=[index]))

    def mend_cards(self) -> None:
        self.shim.write(describe_machine(self.cards))

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
        lab.cards = cards
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


def asking(name: str = "gpu", memory: str | None = None, **more: object) -> dict:
    """A request of a claim in the version under test."""
    request = claiming.asking(name, memory, **more)
    return request if VERSION == "v1" else {"name": name, **request["exactly"]}


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
        lab.cards = cards
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
