"""A terminal for a command: a pseudo-terminal, the command behind it, and what a person would see."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.testbed.waiting import wait_for

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
_MAIN = "from shoal.cli.main import main; main()"
COMMAND = [sys.executable, "-c", _MAIN]
#: The command takes its terminal itself. Were it done between fork and exec, Python would run what is to be run at a
#: fork, and gRPC's part of that leaves its own threads here with closed descriptors.
_OWN_TERMINAL = [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {_MAIN}"]


class Screen:
    """The few things a terminal does that the commands use."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.row = self.column = 0
        self.other = False
        self.everything = ""

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)

    def feed(self, text: str) -> None:
        self.everything += text
        while text:
            found = _SEQUENCE.match(text)
            if found:
                self._act(found[1], found[2])
                text = text[found.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _act(self, arguments: str, letter: str) -> None:
        if letter == "H":
            self.row = self.column = 0
        elif letter == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif letter == "J" and arguments == "":
            del self.lines[self.row + 1 :]
        elif letter == "J":
            self.lines = [""] * (self.row + 1)
        elif letter in "hl" and arguments == "?1049":
            self.other = letter == "h"
            self.lines, self.row, self.column = [""], 0, 0
        else:
            assert letter == "m" or arguments == "?25", (arguments, letter)

    def _put(self, one: str) -> None:
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + one + line[self.column + 1 :]
            self.column += 1


class Session:
    """A command on a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.screen = Screen()
        self._terminal = terminal
        self.before = termios.tcgetattr(terminal)

    def read(self) -> None:
        """Take in what the command has written."""
        while select.select([self._terminal], [], [], 0)[0]:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # the command has ended and so has its side
                return
            if not data:
                return
            self.screen.feed(data.decode())

    def see(self, wanted: str | Callable[[str], bool]) -> str:
        """Wait until this is on the screen; the whole screen."""

        def there() -> bool:
            self.read()
            text = self.screen.text
            assert self.process.poll() is None or self._seen(wanted, text), f"ended with:\n{text}"
            return self._seen(wanted, text)

        wait_for(there, f"{wanted} on the screen")
        return self.screen.text

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def modes(self) -> list[object]:
        """How the terminal treats keys."""
        return list(termios.tcgetattr(self._terminal))

    def end(self) -> int:
        """Wait for the end; the exit code."""
        self._until(lambda: self.process.poll() is not None, "over")
        self.read()
        return self.process.returncode

    def leave(self) -> None:
        """Wait until the command has given the screen back."""
        self._until(lambda: not self.screen.other, "off the screen")

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait, reading all the time: a full terminal would stop the command."""

        def now() -> bool:
            self.read()
            return ready()

        wait_for(now, what)

    @staticmethod
    def _seen(wanted: str | Callable[[str], bool], text: str) -> bool:
        return wanted in text if isinstance(wanted, str) else wanted(text)


@contextmanager
def on_terminal(
    arguments: Sequence[str], *, environ: Mapping[str, str] | None = None, columns: int = 140, lines: int = 20
) -> Iterator[Session]:
    """The command with these arguments on a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    env |= {"TERM": "xterm", **(environ or {})}
    process = subprocess.Popen(
        [*_OWN_TERMINAL, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Session(process, ours)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)
