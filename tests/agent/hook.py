"""The hook's program, built with the options of the image, and what it does, for nodes that are simulated."""

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.image import build as image
from shoal.agent.limits import cgroup

SOURCE = image.HOOK


def build(target: Path, *flags: str) -> Path:
    """Build it; `flags` come on top of the image's."""
    subprocess.run(["gcc", *image.HOOK_OPTIONS, "-o", target, SOURCE, *flags], check=True)
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
