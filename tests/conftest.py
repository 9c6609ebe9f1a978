"""Loads the fixtures of the test bed for all tests."""

pytest_plugins = ["tests.testbed.plugin", "tests.testbed.node_fixtures"]
