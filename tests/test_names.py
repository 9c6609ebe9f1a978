"""A name means one thing: no two public classes of the package share theirs."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "shoal"


def test_every_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_pb2" in path.name:
            continue  # generated: the wire's own names
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
