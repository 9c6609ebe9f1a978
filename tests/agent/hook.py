"""The hook's program, built by the command of the image, and what it does, for nodes that are simulated."""

import asyncio
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoal.agent.limits import cgroup

CONTAINERFILE = Path(__file__).parents[2] / "deploy" / "image" / "Containerfile"
SOURCE = Path(cgroup.__file__).parent / "hook" / "shoal-limit.c"


def build(target: Path, *flags: str) -> Path:
    """Build it; `flags` come on top of the image's."""
    (command,) = [line for line in CONTAINERFILE.read_text().splitlines() if line.startswith("RUN gcc ")]
    places = {f"/{SOURCE.name}": str(SOURCE), f"/{cgroup.PROGRAM}": str(target)}
    words = [places.get(word, word) for word in shlex.split(command.removeprefix("RUN "))]
    assert set(places.values()) < set(words)
    subprocess.run([*words, *flags], check=True)
    return target


def encoded(cgroup_path: str, limits: Sequence[str]) -> bytes:
    """A request on the wire, as the C program sends it."""
    return "".join(f"{line}\n" for line in (cgroup.GREETING, cgroup_path, *limits)).encode()


async def ask(socket_path: Path, cgroup_path: str, limits: Sequence[str]) -> str:
    """Ask the agent as the C program does; its answer."""
    reader, writer = await asyncio.open_unix_connection(socket_path)
    try:
        writer.write(encoded(cgroup_path, limits))
        writer.write_eof()
        return (await reader.read()).decode(errors="replace").strip()
    finally:
        writer.close()
