"""A node with NVIDIA's cards, as far as a machine without any can have them, and stand-ins for NVIDIA's images.

What is played is the border to the hardware alone: the bus and the module that containers see, device nodes, NVIDIA's
library (the stand-in of `nvml`), and the files by which NVIDIA's driver and toolkit images speak with an operator. The
programs are in `stand_ins`.
"""

import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Driver
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from tests.testbed import binaries, images, node_config
from tests.testbed.nvml.shim import CUDA_LIBRARY, LIBRARY, STATE, Shim, build_cuda, describe
from tests.testbed.processes import Run

DRIVER_IMAGE = "shoal.test/driver"
TOOLKIT_IMAGE = "shoal.test/container-toolkit"
TOOLKIT_VERSION = "1.18.0"
MANAGER_IMAGE = "shoal.test/k8s-driver-manager"
MANAGER_VERSION = "v0.12.0"
_STAND_INS = Path(__file__).with_name("stand_ins")
_LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"
_HOST_DRIVER = "nvidia/current"
_MPS = "nvidia-cuda-mps-control"
#: Of /etc, what is written on nodes.
_WRITTEN = ("cdi", "containerd")
#: The kernel's numbers for NVIDIA's devices; those of cards follow from 0.
_MAJOR, _CONTROL, _UVM_MAJOR = 195, 255, 510


class Hardware:
    """The cards of one node. Whether a driver is installed on the node itself is the test's to say, at any time."""

    def __init__(self, run: Run, name: str, library: Path, cards: object) -> None:
        self._library = library
        self._cuda = build_cuda(run.folder(name, "cuda"))
        self._cards = cards
        self._folder = run.folder(name)
        truth = SimulatedNvml(parse_cards(cards), clock=lambda: 1000.0)
        addresses = [card.pci for card in truth.survey().cards]
        for address in addresses:
            device = run.folder(name, "bus", address)
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text("0x030200\n")
        self.bus = self._folder / "bus"
        #: What NVIDIA's toolkit has installed on the node.
        self.nvidia = run.folder(name, "nvidia")
        self._driver = run.folder(name, "driver")
        #: Kernel modules, as the node and its containers see them.
        self.modules = run.folder(name, "modules")
        run.folder(name, "over-local", "nvidia")
        for folder in _WRITTEN:
            run.folder(name, "over-etc", folder)
        over = run.folder(name, "over-libraries")
        run.folder(name, "over-libraries", _HOST_DRIVER)
        (over / LIBRARY).symlink_to(f"{_HOST_DRIVER}/{LIBRARY}")
        #: Laid over folders of the machine, which must not be written to: places for what is bound there.
        self.covers = {"/usr/local": self._folder / "over-local", "/etc": self._folder / "over-etc", _LIBRARIES: over}
        self.binds = {
            node_config.NVIDIA: self.nvidia,
            f"{_LIBRARIES}/{_HOST_DRIVER}": self._driver,
            "/sys/module": self.modules,
            **{f"/etc/{folder}": run.folder(name, "etc", folder) for folder in _WRITTEN},
        }
        self.devices = {f"nvidia{number}": (_MAJOR, number) for number in range(len(addresses))}
        self.devices |= {"nvidiactl": (_MAJOR, _CONTROL), "nvidia-uvm": (_UVM_MAJOR, 0)}
        #: In place of runc, for all containers.
        self.runtime = self._folder / "runc-with-bus"
        self.runtime.write_text(self._runtime_script(str(_STAND_INS / "oci_runtime.py"), "-"))
        self.runtime.chmod(0o755)

    def boot(self) -> None:
        """Before the node starts: no module is loaded."""
        shutil.rmtree(self.modules / "nvidia", ignore_errors=True)
        parameter = self.modules / "firmware_class" / "parameters" / "path"
        parameter.parent.mkdir(parents=True, exist_ok=True)
        parameter.touch()

    def install_driver(self, version: str = NEWEST.version) -> Shim:
        """Install a driver on the node itself; what it tells of the cards can be changed by what is returned."""
        shutil.copy(self._cuda, self._driver)
        (self._driver / _MPS).write_bytes(_mps())
        (self._driver / _MPS).chmod(0o755)
        shim = Shim(self._library, self._driver)
        shim.write(self.state(version))
        return shim

    def remove_driver(self) -> None:
        """Remove it again."""
        for path in self._driver.iterdir():
            path.unlink()

    def state(self, version: str = NEWEST.version) -> str:
        """What a driver of this version tells of the cards."""
        descriptions = {one.index: one for one in parse_cards(self._cards)}
        truth = SimulatedNvml(descriptions.values(), clock=lambda: 1000.0)
        found = [(card, truth.sample(card.uuid), descriptions[card.index]) for card in truth.survey().cards]
        return describe(Driver(version=version, cuda=NEWEST.cuda), found)

    def driver_image(self, version: str, *, fails: bool = False) -> images.Image:
        """A driver image with its version as its tag, with and without the node's system, as NVIDIA's have it.

        One that fails does so as often as it is started.
        """
        files = {
            "bin/nvidia-driver": _program("nvidia-driver"),
            "bin/nvidia-smi": _program("nvidia-smi"),
            "bin/bash": b'#!/bin/sh\nexec /bin/sh "$@"\n',
            "driver/version": version.encode(),
            f"driver/{STATE}": self.state(version).encode(),
            f"driver/{LIBRARY}": self._library.read_bytes(),
            f"driver/{CUDA_LIBRARY}": self._cuda.read_bytes(),
            f"driver/{_MPS}": _mps(),
        }
        if fails:
            files["driver/fails"] = b""
        tag = f"{DRIVER_IMAGE}:{version}"
        return images.Image(tag, ("nvidia-driver", "init"), files, more=(f"{tag}-{_system()}",))

    def toolkit_image(self) -> images.Image:
        """The image of NVIDIA's container toolkit."""
        target = f"{node_config.NVIDIA}/toolkit"
        script = self._runtime_script(f"{target}/oci_runtime.py", f"$(cat {target}/driver-root)")
        files = {
            "bin/nvidia-toolkit": _program("nvidia-toolkit"),
            "bin/bash": b'#!/bin/sh\nexec /bin/sh "$@"\n',
            "toolkit/nvidia-container-runtime": script.encode(),
            "toolkit/oci_runtime.py": (_STAND_INS / "oci_runtime.py").read_bytes(),
        }
        return images.Image(f"{TOOLKIT_IMAGE}:{TOOLKIT_VERSION}", ("nvidia-toolkit",), files)

    def manager_image(self) -> images.Image:
        """The image of NVIDIA's driver manager."""
        files = {"bin/driver-manager": _program("driver-manager"), "bin/kubectl": binaries.find("kubectl").read_bytes()}
        return images.Image(f"{MANAGER_IMAGE}:{MANAGER_VERSION}", ("driver-manager",), files)

    def _runtime_script(self, program: str, driver_root: str) -> str:
        """A shell script, since runc is called far more often for other ends than to make a container."""
        python = shlex.join([sys.executable, "-I", "-S"])
        return f"""#!/bin/sh
case " $* " in
*" create "*) {python} {program} {self.bus} "{driver_root}" "$@" || exit 1 ;;
esac
exec runc "$@"
"""


def _program(name: str) -> bytes:
    return (_STAND_INS / name).read_bytes()


def _mps() -> bytes:
    """The stand-in for the MPS control program, for containers that have Python and nothing else."""
    first, _, rest = (Path(__file__).with_name("mps") / _MPS).read_bytes().partition(b"\n")
    assert first.startswith(b"#!")
    return b"#!/usr/bin/python3 -IS\n" + rest


def _system() -> str:
    """The machine's system, as NVIDIA names it in tags: debian12, ubuntu24.04."""
    found = platform.freedesktop_os_release()
    return f"{found['ID']}{found.get('VERSION_ID', '')}"
