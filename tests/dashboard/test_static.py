"""Files of others in the page are those of their release, with their licence; ours load nothing from elsewhere."""

import hashlib
import json
import re
from pathlib import Path

import pytest

import shoal.dashboard

FOLDER = Path(shoal.dashboard.__file__).parent
STATIC, TEMPLATES = FOLDER / "static", FOLDER / "templates"
VENDOR = STATIC / "vendor"
PARTS = json.loads((VENDOR / "vendor.json").read_text())
OWN = [path for path in (*STATIC.glob("*"), *TEMPLATES.glob("*")) if path.is_file()]


def test_every_vendored_file_is_listed_with_its_licence() -> None:
    listed = {name for part in PARTS for name in part["files"]} | {"vendor.json"}
    assert {path.name for path in VENDOR.iterdir()} == listed
    for part in PARTS:
        assert part["package"]
        assert part["licence"] in ("0BSD", "MIT")
        assert re.fullmatch(r"\d+\.\d+\.\d+", part["version"])
        assert any(name.endswith("LICENSE") for name in part["files"])


@pytest.mark.parametrize(("name", "digest"), [pair for part in PARTS for pair in part["files"].items()])
def test_a_vendored_file_is_that_of_its_release(name: str, digest: str) -> None:
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_files_need_nobody_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}", text)) - {"http://www.w3.org"}
    assert not hosts
    assert not re.search(r"\b(eval|Function)\(|innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write", text)
    if path.suffix == ".html":
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|\|\s*safe\b|<script(?![^>]*\ssrc=)", text)
