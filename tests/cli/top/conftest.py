"""The clusters of the tests of `shoal inspect`."""

from tests.cli.inspect.conftest import _api, _own_apiserver, _own_embedded, cluster, pytest_generate_tests, real_cluster

__all__ = ["_api", "_own_apiserver", "_own_embedded", "cluster", "pytest_generate_tests", "real_cluster"]
