"""The ring on disk: what was written is read, after kill -9, up to damage, and within its bounds."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.metrics import history
from shoal.metrics.history import MINUTES, RAW, HistoryLevel, HistoryWriter, Point, Series, read, read_means

USED = Series("memory", "GPU-1")
HEAT = Series("temperature", "GPU-1")
SMALL = HistoryLevel("raw", records=10, seconds=1000, segments=3, bytes=1 << 20)


Opened = Callable[..., HistoryWriter]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens histories, which end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(contextlib.closing(HistoryWriter(*args, **kwargs)))


def test_samples_come_back(tmp_path: Path, opened: Opened) -> None:
    written = opened(tmp_path)
    for number in range(5):
        written.write(100.0 + number, {USED: number, HEAT: 40.5} if number else {USED: 0.0})
    assert read(tmp_path, RAW) == {
        USED: [Point(100.0 + number, number) for number in range(5)],
        HEAT: [Point(100.0 + number, 40.5) for number in range(1, 5)],
    }
    assert read(tmp_path, RAW, since=101, until=102, wanted=lambda series: series.name == "memory") == {
        USED: [Point(101.0, 1), Point(102.0, 2)]
    }


def test_minutes_are_means(tmp_path: Path, opened: Opened) -> None:
    written = opened(tmp_path)
    for second in range(0, 185, 5):
        written.write(6000.0 + second, {USED: second})
    assert read(tmp_path, MINUTES) == {USED: [Point(6000, 27.5), Point(6060, 87.5), Point(6120, 147.5)]}


def test_the_oldest_go(tmp_path: Path, opened: Opened) -> None:
    written = opened(tmp_path, raw=SMALL)
    for number in range(95):
        written.write(float(number), {USED: number})
    assert [point.time for point in read(tmp_path, SMALL)[USED]] == [float(number) for number in range(70, 95)]
    assert len(list(tmp_path.glob("raw-*"))) == 3


def test_bytes_are_bounded(tmp_path: Path, opened: Opened) -> None:
    level = HistoryLevel("raw", records=1000, seconds=1e9, segments=1000, bytes=64 << 10)
    written = opened(tmp_path, raw=level, minutes=SMALL)
    many = {Series("memory", f"GPU-{number}"): 1.0 for number in range(100)}
    for number in range(1000):
        written.write(float(number), many)
        assert sum(path.stat().st_size for path in tmp_path.glob("raw-*")) < level.bytes * 5 // 4
    assert max(point.time for point in read(tmp_path, level)[Series("memory", "GPU-0")]) == 999


def test_a_clock_that_jumps_takes_nothing_away(tmp_path: Path, opened: Opened) -> None:
    written = opened(tmp_path)
    times = [1e9, 1e9 + 5, 4e9, 4e9 + 5, 1e9 + 10, 1e9 + 15]
    for number, moment in enumerate(times):
        written.write(moment, {USED: number})
    assert [point.time for point in read(tmp_path, RAW)[USED]] == sorted(times)


def test_a_process_that_is_started_again_and_again_goes_on(tmp_path: Path, opened: Opened) -> None:
    for number in range(40):
        one = opened(tmp_path, raw=SMALL)
        one.write(float(number), {USED: number, Series("memory", f"GPU-{number}"): 1.0})
    assert len(read(tmp_path, SMALL)[USED]) == 30
    assert len(list(tmp_path.glob("raw-*"))) == 3


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_end_is_taken_off(tmp_path: Path, opened: Opened, cut: int) -> None:
    first = opened(tmp_path)
    for number in range(10):
        first.write(float(number), {USED: number, HEAT: 1.0})
    first.close()
    (path,) = tmp_path.glob("raw-*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    left = len(read(tmp_path, RAW)[USED])
    assert 10 - math.ceil(cut / 20) - 1 <= left <= 9
    again = opened(tmp_path)
    again.write(100.0, {USED: 100, Series("power", "GPU-1"): 7.0})
    found = read(tmp_path, RAW)
    assert [point.time for point in found[USED]] == [*map(float, range(left)), 100.0]
    assert found[Series("power", "GPU-1")] == [Point(100.0, 7.0)]


def test_nothing_of_a_torn_end_is_left(tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A long record that was not written whole, and a short one in its place."""
    first = opened(tmp_path)
    first.write(1.0, {USED: 1})
    first.write(2.0, {Series("memory", f"GPU-{number}"): 1.0 for number in range(400)})
    first.close()
    (path,) = tmp_path.glob("raw-*")
    path.write_bytes(path.read_bytes()[:-1])
    opened(tmp_path).write(3.0, {USED: 3})
    assert read(tmp_path, RAW) == {USED: [Point(1.0, 1), Point(3.0, 3)]}
    assert "damaged" not in caplog.text


def test_a_file_is_read_up_to_its_damage(tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    written = opened(tmp_path, raw=SMALL)
    for number in range(25):
        written.write(float(number), {USED: number})
    second = sorted(tmp_path.glob("raw-*"))[1]
    content = bytearray(second.read_bytes())
    content[len(content) * 3 // 4] ^= 0x10
    second.write_bytes(content)
    times = [point.time for point in read(tmp_path, SMALL)[USED]]
    assert times[:10] == [float(number) for number in range(10)]
    assert times[-5:] == [float(number) for number in range(20, 25)]
    assert 15 < len(times) < 25
    assert f"{second}: damaged at byte" in caplog.text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_done_to_a_file_what_is_read_was_written(
    tmp_path_factory: pytest.TempPathFactory, opened: Opened, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("history")
    written = opened(folder)
    for number in range(20):
        written.write(float(number), {USED: number, HEAT: number * 2})
    written.close()
    (path,) = folder.glob("raw-*")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip":
                content[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del content[at : at + data.draw(st.integers(1, 40))]
            case _:
                content[at:at] = data.draw(st.binary(min_size=1, max_size=40))
        if not content:
            break
    path.write_bytes(content)
    for series, points in read(folder, RAW).items():
        assert all(point.value == point.time * (1 if series == USED else 2) for point in points)
    again = opened(folder)
    again.write(50.0, {USED: 50})
    assert Point(50.0, 50.0) in read(folder, RAW)[USED]


def test_strange_files_are_left_alone(tmp_path: Path, opened: Opened) -> None:
    for name in ("raw-1.history", "raw-x.history", "raw-000000000009.history", "minutes", "raw-9"):
        (tmp_path / name).write_bytes(b"mine")
    written = opened(tmp_path)
    written.write(1.0, {USED: 1})
    assert read(tmp_path, RAW) == {USED: [Point(1.0, 1)]}
    assert (tmp_path / "raw-x.history").read_bytes() == b"mine"
    assert read(tmp_path / "missing", RAW) == {}


def test_a_full_disk_loses_the_sample_and_no_other(tmp_path: Path, opened: Opened) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    written = opened(tmp_path)
    written.write(1.0, {USED: 1})
    (path,) = tmp_path.glob("raw-*")
    open_file = written._raw._file
    assert open_file is not None
    kept = os.dup(open_file.fileno())
    device = os.open(full, os.O_WRONLY)
    os.dup2(device, open_file.fileno())
    with pytest.raises(OSError, match="No space left"):
        written.write(2.0, {USED: 2})
    os.close(device)
    os.close(kept)
    written.write(3.0, {USED: 3})
    assert read(tmp_path, RAW) == {USED: [Point(1.0, 1), Point(3.0, 3)]}
    assert path.exists()


_WRITER = """
import sys, time
from pathlib import Path
from shoal.metrics.history import HistoryWriter, Series
history = HistoryWriter(Path(sys.argv[1]))
for number in range(10**9):
    history.write(float(number), {Series("memory", f"GPU-{card}"): number for card in range(8)})
    print(number, flush=True)
    time.sleep(0.001)
"""


def test_what_was_written_survives_kill_9(tmp_path: Path) -> None:
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout as told:
            while int(told.readline()) < 50:
                pass
            process.send_signal(signal.SIGKILL)
            last = max(map(int, told.read().split()), default=50)
        process.wait()
        times = {point.time for point in read(tmp_path, RAW)[Series("memory", "GPU-7")]}
        assert times >= {float(number) for number in range(last + 1)}


def test_a_reader_beside_the_writer(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while int(process.stdout.readline()) < 20:
            pass
        for _ in range(10):
            found = read(tmp_path, RAW)
            assert {len(points) for points in found.values()} != {0}
            lengths = sorted(len(points) for points in found.values())
            assert lengths[-1] - lengths[0] <= 1
            time.sleep(0.01)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def test_a_value_that_is_no_number_is_kept_as_it_is(tmp_path: Path, opened: Opened) -> None:
    opened(tmp_path).write(1.0, {USED: math.inf})
    assert read(tmp_path, RAW)[USED][0].value == math.inf
    assert history.RAW.segments * history.RAW.seconds >= 24 * 3600
    assert history.MINUTES.segments * history.MINUTES.seconds >= 7 * 86400


def test_a_value_that_no_float_holds_is_infinite(tmp_path: Path, opened: Opened) -> None:
    opened(tmp_path).write(1.0, {USED: -1e300, HEAT: 1e300})
    assert {series: points[0].value for series, points in read(tmp_path, RAW).items()} == {
        USED: -math.inf,
        HEAT: math.inf,
    }


def test_series_that_come_and_go_are_forgotten_and_come_back(tmp_path: Path, opened: Opened) -> None:
    written = opened(tmp_path)
    passing = [Series("memory", "GPU-1", "ns", f"pod-{number}", "main") for number in range(200)]
    for number, series in enumerate(passing):
        written.write(100.0 + number, {USED: number, series: 2 * number})
    assert len(written._raw._ids) == 2
    written.write(400.0, {passing[3]: 7.0, USED: 1.0})
    written.close()
    opened(tmp_path).write(401.0, {passing[3]: 8.0, passing[4]: 9.0})
    found = read(tmp_path, RAW)
    assert found[passing[3]] == [Point(103.0, 6.0), Point(400.0, 7.0), Point(401.0, 8.0)]
    assert found[passing[4]] == [Point(104.0, 8.0), Point(401.0, 9.0)]
    assert len(found[USED]) == 201
    means = read_means(tmp_path, RAW, since=100.0, step=400.0, count=1, wanted=lambda series: series == passing[3])
    assert means.values == {passing[3]: [7.0]}
