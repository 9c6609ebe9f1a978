"""The programs of a real cluster: found in a cache, taken from KUBEBUILDER_ASSETS, or built with Go.

`python -m tests.testbed.binaries` (what `make kube` runs) makes sure that all of them are there; the fixtures then ask
`find`. The cache lies outside the tree, one folder per program's module and version, so that a fresh clone finds what
an earlier one built, and two runs at once build once.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

DEFAULT_KUBE_VERSION = "1.36.3"
MODULES = Path(__file__).parent / "go"


class BinariesError(Exception):
    """A program is missing and cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Module:
    """One Go module of `tests/testbed/go`: the programs it builds and how."""

    folder: str
    version: str
    packages: tuple[str, ...]
    tags: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return cache_root() / f"{self.folder.split('-')[0]}-{self.version}"

    def program_of(self, package: str) -> str:
        """The name of the file that a package is built to."""
        name = package.rpartition("/")[2]
        return "etcd" if package.startswith("go.etcd.io/") else name

    @property
    def programs(self) -> dict[str, str]:
        """Program name to package."""
        return {self.program_of(package): package for package in self.packages}


def kube_version() -> str:
    """The version under test: $KUBE_VERSION, with or without its v."""
    version = os.environ.get("KUBE_VERSION", "").removeprefix("v") or DEFAULT_KUBE_VERSION
    if not re.fullmatch(r"1\.\d+\.\d+", version):
        raise BinariesError(f"KUBE_VERSION={version!r} is not a version; write it like {DEFAULT_KUBE_VERSION}")
    return version


def cache_root() -> Path:
    """Where programs are kept: outside the tree, so that every clone finds them."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shoal" / "testbed"


def modules(version: str) -> list[Module]:
    """The modules of a cluster of one Kubernetes version, helm, and the servers that metrics are sent to."""
    _, minor, _ = version.split(".")
    stamp = {
        f"k8s.io/{package}.{name}": value
        for package in ("component-base/version", "client-go/pkg/version")
        for name, value in {
            "gitVersion": f"v{version}",
            "gitMajor": "1",
            "gitMinor": minor,
            "gitTreeState": "clean",
        }.items()
    }
    commands = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet", "kubectl")
    containerd = "github.com/containerd/containerd/v2"
    return [
        Module(
            f"kubernetes-{version}", version, tuple(f"k8s.io/kubernetes/cmd/{name}" for name in commands), "", stamp
        ),
        _pinned("etcd", "go.etcd.io/etcd/server/v3"),
        _pinned(
            "containerd", containerd, ("cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"), "no_btrfs,no_zfs"
        ),
        _pinned("influxdb", "github.com/influxdata/influxdb", ("cmd/influxd",)),
        _helm(),
        _dra(),
    ]


def nfd() -> Module:
    """Node feature discovery's master, which one target of its own needs: `make test-nfd`."""
    return _pinned("nfd", "sigs.k8s.io/node-feature-discovery", ("cmd/nfd-master",))


def _helm() -> Module:
    """helm, which knows its own version and that of Kubernetes (for `helm template`) only if it is told."""
    module = _pinned("helm", "helm.sh/helm/v3", ("cmd/helm",))
    found = re.search(r"^\s+k8s\.io/client-go v0\.(\d+)\.", (MODULES / "helm" / "go.mod").read_text(), re.MULTILINE)
    minor = found[1] if found else "0"
    stamp = {
        "helm.sh/helm/v3/internal/version.version": f"v{module.version}",
        **{
            f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}": value
            for package in ("chartutil", "lint/rules")
            for part, value in {"Major": "1", "Minor": minor}.items()
        },
    }
    return replace(module, variables=stamp)


def _dra() -> Module:
    """A program of the test bed's own that answers about claims of devices with Kubernetes' code."""
    source = b"".join((MODULES / "dra" / name).read_bytes() for name in ("go.mod", "main.go"))
    return Module("dra", hashlib.blake2b(source, digest_size=6).hexdigest(), ("shoal.dev/testbed/dra-reference",))


def _pinned(folder: str, path: str, commands: tuple[str, ...] = ("",), tags: str = "") -> Module:
    """A module whose version its go.mod says."""
    found = re.search(rf"^require {re.escape(path)} v(\S+)$", (MODULES / folder / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BinariesError(f"{MODULES / folder / 'go.mod'} does not require {path}")
    return Module(folder, found[1], tuple(f"{path}/{command}".rstrip("/") for command in commands), tags)


def assets() -> Path | None:
    """The folder of ready programs that the user points to, if any."""
    value = os.environ.get("KUBEBUILDER_ASSETS")
    if not value:
        return None
    if not Path(value).is_dir():
        raise BinariesError(f"KUBEBUILDER_ASSETS={value} is not a folder; unset it or point it to one with etcd in it")
    return Path(value).absolute()


class Permission:
    """Whether the programs may be used now: tests of `make test` run where there are none."""

    granted = True


def find(program: str) -> Path:
    """The path of a program that `ensure` has put there."""
    if not Permission.granted:
        raise BinariesError(f"a test that uses {program} must ask for the fixture testbed_run: then it is marked kube")
    given = assets()
    if given and (given / program).is_file():
        return given / program
    for module in modules(kube_version()):
        if program in module.programs and (module.cache / program).is_file():
            return module.cache / program
    raise BinariesError(f"{program} is not there; run: make kube")


def missing(version: str) -> list[tuple[Module, str]]:
    """What neither the assets nor the cache has."""
    given = assets()
    return [
        (module, program)
        for module in modules(version)
        for program in module.programs
        if not (given and (given / program).is_file()) and not (module.cache / program).is_file()
    ]


def ensure(version: str) -> None:
    """Have every program there, building what is missing."""
    _check_assets(version)
    if not missing(version):
        return
    cache_root().mkdir(parents=True, exist_ok=True)
    with _only_one(cache_root() / ".lock"):
        todo = missing(version)  # another run may have built them meanwhile
        if todo and not shutil.which("go"):
            names = ", ".join(program for _, program in todo)
            raise BinariesError(
                f"no Go here and no KUBEBUILDER_ASSETS with {names}: install Go 1.26 or set that variable"
            )
        for number, (module, program) in enumerate(todo, start=1):
            _build(module, program, f"{number}/{len(todo)}")


def ensure_module(module: Module) -> None:
    """Have the programs of one module there that is no part of a cluster."""
    module.cache.mkdir(parents=True, exist_ok=True)
    with _only_one(cache_root() / ".lock"):
        for program in module.programs:
            if not (module.cache / program).is_file():
                _build(module, program, "1/1")


def _check_assets(version: str) -> None:
    """Ready programs of another version than the tests believe would make their version marks lie."""
    given = assets()
    if not given or not (given / "kube-apiserver").is_file():
        return
    answer = subprocess.run([given / "kube-apiserver", "--version"], capture_output=True, text=True, check=True).stdout
    found = answer.split()[-1].removeprefix("v")
    if found != version:
        raise BinariesError(
            f"KUBEBUILDER_ASSETS={given} holds Kubernetes {found}, not {version}: set KUBE_VERSION={found}"
        )


def _build(module: Module, program: str, count: str) -> None:
    folder = MODULES / module.folder
    if not (folder / "go.sum").is_file():
        have = ", ".join(sorted(path.name.partition("-")[2] for path in MODULES.glob("kubernetes-*")))
        raise BinariesError(
            f"no Go module for Kubernetes {module.version} (there are {have}): "
            f"make one with tests/testbed/go/pin {module.version}"
        )
    module.cache.mkdir(parents=True, exist_ok=True)
    flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in module.variables.items())])
    with tempfile.TemporaryDirectory(dir=module.cache) as scratch:
        target = Path(scratch) / program
        command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", f"-tags={module.tags}"]
        command += ["-ldflags", flags, "-o", str(target), module.programs[program]]
        with _progress(f"[{count}] building {program} {module.version}"):
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise BinariesError(f"building {program} {module.version} failed:\n{done.stderr.strip()[-4000:]}")
        target.rename(module.cache / program)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """One builder at a time; the kernel drops the lock when its holder dies."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is building; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """A line that counts the seconds on a terminal; one line every half minute elsewhere."""
    terminal = sys.stderr.isatty()
    started = time.monotonic()
    over = threading.Event()

    def tick() -> None:
        while not over.wait(1 if terminal else 30):
            _say(f"{what} … {time.monotonic() - started:.0f} s", end="\r" if terminal else "\n")

    _say(f"{what} …", end="\r" if terminal else "\n")
    ticker = threading.Thread(target=tick, name="progress", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
    _say(f"{what} … done in {time.monotonic() - started:.0f} s")


def _say(text: str, end: str = "\n") -> None:
    sys.stderr.write(text + end)
    sys.stderr.flush()


def main() -> int:
    """Build what is missing; print the folders in use with --json."""
    try:
        version = kube_version()
        ensure(version)
    except BinariesError as error:
        _say(f"make kube: {error}")
        return 1
    if "--json" in sys.argv[1:]:
        programs = [program for module in modules(version) for program in module.programs]
        sys.stdout.write(json.dumps({program: str(find(program)) for program in programs}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
