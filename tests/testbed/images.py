"""Container images made on the spot from the machine's static busybox: nothing is pulled from anywhere."""

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.processes import TestbedError

#: A shell with the usual commands.
BUSYBOX = "shoal.test/busybox:1"
#: What holds a pod's namespaces. It need not handle signals: containerd kills it.
PAUSE = "shoal.test/pause:1"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """Busybox, and some programs and files on top of it."""

    tag: str
    command: tuple[str, ...] = ("/bin/sh",)
    #: By path in the image; those under bin/ can be run.
    files: Mapping[str, bytes] = field(default_factory=dict)
    #: More names of it.
    more: tuple[str, ...] = ()


#: What every node has.
STANDARD = (Image(BUSYBOX), Image(PAUSE, ("/bin/sleep", "2147483647")))


def write_archive(path: Path, wanted: Iterable[Image] = STANDARD) -> None:
    """Write images as one docker archive, as `ctr images import` reads it."""
    base = _layer()
    manifest = []
    with tarfile.open(path, "w") as archive:
        _add(archive, f"{_digest(base)}.tar", base)
        for image in wanted:
            layers = [base]
            if image.files:
                layers.append(_layer_of(image.files))
                _add(archive, f"{_digest(layers[1])}.tar", layers[1])
            config = _config([_digest(layer) for layer in layers], image.command)
            config_name = f"{_digest(config)}.json"
            _add(archive, config_name, config)
            names = [f"{_digest(layer)}.tar" for layer in layers]
            manifest.append({"Config": config_name, "RepoTags": [image.tag, *image.more], "Layers": names})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _config(layers: list[str], command: Iterable[str]) -> bytes:
    content = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}" for layer in layers]},
        "history": [{"created_by": "shoal test bed"}],
    }
    return json.dumps(content).encode()


def _layer() -> bytes:
    busybox = shutil.which("busybox")
    if busybox is None:
        raise TestbedError("no busybox here: install the package busybox-static")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            layer.addfile(_entry(folder, tarfile.DIRTYPE, 0o755))
        _add(layer, "bin/busybox", Path(busybox).read_bytes(), 0o755)
        for applet in sorted(set(applets) - {"busybox"}):
            link = _entry(f"bin/{applet}", tarfile.SYMTYPE, 0o777)
            link.linkname = "busybox"
            layer.addfile(link)
    return buffer.getvalue()


def _layer_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in sorted({name.rpartition("/")[0] for name in files} - {"bin", ""}):
            layer.addfile(_entry(folder, tarfile.DIRTYPE, 0o755))
        for name, content in sorted(files.items()):
            _add(layer, name, content, 0o755 if name.startswith("bin/") else 0o644)
    return buffer.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = _entry(name, tarfile.REGTYPE, mode)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
