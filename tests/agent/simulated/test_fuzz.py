"""Whatever is said to the agent: it stays up, gives nobody a wrong card, and serves the next good pod.

One agent lives through all of it, since what matters is the sequence; the test's name tells the seed. `SHOAL_FUZZ` asks
for more rounds.
"""

import json
import os
import random
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.request import Share
from tests.agent.lab import CLIENTS, GIB, MEMORY, SAY, WHOLE, memory_pod
from tests.agent.simulated.conftest import NewLab, SimulatedLab
from tests.kubelet.pods import container
from tests.testbed.processes import TestbedError
from tests.testbed.waiting import wait_for

ROUNDS = int(os.environ.get("SHOAL_FUZZ", "0")) or 150
PODS = max(12, ROUNDS // 50)
#: Answers that say what is wrong, and no others, come back for nonsense.
TOLD = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)


def sockets(lab: SimulatedLab) -> list[Path]:
    """Those of the agent's plugins, not kubelet's."""
    folder: Path = lab.node.inner.host.folders.device_plugins
    return sorted(path for path in folder.iterdir() if path.is_socket() and path.name != "kubelet.sock")


def device_ids(rng: random.Random, known: list[str]) -> list[str]:
    odd = ["", "m", "m-1", "mffffffffffffffffff", "../../etc/passwd", "GPU-\x00", "é" * 40, "x" * 4000, "m1 ", "w0::3"]
    return [rng.choice(known) if rng.random() < 0.5 else rng.choice(odd) for _ in range(rng.randrange(6))]


def listed(path: Path) -> list[str]:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        first = next(iter(rpc.DevicePluginStub(channel).ListAndWatch(api.Empty())))
    return [device.ID for device in first.devices]


def call(path: Path, method: str, request: Any) -> grpc.StatusCode:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        try:
            getattr(rpc.DevicePluginStub(channel), method)(request, timeout=60)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def garbage(path: Path, rng: random.Random) -> None:
    """Bytes that are no gRPC."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: rng.randrange(30)] + rng.randbytes(rng.randrange(200)))


def card_files(lab: SimulatedLab) -> list[str]:
    """The cards that the agent's CDI files hand out."""
    texts = [path.read_text() for path in lab.node.cdi.iterdir() if "shoal" in path.name]
    return [gpu.uuid for text in texts for gpu in lab.gpus if gpu.uuid in text]


def nonsense(rng: random.Random, known: Mapping[Path, list[str]]) -> Callable[[], tuple[str, object] | None]:
    """Something to send to a plugin; gives the method and the answer's code if it is a call."""
    path = rng.choice(list(known))
    ids = device_ids(rng, known[path])
    method = rng.choice(["Allocate", "PreStartContainer", "GetPreferredAllocation", "garbage"])
    if method == "garbage":
        return partial(garbage, path, random.Random(rng.random()))
    request: Any = api.PreStartContainerRequest(devices_ids=ids)
    if method == "Allocate":
        containers = [api.ContainerAllocateRequest(devices_ids=ids) for _ in range(rng.randrange(3))]
        request = api.AllocateRequest(container_requests=containers)
    elif method == "GetPreferredAllocation":
        one = api.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=rng.randrange(-5, 9))
        request = api.PreferredAllocationRequest(container_requests=[one])
    return lambda: (method, call(path, method, request))


@pytest.mark.parametrize("seed", range(2))
def test_nonsense_over_grpc_gives_no_card(new_lab: NewLab, seed: int) -> None:
    rng = random.Random(seed)
    lab = new_lab("2xT4", resources=[MEMORY, CLIENTS, WHOLE])
    known = {path: listed(path) for path in sockets(lab)}
    assert len(known) == 3
    with ThreadPoolExecutor(8) as several:  # an unknown PreStartContainer waits a second for kubelet's record
        answers = list(several.map(lambda ask: ask(), [nonsense(rng, known) for _ in range(ROUNDS)]))
    for method, code in filter(None, answers):
        expected = (grpc.StatusCode.UNIMPLEMENTED,) if method == "GetPreferredAllocation" else TOLD
        assert code in (grpc.StatusCode.OK, *expected), (method, code)
    assert card_files(lab) == [], "kubelet has no pod, so nobody has a card"
    serves(lab)


ANNOTATIONS = (
    shoal.ANNOTATION_ALLOCATION,
    gpushare.NAME_INDEX,
    gpushare.NAME_CARD,
    gpushare.NAME_POD,
    gpushare.ANNOTATION_ASSIGNED,
    gpushare.ANNOTATION_ASSUME_TIME,
    gpushare.ANNOTATION_ALLOCATION,
    keti.ANNOTATION_UUID,
)


def annotations(rng: random.Random, lab: SimulatedLab, name: str, units: int) -> dict[str, str]:
    """A good decision with holes and lies in it."""
    good = lab.annotations(memory_pod(name, units), lab.allocation({"main": [0]}, {"main": Share(units * GIB)}))
    for _ in range(rng.randrange(1, 4)):
        key = rng.choice(ANNOTATIONS)
        match rng.randrange(5):
            case 0:
                good.pop(key, None)
            case 1:
                good[key] = rng.choice(["", "-1", "7", "true", "{", "[]", "null", "9" * 400, "\u2603", "GPU-none"])
            case 2:
                good[key] = good.get(key, "x")[: rng.randrange(20)]
            case 3:
                good[key] = json.dumps({"version": rng.choice([0, 1, 2**70]), "node": rng.choice(["", lab.node.name])})
            case 4:
                good[key] = good.get(key, "").replace("0", str(rng.randrange(10)))
    return good


@pytest.mark.parametrize("seed", [1])
def test_mutated_decisions_give_the_named_card_or_none(new_lab: NewLab, seed: int) -> None:
    rng = random.Random(seed)
    lab = new_lab("2xT4", resources=[MEMORY, CLIENTS, WHOLE], withoutAllocation="refuse")
    uuids = {gpu.uuid for gpu in lab.gpus}
    started = 0
    for number in range(PODS):
        name = f"pod-{number}"
        units = rng.choice([1, 3, 15])
        asked = {MEMORY: units} if rng.random() < 0.8 else rng.choice([{MEMORY: 2}, {CLIENTS: 1}, {WHOLE: 1}])
        spec = {"containers": [container("main", SAY, asked)], "restartPolicy": "Never"}
        try:
            lab.bind({"metadata": {"name": name}, "spec": spec}, annotations(rng, lab, name, units))
        except TestbedError:
            continue  # the API server itself does not take such an annotation
        wait_for(lambda name=name: _judged(lab, name), f"{name}: started or refused")  # type: ignore[misc]
        if lab.pods.get(name)["status"]["phase"] in ("Running", "Succeeded"):
            seen = set(lab.env(name).get(nvidia.ENV_VISIBLE_DEVICES, "").split(",")) - {""}
            told = json.dumps(lab.pods.get(name)["metadata"]["annotations"])
            assert seen <= uuids
            assert all(uuid in told for uuid in seen), (seen, told)
            started += 1
        lab.pods.delete(name)
    assert 0 < started < PODS, "of both kinds there were some"
    serves(lab)


def _judged(lab: SimulatedLab, name: str) -> bool:
    if lab.pods.get(name)["status"]["phase"] != "Pending":
        return True
    return any(event["reason"] == "GpuRefused" for event in lab.pods.events(name))


def serves(lab: SimulatedLab) -> None:
    """The agent is up and gives a good pod its card, all of it."""
    assert lab.asked("healthz")[0] == 200
    lab.place(memory_pod("good", 15), lab.allocation({"main": [1]}, {"main": Share(15 * GIB)}))
    lab.pods.wait_running("good")
    assert lab.visible("good") == [1]
