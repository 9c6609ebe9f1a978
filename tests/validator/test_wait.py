"""`shoal validator wait`, as a program."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.validator.files import ValidationFiles
from shoal.validator.waiting import said_of, wait_for
from tests.logs import own_records
from tests.testbed import waiting
from tests.validator.test_files import CONTAINER

SHOAL = Path(sys.executable).parent / "shoal"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the program with its words in a file."""
    begun: list[subprocess.Popen[bytes]] = []

    def run(*names: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "words").open("wb") as words:
            command: list[str | Path] = [SHOAL, "validator", "wait", *names, "--validations", tmp_path / "validations"]
            begun.append(subprocess.Popen(command, stderr=words))
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
        process.wait()


def test_it_ends_when_the_files_are_there(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    files, words = ValidationFiles(tmp_path / "validations"), tmp_path / "words"
    process = start("toolkit-ready", "plugin-ready")
    waiting.wait_for(lambda: "driver-ready, 0 s until now: shoal-validator of" in words.read_text(), "waiting")
    files.write("toolkit-ready")
    files.write("driver-ready", CONTAINER)
    waiting.wait_for(lambda: ".driver-ctr-ready, " in words.read_text(), "waiting for the driver's container")
    assert process.poll() is None
    files.write(".driver-ctr-ready")
    waiting.wait_for(lambda: "/plugin-ready, " in words.read_text(), "waiting for the plugin")
    files.write("plugin-ready")
    assert process.wait() == 0


def test_it_ends_when_told_to(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    process = start("toolkit-ready")
    waiting.wait_for(lambda: "waiting for" in (tmp_path / "words").read_text(), "waiting")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 1
    assert "told to end before toolkit-ready" in (tmp_path / "words").read_text()


def test_a_name_that_is_none_is_words(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    assert start("../toolkit-ready").wait() == 1
    assert "name one such as toolkit-ready" in (tmp_path / "words").read_text()


async def test_it_speaks_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, now = ValidationFiles(tmp_path), 0.0
    monkeypatch.setattr("shoal.validator.waiting.LOOK_SECONDS", 0.0)

    def clock() -> float:
        nonlocal now
        now += 1.0
        if now > 200:
            files.write("some-ready")
        return now

    with caplog.at_level("INFO"):
        await wait_for(files, ["some-ready"], clock=clock)
    said = [record.getMessage() for record in own_records(caplog)]
    assert [words.split()[3] for words in said[:-1]] == ["1", "61", "121", "181"]
    assert said[-1] == "some-ready there after 201 s"


def test_every_file_has_its_words() -> None:
    assert said_of("cuda-ready") == said_of("toolkit-ready") != said_of("plugin-ready") == said_of("driver-ready")
    assert said_of("x-ready") == "another program writes it"
