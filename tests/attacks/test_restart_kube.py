"""The scheduler is killed, as the kernel does for want of memory, and started again under what a tenant piled up; and
the API server does not answer for a while.
"""

import os
import signal
import time
from pathlib import Path

from tests.attacks.arena import Tenant
from tests.attacks.play import Play
from tests.attacks.real import RealArena
from tests.testbed.waiting import wait_for

#: As many pods, each with a record of thousands of cards that nobody has.
PODS = 60
#: As long as an API server takes that is started again.
AWAY_SECONDS = 20.0
#: Far below the limit that it is deployed with.
MEMORY_MIB = 300


def peak_mib(pid: int) -> int:
    """What a process has held at most, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (held,) = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return held // 1024


def test_scheduler_is_killed_under_load_and_comes_back(real_arena: RealArena) -> None:
    arena = real_arena
    arena.policies(on=False)
    play = Play(arena, Tenant(arena.api, "tenant"), Tenant(arena.api, "neighbour"))
    play.place({"name": "resident", "of": "neighbour", "gpu": 1})
    for answer in play.write(
        {"create": {"name": "idle", "node": "$node", "annotations": {"shoal.dev/allocation": "$bloat"}}, "times": PODS}
    ):
        assert answer.status == 201, answer
    for _ in range(2):
        arena.scheduler.kill()
        arena.scheduler.start()
        play.place({"name": "honest", "of": "neighbour", "gpu": 1})
        play.hold({"waits": {"name": "late", "gpu": 1}})
        assert peak_mib(arena.scheduler.pid) < MEMORY_MIB
        play.hold({"gone": "late"})
        play.hold({"gone": "honest"})
    play.check()
    for whose in (play.tenant, play.neighbour):
        whose.leave()
    play.settle()


def test_the_api_server_does_not_answer_while_pods_start_and_crash(real_arena: RealArena) -> None:
    """A container that crashes meanwhile has its cards back before the server is; one that was to start does later."""
    arena = real_arena
    arena.policies(on=False)
    play = Play(arena, Tenant(arena.api, "tenant"), Tenant(arena.api, "neighbour"))
    play.place({"name": "resident", "of": "neighbour", "gpu": 1})
    play.place({"name": "own", "mem": 4})
    uid = play.pod("own")["metadata"]["uid"]
    (first,) = arena.first_processes(uid, "main")
    assert play.create({"name": "late", "mem": 4}, play.tenant).status == 201
    server, _ = arena.plane.api.processes
    os.kill(server.pid, signal.SIGSTOP)
    try:
        end = time.monotonic() + AWAY_SECONDS
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: any(pid != first for pid in arena.first_processes(uid, "main")), "started again")
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    play.hold({"running": "late"})
    play.hold({"given": {"own": [4096], "late": [4096], "resident": [None]}})
    play.hold({"gone": "late"})
    play.hold({"restarts": "resident"})
    play.check()
    for whose in (play.tenant, play.neighbour):
        whose.leave()
    play.settle()
