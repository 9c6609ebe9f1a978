"""The tables, letter by letter."""

from pathlib import Path
from typing import Any

import pytest

from shoal.cli.inspect.tables import tabbed
from tests.cases import read_cases
from tests.cli.inspect.cluster import Cluster, objects

ARGUMENTS = {"summary": (), "details": ("-d",), "wide": ("-o", "wide", "--pending")}
CASES: dict[str, dict[str, Any]] = {
    f"{path.stem}: {name}": case
    for path in sorted((Path(__file__).parent / "cases").glob("*.yaml"))
    for name, case in read_cases(path).items()
}


def marked(text: str) -> str:
    """The text with its line ends marked, as the cases have them."""
    return text.replace("\n", "$\n")


@pytest.mark.parametrize("name", CASES)
def test_tables(name: str, cluster: Cluster) -> None:
    case = CASES[name]
    cluster.put(objects(case["nodes"], case["pods"]))
    for kind, arguments in ARGUMENTS.items():
        if kind in case:
            result = cluster.inspect(*arguments)
            assert result.exit_code == 0, result.output
            assert marked(result.output) == case[kind]


@pytest.mark.parametrize(
    ("text", "laid_out"),
    [
        ("", ""),
        ("a\tb\nlong\tc", "a     b\nlong  c"),
        ("a\tb\n\nlong\tc", "a  b\n\nlong  c"),
        ("a\t\tend\nlong\tb\tend\nx\tlonger", "a        end\nlong  b  end\nx     longer"),
        ("a\tb\t\nc\t\n", "a  b  \nc  \n"),
    ],
)
def test_columns_end_with_a_line_that_lacks_them(text: str, laid_out: str) -> None:
    assert tabbed(text) == laid_out
