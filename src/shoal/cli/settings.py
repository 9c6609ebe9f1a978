"""What the commands that run a service share: their settings, from a YAML file and from flags, which win; their log.

The settings themselves, and what is allowed in them, are in each service's `config.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from shoal.model.contract import gpushare

S = TypeVar("S", bound=msgspec.Struct)
F = TypeVar("F", bound=Callable[..., Any])

_MAX_FILE: Final = 1 << 20


class ServiceSettingsError(Exception):
    """A setting that cannot be used; the message names it and the fix."""


def load(kind: type[S], path: Path | None, flags: Mapping[str, object], *, command: str) -> S:
    """The settings of a file, or the defaults, with what the flags say instead. A flag not given is None or ()."""
    document: object = {} if path is None else _read(path)
    if not isinstance(document, dict):
        raise ServiceSettingsError(f"{path} holds a {type(document).__name__}: write settings as key: value")
    given = {_camel(name): value for name, value in flags.items() if value not in (None, ())}
    where = "the settings" if path is None else str(path)
    try:
        return msgspec.convert({**document, **given}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ServiceSettingsError(
            f"{where}: {error}: see `shoal {command} --help` for what each setting takes"
        ) from error


def _read(path: Path) -> object:
    import yaml

    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ServiceSettingsError(
            f"{path} cannot be read: {error.strerror}: give the path of the settings file"
        ) from error
    if len(text) > _MAX_FILE:
        raise ServiceSettingsError(f"{path} has more than {_MAX_FILE} bytes: is it the settings file?")
    try:
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ServiceSettingsError(f"{path} is no YAML: {error}") from error


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def memory_unit(default: str | None = None) -> Callable[[F], F]:
    """The option `--memory-unit`."""
    return click.option(
        "--memory-unit",
        # The values, not the enum itself: click would take that by the names of its members.
        type=click.Choice([unit.value for unit in gpushare.MemoryUnit]),
        default=default,
        show_default=default is not None,
        help="What 1 of aliyun.com/gpu-mem means.",
    )


def log_level(command: F) -> F:
    """The option `--log-level`, for `log_at`."""
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warn", "error"], case_sensitive=False),
        envvar=gpushare.ENV_LOG_LEVEL,
        default="info",
        show_default=True,
        help="How much is said.",
    )(command)


class OneLine(logging.Formatter):
    """A line a record, whatever names are in it: who can name a pod cannot write lines of ours.

    A traceback takes more than one; each begins with a bar, as no record does.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The record without its traceback."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The traceback."""
        return "\n".join(f"| {escaped(line)}" for line in super().formatException(ei).splitlines())


def escaped(text: str) -> str:
    """The text with what is no printable character written as Python does."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def log_at(level: str) -> None:
    """Log to standard error from this level on."""
    to = logging.StreamHandler()
    to.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level={"warn": logging.WARNING}.get(level.lower(), level.upper()), handlers=[to])
