"""What an API server answers, as data: requests in, answers out. Every expectation was taken from a real server.

A file of `cases/` holds `cases` and, before them, `templates` that the cases refer to. A case has a `name` and `steps`,
and may have mutating `policies` that are in force while it is played (`policies.py`).
Each case has a namespace of its own, `{ns}`; objects without a namespace carry it in their name. A step is a request

    do          method and path, such as `GET /api/v1/namespaces/{ns}/pods`
    body, raw   what is sent: as JSON, or this very text
    type        json (unless told), merge, strategic, json-patch, apply, or a media type
    accept      table, or a media type; JSON unless told
    token       be whoever this bearer token stands for, instead of the administrator
    as          the administrator speaks for this user

with what must come of it: `status` always, and where told

    reason, message   of a Status
    object            a part of the answer; `matching.py` lists the marks, such as <absent>
    text              the whole answer when it is not JSON
    header            a part of the answer's headers
    eventually        ask again until it is so: for what the server does in its own time
    keep              values to keep: a variable and the path of its value, such as `uid: metadata.uid`

or it is a watch: `watch` (the path), `events` (in order, each `TYPE: a part of the object`), and `during`, steps that
are played while the watch is open. A watch is read no further than its last event: to show that something is not
sent, let something follow that is.

`not_yet.yaml` lists the steps in which the embedded server still differs: by case, the number of the step and the
reason. A step that is listed and passes fails the suite, so the list can only become shorter.
"""

import uuid
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.suites.api.matching import load
from tests.suites.api.play import Play, Step
from tests.suites.api.policies import in_force
from tests.suites.connection import DEADLINE, Connection
from tests.testbed.cluster import Api

HERE = Path(__file__).parent
FILES = {path.stem: load(path)["cases"] for path in sorted((HERE / "cases").glob("*.yaml"))}
CASES = {f"{file}: {case['name']}": case for file, cases in FILES.items() for case in cases}
NOT_YET: dict[str, dict[int, str]] = load(HERE / "not_yet.yaml") or {}
#: Seconds to wait for what is not expected to come.
FUTILE = 2.0

# Older servers say some things in other words.
pytestmark = pytest.mark.min_kube("1.36")


@pytest.mark.parametrize("name", CASES)
def test_case(cluster: Api, name: str, request: pytest.FixtureRequest) -> None:
    embedded = request.node.callspec.params["cluster"] == "embedded"
    not_yet = NOT_YET.get(name, {}) if embedded else {}
    connection = Connection(cluster.kubeconfig())
    play = Play(connection, {"ns": new_namespace(cluster)})
    policies = CASES[name].get("policies")
    with in_force(connection, play.variables["ns"], policies) if policies else nullcontext():
        for number, step in enumerate(CASES[name]["steps"], start=1):
            connection.deadline = FUTILE if number in not_yet else DEADLINE
            if number not in not_yet:
                play.step(step)
            elif passes(play, step):
                pytest.fail(f"step {number} passes now: take it out of not_yet.yaml ({not_yet[number]})")
    if not_yet:
        pytest.xfail("; ".join(f"step {number}: {reason}" for number, reason in not_yet.items()))


def test_what_is_not_yet_is_a_step() -> None:
    for name, steps in NOT_YET.items():
        assert steps.keys() <= set(range(1, len(CASES[name]["steps"]) + 1)), name


def test_no_two_cases_have_the_same_name() -> None:
    assert len(CASES) == sum(map(len, FILES.values()))


def new_namespace(cluster: Api) -> str:
    name = f"case-{uuid.uuid4().hex[:12]}"
    cluster.create_namespace(name)
    return name


def passes(play: Play, step: Step) -> bool:
    try:
        play.step(step)
    except AssertionError:
        return False
    return True
