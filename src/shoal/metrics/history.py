"""The past without any server: what was measured, in files of one folder, for a day raw and for a week by minutes.

A file (a *segment*) is an hour of samples, or a day of minutes, and stands by itself: it names its series, then holds
samples of `(series, value)`. Every record has its length and its CRC. Whatever happens to the process, each record that
was written whole is read again; a file is read up to its damage, and the next one from its start. The number of files
and their bytes are bounded, not their dates: a clock that jumps takes no history away.
"""

from __future__ import annotations

import contextlib
import logging
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from shoal.model.contract.node_files import HISTORY_LEVELS, HISTORY_SUFFIX

log = logging.getLogger(__name__)

_MAGIC: Final = b"shoal-history-1\n"
_HEAD: Final = struct.Struct("<IIB")
_TIME: Final = struct.Struct("<d")
_POINT: Final = struct.Struct("<Hf")
_SERIES: Final = 1
_SAMPLE: Final = 2
#: No record is longer: what claims to be is damage.
_MOST_BYTES: Final = 1 << 20
#: Series of one segment; a node with more begins a new one more often.
_MOST_SERIES: Final = 1 << 16
#: Series and points of one record, far below its bound.
_NAMES: Final = 500
_POINTS: Final = 50_000
#: Enough of a file for its first sample, unless the node has very many series.
_BEGINNING: Final = 1 << 18


class Series(NamedTuple):
    """What is measured: of a card, of a container's part of it, or of the node (no card)."""

    name: str
    card: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


class Point(NamedTuple):
    """A value at a time, in seconds since 1970."""

    time: float
    value: float


@dataclass(frozen=True, slots=True)
class HistoryLevel:
    """How finely and how long: a segment begins after `records` samples or `seconds` of them; `segments` are kept."""

    name: str
    records: int
    seconds: float
    segments: int
    bytes: int


RAW: Final = HistoryLevel(HISTORY_LEVELS[0], records=1440, seconds=3600, segments=25, bytes=192 << 20)
MINUTES: Final = HistoryLevel(HISTORY_LEVELS[1], records=1440, seconds=86400, segments=8, bytes=64 << 20)
_MINUTE: Final = 60.0

_encode = msgspec.msgpack.Encoder().encode
_names: Final = msgspec.msgpack.Decoder(list[Series])


class HistoryWriter:
    """Writes what is measured. One writer per folder; readers need none of it."""

    def __init__(self, folder: Path, *, raw: HistoryLevel = RAW, minutes: HistoryLevel = MINUTES) -> None:
        self._raw = _LevelWriter(folder, raw)
        self._minutes = _LevelWriter(folder, minutes)
        self._sums: dict[Series, tuple[float, int]] = {}
        self._minute: float | None = None

    def write(self, time: float, values: Mapping[Series, float]) -> None:
        """Keep a sample. Raises OSError when the disk takes nothing: then this sample is lost, and no other."""
        minute = time // _MINUTE * _MINUTE
        if self._minute is not None and minute != self._minute:
            means = {series: total / count for series, (total, count) in self._sums.items()}
            written, self._minute, self._sums = self._minute, minute, {}
            self._minutes.write(written, means)
        self._minute = minute
        for series, value in values.items():
            total, count = self._sums.get(series, (0.0, 0))
            self._sums[series] = (total + value, count + 1)
        self._raw.write(time, values)

    def close(self) -> None:
        """End the files."""
        self._raw.close()
        self._minutes.close()


class _LevelWriter:
    """The segments of one level: the last is open, the oldest go."""

    def __init__(self, folder: Path, level: HistoryLevel) -> None:
        self._folder = folder
        self._level = level
        self._file: IO[bytes] | None = None
        #: Of the series in the last record, their numbers in this file. Others are named again when they come back, so
        #: that containers which come and go cost no memory.
        self._ids: dict[Series, int] = {}
        #: Series that this file has named so far.
        self._named = 0
        self._records = 0
        self._first = 0.0

    def write(self, time: float, values: Mapping[Series, float]) -> None:
        if not values:
            return
        if self._file is None:
            self._resume()
        fresh = [series for series in values if series not in self._ids]
        if self._file is None or self._is_full(time) or self._named + len(fresh) > _MOST_SERIES:
            self._begin(time)
            fresh = list(values)[:_MOST_SERIES]
        known = {series: self._ids[series] for series in values if series in self._ids}
        known |= {series: number for number, series in enumerate(fresh, self._named)}
        records = [_record(_SERIES, _encode(fresh[at : at + _NAMES])) for at in range(0, len(fresh), _NAMES)]
        points = [_point(known[series], value) for series, value in values.items() if series in known]
        records += [
            _record(_SAMPLE, _TIME.pack(time) + b"".join(points[at : at + _POINTS]))
            for at in range(0, len(points), _POINTS)
        ]
        self._append(b"".join(records))
        self._ids = known
        self._named += len(fresh)
        self._records += 1

    def _is_full(self, time: float) -> bool:
        assert self._file is not None
        return (
            self._records >= self._level.records
            or not 0 <= time - self._first < self._level.seconds
            or self._file.tell() > self._level.bytes // 8
        )

    def _resume(self) -> None:
        """Go on with the last file, so that a process that is started again and again does not push history out."""
        last = _segments(self._folder, self._level.name)[-1:]
        for path in last:
            ids: list[Series] = []
            times: list[float] = []
            end = len(_MAGIC)
            for kind, content in _records(path):
                end += _HEAD.size + len(content)
                if kind == _SERIES:
                    ids += _names.decode(content)
                elif kind == _SAMPLE:
                    times.append(_TIME.unpack_from(content)[0])
            if times:
                file = path.open("r+b", buffering=1 << 16)
                file.truncate(end)
                file.seek(end)
                self._file, self._records, self._first = file, len(times), times[0]
                self._ids = {series: number for number, series in enumerate(ids)}
                self._named = len(ids)

    def _append(self, content: bytes) -> None:
        """All of it, or nothing that is read: what was written in part is cut off when the file is opened again."""
        assert self._file is not None
        try:
            self._file.write(content)
            self._file.flush()
        except OSError:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                file.close()
            raise

    def _begin(self, time: float) -> None:
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        last = _segments(self._folder, self._level.name)
        number = _number(last[-1]) + 1 if last else 1
        path = self._folder / f"{self._level.name}-{number:012d}{HISTORY_SUFFIX}"
        file = path.open("xb", buffering=1 << 16)
        try:
            file.write(_MAGIC)
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)
            raise
        self._file, self._ids, self._named, self._records, self._first = file, {}, 0, 0, time
        self._drop([*last, path])

    def _drop(self, segments: list[Path]) -> None:
        """The oldest go until number and bytes are within bounds; the open one stays."""
        sizes = [_size(path) for path in segments]
        while len(segments) > 1 and (len(segments) > self._level.segments or sum(sizes) > self._level.bytes):
            with contextlib.suppress(OSError):
                segments.pop(0).unlink()
            sizes.pop(0)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


# Reading


def read(
    folder: Path,
    level: HistoryLevel,
    *,
    since: float = float("-inf"),
    until: float = float("inf"),
    wanted: Callable[[Series], bool] = lambda series: True,
) -> dict[Series, list[Point]]:
    """The points of a time, by series and in the order of time. Damage is told in the log once per file."""
    found: dict[Series, list[Point]] = {}
    for path in _segments(folder, level.name):
        for series, point in _points(path, since, until, wanted):
            found.setdefault(series, []).append(point)
    for points in found.values():
        points.sort()
    return found


class HistoryMeans(NamedTuple):
    """Means of equal spans of time, by series; None for a span without a value. `more`: there are further series."""

    values: dict[Series, list[float | None]]
    more: bool


def read_means(
    folder: Path,
    level: HistoryLevel,
    *,
    since: float,
    step: float,
    count: int,
    wanted: Callable[[Series], bool] = lambda series: True,
    after: Series | None = None,
    most: int = 1000,
) -> HistoryMeans:
    """The means of `count` spans of `step` seconds from `since` on: of at most `most` series, in their order, after
    one of them. What it keeps in memory is bounded by `most` × `count`, whatever lies on the disk.
    """
    import numpy as np  # 10 MB, which a collector that nobody asks can do without

    point = np.dtype([("series", "<u2"), ("value", "<f4")])
    until = since + step * count
    paths = [path for path in _segments(folder, level.name) if _overlaps(path, level, since, until)]
    names = {series for path in paths for series in _series(path) if wanted(series)}
    rest = sorted(series for series in names if after is None or series > after)
    rows = {series: row for row, series in enumerate(rest[:most])}
    sums, counts = np.zeros((len(rows), count)), np.zeros((len(rows), count), dtype=np.int32)
    for path in paths if rows else ():
        row_of = np.empty(0, dtype=np.int64)
        for kind, content in _records(path):
            if kind == _SERIES:
                try:
                    found = [rows.get(series, -1) for series in _names.decode(content)]
                except msgspec.MsgspecError:
                    break  # `_series` has told
                row_of = np.concatenate([row_of, np.array(found, dtype=np.int64)])
            elif kind == _SAMPLE and len(content) >= _TIME.size:
                span = math.floor((_TIME.unpack_from(content)[0] - since) / step)
                if 0 <= span < count:
                    points = np.frombuffer(_sample(content), point)
                    points = points[points["series"] < len(row_of)]
                    row = row_of[points["series"]]
                    sums[row[row >= 0], span] += points["value"][row >= 0]
                    counts[row[row >= 0], span] += 1
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    values = {series: [None if math.isnan(one) else one for one in means[row].tolist()] for series, row in rows.items()}
    return HistoryMeans(values, len(rest) > most)


def read_series(folder: Path, level: HistoryLevel) -> set[Series]:
    """All series of a level."""
    return {series for path in _segments(folder, level.name) for series in _series(path)}


def _overlaps(path: Path, level: HistoryLevel, since: float, until: float) -> bool:
    """Whether a segment may hold points of a time: none is later than its first by more than the level's seconds."""
    for kind, content in _records(path, whole=False):
        if kind == _SAMPLE and len(content) >= _TIME.size:
            (first,) = _TIME.unpack_from(content)
            return bool(first < until and first + level.seconds > since)
    return True


def _series(path: Path) -> list[Series]:
    found: list[Series] = []
    for kind, content in _records(path):
        if kind == _SERIES:
            try:
                found += _names.decode(content)
            except msgspec.MsgspecError:
                log.warning("%s: damaged: series that cannot be read", path)
                break
    return found


def _point(number: int, value: float) -> bytes:
    try:
        return _POINT.pack(number, value)
    except OverflowError:
        return _POINT.pack(number, math.copysign(math.inf, value))


def _sample(content: bytes) -> bytes:
    """The points of a sample, whole ones alone."""
    body = content[_TIME.size :]
    return body[: len(body) // _POINT.size * _POINT.size]


def _points(path: Path, since: float, until: float, wanted: Callable[[Series], bool]) -> Iterator[tuple[Series, Point]]:
    names: list[Series | None] = []
    for kind, content in _records(path):
        if kind == _SERIES:
            try:
                names += [series if wanted(series) else None for series in _names.decode(content)]
            except msgspec.MsgspecError:
                log.warning("%s: damaged: series that cannot be read", path)
                return
        elif kind == _SAMPLE and len(content) >= _TIME.size:
            (time,) = _TIME.unpack_from(content)
            if since <= time <= until:
                for number, value in _POINT.iter_unpack(_sample(content)):
                    series = names[number] if number < len(names) else None
                    if series is not None:
                        yield series, Point(time, value)


def _records(path: Path, *, whole: bool = True) -> Iterator[tuple[int, bytes]]:
    """The records of a file up to its end or its damage. A file that grows meanwhile ends where it is whole.

    Not `whole`: those within the first bytes, for the time at which it begins.
    """
    try:
        with path.open("rb") as file:
            content = file.read(-1 if whole else _BEGINNING)
    except OSError as error:
        log.warning("%s: not read: %s", path, error.strerror)
        return
    if not content.startswith(_MAGIC):
        log.warning("%s: damaged: it does not begin as a history does", path)
        return
    at = len(_MAGIC)
    while at < len(content):
        if at + _HEAD.size > len(content):
            return  # the last record is not whole: it is being written, or its writer was killed
        length, crc, kind = _HEAD.unpack_from(content, at)
        end = at + _HEAD.size + length
        if length <= _MOST_BYTES and end > len(content):
            return
        body = content[at + _HEAD.size : end]
        if length > _MOST_BYTES or zlib.crc32(bytes([kind]) + body) != crc:
            log.warning("%s: damaged at byte %d of %d: what follows is not read", path, at, len(content))
            return
        yield kind, body
        at = end


def _record(kind: int, content: bytes) -> bytes:
    return _HEAD.pack(len(content), zlib.crc32(bytes([kind]) + content), kind) + content


def _segments(folder: Path, level: str) -> list[Path]:
    """The files of a level, the oldest first."""
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []
    mine = [path for path in paths if path.name.startswith(f"{level}-") and path.name.endswith(HISTORY_SUFFIX)]
    return sorted((path for path in mine if _number(path) > 0), key=_number)


def _number(path: Path) -> int:
    digits = path.name.removesuffix(HISTORY_SUFFIX).rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= 18 else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
