"""Builds the image of all services, from Debian's packages, the lock file and this tree: `make image`.

No registry and no container engine is asked. The base is made of Debian packages without running anything of theirs, so
there is no shell and no package manager in it; Python packages come by `requirements.lock`, with hashes. The result is
an OCI archive, `build/image/shoal-VERSION-ARCH.oci.tar`, for `ctr images import`, `skopeo copy oci-archive:…` and the
like. The same tree and the same packages give the same digest: times are zero, names are sorted, owners are root.

The embedded cluster and what only it needs are left out.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
HOOK: Final = ROOT / "src" / "shoal" / "agent" / "limits" / "hook" / "shoal-limit.c"
#: Static: it runs on the host, and brings its C library with it.
HOOK_OPTIONS: Final = ("-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror")
NAME: Final = "shoal"
#: Nobody: what a manifest does not say otherwise runs as this user.
USER: Final = "65532:65532"
SUITE: Final = "bookworm"
DEBIAN_VERSION: Final = "12"
#: The Python of that Debian, for which packages are chosen.
PYTHON: Final = "3.11"
#: libcrypt1 has the bcrypt of the exporter's passwords.
DEBIAN: Final = ("python3-minimal", "libpython3-stdlib", "ca-certificates", "libstdc++6", "zlib1g", "libcrypt1")
#: Not needed by anybody in the image: tools of the packages, manuals, settings of what is not there, and the parts of
#: Python's library for developers.
_UNWANTED: Final = re.compile(
    r"^(?:s?bin|usr/sbin|dev|proc|sys|boot|media|mnt|srv|home|root"
    r"|usr/bin/(?!python3)[^/]*"
    r"|usr/share/(?:doc/.*/(?!copyright$)[^/]*|man|locale|debconf|perl5|lintian|bug|bash-completion|info)"
    r"|usr/lib/(?:dpkg|tmpfiles\.d|systemd)"
    r"|etc/(?!ssl|ld\.so|python)[^/]*"
    r"|var/(?:cache|log|backups|lib/apt|lib/dpkg/info)"
    r"|usr/lib/[^/]+-linux-gnu/(?:gconv|libsqlite3\.|libdb-|engines)[^/]*"
    r"|usr/lib/python3[^/]*/(?:pydoc_data|ensurepip|idlelib|lib2to3|distutils|test|tkinter|turtledemo|sqlite3)"
    r"|usr/lib/python3[^/]*/lib-dynload/_(?:sqlite3|dbm|test|xxtest|ctypes_test)[^/]*)(?:/|$)"
)
#: Tests and what only compilers read, and the parts of Shoal that are for trying it out.
_UNWANTED_OF_PACKAGES: Final = re.compile(
    r"/tests?/|\.(?:pyi|pyx|pxd|c|h|hpp)$|/numpy/f2py/|/numpy/_core/(?:include|lib)/|/highspy/include/"
    r"|opt/shoal/(?:bin|share|include)/|opt/shoal/shoal/(?:embedded|examples|deploy)/"
)
_CERTIFICATES: Final = "usr/share/ca-certificates/mozilla"
_BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
#: The only script: Python finds everything else by PYTHONPATH.
_SCRIPT: Final = 'from shoal.cli.main import main\n\nmain(prog_name="shoal")\n'


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of processors, by the names that the tools have for it."""

    debian: str
    machine: str

    @property
    def compiler(self) -> str:
        """The C compiler for it."""
        return f"{self.machine}-linux-gnu-gcc"


ARCHITECTURES: Final = {"amd64": Architecture("amd64", "x86_64"), "arm64": Architecture("arm64", "aarch64")}


class BuildError(Exception):
    """What is missing, and how to have it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, and say what came out."""
    native = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64")
    parser = argparse.ArgumentParser(description="Build the image of all services.")
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default=native)
    parser.add_argument("--tag", default=version(), help="of the image's name")
    parser.add_argument("--output", type=Path, help="the archive; else build/image/shoal-TAG-ARCH.oci.tar")
    options = parser.parse_args(arguments)
    output = options.output or ROOT / "build" / "image" / f"{NAME}-{options.tag}-{options.arch}.oci.tar"
    started = time.monotonic()
    try:
        digest = build(ARCHITECTURES[options.arch], options.tag, output)
    except BuildError as error:
        sys.exit(f"error: {error}")
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace")
        sys.exit(f"error: {Path(str(error.cmd[0])).name} failed:\n{said[-4000:]}")
    size = output.stat().st_size / 1e6
    print(f"{NAME}:{options.tag} {digest}")
    print(f"{output}: {size:.1f} MB, in {time.monotonic() - started:.0f} s")


def version() -> str:
    """The version of this tree."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "src" / "shoal" / "__init__.py").read_text())
    assert found is not None
    return found[1]


def build(arch: Architecture, tag: str, output: Path) -> str:
    """Build the image into an archive; its digest."""
    if shutil.which("mmdebstrap") is None:
        raise BuildError("there is no mmdebstrap on this machine: apt-get install mmdebstrap, on Debian or its like")
    if shutil.which(arch.compiler) is None:
        package = f"gcc-{arch.machine.replace('_', '-')}-linux-gnu"
        raise BuildError(f"there is no C compiler for {arch.debian}: apt-get install {package}")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        folder = Path(scratch)
        system, application = folder / "system", folder / "application"
        # Debian's packages and Python's come at the same time.
        with begin_base(arch, folder / "base.tar") as debian:
            install_packages(arch, application)
            install_shoal(arch, application)
            _, said = debian.communicate()
            if debian.returncode:
                raise subprocess.CalledProcessError(debian.returncode, debian.args, stderr=said)
        unpack(folder / "base.tar", system)
        bundle_certificates(system)
        compile_python(arch, system, application)
        return pack(output, tag, arch, [layer(system), layer(application)])


def begin_base(arch: Architecture, archive: Path) -> subprocess.Popen[bytes]:
    """Begin to unpack Debian's packages; nothing of them is run."""
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=extract", f"--architectures={arch.debian}"]
    command += [f"--include={','.join(DEBIAN)}", SUITE, str(archive)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def unpack(archive: Path, target: Path) -> None:
    """The base without what nobody needs, with the files that its packages would have made when configured."""
    with tarfile.open(archive) as tar:
        members = [member for member in tar if not member.isdev()]
        wanted = [member for member in members if not _UNWANTED.match(member.name.removeprefix("./"))]
        tar.extractall(target, wanted, filter="tar")
    for folder in ("tmp", "run", "proc", "sys", "dev", "etc"):
        (target / folder).mkdir(exist_ok=True)
    target.chmod(0o755)
    (target / "tmp").chmod(0o1777)
    (target / "etc" / "passwd").write_text("root:x:0:0:root:/:/none\nnobody:x:65532:65532:nobody:/:/none\n")
    (target / "etc" / "group").write_text("root:x:0:\nnobody:x:65532:\n")
    # By this file NVIDIA's runtime sees that libraries belong where Debian's loader looks by itself.
    (target / "etc" / "debian_version").write_text(f"{DEBIAN_VERSION}\n")


def bundle_certificates(system: Path) -> None:
    """What `update-ca-certificates` would write, had it been run."""
    bundle = system / _BUNDLE
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(path.read_text() for path in sorted((system / _CERTIFICATES).glob("*.crt"))))


def install_packages(arch: Architecture, application: Path) -> None:
    """The runtime's packages, by the lock file."""
    platforms = [f"manylinux_2_28_{arch.machine}", f"manylinux_2_17_{arch.machine}", f"manylinux2014_{arch.machine}"]
    digits = PYTHON.replace(".", "")
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-compile", "--only-binary", ":all:", "--require-hashes", "--no-deps"),
        *("--python-version", PYTHON, "--implementation", "cp"),
        *(word for abi in (f"cp{digits}", "abi3", "none") for word in ("--abi", abi)),
        *(word for name in (*platforms, "any") for word in ("--platform", name)),
        *("--target", application / "opt" / "shoal", "-r", ROOT / "requirements.lock"),
    )


def install_shoal(arch: Architecture, application: Path) -> None:
    """This tree's package, without the embedded cluster, and the hook that limits cgroups, which runs on the host."""
    target = application / "opt" / "shoal"
    with tempfile.TemporaryDirectory() as scratch:
        run(
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-input"),
            *("--no-deps", "--no-build-isolation", "--wheel-dir", scratch, ROOT),
        )
        (wheel,) = Path(scratch).glob("*.whl")
        shutil.unpack_archive(wheel, target, "zip")
    for path in sorted(target.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif _UNWANTED_OF_PACKAGES.search(str(path.relative_to(application))):
            path.unlink()
    slim(arch, target)
    (target / "run.py").write_text(_SCRIPT)
    hook = application / "usr" / "libexec" / "shoal" / "shoal-limit"
    hook.parent.mkdir(parents=True)
    run(arch.compiler, *HOOK_OPTIONS, "-o", hook, HOOK)


def slim(arch: Architecture, packages: Path) -> None:
    """Libraries without what only debuggers read, and each once: wheels have no links, so some bring two copies.

    Those that wheels bring for their own use (`NAME.libs`) are left alone: their makers have changed them in ways that
    `strip` does not know.
    """
    libraries = sorted(path for path in packages.rglob("*.so*") if not path.parent.name.endswith(".libs"))
    run(f"{arch.machine}-linux-gnu-strip", "--strip-debug", *libraries)
    for one, other in itertools.pairwise(libraries):
        if one.parent == other.parent and other.name.startswith(one.name) and one.read_bytes() == other.read_bytes():
            one.unlink()
            one.symlink_to(other.name)


def compile_python(arch: Architecture, system: Path, application: Path) -> None:
    """Compiled code, which halves the time of a start. The image's own Python makes it where it can run here."""
    native = arch.machine == platform.machine() and os.geteuid() == 0
    if not native and platform.python_version_tuple()[:2] != tuple(PYTHON.split(".")):
        raise BuildError(f"compiled code of {arch.debian} needs Python {PYTHON} here: make image PYTHON=python{PYTHON}")
    options = ("-m", "compileall", "-q", "-o", "0", "--invalidation-mode", "unchecked-hash")
    # Texts have the same hashes, and compiled sets the same order, every time.
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"}
    library = f"usr/lib/python{PYTHON}"
    if not native:
        for folder, inside in ((system, library), (application, "opt/shoal")):
            run(sys.executable, *options, "-s", folder, "-p", "/", folder / inside, env=environment)
        return
    (system / "opt").mkdir()
    shutil.move(application / "opt" / "shoal", system / "opt" / "shoal")
    run("chroot", system, f"/usr/bin/python{PYTHON}", *options, f"/{library}", "/opt/shoal", env=environment)
    shutil.move(system / "opt" / "shoal", application / "opt" / "shoal")
    (system / "opt").rmdir()


def layer(folder: Path) -> bytes:
    """A folder as a tar that does not tell when and by whom it was made."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            member = tar.gettarinfo(path, str(path.relative_to(folder)))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = 0
            if member.isfile() or member.islnk():  # which of two hard links is the first is chance
                member.type, member.linkname, member.size = tarfile.REGTYPE, "", path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)
    return content.getvalue()


def pack(output: Path, tag: str, arch: Architecture, layers: Iterable[bytes]) -> str:
    """Write the archive; the digest of the image's manifest."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = _digest(content)
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(content)}

    raw = list(layers)
    packed = [blob(gzip.compress(content, 9, mtime=0), "layer.v1.tar+gzip") for content in raw]
    config = {
        "architecture": arch.debian,
        "os": "linux",
        "config": {
            "Entrypoint": [f"/usr/bin/python{PYTHON}", "/opt/shoal/run.py"],
            "User": USER,
            "Env": [
                "PATH=/usr/bin",
                "PYTHONPATH=/opt/shoal",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
                f"SSL_CERT_FILE=/{_BUNDLE}",
            ],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.title": NAME,
                "org.opencontainers.image.version": version(),
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(content) for content in raw]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(_json(config), "config.v1+json"),
        "layers": packed,
    }
    described = blob(_json(manifest), "manifest.v1+json")
    # The name under which kubelet looks for `shoal:TAG`.
    names = {"io.containerd.image.name": f"docker.io/library/{NAME}:{tag}", "org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "manifests": [{**described, "annotations": names}]}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/sha256/{digest.removeprefix('sha256:')}": content for digest, content in sorted(blobs.items())}
    draft = output.with_suffix(".draft")
    with tarfile.open(draft, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    draft.replace(output)
    return str(described["digest"])


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def run(*command: object, env: Mapping[str, str] | None = None) -> None:
    """Run a program to its end; CalledProcessError with its words when it fails."""
    words = [str(word) for word in command]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)


if __name__ == "__main__":
    main()
