"""The image of all services: what is in it and what is not, and that the same tree gives the same image."""

import gzip
import io
import json
import shutil
import stat
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.image import build as image
from shoal import __version__
from shoal.agent.config import AgentConfig
from tests.testbed.processes import Run


@dataclass(frozen=True)
class BuiltImage:
    """An image, unpacked."""

    archive: Path
    digest: str
    config: dict[str, Any]
    files: dict[str, tarfile.TarInfo]
    root: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What a container of it prints, as its user; without a kubelet, in its file system alone."""
        settings = self.config["config"]
        user = f"--userspec={settings['User']}"
        command = ["env", "-i", *settings["Env"], "/usr/sbin/chroot", user, self.root, *settings["Entrypoint"]]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def opened(archive: Path, folder: Path, digest: str) -> BuiltImage:
    with tarfile.open(archive) as tar:

        def blob(name: str) -> bytes:
            file = tar.extractfile(f"blobs/sha256/{name.removeprefix('sha256:')}")
            assert file is not None
            return file.read()

        index = tar.extractfile("index.json")
        assert index is not None
        (described,) = json.load(index)["manifests"]
        assert described["digest"] == digest
        assert described["annotations"]["io.containerd.image.name"] == f"docker.io/library/shoal:{__version__}"
        manifest = json.loads(blob(digest))
        files: dict[str, tarfile.TarInfo] = {}
        for one in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(one["digest"])))) as layer:
                files |= {member.name: member for member in layer}
                layer.extractall(folder, filter="tar")
        return BuiltImage(archive, digest, json.loads(blob(manifest["config"]["digest"])), files, folder)


@pytest.fixture(scope="module")
def built(testbed_run: Run, shoal_image: tuple[Path, str]) -> BuiltImage:
    archive, digest = shoal_image
    return opened(archive, testbed_run.folder("image"), digest)


def test_python_is_one_that_the_package_takes() -> None:
    wanted = tomllib.loads((image.ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert wanted == f">={image.PYTHON}"


def test_commands_of_the_image_run(built: BuiltImage) -> None:
    assert built.run("--version").stdout == f"shoal, version {__version__}\n"
    for command in ("scheduler", "agent", "metrics"):
        done = built.run(command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"Usage: shoal {command}" in done.stdout


@pytest.mark.parametrize("command", ["demo", "up"])
def test_what_was_left_out_says_so(built: BuiltImage, command: str) -> None:
    done = built.run(command)
    assert done.returncode == 1
    assert "pip install shoal[embedded]" in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_can_do_more_with_it_than_run_shoal(built: BuiltImage) -> None:
    assert built.config["config"]["User"] == "65532:65532"
    programs = {name for name in built.files if name.startswith(("bin/", "sbin/", "usr/bin/", "usr/sbin/"))}
    assert programs == {"usr/bin/python3", "usr/bin/python3.11"}
    assert not [name for name, file in built.files.items() if file.mode & (stat.S_ISUID | stat.S_ISGID)]
    writable = [name for name, file in built.files.items() if file.mode & 0o002 and not file.issym()]
    assert writable == ["tmp"]
    assert {(file.uid, file.gid, file.mtime) for file in built.files.values()} == {(0, 0, 0)}


def test_it_tells_nothing_of_the_machine_that_built_it(built: BuiltImage) -> None:
    assert not {"etc/hostname", "etc/resolv.conf", "etc/fstab"} & built.files.keys()
    here = str(image.ROOT).encode()
    telling = [name for name, file in built.files.items() if file.isreg() and here in (built.root / name).read_bytes()]
    assert telling == []


def test_compiled_code_is_inside_and_the_embedded_cluster_is_not(built: BuiltImage) -> None:
    cached = "opt/shoal/shoal/scheduler/__pycache__/app.cpython-311.pyc"
    assert cached in built.files
    assert b"/opt/shoal/shoal/scheduler/app.py" in (built.root / cached).read_bytes()
    assert "usr/lib/python3.11/asyncio/__pycache__/base_events.cpython-311.pyc" in built.files
    assert not [name for name in built.files if name.startswith(("opt/shoal/shoal/embedded", "opt/shoal/cel_expr"))]


def test_the_hook_lies_where_the_agent_takes_it_from_and_needs_nothing(built: BuiltImage, tmp_path: Path) -> None:
    path = AgentConfig(node_name="n").limit_hook.lstrip("/")
    assert built.files[path].mode & 0o111
    shutil.copy(built.root / path, tmp_path / "hook")
    done = subprocess.run(["/usr/sbin/chroot", tmp_path, "/hook"], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("shoal-limit: "), "it runs in a file system that has nothing else"


def test_nvidias_runtime_puts_libraries_where_the_loader_looks(built: BuiltImage) -> None:
    """Without this file it takes /usr/lib64, where Debian's loader does not look by itself."""
    assert "etc/debian_version" in built.files


def test_licences_of_what_is_inside_are_inside(built: BuiltImage) -> None:
    assert "usr/share/doc/python3.11-minimal/copyright" in built.files
    assert [name for name in built.files if name.startswith("opt/shoal/shoal-") and name.endswith("/LICENSE")]


def test_size(built: BuiltImage) -> None:
    assert built.archive.stat().st_size <= 60_000_000


def test_the_same_tree_gives_the_same_image(built: BuiltImage, tmp_path: Path) -> None:
    again = image.build(image.ARCHITECTURES["amd64"], __version__, tmp_path / "again.tar")
    assert again == built.digest
