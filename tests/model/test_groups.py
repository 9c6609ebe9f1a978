"""Pod groups by the names in use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract import groups
from shoal.model.contract.groups import PodGroup, decode_group
from shoal.model.errors import CodecError
from tests.model.strategies import junk

LIGHT = "pod-group.scheduling.sigs.k8s.io/name"
LIGHT_MIN = "pod-group.scheduling.sigs.k8s.io/min-available"
NEW = "scheduling.x-k8s.io/pod-group"
OLD = "pod-group.scheduling.sigs.k8s.io"
OWN, OWN_MIN, OWN_TIMEOUT = "shoal.dev/pod-group", "shoal.dev/pod-group-min", "shoal.dev/pod-group-timeout"


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, None),
        ({"app": "x"}, {"note": "y"}, None),
        ({OWN: ""}, {}, None),
        ({LIGHT: "nginx", LIGHT_MIN: "3"}, {}, PodGroup("nginx", 3)),
        ({NEW: "nginx"}, {OWN_MIN: "3"}, PodGroup("nginx", 3)),
        ({NEW: "nginx"}, {LIGHT_MIN: "3"}, PodGroup("nginx", 3)),
        ({OLD: "nginx", OWN_MIN: "3"}, {}, PodGroup("nginx", 3)),
        ({OWN: "train", OWN_MIN: "8"}, {OWN_TIMEOUT: "600"}, PodGroup("train", 8, 600)),
        ({OWN: "train", OWN_MIN: "8", OWN_TIMEOUT: "5"}, {OWN_MIN: "8"}, PodGroup("train", 8, 5)),
        ({OWN: "a", NEW: "a", LIGHT: "a", OWN_MIN: "2", LIGHT_MIN: "2"}, {}, PodGroup("a", 2)),
    ],
)
def test_read(labels: dict[str, str], annotations: dict[str, str], expected: PodGroup | None) -> None:
    assert decode_group(labels, annotations) == expected


@pytest.mark.parametrize(
    ("labels", "annotations", "words"),
    [
        ({NEW: "nginx"}, {}, [NEW, "'nginx'", OWN_MIN]),
        ({LIGHT_MIN: "3"}, {}, [LIGHT_MIN, OWN]),
        ({OWN: "a", NEW: "b", OWN_MIN: "2"}, {}, [OWN, "'a'", NEW, "'b'", "keep one"]),
        ({OWN: "a", OWN_MIN: "2", LIGHT_MIN: "3"}, {}, [OWN_MIN, "'2'", LIGHT_MIN, "'3'", "keep one"]),
        ({OWN: "a", OWN_MIN: "2"}, {OWN_MIN: "3"}, [OWN_MIN, "'2'", "'3'", "keep one"]),
        ({OWN: "a", OWN_MIN: "0"}, {}, [OWN_MIN, "'0'", "from 1 to 1000"]),
        ({OWN: "a", OWN_MIN: "1001"}, {}, [OWN_MIN, "from 1 to 1000"]),
        ({OWN: "a", LIGHT_MIN: "many"}, {}, [LIGHT_MIN, "'many'", "whole number"]),
        ({OWN: "a", OWN_MIN: "2", OWN_TIMEOUT: "1h"}, {}, [OWN_TIMEOUT, "'1h'", "whole number"]),
        ({OWN: "a" * 300, OWN_MIN: "2"}, {}, [OWN, "253"]),
        ({OWN: 7}, {}, [OWN, "write text"]),
    ],
)
def test_refused_with_what_to_do(labels: dict[str, Any], annotations: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(CodecError) as error:
        decode_group(labels, annotations)
    assert all(word in str(error.value) for word in words), str(error.value)


names = st.sampled_from([LIGHT, LIGHT_MIN, NEW, OLD, OWN, OWN_MIN, OWN_TIMEOUT])
values = junk | st.text(max_size=9) | st.integers(-1, 12).map(str)


@given(st.dictionaries(names, values), st.dictionaries(names, values))
def test_raises_nothing_but_codec_error(labels: dict[str, Any], annotations: dict[str, Any]) -> None:
    try:
        group = decode_group(labels, annotations)
    except CodecError:
        return
    assert group is None or (1 <= group.minimum <= groups.MAX_MINIMUM and group.name and group.timeout >= 1)
