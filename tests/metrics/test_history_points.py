"""What of a snapshot is kept, and that it is still there after a full disk, a restart and kill -9."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.metrics.history import MINUTES, RAW, HistoryWriter, Point, Series, read, read_means
from shoal.metrics.history_points import (
    CPU,
    MEMORY,
    POWER,
    TEMPERATURE,
    UNATTRIBUTED,
    USED,
    UTILISATION,
    HistoryKeeper,
    points,
)
from shoal.metrics.snapshot import LatestSnapshot
from tests.kube.waiting import until
from tests.logs import own_records
from tests.metrics.snapshots import GIB, card, container, snapshot
from tests.testbed.waiting import wait_for

CARD = "GPU-n1-0"


def test_what_is_kept_of_a_snapshot() -> None:
    made = snapshot([card(0, [container("a", 2 * GIB)], unattributed=GIB)])
    assert points(made) == {
        Series(USED, CARD): 3 * GIB,
        Series(UNATTRIBUTED, CARD): GIB,
        Series(UTILISATION, CARD): 40,
        Series(TEMPERATURE, CARD): 55,
        Series(POWER, CARD): 70.5,
        Series(USED, CARD, "team", "a", "c0"): 2 * GIB,
        Series(UTILISATION, CARD, "team", "a", "c0"): 30,
        Series(CPU): 1500,
        Series(MEMORY): 3 * GIB,
    }


def test_what_is_not_known_has_no_point() -> None:
    silent = snapshot([card(0, [container("a")], unattributed=None)])
    assert points(replace(silent, load=None)) == {}


def test_mig_instances_of_a_container_count_together_if_all_are_known() -> None:
    two = [replace(container("a", GIB), mig_uuid=one) for one in ("MIG-1", "MIG-2")]
    series = Series(USED, CARD, "team", "a", "c0")
    assert points(snapshot([card(0, two)]))[series] == 2 * GIB
    assert series not in points(snapshot([card(0, [two[0], replace(two[1], used_bytes=None)])]))


async def kept(keeper: HistoryKeeper, folder: Path, count: int, *, first: int = 1) -> None:
    """Run the keeper until it has written some snapshots."""
    latest = LatestSnapshot()
    task = asyncio.create_task(keeper.run(latest))
    for number in range(first, first + count):
        latest.put(snapshot([card(0, unattributed=number)], number=number, time=1e6 + number))
        while len(read(folder, RAW).get(Series(USED, CARD), ())) < number:
            await asyncio.sleep(0.01)
            assert not task.done(), task
    task.cancel()
    await asyncio.wait({task})


async def test_a_restart_goes_on_in_the_same_history(tmp_path: Path) -> None:
    await kept(HistoryKeeper(tmp_path), tmp_path, 3)
    await kept(HistoryKeeper(tmp_path), tmp_path, 3, first=4)
    assert read(tmp_path, RAW)[Series(USED, CARD)] == [Point(1e6 + number, number) for number in range(1, 7)]


async def test_a_full_disk_is_told_once_and_costs_history_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "history"
    folder.write_text("in the way")  # a disk that takes nothing, for whoever the tests run as
    latest, keeper = LatestSnapshot(), HistoryKeeper(folder)
    task = asyncio.create_task(keeper.run(latest))
    with caplog.at_level(logging.WARNING):
        for number in range(1, 4):
            latest.put(snapshot([card(0)], number=number))
            await until(lambda number=number: keeper.lost == number, "lost")  # type: ignore[misc]
        assert [record.message.count("is not kept") for record in own_records(caplog)] == [1]
        folder.unlink()
        latest.put(snapshot([card(0)], number=4))
        await until(lambda: keeper.lost == 0, "kept again")
        assert "kept again: 3 samples are missing" in own_records(caplog)[-1].message
        folder.rename(tmp_path / "away")
    assert len(read(tmp_path / "away", RAW)[Series(USED, CARD)]) == 1
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


COLLECTOR = """
import asyncio, sys
from pathlib import Path
from shoal.metrics.history_points import HistoryKeeper
from shoal.metrics.snapshot import LatestSnapshot
from tests.kube.waiting import until
from tests.metrics.snapshots import card, snapshot

async def main():
    latest = LatestSnapshot()
    task = asyncio.create_task(HistoryKeeper(Path(sys.argv[1])).run(latest))
    number = 0
    while not task.done():
        number += 1
        latest.put(snapshot([card(0, unattributed=number)], number=number, time=1e6 + number))
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


def test_kill_9_loses_nothing_that_was_written(tmp_path: Path) -> None:
    series = Series(USED, CARD)

    def written() -> list[Point]:
        return read(tmp_path, RAW).get(series, [])

    seen: list[Point] = []
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", COLLECTOR, str(tmp_path)], cwd=Path.cwd()) as process:
            before = len(seen)
            wait_for(lambda before=before: len(written()) >= before + 20, "written")  # type: ignore[misc]
            seen = written()
            os.kill(process.pid, signal.SIGKILL)
        after = written()
        assert set(seen) <= set(after)
        assert all(point.time == 1e6 + point.value for point in after)
        seen = after


def test_means_are_bounded_and_paged(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path)
    series = [Series(USED, f"GPU-{number}") for number in range(5)]
    for second in range(0, 200, 5):
        writer.write(6000.0 + second, {one: second for one in series if second < 100 or one != series[0]})
    writer.close()
    page = read_means(tmp_path, RAW, since=6000, step=50, count=4, most=2)
    assert page.values == {series[0]: [22.5, 72.5, None, None], series[1]: [22.5, 72.5, 122.5, 172.5]}
    assert page.more
    rest = read_means(tmp_path, RAW, since=6000, step=50, count=4, most=9, after=series[1])
    assert list(rest.values) == series[2:]
    assert not rest.more
    one = read_means(tmp_path, RAW, since=6000, step=50, count=1, wanted=lambda series: series.card == "GPU-3")
    assert one.values == {series[3]: [22.5]}
    assert read_means(tmp_path, RAW, since=9e9, step=1, count=10).values == {}
    assert read_means(tmp_path, MINUTES, since=6000, step=60, count=3).values[series[1]] == [27.5, 87.5, 147.5]


def test_means_of_a_damaged_file_end_at_its_damage(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path)
    for second in range(100):
        writer.write(6000.0 + second, {Series(USED, CARD): second})
    writer.close()
    (path,) = tmp_path.glob("raw-*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    (values,) = read_means(tmp_path, RAW, since=6000, step=1, count=100).values.values()
    known = [value for value in values if value is not None]
    assert known == [float(second) for second in range(len(known))]
    assert 0 < len(known) < 100
