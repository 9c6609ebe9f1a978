"""The embedded API server as a process of its own, behind what `tests.testbed.cluster.Api` promises.

It needs nothing but Python, so the suites run on it without the programs of a real Kubernetes.
"""

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.suites.connection import Connection
from tests.testbed.kubectl import run_kubectl
from tests.testbed.processes import TestbedError

#: Seconds until it must have said where its kubeconfig is.
PATIENCE = 300.0


class EmbeddedServer:
    """One `python -m shoal.embedded.app`, with its workload controllers or without. Starts at once.

    `admission` is the unit of memory of Shoal's policies; without it none is in force.
    """

    def __init__(self, directory: Path, *, controllers: bool = False, admission: str = "") -> None:
        # The pods of a deleted node go soon: nobody wants to wait for it in every run.
        options = ["--node-away=1"] if controllers else ["--no-controllers"]
        options += [f"--admission={admission}"] if admission else []
        self._directory = directory
        self._log = (directory / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal.embedded.app", str(directory), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            self._kubeconfig = self._first_line()
        except TestbedError:
            self.stop()
            raise
        config = yaml.safe_load(self._kubeconfig.read_text())
        self._cluster = config["clusters"][0]["cluster"]

    @property
    def url(self) -> str:
        """Where it answers."""
        return str(self._cluster["server"])

    @property
    def ca(self) -> Path:
        """The certificate that its own is signed with."""
        return Path(self._cluster["certificate-authority"])

    def kubeconfig(self, user: str = "admin", groups: Sequence[str] = ()) -> Path:
        """The kubeconfig of its one user."""
        if user != "admin" or groups:
            raise TestbedError("the embedded cluster has one user, admin")
        return self._kubeconfig

    def kubectl(self, *arguments: str, input: str | None = None, user: str = "admin", check: bool = True) -> str:  # noqa: A002
        """What kubectl prints; its error as an exception."""
        return run_kubectl(self.kubeconfig(user), *arguments, home=self._directory, input=input, check=check)

    def create_namespace(self, name: str) -> None:
        """A namespace in which pods can be made at once."""
        body = json.dumps({"metadata": {"name": name}}).encode()
        headers = {"Content-Type": "application/json"}
        answer = Connection(self._kubeconfig).request("POST", "/api/v1/namespaces", body, headers)
        if answer.status != 201:
            raise TestbedError(f"no namespace {name}: {answer}")

    def stop(self) -> None:
        """End it, by force when it does not listen."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _first_line(self) -> Path:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline().decode().strip() if readable else ""
        if not line:
            log = (self._directory / "log").read_text(errors="replace")
            raise TestbedError(f"the embedded cluster did not start:\n{log[-4000:]}")
        return Path(line)
