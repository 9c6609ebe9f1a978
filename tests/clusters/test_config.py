"""Settings of the cluster manager: what may be left empty, and what may not be written."""

import msgspec
import pytest

from shoal.clusters.config import ClusterManagerConfig


def test_names_may_be_empty() -> None:
    """Home that takes no pods itself has no name among the clusters."""
    written = {"clusterName": "", "namespace": "", "schedulerNamespace": ""}
    assert msgspec.convert(written, ClusterManagerConfig).cluster_name == ""


@pytest.mark.parametrize("bad", [{"clusterName": "-x"}, {"clusterName": "a\n"}, {"namespace": "A"}, {"leaseName": ""}])
def test_bad_names_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(bad))):
        msgspec.convert(bad, ClusterManagerConfig)
