"""Settings of the operator: what may be left empty, and what may not be written."""

import msgspec
import pytest

from shoal.operator.config import OperatorConfig


def test_the_namespace_may_be_empty() -> None:
    assert msgspec.convert({"namespace": ""}, OperatorConfig).namespace == ""


@pytest.mark.parametrize("bad", [{"namespace": "A"}, {"namespace": "a\n"}, {"leaseName": ""}])
def test_bad_names_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(bad))):
        msgspec.convert(bad, OperatorConfig)
