"""Completion as a shell asks for it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer

SHOAL = Path(__file__).parents[2] / ".venv" / "bin" / "shoal"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_name_the_command(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_SHOAL_COMPLETE" in result.output


def test_an_unknown_shell_is_refused() -> None:
    result = CliRunner().invoke(main, ["completion", "cmd"])
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.output


def test_bash_completes(tmp_path: Path) -> None:
    """The script, in a real bash, with shoal on the PATH."""
    bash, shoal = shutil.which("bash"), shutil.which("shoal", path=f"{SHOAL.parent}:{os.environ['PATH']}")
    assert bash is not None
    assert shoal is not None
    script = """
        source <(shoal completion bash)
        COMP_WORDS=(shoal doc); COMP_CWORD=1; _shoal_completion shoal; echo "${COMPREPLY[@]}"
        COMPREPLY=(); COMP_WORDS=(shoal doctor --he); COMP_CWORD=2; _shoal_completion shoal; echo "${COMPREPLY[@]}"
    """
    environment = {"PATH": f"{Path(shoal).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True, env=environment)
    commands, options = done.stdout.splitlines()
    assert commands == "doctor"
    assert sorted(options.split()) == ["--help", "--here"]


@pytest.mark.parametrize(
    ("words", "proposed", "last"),
    [
        (["shoal", "doc"], {"doctor"}, ":4"),
        (["shoal", "doctor", "--he"], {"--help", "--here"}, ":4"),
        (["shoal", "policy", ""], {"show", "diff"}, ":4"),
        (["shoal", "what-if", "--snapshot", ""], set(), ":0"),
        (["inspect-gpushare", "--output", "w"], {"wide"}, ":4"),
        (["shoal", "nothing-of-this-name"], set(), ":4"),
    ],
)
def test_kubectl_is_told_what_may_follow(words: list[str], proposed: set[str], last: str) -> None:
    plugin, *typed = words
    lines = subprocess.check_output([SHOAL.with_name(f"kubectl_complete-{plugin}"), *typed], text=True).splitlines()
    assert {line.partition("\t")[0] for line in lines[:-1]} == proposed
    assert lines[-1] == last


def test_kubectl_asks(apiserver: ApiServer, tmp_path: Path) -> None:
    environment = {"PATH": f"{SHOAL.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for words, proposed in ((("shoal", "doc"), "doctor"), (("inspect", "gpushare", "--output", "w"), "wide")):
        command = [binaries.find("kubectl"), "__complete", *words]
        lines = subprocess.check_output(command, text=True, env=environment, stderr=subprocess.PIPE).splitlines()
        assert [line.partition("\t")[0] for line in lines] == [proposed, ":4"]
