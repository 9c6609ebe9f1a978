"""Loads the fixtures of the test bed for all tests, and says how properties are tried."""

import os

from hypothesis import settings

from tests.soak import times

pytest_plugins = ["tests.testbed.plugin", "tests.testbed.node_fixtures", "tests.testbed.side_by_side"]

# Machines are shared: slowness of one example is not a failure. CI judges a change by the same examples every time;
# everyone's own runs go on looking for new ones.
settings.register_profile(
    "shoal", max_examples=times(100), deadline=None, database=None, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("shoal")
