"""The limits of the machine that clusters side by side run into."""

from pathlib import Path

import pytest

from tests.testbed import machine
from tests.testbed.processes import Run


def test_a_low_limit_is_raised(tmp_path: Path) -> None:
    setting = tmp_path / "max_user_instances"
    setting.write_text("128\n")
    machine.raise_inotify_limit(setting)
    assert int(setting.read_text()) == machine.WANTED


def test_a_higher_limit_stays(tmp_path: Path) -> None:
    setting = tmp_path / "max_user_instances"
    setting.write_text("65536\n")
    machine.raise_inotify_limit(setting)
    assert setting.read_text() == "65536\n"


def test_a_limit_that_cannot_be_raised_is_told_with_the_fix() -> None:
    setting = Path("/proc/sys/kernel/cap_last_cap")  # a small number that nobody may write, root neither
    with pytest.raises(machine.MachineLimitError, match=r"max_user_instances=8192"):
        machine.raise_inotify_limit(setting)


def test_programs_of_a_run_may_have_as_many_instances_as_they_ask_for(testbed_run: Run) -> None:
    assert testbed_run.directory.is_dir()
    assert int(machine.INOTIFY_INSTANCES.read_text()) >= machine.WANTED
