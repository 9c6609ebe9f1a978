"""Which fields are served: dcgm-exporter's CSV, from a file or a ConfigMap, and what is served without one.

A line is `name, type, help`: three fields, `#` begins a comment. `parse` is pure. `CounterSource` reads the text again
when it changes; one that cannot be used leaves the last good one in force, and the log names the line and the fix.

dcgm-exporter ends on a name that DCGM does not know. Which names those are depends on DCGM's version, so a name of
DCGM's form that Shoal does not read is told and skipped; anything else is a wrong line.
"""

from __future__ import annotations

import asyncio
import csv
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from shoal.kube.client import Client
from shoal.kube.objects.others import ConfigMap
from shoal.kube.reflector import Reflector
from shoal.kube.resources import CONFIG_MAPS
from shoal.kube.store import Change
from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.metrics.exporter.fields import (
    BY_NAME,
    FIELDS,
    LABEL_FIELDS,
    LABELS_BY_NAME,
    DcgmField,
    LabelField,
    MetricKind,
)
from shoal.model.errors import shown

log = logging.getLogger(__name__)

#: As much as a ConfigMap holds.
MAX_BYTES: Final = 1 << 20
#: The keys of a ConfigMap, dcgm-exporter's own and the GPU operator's.
KEYS: Final = ("metrics", "dcgm-metrics.csv")
#: How often a file is read again.
LOOK_SECONDS: Final = 5.0
_MOST_FIELDS: Final = 1000
_LONGEST_HELP: Final = 1000
_COLUMNS: Final = 3
_DCGM_NAME: Final = re.compile(r"DCGM_(FI|EXP)_[A-Z0-9_]{1,100}|dcgm_[a-z0-9_]{1,100}").fullmatch
_KINDS: Final = ", ".join(MetricKind)


@dataclass(frozen=True, slots=True)
class CounterField:
    """A field with the type and the words that the list gives it."""

    field: DcgmField
    kind: MetricKind
    what: str


@dataclass(frozen=True, slots=True)
class CounterList:
    """What is served, in order."""

    counters: tuple[CounterField, ...]
    labels: tuple[LabelField, ...]
    #: Names that were skipped, with their lines.
    skipped: tuple[tuple[int, str], ...] = ()


#: What is served without a list of one's own.
SERVED: Final = CounterList(
    tuple(CounterField(field, field.kind, field.what) for field in FIELDS if field.served),
    tuple(field for field in LABEL_FIELDS if field.served),
)


def parse(text: str) -> CounterList:
    """The fields that a CSV lists. Raises ExporterConfigError, which names the line and the fix."""
    if len(text) > MAX_BYTES:
        raise ExporterConfigError(f"the list of fields is longer than {MAX_BYTES} bytes: list less")
    counters: dict[str, CounterField] = {}
    labels: dict[str, LabelField] = {}
    skipped: list[tuple[int, str]] = []
    for number, record in _records(text):
        name, kind, what = _checked(number, record)
        label = LABELS_BY_NAME.get(name)
        if kind is MetricKind.LABEL and label is not None:
            labels[name] = label
        elif kind is not MetricKind.LABEL and name in BY_NAME:
            counters[name] = CounterField(BY_NAME[name], kind, _words(what))
        else:
            skipped.append((number, name))
        if len(counters) + len(labels) + len(skipped) > _MOST_FIELDS:
            raise ExporterConfigError(f"line {number}: more than {_MOST_FIELDS} fields: list less")
    if not counters and not labels and not skipped:
        raise ExporterConfigError("the list names no field: write lines such as DCGM_FI_DEV_GPU_TEMP, gauge, words")
    return CounterList(tuple(counters.values()), tuple(labels.values()), tuple(skipped))


def _records(text: str) -> Iterator[tuple[int, list[str]]]:
    """The records with the lines they begin at."""
    begins = 1
    # A comment keeps its line as an empty one, so that numbers stay those of the file.
    lines = ("\n" if line.startswith("#") else f"{line}\n" for line in text.split("\n"))
    reader = csv.reader(lines, strict=True)
    while True:
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ExporterConfigError(
                f"line {begins} is no CSV ({error}): write name, type, help, with quotes around all of a help text "
                "that has commas"
            ) from error
        if record:
            yield begins, [part.strip(" ") for part in record]
        begins = reader.line_num + 1


def _checked(number: int, record: list[str]) -> tuple[str, MetricKind, str]:
    if len(record) != _COLUMNS:
        raise ExporterConfigError(
            f"line {number} has {len(record)} fields, not {_COLUMNS}: write name, type, help, with quotes around a "
            "help text that has commas"
        )
    name, kind, what = record
    if not _DCGM_NAME(name):
        raise ExporterConfigError(f"line {number}: {shown(name)} is no field of DCGM: write one, or # before the line")
    try:
        return name, MetricKind(kind), what
    except ValueError:
        raise ExporterConfigError(f"line {number}: {shown(kind)} is no type of {name}: write one of {_KINDS}") from None


def _words(what: str) -> str:
    """A help text in one line without control characters."""
    return "".join(each if each.isprintable() else " " for each in what[:_LONGEST_HELP])


class CounterSource(Protocol):
    """Where the list of fields comes from."""

    #: The list in force; another object when it changes.
    current: CounterList
    #: Why the last text could not be used; empty when it could.
    refused: str

    async def run(self) -> None:
        """Keep the list as new as its source, until cancelled."""
        ...


class FixedCounters:
    """What is served without a list of one's own."""

    def __init__(self) -> None:
        self.current = SERVED
        self.refused = ""

    async def run(self) -> None:
        """Nothing changes."""
        await asyncio.Event().wait()


class _Taken:
    """Takes texts as they come, and keeps the last good one."""

    def __init__(self, where: str) -> None:
        self.current = SERVED
        self.refused = ""
        self._where = where
        self._text: str | None = None

    def take(self, text: str) -> None:
        """Use another text, if it can be used."""
        if text == self._text:
            return
        self._text = text
        try:
            current = parse(text)
        except ExporterConfigError as error:
            self.refuse(str(error))
            return
        self.refused = ""
        self.current = current
        log.info("%s lists %d fields", self._where, len(current.counters))
        if current.skipped:
            names = ", ".join(f"{name} (line {number})" for number, name in current.skipped[:20])
            log.warning("%s names fields that are not read here, and are skipped: %s", self._where, names)

    def refuse(self, why: str) -> None:
        """Keep what is in force, and say so once."""
        if why != self.refused:
            log.warning("%s cannot be used, and the fields stay as they are: %s", self._where, why)
        self.refused = why


class CounterFile(_Taken):
    """The list in a file, which is read again from time to time."""

    def __init__(self, path: Path, *, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__(str(path))
        self._path = path
        self._look_seconds = look_seconds
        self.look()

    def look(self) -> None:
        """Read the file."""
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES + 1).decode(errors="replace")
        except OSError as error:
            self._text = None
            self.refuse(f"{error.strerror}: give a file in dcgm-exporter's CSV format")
            return
        self.take(text)

    async def run(self) -> None:
        """Read the file again and again."""
        while True:
            await asyncio.sleep(self._look_seconds)
            self.look()


class CounterConfigMap(_Taken):
    """The list in a ConfigMap, by a watch."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        super().__init__(f"ConfigMap {namespace}/{name}")
        self.reflector: Reflector[ConfigMap] = Reflector(
            client,
            CONFIG_MAPS,
            consumers=[self._changed],
            namespace=namespace,
            fields=f"metadata.name={name}",
        )

    async def run(self) -> None:
        """Follow the ConfigMap."""
        async with self.reflector:
            await self.reflector.wait_synced()
            if not len(self.reflector.store):
                self.refuse("it is not there: make it, with the list under the key metrics")
            await asyncio.Event().wait()

    def _changed(self, change: Change[ConfigMap]) -> None:
        if change.new is None:
            self._text = None
            self.refuse("it was deleted: make it again, with the list under the key metrics")
            return
        text = next((change.new.data[key] for key in KEYS if key in change.new.data), None)
        if text is None:
            self._text = None
            self.refuse(f"it has none of the keys {', '.join(KEYS)}: put the list under one of them")
        else:
            self.take(text)


def counter_source(
    file: str, config_map: str, client: Client | None, *, look_seconds: float = LOOK_SECONDS
) -> CounterSource:
    """The source that the settings name. Raises ExporterConfigError."""
    if config_map:
        if client is None:
            raise ExporterConfigError(f"ConfigMap {config_map} cannot be watched without a cluster: give a file")
        namespace, _, name = config_map.partition(":")
        return CounterConfigMap(client, namespace, name)
    return CounterFile(Path(file), look_seconds=look_seconds) if file else FixedCounters()
