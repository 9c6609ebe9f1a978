"""The reflector on a real API server: watch events a second, and the memory that large stores hold.

Pods are created, bound and given a status, as scheduler and kubelet would, and nodes likewise; all of them have the
managedFields of the real server. The watch is then replayed from the version before the first of them, as fast as the
server can send: server and client share this machine, so CPU per event of the client tells more than events a second.
Beside the reflector, on the same stream: the same lines decoded to dictionaries with the standard library.

For memory the pages of the list are taken as the server sends them, and decoded ten times over with other names, each
way in a process of its own: what is held for 5,000 nodes and 20,000 pods, above the interpreter with its imports.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench.results as results
from bench.usage import resident
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.codec import codec_of
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, PODS, Resource
from shoal.kube.store import Change, Store
from shoal.kube.transport import Call
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run

NODE_COUNT = 500
POD_COUNT = 2_000
COPIES = 10
IN_FLIGHT = 32
ROUNDS = 4
NAMESPACE = "bench"
KINDS: dict[str, Resource[Any]] = {"nodes": NODES, "pods": PODS}


@contextmanager
def server() -> Iterator[ApiServer]:
    """A server of the benchmark's own."""
    with Run() as run:
        yield ApiServer(run)


def node(n: int) -> dict[str, Any]:
    labels = {f"nvidia.com/label-{i}": f"value-{i}" for i in range(20)}
    return {
        "metadata": {
            "name": f"node-{n:05}",
            "labels": {
                **labels,
                "kubernetes.io/hostname": f"node-{n:05}",
                "nvidia.com/gpu.product": "NVIDIA-A100-40GB",
            },
            "annotations": {"shoal.dev/gpus": "x" * 900, "node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"podCIDR": f"10.{n // 250}.{n % 250}.0/24"},
    }


def node_status() -> dict[str, Any]:
    amounts = {
        "cpu": "128",
        "memory": "1056270932Ki",
        "pods": "110",
        "nvidia.com/gpu": "8",
        "aliyun.com/gpu-mem": "640",
    }
    types = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    return {
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {"type": kind, "status": "False", "reason": f"Kubelet{kind}", "message": f"kubelet says {kind}"}
                for kind in types
            ],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {
                **dict.fromkeys(("machineID", "systemUUID", "bootID", "operatingSystem", "kubeProxyVersion"), "x" * 32),
                **dict.fromkeys(("kernelVersion", "osImage", "containerRuntimeVersion"), "x" * 20),
                **dict.fromkeys(("kubeletVersion", "architecture"), "v1.36.3"),
            },
            "images": [{"names": [f"registry.example/team/image-{i}:1.{i}"], "sizeBytes": 10**8} for i in range(20)],
        }
    }


def pod(n: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/team/train:1.2.3",
        "args": ["--epochs", "10", "--data", "/data/set", "--out", "/data/out"],
        "env": [{"name": f"SETTING_{i}", "value": f"value {i}"} for i in range(15)],
        "resources": {"limits": {"aliyun.com/gpu-mem": "8", "cpu": "4", "memory": "16Gi"}},
        "volumeMounts": [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in range(3)],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
    }
    return {
        "metadata": {
            "name": f"pod-{n:05}",
            "labels": {"app": "train", "job-name": f"train-{n // 10}", "team": "research"},
            "annotations": {"team.example/owner": "somebody@team.example", "team.example/note": "x" * 60},
        },
        "spec": {
            "schedulerName": "none",
            "containers": [container],
            "volumes": [{"name": f"v{i}", "emptyDir": {}} for i in range(3)],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    }


def pod_status() -> dict[str, Any]:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    moment = "2026-01-01T00:00:00Z"
    return {
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": moment} for kind in kinds],
            "podIP": "10.1.2.3",
            "hostIP": "10.0.0.1",
            "startTime": moment,
            "containerStatuses": [
                {
                    "name": "main",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "image": "registry.example/team/train:1.2.3",
                    "imageID": "sha256:" + "0" * 64,
                    "containerID": "containerd://" + "0" * 64,
                    "state": {"running": {"startedAt": moment}},
                }
            ],
        }
    }


async def make_all(client: Client) -> float:
    """All nodes and pods; pods created a second."""

    async def one_node(n: int) -> None:
        made = await client.create(NODES, node(n))
        await client.patch(NODES, made.metadata.name, node_status(), kind="strategic", subresource="status")

    async def one_pod(n: int) -> None:
        made = await client.create(PODS, pod(n), namespace=NAMESPACE)
        await client.bind(made, f"node-{n % NODE_COUNT:05}", annotations={"shoal.dev/allocation": "x" * 280})
        name = made.metadata.name
        await client.patch(PODS, name, pod_status(), namespace=NAMESPACE, kind="strategic", subresource="status")

    await each(range(NODE_COUNT), one_node)
    started = time.perf_counter()
    await each(range(POD_COUNT), one_pod)
    return POD_COUNT / (time.perf_counter() - started)


async def each(numbers: Iterable[int], do: Callable[[int], Awaitable[None]]) -> None:
    todo = iter(numbers)

    async def work() -> None:
        for n in todo:
            await do(n)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def through_reflector(client: Client, version: str, count: int) -> tuple[float, float]:
    """Wall and CPU seconds for so many events through a reflector with one consumer."""
    done = asyncio.Event()
    seen = 0

    def note(change: Change[Any]) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    reflector = Reflector(client, PODS, namespace=NAMESPACE, consumers=[note])
    reflector.resource_version = version  # resume there: every event since is sent
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    async with reflector:
        await done.wait()
        took = time.perf_counter() - wall, time.process_time() - cpu
    assert len(reflector.store) == POD_COUNT
    assert reflector.counters.lists == 0
    return took


async def through_json(client: Client, version: str, count: int) -> tuple[float, float]:
    """The same stream, each line decoded to dictionaries and kept by name."""
    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "300"}
    call = Call("GET", PODS.path(namespace=NAMESPACE), query)
    kept: dict[str, Any] = {}
    rest = b""
    seen = 0
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    async with client._transport.stream(call, silence=60) as pieces:
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                event = json.loads(line)
                kept[event["object"]["metadata"]["name"]] = event["object"]
                seen += 1
            if seen >= count:
                break
    assert len(kept) == POD_COUNT
    return time.perf_counter() - wall, time.process_time() - cpu


def hold(how: str, folder: Path) -> None:
    """Decode the saved pages ten times over and hold them; print MB and seconds. Runs in a process of its own."""
    stores: dict[str, Store[Any]] = {name: Store() for name in KINDS}
    dicts: dict[str, Any] = {}
    for name, kind in KINDS.items():
        codec_of(kind.type).page(b'{"items":[]}', asked=name)
    gc.collect()
    before, started = resident(), time.perf_counter()
    for name, kind in KINDS.items():
        stem = name.removesuffix("s").encode()
        items: list[Any] = []
        for copy in range(COPIES):
            for path in sorted(folder.glob(f"{name}-*")):
                content = path.read_bytes().replace(b'"name":"%s-' % stem, b'"name":"%s%d' % (stem, copy))
                if how == "slim":
                    items += codec_of(kind.type).page(content, asked=name).items or ()
                else:
                    for item in json.loads(content)["items"]:
                        dicts[f"{name}/{item['metadata']['name']}"] = item
        for _ in stores[name].replace(items):
            pass
        del items
    took = time.perf_counter() - started
    gc.collect()
    count = sum(map(len, stores.values())) + len(dicts)
    sys.stdout.write(json.dumps({"mb": resident() - before, "seconds": took, "objects": count}))


def held(how: str, folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_watch", "--hold", how, str(folder)],
        capture_output=True,
        check=True,
        text=True,
    )
    got: dict[str, float] = json.loads(done.stdout)
    assert got["objects"] == COPIES * (NODE_COUNT + POD_COUNT)
    return got


async def save_pages(client: Client, folder: Path) -> dict[str, float]:
    """The lists as the server sends them, one file a page; the mean size of an object of each kind."""
    sizes = {}
    for name, kind in KINDS.items():
        total, count, continue_, number = 0, 0, "", 0
        while number == 0 or continue_:
            query = {"limit": "500", **({"continue": continue_} if continue_ else {})}
            content = await client.request("GET", kind.path(), query=query)
            (folder / f"{name}-{number:03}").write_bytes(content)
            page = codec_of(kind.type).page(content, asked=name)
            total, count, number = total + len(content), count + len(page.items or ()), number + 1
            continue_ = page.metadata.continue_
        sizes[name] = total / count
    return sizes


async def measure(api: ApiServer, folder: Path) -> list[results.Row]:
    api.create_namespace(NAMESPACE)
    async with Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client:
        version = (await client.list(PODS, namespace=NAMESPACE)).resource_version
        made = await make_all(client)
        count = 3 * POD_COUNT
        slim, plain = [], []
        for _ in range(ROUNDS):
            slim.append(await through_reflector(client, version, count))
            plain.append(await through_json(client, version, count))
        sizes = await save_pages(client, folder)
    wall, cpu = (min(times) for times in zip(*slim, strict=True))
    json_wall, json_cpu = (min(times) for times in zip(*plain, strict=True))
    return [
        results.Row("pods created, bound and given a status", made, "1/s"),
        results.Row("pod in JSON", sizes["pods"] / 1e3, "kB"),
        results.Row("node in JSON", sizes["nodes"] / 1e3, "kB"),
        results.Row("reflector: events", count / wall, "1/s"),
        results.Row("reflector: CPU per event", cpu / count * 1e6, "µs"),
        results.Row("json to dicts: events", count / json_wall, "1/s"),
        results.Row("json to dicts: CPU per event", json_cpu / count * 1e6, "µs"),
        results.Row("CPU per event, json / reflector", json_cpu / cpu, "×"),
    ]


def main() -> None:
    if sys.argv[1:2] == ["--hold"]:
        hold(sys.argv[2], Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as folder:
        with server() as api:
            rows = asyncio.run(measure(api, Path(folder)))
        slim, plain = held("slim", Path(folder)), held("json", Path(folder))
    objects = f"{COPIES * NODE_COUNT:,} nodes and {COPIES * POD_COUNT:,} pods"
    rows += [
        results.Row(f"stores of {objects}: memory", slim["mb"], "MB"),
        results.Row(f"stores of {objects}: decoded and filled in", slim["seconds"], "s"),
        results.Row("the same as dicts: memory", plain["mb"], "MB"),
        results.Row("the same as dicts: decoded", plain["seconds"], "s"),
        results.Row("memory, dicts / stores", plain["mb"] / slim["mb"], "×"),
    ]
    results.report("watch", rows)


if __name__ == "__main__":
    main()
