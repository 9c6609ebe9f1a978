"""The hook's program, built by the command of the image."""

import shlex
import subprocess
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
