"""The dashboard of `shoal up`: its link signs in, and it shows what commands print, with real agents and collectors."""

import http.cookiejar
import json
import re
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from shoal.cli.main import main
from tests.cli.inspect.test_embedded_cluster import create, statuses
from tests.cli.shoal_up import running
from tests.suites.connection import Connection
from tests.testbed.waiting import wait_for


def test_the_link_of_shoal_up_shows_the_cluster() -> None:
    with running("--nodes", "2", "--gpus", "2xT4", "--memory-unit", "MiB") as (_, said):
        kubeconfig = re.findall(r"KUBECONFIG=(\S+)", said)[0]
        link = re.findall(r"Dashboard: (\S+)", said)[0]
        api = Connection(Path(kubeconfig))
        create(api, "small", {"aliyun.com/gpu-mem": "3000"}, does="memory=2Gi utilisation=30")
        create(api, "big", *[{"aliyun.com/gpu-mem": "15000"}] * 3)
        wait_for(lambda: any(status.get("phase") == "Running" for status in statuses(api)), "running")
        get = signed_in(link)
        wait_for(lambda: get("/overview")["memory"]["usedMiB"] is not None, "measured")
        wait_for(lambda: [pod["usedMiB"] for pod in get("/pods?state=running")["items"]] == [2048], "what a pod uses")

        def printed(*arguments: str) -> Any:
            result = CliRunner().invoke(main, [*arguments, "-o", "json", "--kubeconfig", kubeconfig])
            assert result.exit_code == 0, result.output
            return json.loads(result.stdout)

        assert get("/inspect") == printed("inspect")
        why, told = printed("why", "big"), get("/pods/default/big/why?details=1000000")
        for answer in (why, told):
            answer.pop("events", None)
            answer.pop("liveLoad", None)
        assert told == why
        (pod,) = get("/pods?state=running")["items"]
        uuid = pod["cards"][0]["uuid"]

        def past(of: str, name: str) -> list[float | None]:
            lines = get(f"/history?of={of}&name={name}&series=used&last=300&step=5")["lines"]
            return [value for line in lines if line["card"] == uuid for value in line["values"]]

        for of, name in (("card", uuid), ("node", pod["node"]), ("pod", "default/small")):
            # A card's own use has the driver's memory in it too.
            wait_for(partial(_reaches, partial(past, of, name), 2048), of)
        assert any(event["name"] == "small" for event in get("/events?kind=Pod")["items"])
        causes = {one["cause"]: one["cards"] for one in get("/waste")["idle"]}
        assert causes["free"] == 3


def _reaches(past: Callable[[], list[float | None]], amount: int) -> bool:
    return any(value is not None and value >= amount for value in past())


def signed_in(link: str) -> Callable[[str], Any]:
    """Asks the API with the cookie that a link gives."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    with opener.open(link, timeout=120) as answer:
        assert answer.status == 200
    base = link.partition("/sign-in")[0]

    def get(path: str) -> Any:
        deadline = time.monotonic() + 120
        while True:
            try:
                with opener.open(f"{base}/api/v1{path}", timeout=120) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise AssertionError((path, error.code, error.read())) from None
            time.sleep(0.5)

    return get
