"""A real Prometheus (Debian's package, there after `make kube`), and its promtool."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.testbed.processes import Run, TestbedError


class PrometheusServer:
    """One server that scrapes every second."""

    def __init__(
        self, run: Run, name: str, scrapes: Sequence[dict[str, Any]], *, rules: Sequence[Path] = (), start: bool = True
    ) -> None:
        port = run.reservations.port()
        self.url = f"http://127.0.0.1:{port}"
        folder = run.folder(name)
        config = folder / "prometheus.yaml"
        #: Where it keeps what it has scraped.
        self.data = folder / "data"
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": list(scrapes),
        }
        config.write_text(yaml.safe_dump(settings))
        self.process = run.process(
            name,
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={self.data}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
        )
        if start:
            self.process.start()
            self.process.wait_until(self.is_ready, "ready")

    def is_ready(self) -> bool:
        """Whether it answers questions."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query, as Prometheus writes it."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def values(self, expression: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values by some labels."""
        return {
            tuple(series["metric"].get(label, "") for label in labels): float(series["value"][1])
            for series in self.query(expression)
        }

    def label_values(self, name: str, match: str) -> list[str]:
        """What Grafana asks for label_values(match, name)."""
        url = f"{self.url}/api/v1/label/{name}/values?{urllib.parse.urlencode({'match[]': match})}"
        with urllib.request.urlopen(url, timeout=300) as answer:
            found: list[str] = json.load(answer)["data"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or firing."""
        found: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped, with the last error of each."""
        found: list[dict[str, Any]] = self._get("targets")["activeTargets"]
        return found

    def _get(self, path: str, **form: str) -> Any:
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(form)}", timeout=300
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise TestbedError(f"{path} {form}: {error.read().decode()}") from error


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    found = shutil.which(name)
    if found is None:
        raise TestbedError(f"{name} is not there; run: make kube")
    return found


def promtool(*words: str | Path, stdin: bytes = b"", folder: Path | None = None) -> tuple[int, str]:
    """Run promtool; its status and what it says."""
    done = subprocess.run(
        [program("promtool"), *map(str, words)], input=stdin, capture_output=True, cwd=folder, timeout=300, check=False
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")
