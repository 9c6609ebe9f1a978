"""Plays the kubelets of fake nodes of an API server: `python -m tests.testbed.fake_kubelet KUBECONFIG [KEEPER]`.

Two of them on one server must not look after the same nodes: each has those whose label names it as their keeper.

It renews their leases, turns pods bound to them Running, ends those that say how long they run, and removes deleted
ones. No container runs. All it knows it reads from the API server, so it may be killed and started again. What the
server fails to take it sends again, as kubelets do.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.errors import ApiError, KubeError, NotFoundError
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.reflector import Reflector
from shoal.kube.resources import LEASES, NODES, PODS
from shoal.kube.store import Change
from tests.testbed.control_plane import NODE_GRACE_SECONDS

log = logging.getLogger(__name__)

#: On nodes: which process looks after them.
LABEL = "testbed.shoal.dev/fake"
KEEPER = "anyone"
#: On pods: seconds until they end, and how; without it a pod runs until it is deleted.
RUNS_FOR = "testbed.shoal.dev/runs-for"
EXIT_CODE = "testbed.shoal.dev/exit-code"

LEASE_NAMESPACE = "kube-node-lease"
NODE_INFO = {
    "architecture": "amd64",
    "bootID": "",
    "containerRuntimeVersion": "none://0",
    "kernelVersion": "none",
    "kubeProxyVersion": "",
    "kubeletVersion": "none",
    "machineID": "",
    "operatingSystem": "linux",
    "osImage": "none",
    "systemUUID": "",
}
IN_FLIGHT = 16


def now() -> str:
    """The present as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ready_condition() -> dict[str, str]:
    """What makes a node schedulable."""
    return {"type": "Ready", "status": "True", "reason": "FakeKubelet", "lastHeartbeatTime": now()}


class FakeKubelet:
    """The nodes it looks after and the pods on them."""

    def __init__(self, client: Client, keeper: str) -> None:
        self._client = client
        self._nodes = Reflector(client, NODES, labels=f"{LABEL}={keeper}", consumers=[self._node_changed])
        self._pods = Reflector(client, PODS, fields="spec.nodeName!=", consumers=[self._pod_changed])
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        #: The last step taken for a pod, by UID: events that tell of the steps before must not repeat them.
        self._steps: dict[str, str] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            await self._nodes.synced.wait()
            group.create_task(self._pods.run())
            group.create_task(self._heartbeats())

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(NODE_GRACE_SECONDS / 3)
            for node in self._nodes.store:
                self._start_node(node.metadata.name)

    def _start(self, work: Callable[[], Awaitable[None]], wanted: Callable[[], bool]) -> None:
        """Do it soon, and again for as long as it fails and is wanted; what is gone needs no doing."""

        async def insist() -> None:
            while wanted():
                try:
                    async with self._room:
                        await work()
                    return
                except NotFoundError:
                    return
                except KubeError as error:
                    log.exception("refused")
                    if isinstance(error, ApiError) and error.status < 500 and error.status not in (409, 429):
                        return  # it is wrong, and would be the next time
                    await asyncio.sleep(1)

        task = asyncio.get_running_loop().create_task(insist())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_pod(self, pod: Pod, work: Callable[[], Awaitable[None]]) -> None:
        meta = pod.metadata

        def there() -> bool:
            held = self._pods.store.get(meta.name, meta.namespace)
            return held is not None and held.metadata.uid == meta.uid

        self._start(work, there)

    def _start_node(self, name: str) -> None:
        self._start(lambda: self._renew(name), lambda: ("", name) in self._nodes.store)

    def _node_changed(self, change: Change[Node]) -> None:
        if change.old is None and change.new is not None:
            self._start_node(change.new.metadata.name)
            for pod in self._pods.store:
                if pod.spec.node_name == change.new.metadata.name:
                    self._take_step(pod)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.new is None:
            self._steps.pop(change.object.metadata.uid, None)
        elif ("", change.new.spec.node_name) in self._nodes.store:
            self._take_step(change.new)

    def _take_step(self, pod: Pod) -> None:
        meta, phase = pod.metadata, pod.status.phase
        last = self._steps.get(meta.uid)
        if meta.deletion_timestamp and last != "remove":
            self._steps[meta.uid] = "remove"
            self._start_pod(pod, lambda: self._remove(pod))
        elif phase == "Pending" and last is None:
            self._steps[meta.uid] = "start"
            self._start_pod(pod, lambda: self._play(pod, "Running"))
        elif phase == "Running" and RUNS_FOR in meta.annotations and last in (None, "start"):
            self._steps[meta.uid] = "end"
            since = datetime.fromisoformat(pod.status.start_time or now())
            due = float(meta.annotations[RUNS_FOR]) - (datetime.now(UTC) - since).total_seconds()
            phase = "Succeeded" if meta.annotations.get(EXIT_CODE, "0") == "0" else "Failed"
            asyncio.get_running_loop().call_later(
                max(due, 0), lambda: self._start_pod(pod, lambda: self._play(pod, phase))
            )

    async def _renew(self, node: str) -> None:
        spec = {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        lease = {"metadata": {"name": node, "namespace": LEASE_NAMESPACE}, "spec": spec}
        await self._client.apply(LEASES, lease, force=True)

    async def _play(self, pod: Pod, phase: str) -> None:
        meta = pod.metadata
        status = status_of(pod, phase)
        patch = {"metadata": {"uid": meta.uid}, "status": status}  # the uid keeps it from a namesake
        await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace, subresource="status")

    async def _remove(self, pod: Pod) -> None:
        meta = pod.metadata
        if pod.status.phase == "Running":  # a kubelet tells that all containers have ended before the pod goes
            ended = {"containerStatuses": status_of(pod, "Succeeded")["containerStatuses"]}
            patch = {"metadata": {"uid": meta.uid}, "status": ended}
            await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace, subresource="status")
        await self._client.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_seconds=0)


def status_of(pod: Pod, phase: str) -> dict[str, object]:
    """The status a kubelet would write for a pod in that phase."""
    running = phase == "Running"
    code = int(pod.metadata.annotations.get(EXIT_CODE, "0"))
    moment = now()
    state: dict[str, object] = {"running": {"startedAt": moment}}
    if not running:
        state = {"terminated": {"exitCode": code, "startedAt": moment, "finishedAt": moment}}
    ready = "True" if running else "False"
    return {
        "phase": phase,
        "startTime": pod.status.start_time or moment,
        "conditions": [
            {
                "type": kind,
                "status": "True" if kind in ("PodScheduled", "Initialized") else ready,
                "lastTransitionTime": moment,
            }
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": container.name,
                "image": "none",
                "imageID": "none",
                "ready": running,
                "started": running,
                "restartCount": 0,
                "state": state,
            }
            for container in pod.spec.containers
        ],
    }


async def main() -> None:
    """Look after the nodes of the server that the kubeconfig names."""
    access = load_access(environ=os.environ, home=Path.home(), kubeconfig=Path(sys.argv[1]))
    async with Client(access) as client:
        await FakeKubelet(client, sys.argv[2] if len(sys.argv) > 2 else KEEPER).run()


if __name__ == "__main__":
    asyncio.run(main())
