"""Traces: a list of nodes and lists of pods, as CSV files with the columns of the public `openb` traces.

Nodes: `sn, cpu_milli, memory_mib, gpu, model`. Pods: `name, cpu_milli, memory_mib, num_gpu, gpu_milli` and, if there
are any, `gpu_spec` (models a pod accepts, separated by `|`), `creation_time` and `deletion_time` (seconds). Other
columns are ignored. `gpu_milli` is what the pod takes of each of its GPUs: 1000 is the whole card.

Errors name the file, the line and the value.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import ANY_CARD, CardSelector, ContainerRequest, Request, Share, accepts_model
from shoal.simulate.errors import TraceError

#: Thousandths of a GPU in one GPU, and in one hundredth of it, the grain of the ledger.
GPU = 1000
GRAIN = GPU // 100

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")

#: The traces book no GPU memory, so any amount will do for a card.
CARD_MEMORY_MIB = 1000
_POD_LIST = "openb_pod_list_"


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod of the trace. `gpu_milli` is its whole GPU demand; `lifetime` is in seconds, None when not told."""

    name: str
    request: Request
    gpu_milli: int
    lifetime: float | None = None

    @property
    def size_class(self) -> str:
        """`cpu`, `share`, or the number of its GPUs."""
        if not self.request.containers:
            return "cpu"
        container = self.request.containers[0]
        return str(container.gpus) if container.share.exclusive else "share"


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods of one list, sorted by name."""

    name: str
    pods: tuple[TracePod, ...]

    @property
    def cores_per_card(self) -> float:
        """CPU cores that the mean GPU pod wants beside each of its cards."""
        cores = sum(pod.request.cpu_milli for pod in self.pods if pod.gpu_milli)
        return cores / 1000 / sum(c.gpus for pod in self.pods for c in pod.request.containers)


def capacity_milli(nodes: Sequence[NodeGpus]) -> int:
    """All GPUs of the nodes, in thousandths."""
    return GPU * sum(len(node.gpus) for node in nodes)


def read_nodes(path: Path) -> tuple[NodeGpus, ...]:
    """The nodes of a list, in its order."""
    nodes: dict[str, NodeGpus] = {}
    for row in read_rows(path, NODE_COLUMNS):
        node = _node(row)
        if node.name in nodes:
            raise row.wrong("sn", "stands there twice", "give every node a name of its own")
        nodes[node.name] = node
    if not any(node.gpus for node in nodes.values()):
        raise TraceError(f"{path}: no node has a GPU: at least one line needs a gpu of 1 or more")
    return tuple(nodes.values())


def _node(row: Row) -> NodeGpus:
    name, model = row.name("sn"), row.text("model")
    gpus = tuple(Gpu(f"{name}-{i}", i, CARD_MEMORY_MIB, model) for i in range(row.count("gpu")))
    return NodeGpus(name, gpus, row.count("cpu_milli"), row.count("memory_mib"))


def read_workload(path: Path, nodes: Sequence[NodeGpus]) -> Workload:
    """The pods of a list that is to be replayed on these nodes."""
    models = sorted({gpu.model for node in nodes for gpu in node.gpus})
    selectors = {"": ANY_CARD}
    requests: dict[Request, Request] = {}
    pods = []
    for row in read_rows(path, POD_COLUMNS):
        spec = row.text("gpu_spec")
        if spec not in selectors:
            selectors[spec] = _selector(row, models)
        request, gpu_milli = _request(row, selectors[spec])
        pods.append(TracePod(row.name("name"), requests.setdefault(request, request), gpu_milli, _lifetime(row)))
    if not any(pod.gpu_milli for pod in pods):
        raise TraceError(f"{path}: no pod asks for a GPU: at least one line needs a num_gpu of 1 or more")
    return Workload(workload_name(path), tuple(sorted(pods, key=lambda pod: pod.name)))


def workload_name(path: Path) -> str:
    """`openb_pod_list_default.csv` is `default`; any other file goes by its stem."""
    return path.stem.removeprefix(_POD_LIST) or path.stem


def _request(row: Row, selector: CardSelector) -> tuple[Request, int]:
    gpus, milli = row.count("num_gpu"), row.count("gpu_milli")
    _check_share(row, gpus, milli)
    share = Share(exclusive=True) if milli == GPU else Share(compute=milli // GRAIN)
    containers = (ContainerRequest("main", gpus, share),) if gpus else ()
    return Request(containers, row.count("cpu_milli"), row.count("memory_mib"), selector), gpus * milli


def _check_share(row: Row, gpus: int, milli: int) -> None:
    if gpus and not milli:
        raise row.wrong("num_gpu", "comes without gpu_milli", f"write 1 to {GPU} into gpu_milli, {GPU} for whole GPUs")
    if milli and not gpus:
        raise row.wrong("gpu_milli", "comes without num_gpu", "write 1 or more into num_gpu, or 0 into both")
    if milli > GPU:
        raise row.wrong("gpu_milli", f"is more than one GPU ({GPU})", "ask for more GPUs with num_gpu")
    if milli % GRAIN:
        raise row.wrong("gpu_milli", "is no whole percent of a GPU", f"round it to a multiple of {GRAIN}")


def _selector(row: Row, models: Sequence[str]) -> CardSelector:
    selector = CardSelector(models=frozenset(name.strip() for name in row.text("gpu_spec").split("|") if name.strip()))
    if not any(accepts_model(selector, model) for model in models):
        raise row.wrong("gpu_spec", "names no model of the node list", f"use {', '.join(models)}, or leave it empty")
    return selector


def _lifetime(row: Row) -> float | None:
    created, deleted = row.seconds("creation_time"), row.seconds("deletion_time")
    if created is None or deleted is None:
        return None
    if deleted < created:
        raise row.wrong("deletion_time", f"is before creation_time {row.text('creation_time')!r}", "put them in order")
    return deleted - created


class Row:
    """One line of a file. Columns that the file may leave out read as empty."""

    __slots__ = ("_values", "line", "path")

    def __init__(self, path: Path, line: int, values: Mapping[str, str]) -> None:
        self.path = path
        self.line = line
        self._values = values

    def text(self, column: str) -> str:
        return self._values.get(column, "")

    def name(self, column: str) -> str:
        """A text that must be there."""
        value = self.text(column)
        if not value:
            raise self.wrong(column, "is empty", "give every line a name")
        return value

    def count(self, column: str) -> int:
        """A whole number, at least 0."""
        value = self.text(column)
        try:
            number = int(value)
        except ValueError:
            number = self._from_float(column, value)
        if number < 0:
            raise self.wrong(column, "is negative", "write 0 or more")
        return number

    def _from_float(self, column: str, value: str) -> int:
        """Whole numbers that a spreadsheet wrote as `12.0`."""
        try:
            return _exact(float(value))
        except (ValueError, OverflowError):
            raise self.wrong(column, "is not a whole number", "write digits only, such as 12000") from None

    def seconds(self, column: str) -> float | None:
        """A moment or a duration; None when it is left out."""
        value = self.text(column)
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not abs(number) < float("inf"):
            raise self.wrong(column, "is not a number", "write seconds, such as 427061, or leave it empty")
        return number

    def wrong(self, column: str, what: str, fix: str) -> TraceError:
        return TraceError(f"{self.path}, line {self.line}: {column} {self.text(column)!r} {what}: {fix}")


def _exact(value: float) -> int:
    if value != int(value):
        raise ValueError(value)
    return int(value)


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """The rows of a file that has at least the columns `needed`, and at least one row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            yield from _rows(path, lines, needed)
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}): check the path and the permissions") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text: give a CSV file with the columns {_listed(needed)}") from error
    except csv.Error as error:
        raise TraceError(f"{path} is not a CSV file ({error}): give one with the columns {_listed(needed)}") from error


def _rows(path: Path, lines: TextIO, needed: Sequence[str]) -> Iterator[Row]:
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    if not any(header):
        raise TraceError(f"{path} is empty: its first line must name the columns {_listed(needed)}")
    missing = [name for name in needed if name not in header]
    if missing:
        raise TraceError(
            f"{path}, line 1: no column {_listed(missing)}: the first line must name at least {_listed(needed)},"
            f" it names {_listed(header)}"
        )
    empty = True
    for fields in reader:
        if not any(fields):
            continue
        empty = False
        if len(fields) != len(header):
            raise TraceError(
                f"{path}, line {reader.line_num}: {len(fields)} fields, but the first line names"
                f" {len(header)} columns: complete the line"
            )
        yield Row(path, reader.line_num, {name: field.strip() for name, field in zip(header, fields, strict=True)})
    if empty:
        raise TraceError(f"{path} has no lines after the first: add at least one")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
