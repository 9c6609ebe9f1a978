"""The machine this runs on, a node: driver, kubelet's sockets, CDI, cgroups, NVIDIA's toolkit."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.analysis.doctor.findings import Finding, failed, note, ok, warning
from shoal.gpu.errors import GpuError, NoDriverError
from shoal.gpu.protocol import Nvml
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import nvidia


def examine_machine(paths: HostPaths, nvml: Callable[[], Nvml]) -> Iterator[Finding]:
    """All checks of this machine."""
    yield from _driver(nvml)
    yield from _kubelet(paths)
    yield from _cdi(paths)
    yield from _cgroups(paths)
    yield from _toolkit(paths)


def _driver(nvml: Callable[[], Nvml]) -> Iterator[Finding]:
    try:
        driver = nvml()
    except NoDriverError as error:
        problem, _, fix = str(error).partition(": ")
        yield failed("driver", problem, fix or "install NVIDIA's driver, or run where its library is mounted")
        return
    except GpuError as error:
        yield failed("driver", str(error), "see dmesg for NVRM lines, and run this as root")
        return
    try:
        version, cards = driver.driver().version, driver.survey().cards
    except GpuError as error:
        yield failed("driver", str(error), "see dmesg for NVRM and Xid lines; reset the card or reboot")
        return
    finally:
        driver.close()
    if not cards:
        yield failed("driver", f"{version}, and no card", "see lspci for NVIDIA devices, and dmesg for NVRM lines")
    else:
        yield ok("driver", f"{version}, {len(cards)} card(s)")


def _kubelet(paths: HostPaths) -> Iterator[Finding]:
    for name, path in (("device plugins", paths.registration), ("PodResources", paths.pod_resources)):
        if not path.is_socket():
            yield failed("kubelet", f"no socket for {name} at {path}", "start kubelet, or run this on the node as root")
        else:
            yield ok("kubelet", f"answers for {name}")


def _cdi(paths: HostPaths) -> Iterator[Finding]:
    own = paths.own_cdi
    if own.is_dir() and not os.access(own, os.W_OK):
        yield warning("cdi", f"{own} cannot be written", "run as root; the agent writes its specs there")
    found = [path for folder in paths.cdi for path in _specs(folder)]
    if any(nvidia.RESOURCE_GPU in _text(path) for path in found):
        yield ok("cdi", "NVIDIA's own spec is there")
    else:
        yield note("cdi", "no spec of NVIDIA's toolkit", f"nvidia-ctk cdi generate --output={own}/nvidia.yaml")


def _cgroups(paths: HostPaths) -> Iterator[Finding]:
    if paths.cgroup2.exists():
        yield ok("cgroups", "version 2")
    else:
        yield note("cgroups", "not version 2: no memory walls by cgroup", "boot with cgroup version 2")


def _toolkit(paths: HostPaths) -> Iterator[Finding]:
    """Whether NVIDIA's runtime lets ordinary containers choose cards by their environment."""
    found = [path for path in paths.toolkit if path.is_file()]
    if not found:
        yield note("toolkit", "its configuration is not here", f"set {nvidia.TOOLKIT_ENVVAR} = false in it")
    for path in found:
        try:
            told = tomllib.loads(_text(path)).get(nvidia.TOOLKIT_ENVVAR, True)
        except tomllib.TOMLDecodeError as error:
            yield warning("toolkit", f"{path} cannot be read: {error}", "write it anew: nvidia-ctk config")
            continue
        if told is False:
            yield ok("toolkit", "containers do not choose cards by their environment")
        else:
            yield warning(
                "toolkit",
                f"{path}: an image that sets {nvidia.ENV_VISIBLE_DEVICES} sees cards that were not booked for it",
                f"set {nvidia.TOOLKIT_ENVVAR} = false there, where containers get their cards by CDI or volume mounts",
            )


def _specs(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.json")]) if folder.is_dir() else []


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
