"""The digest of a node's load: what is written is read back, and what is hostile is refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract.load import MAX_CARDS, MAX_LENGTH, CardDigest, LoadDigest, decode_load, encode_load
from shoal.model.errors import CodecError

mebibytes = st.none() | st.integers(0, 2**31)
percent = st.none() | st.integers(0, 100)
cards = st.builds(
    CardDigest,
    mebibytes,
    mebibytes,
    mebibytes,
    percent,
    st.none() | st.integers(-100, 500),
    st.none() | st.integers(0, 9),
)
uuids = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:/-]{0,40}\Z")


@given(st.builds(LoadDigest, st.dictionaries(uuids, cards, max_size=8), percent, percent, percent))
def test_what_is_written_is_read_back(digest: LoadDigest) -> None:
    assert decode_load(encode_load(digest)) == digest


def test_the_largest_node_fits() -> None:
    full = CardDigest(2**21, 2**21, 2**21, 100, 100, 1000)
    written = encode_load(LoadDigest({f"GPU-{n:036}": full for n in range(MAX_CARDS)}, 100, 100, 100))
    assert len(written) <= MAX_LENGTH


def test_what_is_not_known_is_left_out() -> None:
    assert json.loads(encode_load(LoadDigest({"GPU-1": CardDigest(used_mib=5)}))) == {
        "version": 1,
        "cards": [{"uuid": "GPU-1", "used": 5}],
    }


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 2},
        {"version": 1, "extra": 1},
        {"version": 1, "cpu": 101},
        {"version": 1, "cards": [{"uuid": "GPU-1", "used": -1}]},
        {"version": 1, "cards": [{"uuid": "GPU-1", "used": 2**40}]},
        {"version": 1, "cards": [{"uuid": "GPU-1", "used": 1.5}]},
        {"version": 1, "cards": [{"uuid": "GPU-1", "unattributed": "all"}]},
        {"version": 1, "cards": [{"uuid": "GPU-1", "celsius": 10**9}]},
        {"version": 1, "cards": [{"uuid": "GPU\n1"}]},
        {"version": 1, "cards": [{"uuid": "GPU-1"}, {"uuid": "GPU-1"}]},
        {"version": 1, "cards": [{"uuid": f"GPU-{n}"} for n in range(MAX_CARDS + 1)]},
        [],
        "x" * (MAX_LENGTH + 1),
    ],
)
def test_what_is_hostile_is_refused(document: Any) -> None:
    with pytest.raises(CodecError, match=r"shoal\.dev/load"):
        decode_load(json.dumps(document))
