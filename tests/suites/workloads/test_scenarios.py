"""What the controllers make of workloads, as data: the same on the embedded cluster as on a real one.

A file of `scenarios/` holds `scenarios` and, before them, `templates` that they refer to. A scenario has a `name` and
`steps`, and a namespace of its own, `{ns}`. Fake kubelets run the pods that are bound; the test binds them. A step is

    apply   make this object
    do      a request as in the API suite: method and path; `body`, `type` and `status` (200 unless told)
    each    the same about each pod with these labels, or the `first` few; `{pod}` is its name. With `of` about each
            object of another kind; `{name}` is its name
    bind    from now on bind all pods (true, as at the beginning), none (false), or those of these names
    node    make a node with these `labels`; later: change its `labels` or `taints`, or `remove` it
    until   wait until the object at this path is like `is`
    expect  wait until the whole namespace is as recorded under this name; of conditions of `unsure` types reason and
            message are not compared, where the real controller writes now these and now those

What is recorded lies in `expected/` and comes from a real cluster. After a change of a scenario record it anew:
`SHOAL_RECORD=1 .venv/bin/pytest -m kube tests/suites/workloads --cluster=real -k NAME`; `settle` is how many seconds
the namespace must then be still.
"""

import os
import re
import uuid
from pathlib import Path

import pytest
import yaml

from tests.cases import read_cases
from tests.suites.workloads.scenario import Scenario
from tests.testbed.apiserver import ApiServer
from tests.testbed.cluster import Api

HERE = Path(__file__).parent
FILES = {path.stem: read_cases(path)["scenarios"] for path in sorted((HERE / "scenarios").glob("*.yaml"))}
SCENARIOS = {f"{file}: {one['name']}": one for file, found in FILES.items() for one in found}
RECORD = bool(os.environ.get("SHOAL_RECORD"))

# Older controllers write other statuses.
pytestmark = pytest.mark.min_kube("1.36")


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(cluster: Api, name: str) -> None:
    path = HERE / "expected" / f"{re.sub('[^a-z0-9]+', '-', name)}.yaml"
    expected = {} if RECORD else read_cases(path)
    namespace = f"work-{uuid.uuid4().hex[:12]}"
    cluster.create_namespace(namespace)
    scenario = Scenario(cluster.kubeconfig(), namespace, expected, record=RECORD, real=isinstance(cluster, ApiServer))
    try:
        for step in SCENARIOS[name]["steps"]:
            scenario.step(step)
    finally:
        scenario.close()
    if RECORD:
        path.write_text(yaml.safe_dump(expected, sort_keys=False, width=120, default_flow_style=None))


def test_everything_is_looked_at() -> None:
    recorded = {path.stem for path in (HERE / "expected").glob("*.yaml")}
    assert recorded == {re.sub("[^a-z0-9]+", "-", name) for name in SCENARIOS}
    assert len(SCENARIOS) == sum(map(len, FILES.values()))
    for name, scenario in SCENARIOS.items():
        assert any("expect" in step for step in scenario["steps"]), name
