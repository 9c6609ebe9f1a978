"""The demo as a user runs it: the whole embedded cluster, all examples."""

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from shoal.cli.demo import demo

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_ends_as_it_should() -> None:
    result = CliRunner().invoke(demo)
    assert result.exit_code == 0, result.output
    for file in EXAMPLES.glob("[0-9]*.yaml"):
        assert file.name in result.output
    assert "two-containers           running on" in result.output
    assert "model GPU" in result.output
    assert "Allocated/Total GPU Memory In Cluster:" in result.output


def test_another_outcome_than_expected_fails_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "05-whole-gpu.yaml").write_text((EXAMPLES / "05-whole-gpu.yaml").read_text())
    (tmp_path / "expected.yaml").write_text("05-whole-gpu.yaml: {whole-gpu: {pods: 1, cards: 2}}")
    result = CliRunner().invoke(demo, ["--examples", str(tmp_path)])
    assert result.exit_code == 1
    assert "Not as expected: 05-whole-gpu.yaml: whole-gpu is on 1 cards, 2 expected" in result.output


def test_every_example_has_an_expectation_and_says_what_to_expect() -> None:
    expected = yaml.safe_load((EXAMPLES / "expected.yaml").read_text())
    files = sorted(path.name for path in EXAMPLES.glob("[0-9]*.yaml"))
    assert sorted(expected) == files
    assert all(re.match("# ", (EXAMPLES / name).read_text()) for name in files)


def test_an_unknown_policy_is_refused_with_the_choice() -> None:
    result = CliRunner().invoke(demo, ["--policy", "best"])
    assert result.exit_code == 2
    assert "binpack" in result.output


def test_a_folder_without_expectations_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(demo, ["--examples", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path / 'expected.yaml'} cannot be read" in result.output
