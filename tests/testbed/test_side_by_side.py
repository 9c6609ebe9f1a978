"""How tests are shared out to workers."""

from pathlib import Path

from tests.testbed.side_by_side import LONGEST, UNITS, rank_of, unit_of

ROOT = Path(__file__).parents[2]
SCENARIOS = "tests/suites/scheduling/test_scenarios.py"


def test_files_stay_together_and_a_few_are_parted_or_joined() -> None:
    assert unit_of("tests/kube/test_lease.py::test_a[x::y]") == "tests/kube/test_lease.py"
    assert unit_of("tests/attacks/test_attacks.py::test_a") == unit_of("tests/attacks/test_restart_kube.py::test_b")
    ways = {unit_of(f"{SCENARIOS}::test_scenario[{way}: cards: x]") for way in ("standalone", "extender")}
    assert len(ways) == 2


def test_the_longest_come_first() -> None:
    names = [f"{name}::test" for name in ("tests/admission/test_mutating.py", "tests/kubelet/test_node.py", LONGEST[0])]
    assert sorted(names, key=rank_of) == names[::-1]


def test_what_is_named_is_there() -> None:
    for name in (*UNITS, *LONGEST):
        assert (ROOT / name.partition("::")[0]).exists(), name
