"""How `make test-kube` shares its tests out to workers, each of which has beds of its own.

A worker is given a file at a time, so that what a file shares is started once. A few files are too long for that and
are given in parts. The longest come first: what is left at the end, while others have nothing to do, is short.
"""

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

#: Beginnings of test names. The tests of one stay together; the order is that of their seconds.
LONGEST = (
    "tests/suites/scheduling/test_scenarios.py::test_scenario[standalone",
    "tests/suites/scheduling/test_scenarios.py::test_scenario[extender",
    "tests/attacks/test_attacks.py",
    "tests/agent/real/test_behaviour.py",
)


def unit_of(nodeid: str) -> str:
    """What a test is given out with: one of `LONGEST`, or its file."""
    return next((name for name in LONGEST if nodeid.startswith(name)), nodeid.partition("::")[0])


def rank_of(nodeid: str) -> int:
    """When its turn is."""
    unit = unit_of(nodeid)
    return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)


class SideBySide(LoadScopeScheduling):  # type: ignore[misc]
    """Gives out units in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide | None:
    """`--dist loadfile` means this one."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return SideBySide(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order in which a worker names its tests is that in which they are given out."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank_of(item.nodeid))
