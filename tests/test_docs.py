"""What the docs name exists: files, folders and the other pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests", "bench", "deploy", "examples")
    for path in (ROOT / folder).rglob("*")
    if "__pycache__" not in path.parts
]
_FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|c|proto)|(?:src|tests|bench|deploy|examples)/[\w./-]+)(?<!VERSION)`")


def test_pages_are_found() -> None:
    assert {"README.md", "architecture.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    """A path in backticks is one from the root, or the end of one."""
    named = _FILE.findall(page.read_text())
    missing = {name for name in named if not any(f"/{file}".endswith("/" + name.rstrip("/")) for file in FILES)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_steps_of_a_pod_name_files_of_the_package() -> None:
    steps = [
        line for line in (ROOT / "docs" / "architecture.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)
    ]
    assert len(steps) > 8
    for step in steps:
        for name in re.findall(r"`([\w/]+/[\w./]+)`", step.rsplit("|", 2)[1]):
            assert (ROOT / "src" / "shoal" / name).exists() or (ROOT / name).exists(), name
