"""Is a pod as a scenario expects it, and do its annotations agree with each other and with its node?"""

import json
from collections.abc import Iterator
from typing import Any

from tests.suites.scheduling.shorthand import RESOURCES, Object

RECORD = "shoal.dev/allocation"
INDEX, CARD, POD = (f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "DEV", "POD"))
_STATE = ("ALIYUN_COM_GPU_MEM_ASSIGNED", "ALIYUN_COM_GPU_MEM_ASSUME_TIME")


def problem(expected: Any, pod: Object | None, *, words: str) -> str:
    """What is not as expected; empty when nothing is. `words` says whose words a pod that waits is told."""
    if expected == "gone":
        return "" if pod is None else "is still there"
    if pod is None:
        return "is not there"
    where = place(pod)
    if isinstance(expected, dict):
        told = expected["waits"]
        wanted = told[words] if isinstance(told, dict) else told
        if where:
            return f"is on {where}, expected to wait"
        message = condition(pod).get("message", "")
        missing = [text for text in wanted if text not in message]
        return f"is told {message!r}, which lacks {missing}" if missing or not message else ""
    if expected == "waits":
        return f"is on {where}, expected to wait" if where else ""
    accepted = expected if isinstance(expected, list) else [expected]
    if where in accepted or where.split("/")[0] in accepted:
        return ""
    return f"is on {where or 'no node'} ({condition(pod).get('message', '')}), expected {expected}"


def place(pod: Object) -> str:
    """`node` or `node/0,2`; empty while it waits."""
    node = pod["spec"].get("nodeName", "")
    record = pod["metadata"].get("annotations", {}).get(RECORD)
    if not node or record is None:
        return str(node)
    indices = {card["index"] for container in json.loads(record)["containers"] for card in container["cards"]}
    return f"{node}/{','.join(map(str, sorted(indices)))}"


def condition(pod: Object) -> Object:
    """The pod's PodScheduled condition."""
    known: list[Object] = pod["status"].get("conditions", [])
    return next((one for one in known if one["type"] == "PodScheduled"), {})


def disagreements(pod: Object, sizes: dict[str, int], unit_mib: int) -> Iterator[str]:
    """Where a bound pod's annotations contradict its record, its node (`sizes`: MiB by UUID) or its request."""
    annotations = pod["metadata"].get("annotations", {})
    if RECORD not in annotations:
        return
    record = json.loads(annotations[RECORD])
    cards = [card for container in record["containers"] for card in container["cards"]]
    if record["node"] != pod["spec"]["nodeName"]:
        yield f"the record names {record['node']}, the pod is on {pod['spec']['nodeName']}"
    if strangers := [card["uuid"] for card in cards if card["uuid"] not in sizes]:
        yield f"the node has no {strangers}"
        return
    apps = {container["name"] for container in pod["spec"]["containers"]}
    ours = [c for c in record["containers"] if c["name"] in apps and not any(x.get("clients") for x in c["cards"])]
    asked = _asked(pod, "mem")
    if asked:
        yield from _gpushare(annotations, [card for c in ours for card in c["cards"]], asked, sizes, unit_mib)
    clients = list(dict.fromkeys(card["uuid"] for card in cards if card.get("clients")))
    if clients != [uuid for uuid in annotations.get("UUID", "").split(",") if uuid]:
        yield f"UUID is {annotations.get('UUID')!r}, the record has {clients}"


def _gpushare(
    annotations: Object, cards: list[Object], asked: int, sizes: dict[str, int], unit_mib: int
) -> Iterator[str]:
    by_index = {card["index"]: card["uuid"] for card in cards}
    wanted = {
        POD: str(asked),
        CARD: str(max(sizes[uuid] for uuid in by_index.values()) // unit_mib),
        **({INDEX: str(*by_index)} if len(by_index) == 1 else {}),
        _STATE[0]: "false",
    }
    yield from (
        f"{key} is {annotations.get(key)!r}, expected {value!r}"
        for key, value in wanted.items()
        if annotations.get(key) != value
    )
    if not annotations.get(_STATE[1], "").isdigit():
        yield f"{_STATE[1]} is {annotations.get(_STATE[1])!r}, expected nanoseconds"
    table = json.loads(annotations["scheduler.framework.gpushare.allocation"])
    told = sum(amount for by_card in table.values() for amount in by_card.values())
    if told != asked:
        yield f"the allocation table adds up to {told}, the pod asks for {asked}"


def _asked(pod: Object, short: str) -> int:
    return sum(
        int(container["resources"].get("limits", {}).get(RESOURCES[short], 0))
        for container in pod["spec"]["containers"]
    )
