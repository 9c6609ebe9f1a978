"""`shoal scheduler` as a process of its own: started as a person would, killed as a machine would."""

import http.client
import json
import os
import re
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.testbed.processes import Process, Run

SHOAL = Path(sys.executable).with_name("shoal")
_SERVING = re.compile(rb"^serving on (\d+), health on (\d+)$", re.MULTILINE)


class SchedulerProcess:
    """One replica. Its port is any free one at first, and stays the same when it is started again."""

    def __init__(
        self,
        run: Run,
        name: str,
        kubeconfig: Path,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._run = run
        self._environment = None if environment is None else {**os.environ, **environment}
        self._name = name
        self._kubeconfig = kubeconfig
        self._process: Process | None = None
        self.options = tuple(options)
        self.port = 0
        self.health_port = 0
        #: What a caller of the extender's port trusts and shows, when that has TLS.
        self.tls: ssl.SSLContext | None = None
        self._said = 0

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start it, and wait for nothing."""
        flags = ["--host", "127.0.0.1", "--port", str(self.port), "--kubeconfig", str(self._kubeconfig)]
        flags += ["--health-host", "127.0.0.1", "--health-port", str(self.health_port), "--open-inspect"]
        self._process = self._run.process(self._name, [SHOAL, "scheduler", *flags, *self.options], self._environment)
        self._said = self.log_size()
        self._process.start()

    def start(self) -> None:
        """Start it, and wait until it decides."""
        self.launch()
        assert self._process is not None
        self._process.wait_until(self.serves, "serving")
        self._process.wait_until(lambda: self.readiness() == "", "ready")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        if self._process is not None:
            self._process.stop()

    def terminate(self) -> None:
        """SIGTERM, and wait for nothing."""
        if self._process is not None and self._process.alive:
            os.kill(self._process.pid, signal.SIGTERM)

    def serves(self) -> bool:
        """Whether it has said on which port it answers."""
        if self._process is None or not self._process.alive:
            return False
        with self._process.log.open("rb") as log:
            log.seek(self._said)
            found = _SERVING.search(log.read())
        if found is None:
            return False
        self.port, self.health_port = int(found[1]), int(found[2])
        return True

    def readiness(self) -> str:
        """Why it decides nothing now; empty when it does."""
        try:
            status, text = self._get("/readyz", self.health_port)
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        return "" if status == 200 else text

    def inspect(self) -> dict[str, Any]:
        """The ledger as gpushare's clients see it, by node."""
        status, text = self._get("/gpushare-scheduler/inspect", self.port)
        assert status == 200, text
        return {node["name"]: node for node in json.loads(text)["nodes"]}

    def usable(self, node: str) -> dict[int, bool]:
        """Which cards of a node take new pods, by index, as the metrics have it."""
        pattern = rf'^shoal_scheduler_card_usable{{node="{node}",card="(\d+)".*}} ([01])$'
        return {int(index): value == "1" for index, value in re.findall(pattern, self.metrics(), re.MULTILINE)}

    def heard(self, resource: str) -> int:
        """How many events the watch of a resource has brought, as the metrics have it."""
        pattern = rf'^shoal_scheduler_watch_total{{resource="{resource}",step="events"}} (\d+)$'
        (count,) = re.findall(pattern, self.metrics(), re.MULTILINE)
        return int(count)

    def log(self) -> str:
        """The end of what it said."""
        return "" if self._process is None else self._process.tail(60)

    def log_size(self) -> int:
        """How much it has said."""
        known = self._process is not None and self._process.log.exists()
        return self._process.log.stat().st_size if known and self._process else 0

    def said(self, text: str, after: int) -> int | None:
        """Where in its log a text that comes after a place ends; None when it has not said it."""
        assert self._process is not None
        log = self._process.log.read_bytes()
        found = log.find(text.encode(), after)
        return None if found < 0 else found + len(text.encode())

    def metric(self, series: str) -> float | None:
        """The value of one of its series, written as it writes it; None without such a one."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.metrics(), re.MULTILINE)
        return None if found is None else float(found[1])

    def metrics(self) -> str:
        """All its series."""
        status, text = self._get("/metrics", self.health_port)
        assert status == 200, text
        return text

    def _get(self, path: str, port: int) -> tuple[int, str]:
        connection = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=self.tls)
            if port == self.port and self.tls is not None
            else http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()
