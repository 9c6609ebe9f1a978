"""The API keeps what its OpenAPI says: every path is called with what it takes and with what it does not."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from shoal.dashboard.api import API, ENDPOINTS
from shoal.dashboard.openapi import openapi
from tests.dashboard.background import in_background
from tests.dashboard.site import Readings, Site
from tests.dashboard.site import site as made
from tests.soak import times

PATHS = [API + endpoint.path for endpoint in ENDPOINTS] + [f"{API}/map"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    readings = Readings()
    readings.use("n1", {"red/a": 1000}, {})
    with in_background(made(tmp_path_factory.mktemp("openapi"), readings)) as (site, run):
        site.put(
            {"n1": {"cards": {0: 10240, 1: 10240}}, "n2": {"mem": 20, "count": 2}},
            {
                "a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0},
                "w": {"namespace": "red", "mem": 30, "why": "0/2"},
            },
        )
        run(site.current())
        yield site


schema = schemathesis.openapi.from_dict(openapi())
# Every combination of what is wrong takes minutes; chance finds them too, given time (`make soak`).
schema.config.phases.coverage.enabled = False


@schema.include(path=PATHS).parametrize()
@settings(max_examples=times(15), deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_told(case: schemathesis.Case, served: Site) -> None:
    case.call_and_validate(
        base_url=served.url,
        headers={"Authorization": f"Bearer {served.admin}"},
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
        timeout=120,
    )
