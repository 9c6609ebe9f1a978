"""Specs by chance: of the fields that there are, with values that are good, just too long, or quite wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import strategies as st

from shoal.operator.fields import FieldType, fields_of
from shoal.operator.policy import ClusterPolicySpec

#: Texts that one rule or another takes, and some that none does.
TEXTS = [
    *("", "a", "nvidia", "r.example.org/gpu", "driver", "v1", "sha256:" + "0" * 64, "25%", "0", "0%", "100%", "101%"),
    *(
        "1",
        "500m",
        "1Gi",
        "1.5e3",
        "-1",
        "/run/x",
        "/",
        "run/x",
        "a b",
        "A_B",
        "a\n",
        "ä",
        "a.",
        "http://h:1",
        "30d",
        "INF",
    ),
    *(
        "x" * 63,
        "x" * 64,
        "x" * 253,
        "x" * 254,
        "single",
        "app=a,b in (c),!d",
        "a=b=c",
        "GiB",
        "Exists",
        "NoSchedule",
        "OnDelete",
        "v2",
        "\u0000",
    ),
]
_TEXT = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


def values(kind: FieldType) -> st.SearchStrategy[Any]:
    """Values for a field, most of them of its type."""
    if kind.struct is not None:
        return mappings(kind.struct)
    if kind.choices:
        return st.sampled_from(kind.choices) | _TEXT
    if kind.kind is tuple:
        return st.lists(values(kind.entries[0]), max_size=3)
    if isinstance(kind.kind, type) and issubclass(kind.kind, Mapping):
        return st.dictionaries(st.sampled_from(["a", "example.org/team"]), values(kind.entries[1]), max_size=2)
    if kind.is_int_or_string:
        return _TEXT | st.integers(-1, 3) | st.sampled_from([2**31, 2**31 + 1, 999_999, 1_000_000])
    if kind.kind is bool:
        return st.booleans()
    if kind.kind is int:
        return st.integers(-1, 400) | st.sampled_from([86400, 86401, 65535, 65536, 10_000, 10_001, 2**40])
    if kind.kind is float:
        return st.sampled_from([0.0, 0.05, 0.5, 1, 5.0, 60, 300, 301, 86400.0, 86401, -0.5])
    return _TEXT


def mappings(struct: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """A few fields of a struct."""
    fields = {field.key: values(field.type) for field in fields_of(struct)}
    return st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )


#: Specs of known fields.
SPECS = mappings(ClusterPolicySpec)
#: Specs with anything anywhere.
WILD = st.dictionaries(
    st.sampled_from([field.key for field in fields_of(ClusterPolicySpec)]) | _TEXT,
    GARBAGE | SPECS,
    max_size=4,
)
