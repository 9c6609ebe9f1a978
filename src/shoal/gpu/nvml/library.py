"""NVML itself: loading it, asking it, and its errors in our words.

nvidia-ml-py keeps one loaded library a process, so there is one open driver a process; `load` and `unload` bracket it.
Loading that failed can be tried again, since a driver may be installed later. The library of a driver that was replaced
while it was loaded cannot be swapped: that takes a new process, and the error says so.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError, LostCardError, NoDriverError, NoPermissionError, NotSupportedError

log = logging.getLogger(__name__)

LIBRARY: Final = "libnvidia-ml.so.1"
#: Where drivers put their libraries, under the root of a system.
FOLDERS: Final = (
    *(f"usr/lib/{machine}-linux-gnu{more}" for machine in ("x86_64", "aarch64") for more in ("", "/nvidia/current")),
    *("usr/lib64", "usr/lib", "usr/lib64/nvidia"),
    *("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib"),
    *("usr/local/nvidia/lib64", "lib64/nvidia"),
)

_NO_DRIVER: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: f"{LIBRARY} is not on this machine: install NVIDIA's driver, or mount it here",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVIDIA's driver is not loaded: load the kernel module nvidia",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVIDIA's driver was replaced while its library was loaded: restart this process, or reboot the node"
    ),
    pynvml.NVML_ERROR_UNINITIALIZED: "NVIDIA's driver was let go: open it again",
}
_LOST: Final = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}
_UNSUPPORTED: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
}


def load(path: Path | None) -> None:
    """Load and initialise the library, found by the system's loader unless a path is given."""
    if pynvml.nvmlLib is not None:
        raise GpuError("NVIDIA's driver is open in this process already: close it first, or share it")
    if path is not None:
        try:
            pynvml.nvmlLib = ctypes.CDLL(str(path))
        except OSError as error:
            raise NoDriverError(f"{path} cannot be loaded as NVIDIA's driver library: {error}") from error
    try:
        ask("the driver", pynvml.nvmlInit)
    except GpuError:
        _forget()
        raise


def find(root: Path) -> Path | None:
    """The library of a system whose root is here. Its links are followed as this process sees them."""
    paths = (root / folder / LIBRARY for folder in FOLDERS)
    return next((path.resolve() for path in paths if path.is_file()), None)


def unload() -> None:
    """Let the library go; the next `load` looks for it anew."""
    try:
        ask("the driver", pynvml.nvmlShutdown)
    except GpuError as error:
        log.warning("the driver was not let go cleanly: %s", error)
    _forget()


def _forget() -> None:
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


def ask(what: str, call: Callable[..., Any], *arguments: object) -> Any:
    """The answer of an NVML call; its error in our words. `what` is the card or thing asked about."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise _translated(error, what, call) from error
    except UnicodeDecodeError as error:
        raise GpuError(f"{what}: {call.__name__} answered with text that is none: {error}") from error


class Readings:
    """Asks one card call after call, and remembers the names of the calls that failed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.failed: list[str] = []

    def get(self, call: Callable[..., Any], *arguments: object, nothing: Mapping[int, Any] | None = None) -> Any:
        """The answer, or None when the card does not offer it or fails to give it. A lost card is an error still.

        `nothing` has answers for NVML's errors that only say that there is nothing.
        """
        try:
            return ask(self._what, call, *arguments)
        except (LostCardError, NoDriverError):
            raise
        except NotSupportedError:
            return None
        except GpuError as error:
            code = code_of(error)
            if nothing is not None and code is not None and code in nothing:
                return nothing[code]
            log.debug("no reading: %s", error)
            self.failed.append(call.__name__)
            return None

    def newest(self, calls: Iterable[Callable[..., Any]], *arguments: object) -> Any:
        """The answer of the first call that the driver has; one that fails ends the search."""
        before = len(self.failed)
        for call in calls:
            answer = self.get(call, *arguments)
            if answer is not None or len(self.failed) > before:
                return answer
        return None


def reading(what: str, call: Callable[..., Any], *arguments: object) -> Any:
    """One answer, as `Readings` has it."""
    return Readings(what).get(call, *arguments)


def code_of(error: GpuError) -> int | None:
    """NVML's number of an error `ask` raised."""
    cause = error.__cause__
    return int(cause.value) if isinstance(cause, pynvml.NVMLError) else None


def _translated(error: Any, what: str, call: Callable[..., Any]) -> GpuError:
    code = int(error.value)
    if code in _NO_DRIVER:
        return NoDriverError(_NO_DRIVER[code])
    if code in _LOST:
        return LostCardError(f"{what} does not answer ({error}): reset the card or reboot the node")
    if code in _UNSUPPORTED:
        return NotSupportedError(f"{what}: {call.__name__} is not supported by this card or driver ({error})")
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return NoPermissionError(f"{what}: {call.__name__} needs root: run this process with more rights")
    return GpuError(f"{what}: {call.__name__} failed ({error}, NVML error {code})")
