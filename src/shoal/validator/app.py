"""The validator's processes: one of the node, and one under the runtime class. `run_…` ends when it is cancelled.

Neither has global state or signal handlers of its own, so that many can run in one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from shoal.http.probes import answering_probes
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.validator.config import ValidatorConfig
from shoal.validator.node import NodeValidator
from shoal.validator.runtime import RuntimeValidator


async def run_node(config: ValidatorConfig, access: Access) -> None:
    """Validate one node."""
    async with Client(access) as client:
        validator = NodeValidator(config, client)
        async with _probes(config, validator.waiting_for):
            await validator.run()


async def run_runtime(config: ValidatorConfig) -> None:
    """Validate what the runtime brings into this container. StartAnewError when a new one is needed."""
    async with _probes(config, lambda: ""):  # one that waits for a driver holds up no roll-out
        await RuntimeValidator(config).run()


def _probes(config: ValidatorConfig, waiting_for: Callable[[], str]) -> contextlib.AbstractAsyncContextManager[object]:
    if config.port is None:
        return contextlib.nullcontext()
    return answering_probes(config.host, config.port, waiting_for)
