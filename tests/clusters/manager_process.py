"""A cluster manager as a program: `python -m tests.clusters.manager_process KUBECONFIG [NAME=KUBECONFIG…]`.

It takes part in the election in the namespace `default`, and prints its ports once it answers. `SETTINGS` has more
settings, as JSON. With `HOLD` set, the pod `pod-N` is held before its N-th call is sent, which the log tells; SIGCONT
lets all of them go, whatever has become of this process since: as if it had stood still just there.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import msgspec

from shoal.clusters import app
from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.member import Member
from shoal.clusters.members import cluster_uid
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import LeadershipLostError
from shoal.kube.transport import Call
from tests.clusters.site import StaticMembers, choose_first

SETTINGS, HOLD = "SHOAL_TEST_SETTINGS", "SHOAL_TEST_HOLD"
_POD = re.compile(rb"pod-(\d+)")


def tell(words: str) -> None:
    """A line of the log."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def pod_of(call: Call) -> int | None:
    """N if a call is about the pod `pod-N`."""
    if "/pods" not in call.path:
        return None
    found = _POD.search(call.path.encode() if "/pods/" in call.path else call.body or b"")
    return None if found is None else int(found[1])


class Holds:
    """Calls that are held until SIGCONT, and are sent then, though nobody waits for them any more."""

    def __init__(self) -> None:
        self._going_on = asyncio.Event()
        self._calls: Counter[int] = Counter()
        self.late: set[asyncio.Task[bytes]] = set()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._going_on.set)

    def put_into(self, client: Client) -> None:
        """Hold calls of this client too."""
        transport = client._transport
        send = transport.request

        async def later(call: Call, pod: int) -> bytes:
            tell(f"held pod-{pod} before {call.verb} {call.path}")
            await self._going_on.wait()
            return await send(call)

        async def request(call: Call) -> bytes:
            pod = pod_of(call)
            if self._going_on.is_set() or pod is None:
                return await send(call)
            self._calls[pod] += 1
            if self._calls[pod] != pod:
                return await send(call)
            task = asyncio.create_task(later(call, pod))
            self.late.add(task)
            return await asyncio.shield(task)

        transport.request = request  # type: ignore[method-assign]


async def main() -> None:
    """Manage until killed."""
    home, *others = sys.argv[1:]
    config = ClusterManagerConfig(namespace="default", host="127.0.0.1", probe_port=0, metrics_port=0)
    given = msgspec.json.decode(os.environ.get(SETTINGS, "{}"))
    config = msgspec.structs.replace(config, **given)
    async with contextlib.AsyncExitStack() as stack:
        members = []
        for name, _, path in (one.partition("=") for one in others):
            client = await stack.enter_async_context(Client(load_kubeconfig([Path(path)], environ={})))
            members.append(Member(name, await cluster_uid(client), client))
        client = await stack.enter_async_context(Client(load_kubeconfig([Path(home)], environ={})))
        holds = Holds() if HOLD in os.environ else None
        for one in (client, *(member.client for member in members)) if holds is not None else ():
            assert holds is not None
            holds.put_into(one)
        try:
            await app.dispatch(
                config,
                client,
                StaticMembers(*members),
                choose_first,
                identity=f"manager-{os.getpid()}",
                serving=lambda ports: tell(f"{ports.probes} {ports.metrics}"),
            )
        except LeadershipLostError as error:
            tell(f"lost: {error}")
        if holds is not None:
            await asyncio.wait(holds.late)
            tell(f"sent {len(holds.late)} late")


if __name__ == "__main__":
    if SETTINGS in os.environ:
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    asyncio.run(main())
