"""Loads the fixtures of the test bed for all tests, and says how hard properties are tried."""

import os

from hypothesis import settings

pytest_plugins = ["tests.testbed.plugin", "tests.testbed.node_fixtures"]

# A change is judged by the same examples every time; developers' own runs go on looking for new ones.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
