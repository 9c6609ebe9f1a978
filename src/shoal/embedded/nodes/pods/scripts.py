"""Understands the few shell commands that examples and tests put into containers: echo, sleep, exit, env and the like.

`interpret` says what a command prints when, how long it runs and how it ends, or that it does not understand it. It is
no shell: no loops but endless ones, no conditions, no substitutions, no redirections.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SHELLS: Final = ("sh", "bash", "ash", "dash")
_MAX_LENGTH: Final = 10_000
_ENDLESS: Final = re.compile(r"\bwhile\s+(?:true|:)\s*[;\n]\s*do\b.*?\bdone\b", re.DOTALL)
_FOREVER: Final = "__forever__"
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_TRAP: Final = re.compile(r"exit(?:\s+(\d{1,3}))?")


@dataclass(frozen=True, slots=True)
class Script:
    """What a command does: lines by second, how long it runs (None: for ever), its exit code."""

    lines: tuple[tuple[float, str], ...] = ()
    seconds: float | None = 0.0
    code: int = 0
    #: The exit code on SIGTERM; None: the signal is ignored, as it is by a first process that does not ask for it.
    term_code: int | None = None


def interpret(argv: Sequence[str], env: Mapping[str, str]) -> Script | None:
    """What the command does in this environment; None if it is beyond this module."""
    if not argv:
        return None
    name = argv[0].rpartition("/")[2]
    if name in _SHELLS:
        # What else a shell is told does not matter to these commands: sh -c, sh -ec, bash -xc.
        if len(argv) != 3 or not re.fullmatch(r"-[a-z]*c", argv[1]) or len(argv[2]) > _MAX_LENGTH:
            return None
        return _Shell(env).run(argv[2])
    shell = _Shell(env)
    return shell.done() if shell.command([name, *argv[1:]]) else None


class _Shell:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = dict(env)
        self._lines: list[tuple[float, str]] = []
        self._seconds: float | None = 0.0
        self._code = 0
        self._term: int | None = None
        self._ended = False

    def run(self, text: str) -> Script | None:
        # `&&` is taken for `;`: what is understood seldom fails.
        for statement in _split(_ENDLESS.sub(_FOREVER, text), (";", "\n", "&&")):
            if self._ended:
                break
            if not self._statement(statement):
                return None
        return self.done()

    def done(self) -> Script:
        return Script(tuple(self._lines), self._seconds, self._code, self._term)

    def _statement(self, statement: str) -> bool:
        command, *piped = _split(statement, ("|",)) or [""]
        words = self._words(command)
        if words is None or (not words and "|" in statement):
            return False
        if not piped:
            return not words or self.command(words)
        return len(piped) == 1 and self._counted(words, piped[0].split())

    def _counted(self, words: list[str], counter: list[str]) -> bool:
        """`… | wc -w` and `-l`: the only pipes there are."""
        before = len(self._lines)
        if counter not in (["wc", "-w"], ["wc", "-l"]) or not self.command(words) or self._seconds is None:
            return False
        printed = [line for _, line in self._lines[before:]]
        del self._lines[before:]
        self._print(str(len(" ".join(printed).split()) if counter[1] == "-w" else len(printed)))
        return True

    def command(self, words: list[str]) -> bool:
        """Do one command; False if it is not known."""
        name, arguments = words[0], words[1:]
        if name == "exec":
            self._ended = True
            return bool(arguments) and self.command(arguments)
        do = {
            _FOREVER: self._for_ever,
            "echo": self._echo,
            "sleep": self._sleep,
            "exit": self._exit,
            "trap": self._trap,
            "env": self._print_env,
            "printenv": self._print_env,
            "hostname": self._hostname,
            "true": self._nothing,
            ":": self._nothing,
            "set": self._nothing,
            "false": self._false,
        }.get(name)
        return do is not None and do(arguments)

    def _words(self, command: str) -> list[str] | None:
        """The words of a command with variables put in; None if it needs a real shell."""
        literal = re.sub(r"'[^']*'|\$\{\w+\}", "", command)
        if "$(" in literal or "`" in literal or re.search(r"[<>&(){}\[\]*?]", re.sub(r'"[^"]*"', "", literal)):
            return None
        lexer = shlex.shlex(command, posix=False, punctuation_chars=False)
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            raw = list(lexer)
        except ValueError:  # a quote without an end
            return None
        words: list[str] = []
        for word in raw:
            quoted = word[:1] == "'" and word[-1:] == "'"
            bare = word.replace('"', "")
            value = word[1:-1] if quoted else _VARIABLE.sub(lambda m: self._env.get(m[1] or m[2], ""), bare)
            # An unquoted variable falls into words, and an empty one vanishes.
            words += [value] if quoted or '"' in word else value.split()
        return words

    def _print(self, line: str) -> None:
        self._lines += [(self._seconds or 0.0, part) for part in line.split("\n")]

    def _echo(self, arguments: list[str]) -> bool:
        self._print(" ".join(arguments[1:] if arguments[:1] == ["-n"] else arguments))
        self._code = 0
        return True

    def _sleep(self, arguments: list[str]) -> bool:
        if len(arguments) != 1:
            return False
        if arguments[0] in ("inf", "infinity"):
            return self._for_ever([])
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", arguments[0])
        if match is None or self._seconds is None:
            return False
        self._seconds += float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
        self._code = 0
        return True

    def _exit(self, arguments: list[str]) -> bool:
        if arguments and not re.fullmatch(r"\d{1,3}", arguments[0]):
            return False
        self._code = int(arguments[0]) % 256 if arguments else self._code
        self._ended = True
        return True

    def _trap(self, arguments: list[str]) -> bool:
        if len(arguments) < 2:
            return False
        match = _TRAP.fullmatch(arguments[0].strip())
        if match is not None and {"TERM", "SIGTERM", "15"} & set(arguments[1:]):
            self._term = int(match[1] or 0)
        return True

    def _for_ever(self, _: list[str]) -> bool:
        self._seconds = None
        self._ended = True
        return True

    def _print_env(self, arguments: list[str]) -> bool:
        if arguments:
            found = [self._env[name] for name in arguments if name in self._env]
            self._code = 0 if len(found) == len(arguments) else 1
        else:
            found = [f"{name}={value}" for name, value in self._env.items()]
        for line in found:
            self._print(line)
        return True

    def _hostname(self, arguments: list[str]) -> bool:
        if not arguments:
            self._print(self._env.get("HOSTNAME", ""))
        return not arguments

    def _nothing(self, _: list[str]) -> bool:
        self._code = 0
        return True

    def _false(self, _: list[str]) -> bool:
        self._code = 1
        return True


def _split(text: str, separators: Sequence[str]) -> list[str]:
    """The parts of a text between separators; quotes keep what is in them together."""
    found, quote, start, position = [], "", 0, 0
    while position < len(text):
        letter = text[position]
        separator = next((one for one in separators if text.startswith(one, position)), "")
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif separator:
            found.append(text[start:position])
            position += len(separator) - 1
            start = position + 1
        position += 1
    return [part for part in (*found, text[start:]) if part.strip()]
