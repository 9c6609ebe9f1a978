"""The README and the other documents tell what is so: their commands exist, their output is the real one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from tests.cli.shoal_up import running
from tests.testbed import binaries

ROOT = Path(__file__).parent.parent
#: Where the package's commands are installed.
SCRIPTS = Path(sys.executable).parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def _commands(text: str) -> list[str]:
    return re.findall(r"(?:^|`)(?:\$ )?((?:make|shoal) [^`\n#]*)", text, re.MULTILINE)


def _steady(output: str) -> str:
    """Without what differs from run to run: the time it took, and the ends of generated names."""
    output = re.sub(r"ready after [0-9.]+ s", "ready after … s", output)
    return re.sub(r"(nbody-[a-z0-9]+-)[a-z0-9]{5} ", r"\1….. ", output)


def test_the_demo_in_the_readme_is_the_real_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- demo -->.*?```\n(.*?)```\n<!-- /demo -->", readme, re.DOTALL)
    assert shown
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 0
    # A Job's pod may have ended by the time it is looked at.
    assert _steady(result.output).replace("succeeded", "running") == _steady(shown[1])


@pytest.mark.usefixtures("testbed_run")
def test_what_the_readme_lets_one_play_with_works(tmp_path: Path) -> None:
    kubectl = binaries.find("kubectl")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    part = readme.partition("<!-- play -->")[2].partition("<!-- /play -->")[0]
    start, rest = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    assert start.startswith(".venv/bin/shoal up ")
    with running() as (_, told):
        (kubeconfig,) = re.findall(r"KUBECONFIG=(\S+)", told)
        assert "export KUBECONFIG=…" in rest
        script = rest.replace("KUBECONFIG=…", f"KUBECONFIG={kubeconfig}").replace("$PWD/.venv/bin", str(SCRIPTS))
        script = script.replace("cluster.json.gz", str(tmp_path / "cluster.json.gz"))
        environment = {"PATH": f"{kubectl.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("NAMESPACE  GPU0(Allocated)", "default/too-big waits for a node.", "Pod four-cards fits: 1 pod"):
        assert words in done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_named_in_a_document_exists(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    targets |= {f"bench-{path.stem.removeprefix('bench_')}" for path in ROOT.glob("bench/bench_*.py")}
    named = {
        word
        for command in _commands(document.read_text(encoding="utf-8"))
        if command.startswith("make ")
        for word in command.split()[1:2]
        if re.fullmatch(r"[a-z-]+", word)
    }
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_shoal_command_named_in_a_document_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = {command.split()[1] for command in _commands(text) if command.startswith("shoal ")}
    assert {name for name in named if re.fullmatch(r"[a-z]+", name)} <= set(main.list_commands(click.Context(main)))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target
