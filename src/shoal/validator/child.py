"""Asks NVIDIA's libraries, in a process of its own that ends when it has the answer.

A library that is never held open does not keep a driver from being replaced, and one that crashes or hangs takes nobody
with it. `python -m shoal.validator.child nvml FD [ROOT]` asks NVML, `… cuda FD` asks CUDA; the answer goes to the file
descriptor FD as JSON.

With ROOT the process moves into that root first: there links lead where they should, and the devices are those that a
driver container has. What the libraries need of the C library is loaded before, so that it is this image's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError
from shoal.gpu.nvml import library

CUDA: Final = "libcuda.so.1"
#: Parts of the C library that NVIDIA's libraries name.
_C_LIBRARIES: Final = ("libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1")
_SET_DEATH_SIGNAL: Final = 1
_LOOK: Final = "dmesg on the node says more; often a reset of the card or a reboot of the node helps"
#: By NVML's number: what is wrong, and what to do.
_KNOWN: Final = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "NVIDIA's kernel module is not loaded, or its devices cannot be opened",
        "load it (modprobe nvidia; dmesg says why that fails); the validator must be privileged to open the devices",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVIDIA's library and kernel module are of different versions",
        "reboot the node, or unload the kernel module and load the new one",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "NVIDIA's devices may not be opened",
        "run the validator as root and privileged, as the shipped manifest does",
    ),
}

#: `version` and `count`; or `why` and `fix`; or `absent`: the library is not there.
Answer = dict[str, Any]


def ask_nvml(root: str) -> Answer:
    """What the driver says through NVML."""
    path = None
    if root:
        for name in _C_LIBRARIES:
            with contextlib.suppress(OSError):
                ctypes.CDLL(name)
        try:
            os.chroot(root)
            os.chdir("/")
        except FileNotFoundError:
            return {"absent": True}
        except OSError as error:
            return {
                "why": f"{root} cannot be entered: {error.strerror}",
                "fix": "give the validator the capability SYS_CHROOT, as the shipped manifest does",
            }
        path = library.find(Path("/"))
        if path is None:
            return {"absent": True}
    try:
        library.load(path)
        version = library.ask("the driver", pynvml.nvmlSystemGetDriverVersion)
        count = library.ask("the driver", pynvml.nvmlDeviceGetCount)
    except GpuError as error:
        code = library.code_of(error)
        if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return {"absent": True}
        why, fix = _KNOWN.get(code or 0, (str(error), _LOOK))
        return {"why": why, "fix": fix}
    if count < 1:
        return {"why": f"driver {version} sees no card", "fix": f"is the card one that this driver knows? {_LOOK}"}
    return {"version": version, "count": count}


def ask_cuda() -> Answer:
    """Whether CUDA can begin. No context is made, so nothing of a card is taken."""
    try:
        cuda = ctypes.CDLL(CUDA)
    except OSError as error:
        if "cannot open shared object file" in str(error):
            return {"absent": True}
        return {"why": f"{CUDA} cannot be loaded: {error}", "fix": "install NVIDIA's driver anew"}
    number = ctypes.c_int(0)
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGetCount", (ctypes.byref(number),))):
        try:
            code = getattr(cuda, name)(*arguments)
        except AttributeError:
            return {"why": f"{CUDA} has no {name}", "fix": "install NVIDIA's driver anew"}
        if code:
            return {"why": f"{name} failed: {_cuda_words(cuda, code)}", "fix": _LOOK}
    if number.value < 1:
        return {"why": "CUDA sees no card", "fix": _LOOK}
    return {"version": "", "count": number.value}


def _cuda_words(cuda: ctypes.CDLL, code: int) -> str:
    words = ctypes.c_char_p()
    with contextlib.suppress(AttributeError):
        if cuda.cuGetErrorString(code, ctypes.byref(words)) == 0 and words.value:
            return f"{words.value.decode('utf-8', 'replace')} (CUDA error {code})"
    return f"CUDA error {code}"


def main(arguments: list[str]) -> None:
    """Ask, and write the answer."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kind, number, *root = arguments
    answer = ask_cuda() if kind == "cuda" else ask_nvml(root[0] if root else "")
    os.write(int(number), json.dumps(answer).encode())
    os._exit(0)  # what libraries do at an end is not waited for


if __name__ == "__main__":
    main(sys.argv[1:])
