"""The table, asked of `shoal.model`: its words are what the scheduler says, and what the policies must say."""

from __future__ import annotations

import pytest

from shoal.model.errors import RequestError
from shoal.model.manifest import read_pod
from shoal.model.pod import request_of
from tests.admission.table import CASES, Case, every_case


@every_case
def test_model(case: Case) -> None:
    pod = case.object("Pod")
    if not case.refused:
        request_of(read_pod(pod), unit=case.unit)
        return
    with pytest.raises(RequestError) as error:
        request_of(read_pod(pod), unit=case.unit)
    assert str(error.value) == case.refused


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
