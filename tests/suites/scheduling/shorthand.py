"""Short forms of nodes and pods, as scenarios write them, and the objects they stand for.

A node: `gpus` (a number of cards of 16 GiB, or a list of sizes in GiB or of cards as `{memory: 24, index: 3, model: …,
healthy: false, clients: 0}`), `labels`, `taints`, `cordoned`, `cpu`, and `capacity` for a node on which another device
plugin runs: what it counts, and no inventory.

A pod: what its container asks for (`mem`, `core`, `mps`, `gpu`, `cpu`), or `containers`, `init` and `sidecars` that do;
`namespace`, `labels`, `annotations`, `finalizers`; `spec` for all else.
"""

from typing import Any

from shoal.model.gpu import Gpu
from tests.testbed.fake_nodes import node as plain_node

Object = dict[str, Any]

RESOURCES = {
    "mem": "aliyun.com/gpu-mem",
    "core": "aliyun.com/gpu-core.percentage",
    "mps": "keti.com/mpsgpu",
    "gpu": "nvidia.com/gpu",
    "cpu": "cpu",
}
_NODE = {"gpus", "labels", "annotations", "taints", "cordoned", "cpu", "capacity"}
_POD = {*RESOURCES, "containers", "init", "sidecars", "namespace", "labels", "annotations", "finalizers", "spec"}
CARD_GIB = 16


def node(name: str, short: Object, *, mib: bool) -> Object:
    """The node object. With `mib`, GPU memory is counted in MiB."""
    _check(short, _NODE)
    gpus = cards(name, short.get("gpus", 0))
    made = plain_node(name, gpus)
    made["metadata"]["labels"] |= short.get("labels", {})
    made["metadata"]["annotations"] |= short.get("annotations", {})
    status = made["status"]
    capacity = {**status["capacity"], **({"cpu": str(short["cpu"])} if "cpu" in short else {})}
    if mib and gpus:
        capacity[RESOURCES["mem"]] = str(sum(gpu.memory_mib for gpu in gpus))
    if "capacity" in short:
        capacity |= {resource: str(amount) for resource, amount in short["capacity"].items()}
    status["capacity"] = status["allocatable"] = capacity
    made["spec"] = {"unschedulable": short.get("cordoned", False), "taints": short.get("taints", [])}
    return made


def cards(node: str, gpus: Any) -> list[Gpu]:
    """The cards of a node; the UUID of card 1 of node x is GPU-x-1."""
    listed = [CARD_GIB] * gpus if isinstance(gpus, int) else gpus
    made = []
    for place, one in enumerate(listed):
        card: dict[str, Any] = {"memory": one} if isinstance(one, int) else one
        index = card.get("index", place)
        healthy = card.get("healthy", True)
        made.append(
            Gpu(
                uuid=f"GPU-{node}-{index}",
                index=index,
                memory_mib=card.get("memory", CARD_GIB) * 1024,
                model=card.get("model", "Testbed T16"),
                healthy=healthy,
                fault="" if healthy else "Xid 79: the card has fallen off the bus",
                mps_clients=card.get("clients", 10),
            )
        )
    return made


def counted(node: str, short: Object) -> list[Gpu]:
    """The cards of a node that only counts memory, in GiB; that of card 1 of node x goes by the name shoal-x-1."""
    capacity = short.get("capacity", {})
    count = capacity.get("aliyun.com/gpu-count", 0)
    return [Gpu(f"shoal-{node}-{index}", index, capacity[RESOURCES["mem"]] // count * 1024) for index in range(count)]


def pod(name: str, short: Object) -> Object:
    """The pod object."""
    _check(short, _POD)
    own = {key: short[key] for key in RESOURCES if key in short}
    containers = [_container("main", own)] if "containers" not in short else _containers("main", short["containers"])
    always = {"restartPolicy": "Always"}
    sidecars = [{**container, **always} for container in _containers("sidecar", short.get("sidecars", []))]
    spec = {
        "containers": containers,
        "initContainers": [*sidecars, *_containers("init", short.get("init", []))],
        "terminationGracePeriodSeconds": 1,
        **short.get("spec", {}),
    }
    metadata = {key: short[key] for key in ("namespace", "labels", "annotations", "finalizers") if key in short}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def _containers(prefix: str, listed: list[Object]) -> list[Object]:
    return [_container(f"{prefix}-{number}", one) for number, one in enumerate(listed)]


def _container(name: str, asked: Object) -> Object:
    limits = {RESOURCES[key]: str(amount) for key, amount in asked.items()}
    return {"name": name, "image": "none", "resources": {"limits": limits}}


def _check(short: Object, known: set[str]) -> None:
    if unknown := short.keys() - known:
        raise ValueError(f"{sorted(unknown)} is not known here: {short}")
