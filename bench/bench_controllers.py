"""The workload controllers of the embedded cluster under a storm: one Deployment of 2,000 pods.

Everything runs in this process: the API's registry, the controllers, and a loop that plays the kubelet. No HTTP.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.controllers.loop import Controllers
from shoal.embedded.kinds import DEPLOYMENTS, PODS

COUNT = 2_000
TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "containers": [{"name": "main", "image": "busybox:1", "resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}]
    },
}


def deployment() -> dict[str, Any]:
    spec = {"replicas": COUNT, "selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE}
    return {"metadata": {"name": "web"}, "spec": spec}


async def measured(what: str, holds: Callable[[], bool]) -> None:
    """The CPU time it takes until something holds, and the longest turn that somebody else had to wait for."""
    start, longest = time.process_time(), 0.0
    while not holds():
        turn = time.process_time()
        await asyncio.sleep(0)
        longest = max(longest, time.process_time() - turn)
    rate = COUNT / (time.process_time() - start)
    print(f"{what:<16} {rate:>8,.0f} pods per second of CPU   longest turn {longest * 1000:>5.0f} ms")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        api = EmbeddedApi(Path(directory))
        registry = api.registry
        changed = 0

        def count(kind: Any, before: Any, after: Any) -> None:
            nonlocal changed
            if kind.key == PODS.key:
                changed += (before is None) - (after is None)

        registry.observers.append(count)
        task = asyncio.create_task(Controllers(registry, api.deletion).run())
        registry.create(DEPLOYMENTS, "default", deployment())
        await measured("created", lambda: changed == COUNT)

        waiting = iter(registry.store.objects(PODS.key))

        def play() -> bool:
            """One more pod becomes ready; whether the Deployment has seen them all."""
            pod = next(waiting, None)
            if pod is None:
                status = registry.get(DEPLOYMENTS, "default", "web")["status"]
                return bool(status.get("availableReplicas") == COUNT)
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": registry.now()}
            new = {**pod, "status": {**pod["status"], "phase": "Running", "conditions": [ready]}}
            registry.update(PODS, "default", pod["metadata"]["name"], new, subresource="status", manager="kubelet")
            return False

        await measured("became ready", play)
        scaled = registry.get(DEPLOYMENTS, "default", "web")
        registry.update(DEPLOYMENTS, "default", "web", {**scaled, "spec": {**scaled["spec"], "replicas": 0}})
        await measured("deleted", lambda: changed == 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
