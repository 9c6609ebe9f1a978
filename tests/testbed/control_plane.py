"""A whole control plane: etcd, kube-apiserver, kube-controller-manager, and kube-schedulers as the tests want them."""

import contextlib
import http.client
import ssl
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer
from tests.testbed.features import DEFAULTS, Features
from tests.testbed.processes import Process, Run

#: A node is given up after this long without a heartbeat. Long, so that thousands of fake nodes need few of them.
NODE_GRACE_SECONDS = 300


class ControlPlane:
    """An API server with its controllers, or without. Schedulers are started by the test, configured as it needs."""

    def __init__(
        self, run: Run, name: str = "control-plane", *, controllers: bool = True, features: Features = DEFAULTS
    ) -> None:
        self.run = run
        self.name = name
        self.api = ApiServer(run, name, features)
        self._port = run.reservations.port()
        self._controllers = run.process(f"{name}-controllers", self._command())
        self._schedulers: list[Process] = []
        if controllers:
            self._controllers.start()
            self._controllers.wait_until(lambda: _healthy(self._port), "healthy")

    def start_scheduler(
        self, configuration: Mapping[str, object] | None = None, *, until_healthy: bool = True
    ) -> Process:
        """A kube-scheduler with this KubeSchedulerConfiguration; what a test bed must say is filled in."""
        port = self.run.reservations.port()
        name = f"{self.name}-scheduler-{uuid.uuid4().hex[:6]}"
        path = self.api.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(self._scheduler_configuration(configuration or {})))
        process = self.run.process(
            name,
            [
                binaries.find("kube-scheduler"),
                *(f"--config={path}", "--bind-address=127.0.0.1", f"--secure-port={port}"),
                *(f"--kubeconfig={self._kubeconfig()}", f"--authentication-kubeconfig={self._kubeconfig()}"),
                f"--authorization-kubeconfig={self._kubeconfig()}",
                *self.api.features.flags,
            ],
        )
        self._schedulers.append(process)
        process.start()
        if until_healthy:
            process.wait_until(lambda: _healthy(port), "healthy")
        return process

    def stop_schedulers(self) -> None:
        """End what `start_scheduler` has started."""
        for process in self._schedulers:
            process.kill()
        self._schedulers.clear()

    def stop(self) -> None:
        """End all of it for good."""
        self.stop_schedulers()
        self._controllers.kill()
        self.api.stop()

    def _kubeconfig(self) -> Path:
        return self.api.kubeconfig("system:kube-scheduler")

    def _scheduler_configuration(self, given: Mapping[str, object]) -> dict[str, object]:
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            # The default of 50 requests a second would be all that a test sees.
            "clientConnection": {"kubeconfig": str(self._kubeconfig()), "qps": 5000, "burst": 5000},
            **given,
        }

    def _command(self) -> list[str | Path]:
        kubeconfig = self.api.kubeconfig("system:kube-controller-manager")
        return [
            binaries.find("kube-controller-manager"),
            *(f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}"),
            *(f"--authorization-kubeconfig={kubeconfig}", "--leader-elect=false"),
            *("--bind-address=127.0.0.1", f"--secure-port={self._port}"),
            *("--use-service-account-credentials", f"--root-ca-file={self.api.ca}"),
            f"--service-account-private-key-file={self.api.authority.signing_key()}",
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
            f"--flex-volume-plugin-dir={self.api.directory / 'volume-plugins'}",  # else it makes one in the system
            *("--kube-api-qps=500", "--kube-api-burst=500", "--profiling=false"),
            *self.api.features.flags,
        ]


@contextlib.contextmanager
def own_control_plane(run: Run, what: str, features: Features = DEFAULTS) -> Iterator[ControlPlane]:
    """A control plane for some tests alone, which others would disturb or be disturbed by; it goes with them."""
    plane = ControlPlane(run, f"{what}-{uuid.uuid4().hex[:6]}", features=features)
    try:
        yield plane
    finally:
        plane.stop()


def _healthy(port: int) -> bool:
    """Whether a component with a certificate of its own making answers on /healthz."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=5)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
