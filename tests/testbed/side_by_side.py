"""How `make test-kube` shares its tests out to workers, each of which has beds of its own.

A worker is given a file at a time, so that what a file shares is started once. A few files are too long for that and
are given in parts. The longest come first: what is left at the end, while others have nothing to do, is short.
"""

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

#: What is given out as one beside files, by how the names of the tests begin.
UNITS = (
    "tests/attacks/",
    "tests/suites/scheduling/test_scenarios.py::test_scenario[standalone",
    "tests/suites/scheduling/test_scenarios.py::test_scenario[extender",
)
#: What takes long, the longest first, by how the names of the tests begin.
LONGEST = (
    "tests/deploy/test_chart_kube.py",
    "tests/clusters/test_manager_faults_kube.py",
    "tests/attacks/",
    "tests/operator/test_uninstall_kube.py",
    "tests/agent/real/test_behaviour.py",
    "tests/agent/real/test_claims_kube.py",
    "tests/deploy/test_image.py",
    "tests/deploy/test_validated_kube.py",
    "tests/scheduler/test_differential_kube.py",
    "tests/scheduler/test_chaos_kube.py",
    "tests/operator/",
    "tests/deploy/",
    "tests/clusters/",
    "tests/suites/clusters/",
    "tests/suites/workloads/test_scenarios.py",
    "tests/suites/scheduling/",
    "tests/agent/real/test_sharing.py",
    "tests/kube/test_storm.py",
    "tests/kubelet/test_statuses.py",
    "tests/scheduler/",
    "tests/agent/real/",
    "tests/kubelet/",
    "tests/testbed/",
)


def unit_of(nodeid: str) -> str:
    """What a test is given out with: one of `UNITS`, or its file."""
    return next((name for name in UNITS if nodeid.startswith(name)), nodeid.partition("::")[0])


def rank_of(nodeid: str) -> int:
    """When its turn is."""
    return next((place for place, name in enumerate(LONGEST) if nodeid.startswith(name)), len(LONGEST))


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
