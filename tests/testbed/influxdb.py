"""Real InfluxDB servers: Debian's 1.6 and 1.8, which knows tokens. Both are there after `make kube`."""

import base64
import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.testbed import binaries
from tests.testbed.processes import Run, TestbedError

USER, PASSWORD = "keti", "p4ss=with,signs"
_ADMIN, _ADMIN_PASSWORD = "admin", "adm1n"


class InfluxServer:
    """One server with its files in the run's folder. It can be killed and started again."""

    def __init__(self, run: Run, program: Path, name: str, *, auth: bool = False) -> None:
        self.auth = auth
        self._port = run.reservations.port()
        self.url = f"http://127.0.0.1:{self._port}"
        folder = run.folder(name)
        config = folder / "influxdb.conf"
        config.write_text(
            f"""
reporting-disabled = true
bind-address = "127.0.0.1:{run.reservations.port()}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
[monitor]
store-enabled = false
[http]
bind-address = "127.0.0.1:{self._port}"
auth-enabled = {str(auth).lower()}
log-enabled = false
"""
        )
        self.process = run.process(name, [program, "run", "-config", config])
        self.start()
        if auth:
            self.query(f"CREATE USER {_ADMIN} WITH PASSWORD '{_ADMIN_PASSWORD}' WITH ALL PRIVILEGES")
            self.set_password(PASSWORD, create=True)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_until(self._answers, "answering")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=10) as answer:
                return bool(answer.status == 204)
        except OSError:
            return False

    def set_password(self, password: str, *, create: bool = False) -> None:
        """Make the user that writes, or give it another password."""
        if create:
            self.query(f"CREATE USER {USER} WITH PASSWORD '{password}' WITH ALL PRIVILEGES")
        else:
            self.query(f"SET PASSWORD FOR {USER} = '{password}'")

    def _headers(self) -> dict[str, str]:
        pair = base64.b64encode(f"{_ADMIN}:{_ADMIN_PASSWORD}".encode()).decode()
        return {"Authorization": f"Basic {pair}"} if self.auth else {}

    def write(self, line: str, database: str) -> None:
        """Write a line as another program would."""
        url = f"{self.url}/write?db={database}&precision=ns"
        with urllib.request.urlopen(urllib.request.Request(url, line.encode(), self._headers()), timeout=300) as answer:
            if answer.status != 204:
                raise TestbedError(f"{line} was not written: {answer.status}")

    def query(self, statement: str, database: str = "") -> list[dict[str, Any]]:
        """The rows of the first result, by column."""
        form = {"q": statement, "db": database, "epoch": "ns"}
        request = urllib.request.Request(f"{self.url}/query", urllib.parse.urlencode(form).encode(), self._headers())
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                result = json.load(answer)["results"][0]
        except urllib.error.HTTPError as error:
            raise TestbedError(f"{statement}: {error.read().decode()}") from error
        if "error" in result:
            raise TestbedError(f"{statement}: {result['error']}")
        return [
            {**series.get("tags", {}), **dict(zip(series["columns"], row, strict=True))}
            for series in result.get("series", ())
            for row in series["values"]
        ]


def debian() -> Path:
    """Debian's own program."""
    found = shutil.which("influxd")
    if found is None:
        raise TestbedError("influxd is not there; run: make kube")
    return Path(found)


def with_tokens() -> Path:
    """The version that takes tokens."""
    return binaries.find("influxd")
