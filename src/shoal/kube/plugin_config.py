"""Where the configuration of NVIDIA's device plugin comes from: nowhere, a file, or a ConfigMap.

Of a ConfigMap the node's label names the key. Changes of the file, the map and the label are taken as they come. What
cannot be read leaves the last good configuration in force, and is told. Before there is a good one nothing is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.kube.client import Client
from shoal.kube.events import EventType
from shoal.kube.objects.others import ConfigMap
from shoal.kube.reflector import Reflector
from shoal.kube.resources import CONFIG_MAPS
from shoal.kube.store import Change
from shoal.model.contract import nvidia
from shoal.model.contract.plugin_config import MAX_BYTES, NvidiaConfig, choose_file, parse
from shoal.model.errors import PluginConfigError

log = logging.getLogger(__name__)

TAKEN: Final = "GPUConfigTaken"
REFUSED: Final = "GPUConfigRefused"
_LOOK_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """Where to look: a file, or a ConfigMap as namespace/name; neither means that nothing is configured."""

    file: str = ""
    config_map: str = ""
    #: The key of the map for nodes without the label.
    default: str = ""
    #: How MIG partitions are served where the configuration says nothing of it.
    mig_strategy: str = nvidia.MIG_STRATEGIES[0]


class ConfigSource:
    """The configuration in force. `changed` is called when it is another one."""

    def __init__(
        self,
        place: ConfigPlace,
        client: Client,
        *,
        labels: Callable[[], Mapping[str, str]],
        last: NvidiaConfig | None,
        changed: Callable[[], None],
        tell: Callable[[EventType, str, str], None] = lambda kind, reason, message: None,
        unknown: str = "nothing is known",
    ) -> None:
        """`labels` are the node's, `last` is the last good configuration, and `unknown` says what follows from none.

        `tell` gets what the node's users should hear: kind, reason and words of an event.
        """
        self._file = Path(place.file) if place.file else None
        self._map = place.config_map
        self._default = place.default
        self._otherwise = NvidiaConfig(mig_strategy=place.mig_strategy)
        self._labels = labels
        self._changed = changed
        self._tell = tell
        self._unknown = unknown
        self._text: str | None = None
        self._told = ""
        self._complaint = ""
        self._looked = asyncio.Event()
        self.current: NvidiaConfig | None = last if self._file or self._map else self._otherwise
        #: Why the source's configuration is not in force, in words.
        self.problem = f"still reading ConfigMap {self._map}" if self._map else ""
        namespace, _, name = self._map.partition("/")
        self._reflector: Reflector[ConfigMap] = Reflector(
            client, CONFIG_MAPS, namespace=namespace, fields=f"metadata.name={name}", consumers=[self._on_map]
        )

    def waiting_for(self) -> str:
        """Why no configuration is known; empty when one is."""
        if self.current is not None:
            return ""
        return f"{self.problem}: {self._reflector.last_error}" if self._reflector.last_error else self.problem

    async def run(self) -> None:
        """Follow the source until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            if self._map:
                await stack.enter_async_context(self._reflector)
                await self._reflector.wait_synced()
            self.look()
            self._looked.set()
            while self._file is not None:
                await asyncio.sleep(_LOOK_SECONDS)
                self.look()
            await asyncio.Event().wait()

    async def wait_looked(self) -> None:
        """Return when the source was read, good or not, or after a few seconds without an answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._looked.wait()

    def look(self) -> None:
        """Read the source and take its configuration, if it can be read now."""
        if self._map and not self._reflector.synced.is_set():
            return
        try:
            text = self._read()
            if text is not None and text == self._text:
                self.problem = self._told = ""
                return
            strategy = self._otherwise.mig_strategy
            self._take(self._otherwise if text is None else parse(text, where=self._where, mig_strategy=strategy))
            self._text = text
        except PluginConfigError as error:
            self._refuse(str(error))

    def _on_map(self, change: Change[ConfigMap]) -> None:
        self.look()

    @property
    def _where(self) -> str:
        return f"ConfigMap {self._map}" if self._map else str(self._file)

    def _read(self) -> str | None:
        """The text of the configuration; None if none is configured."""
        if self._file is not None:
            try:
                with self._file.open("rb") as file:
                    return file.read(MAX_BYTES + 1).decode()
            except OSError as error:
                raise PluginConfigError(
                    f"{self._file} cannot be read: {error.strerror}: give the path of the file"
                ) from error
            except UnicodeDecodeError as error:
                raise PluginConfigError(f"{self._file} is no text: {error}") from error
        if not self._map:
            return None
        found = self._reflector.store.get(*reversed(self._map.split("/")))
        if found is None:
            raise PluginConfigError(f"ConfigMap {self._map} is not there: create it, or change nvidiaConfigMap")
        key = choose_file(found.data, self._labels(), default=self._default)
        return None if key is None else found.data[key]

    def _take(self, fresh: NvidiaConfig) -> None:
        self.problem = self._told = ""
        for warning in fresh.warnings:
            log.warning("%s: %s", self._where, warning)
        if fresh == self.current:
            return
        before, self.current = self.current, fresh
        words = _words(fresh)
        log.info("%s is taken: %s", self._where, words)
        if before is not None:
            self._tell("Normal", TAKEN, f"{self._where} is taken: {words}")
        self._changed()

    def _refuse(self, problem: str) -> None:
        self.problem = problem
        if problem != self._told:
            self._told = problem
            kept = self._unknown if self.current is None else "the last good one stays in force"
            log.error("%s: %s", problem, kept)
            self._tell("Warning", REFUSED, f"{problem}: {kept}")

    def complain(self, problem: str) -> None:
        """Tell, once, why the node's cards do not fit a good configuration; an empty `problem` if they do."""
        if problem != self._complaint and problem:
            log.warning("%s: %s", self._where, problem)
            self._tell("Warning", REFUSED, f"{self._where}: {problem}")
        self._complaint = problem


def _words(config: NvidiaConfig) -> str:
    shared = [f"{one.replicas} replicas a piece as {one.served_as} by {one.strategy}" for one in config.sharing]
    if config.mig_strategy != nvidia.MIG_STRATEGIES[0]:
        shared.append(f"MIG partitions by strategy {config.mig_strategy}")
    return "; ".join(shared) or "nothing is shared"
