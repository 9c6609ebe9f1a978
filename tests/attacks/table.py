"""The table of attacks: who has which rights, what they write, and what must still hold.

The actor of all of them is a tenant: a ServiceAccount with a Role of `*` on `*` in a namespace of its own. In a row:

    attack   its name
    pods     what is there before, each running; the tenant's unless it is `of: neighbour`
    before   steps as under `holds`
    writes   the tenant's, one after another; `passes: true` for those that no policy has to refuse
    refused  the words that name the keys for which the policies refuse every other write; left out where they cannot
    only     the arena to which it adds something, where that is one: time on a real kubelet is dear
    holds    what must still hold when all writes have passed, in steps; `play` knows them

Beside these steps, after every attack no container has what it did not ask for, and no card more than it has room for.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attacks.arena import Object
from tests.cases import read_cases

FOLDER = Path(__file__).parent / "table"


@dataclass(frozen=True)
class Attack:
    """One row of the table."""

    attack: str
    writes: list[Object]
    holds: list[Object]
    pods: list[Object] = field(default_factory=list)
    before: list[Object] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    only: str = ""
    file: str = ""

    @property
    def name(self) -> str:
        """How tests call it."""
        return f"{self.file}: {self.attack}"


def attacks() -> list[Attack]:
    """All of them."""
    rows: list[tuple[str, dict[str, Any]]] = [
        (path.stem, row) for path in sorted(FOLDER.glob("*.yaml")) for row in read_cases(path)
    ]
    return [Attack(file=file, **row) for file, row in rows]
