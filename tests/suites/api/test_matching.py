"""The suite's own ruler: what counts as a difference, and what does not."""

from pathlib import Path
from typing import Any

import pytest

from tests.suites.api.matching import differences, load, substituted

TABLE = """
- {expected: {a: 1}, equal: [{a: 1}, {a: 1, b: 2}], different: [{}, {a: 2}, {a: '1'}, {a: true}, 1]}
- {expected: [1, {a: 1}], equal: [[1, {a: 1, b: 2}]], different: [[1], [{a: 1}, 1], [1, {a: 1}, 2], {}]}
- {expected: {a: <absent>}, equal: [{}, {b: 1}], different: [{a: null}, {a: 1}]}
- {expected: {a: <any>}, equal: [{a: null}, {a: 1}], different: [{}]}
- {expected: {a: null}, equal: [{a: null}], different: [{}, {a: 0}]}
- {expected: {a: !re 'x\\d+'}, equal: [{a: x12}], different: [{}, {a: x}, {a: x1y}, {a: 1}]}
- {expected: {a: !not x}, equal: [{a: y}], different: [{}, {a: x}]}
- {expected: !exactly {a: 1}, equal: [{a: 1}], different: [{a: 1, b: 2}, {}, 1]}
- {expected: {a: !has [{b: 1}]}, equal: [{a: [{b: 2}, {b: 1, c: 3}]}], different: [{}, {a: []}, {a: [{b: 2}]}, {a: 1}]}
- {expected: '<any>', equal: ['<any>'], different: [1]}
"""


@pytest.fixture
def table(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "table.yaml"
    path.write_text(TABLE)
    rows: list[dict[str, Any]] = load(path)
    return rows


def test_what_is_equal_and_what_differs(table: list[dict[str, Any]]) -> None:
    for row in table:
        for actual in row["equal"]:
            assert not list(differences(row["expected"], actual)), (row["expected"], actual)
        for actual in row["different"]:
            assert list(differences(row["expected"], actual)), (row["expected"], actual)


def test_a_difference_says_where() -> None:
    assert list(differences({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "object")) == ["object.a[0].b: is 2, expected 1"]


def test_only_known_variables_are_substituted() -> None:
    told = {"{ns}": ["{ns}/{other}", "a{12}", 3]}
    assert substituted(told, {"ns": "x"}) == {"x": ["x/{other}", "a{12}", 3]}
