"""What takes long says so on a terminal, and what is done takes it back."""

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.cli.connection import ClusterConnection, ask
from shoal.cli.output import saying
from tests.cli.terminal import on_terminal

COMMANDS = [
    ["inspect"],
    ["inspect", "-w"],
    ["top"],
    ["top", "--once"],
    ["why", "p"],
    ["what-if", "--policy", "binpack"],
    ["policy", "show"],
    ["snapshot"],
    ["doctor"],
]


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """How to reach a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = tmp_path / "config"
        config.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        yield config


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_that_it_reads(command: list[str], silent: Path) -> None:
    with on_terminal([*command, "--kubeconfig", str(silent)]) as session:
        session.see("reading ")


class Terminal(io.StringIO):
    """Standard error for who asks."""

    def isatty(self) -> bool:
        return True


def patient() -> bool:
    """Whether somebody waits to say what goes on."""
    return "patience" in [thread.name for thread in threading.enumerate()]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_work_without_a_pause_says_so_too() -> None:
    with redirect_stderr(Terminal()) as told, saying("placing …"):
        while patient():
            pass
        assert told.getvalue() == "placing …"
    assert told.getvalue() == "placing …\r\x1b[K"


def test_what_is_quick_says_nothing() -> None:
    with redirect_stderr(Terminal()) as told, saying("placing …"):
        assert patient()
    assert told.getvalue() == ""


def test_where_it_could_not_be_taken_back_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with redirect_stderr(io.StringIO()), saying("placing …"):
        assert not patient()
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(Terminal()), saying("placing …"):
        assert not patient()


def test_an_answer_is_not_made_into_text(silent: Path) -> None:
    """Which takes longer than reading it, for a large cluster."""
    made: list[str] = []

    class Large:
        def __repr__(self) -> str:
            made.append("text")
            return "large"

    async def question(*_: Any) -> Large:
        return Large()

    assert isinstance(ask(ClusterConnection(silent), question), Large)
    assert made == []
