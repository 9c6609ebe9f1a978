"""The terminal while the picture is on it: a screen of its own, keys without Enter, and everything back in the end."""

from __future__ import annotations

import os
import shutil
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final

from shoal.cli.top import view

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_KEYS: Final = {
    b"\x1b[A": view.UP,
    b"\x1bOA": view.UP,
    b"\x1b[B": view.DOWN,
    b"\x1bOB": view.DOWN,
    b"\x1b[5~": view.PAGE_UP,
    b"\x1b[6~": view.PAGE_DOWN,
    b"\x1b[H": view.HOME,
    b"\x1b[1~": view.HOME,
    b"\r": view.ENTER,
    b"\n": view.ENTER,
    b"\x7f": view.BACKSPACE,
    b"\x08": view.BACKSPACE,
    b"\x03": view.QUIT,
    b"\x04": view.QUIT,
}


class Terminal:
    """Standard input and output as a terminal. Use it in `with`, which gives it back as it was."""

    def __init__(self) -> None:
        self.keys = sys.stdin.fileno()
        self._before = termios.tcgetattr(self.keys)

    def __enter__(self) -> Terminal:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the screen."""
        tty.setcbreak(self.keys)
        self._write(_ENTER)

    def leave(self) -> None:
        """Give it back."""
        self._write(_LEAVE)
        termios.tcsetattr(self.keys, termios.TCSADRAIN, self._before)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top, over what was there."""
        self._write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")

    def pressed(self) -> list[str]:
        """The keys that have come in, at least one; the end of the input is the key to quit."""
        return list(keys_of(os.read(self.keys, 1024))) or [view.QUIT]

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def keys_of(content: bytes) -> Iterator[str]:
    """Bytes of a terminal as keys. Sequences that mean nothing here are passed over."""
    while content:
        name = next((name for name in _KEYS if content.startswith(name)), None)
        if name is not None:
            yield _KEYS[name]
            content = content[len(name) :]
        elif content[:2] in (b"\x1b[", b"\x1bO"):
            end = next((place for place in range(2, len(content)) if 0x40 <= content[place] <= 0x7E), len(content))
            content = content[end + 1 :]
        elif content[0] == 0x1B:
            yield view.ESCAPE
            content = content[1:]
        else:
            if 0x20 <= content[0] < 0x7F:
                yield chr(content[0])
            content = content[1:]
