"""What each controller decides, as data: an object and what it has in, actions out.

A case of `cases/` has an `object`, what it has (`pods`, `sets`, `nodes`, `failure`, …; `short.py` has the short
forms), and the `actions`: all of them, in order, each compared in the parts that are told.
"""

from pathlib import Path

import pytest
import yaml

from tests.embedded.controllers.short import NOW, RECONCILES, owned, shown, workload
from tests.suites.api.matching import differences, load

FILES = {path.stem: load(path) for path in sorted((Path(__file__).parent / "cases").glob("*.yaml"))}
CASES = {f"{file}: {case['name']}": case for file, cases in FILES.items() for case in cases}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    obj = workload(case["object"])
    _, reconcile = RECONCILES[obj["kind"]]
    has = owned(case, obj)
    actions = [shown(action) for action in reconcile(obj, has, NOW)]
    wrong = list(differences(case["actions"], actions, "actions"))
    assert not wrong, "\n".join([*wrong, yaml.safe_dump(actions)])


def test_no_two_cases_have_the_same_name() -> None:
    assert len(CASES) == sum(map(len, FILES.values()))
