"""Adds a machine's cards to a container that is about to be made, in the `config.json` of its bundle.

Runs on a test node as a plain script, before runc and with runc's arguments: `oci_runtime.py BUS DRIVER_ROOT …`. BUS is
the folder that every container sees as the bus, as it would see a real one; kernel modules it sees as the node does.
DRIVER_ROOT is where NVIDIA's library is installed, for containers that ask for cards with NVIDIA_VISIBLE_DEVICES; `-`
for a runtime that gives none.
"""

import json
import os
import stat
import sys
from pathlib import Path

LIBRARY = "usr/lib/{}-linux-gnu/libnvidia-ml.so.1"
#: Where containers have the driver's libraries, as NVIDIA's own images expect them.
LIBRARIES = "/usr/local/nvidia/lib64"
#: Beside the libraries; for containers that want to compute.
MPS = "nvidia-cuda-mps-control"
BUS = "/sys/bus/pci/devices"
MODULES = "/sys/module"
#: Values of the variable that ask for nothing.
NOTHING = ("", "void", "none")


def main() -> int:
    """Edit, if this is about making a container."""
    bus, root, *arguments = sys.argv[1:]
    if "create" not in arguments:
        return 0
    bundle = Path(arguments[arguments.index("--bundle") + 1]) if "--bundle" in arguments else Path.cwd()
    path = bundle / "config.json"
    config = json.loads(path.read_text())
    places = [place for place, mount in enumerate(config["mounts"], start=1) if mount["destination"] == "/sys"]
    if places:  # before what the pod mounts there itself
        config["mounts"][places[-1] : places[-1]] = [_bind(bus, BUS, "ro"), _bind(MODULES, MODULES, "rw")]
    if root != "-" and not _give_cards(config, Path(root)):
        return 1
    path.write_text(json.dumps(config))
    return 0


def _give_cards(config: dict, root: Path) -> bool:
    """The library and the device nodes; False, with a word, where there is no driver."""
    environment = config["process"].setdefault("env", [])
    values = dict(line.split("=", 1) for line in environment if "=" in line)
    asked = values.get("NVIDIA_VISIBLE_DEVICES", "")
    if asked in NOTHING:
        return True
    library = root / LIBRARY.format(os.uname().machine)
    if not library.exists():
        sys.stderr.write(f"nvidia-container-cli: initialization error: load library failed: {library} is not there\n")
        return False
    folder = library.resolve().parent
    config["mounts"].append(_bind(str(folder), LIBRARIES, "rw"))
    if "compute" in values.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",") and (folder / MPS).exists():
        config["mounts"].append(_bind(str(folder / MPS), f"/usr/bin/{MPS}", "ro"))
        environment.append("MPS_STAND_IN_OF=1")
    searched = values.get("LD_LIBRARY_PATH", "")
    environment[:] = [line for line in environment if not line.startswith("LD_LIBRARY_PATH=")]
    environment.append(f"LD_LIBRARY_PATH={LIBRARIES}{':' + searched if searched else ''}")
    wanted = None if asked == "all" else set(asked.split(","))
    for node in sorted(Path("/dev").glob("nvidia*")):
        number = node.name.removeprefix("nvidia")
        if node.is_char_device() and (wanted is None or not number.isdigit() or number in wanted):
            _give_device(config["linux"], node)
    return True


def _give_device(linux: dict, node: Path) -> None:
    device = node.stat().st_rdev
    major, minor = os.major(device), os.minor(device)
    if all(one["path"] != str(node) for one in linux.setdefault("devices", [])):
        mode = stat.S_IMODE(node.stat().st_mode)
        linux["devices"].append({"path": str(node), "type": "c", "major": major, "minor": minor, "fileMode": mode})
    rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"}
    linux.setdefault("resources", {}).setdefault("devices", []).append(rule)


def _bind(source: str, target: str, mode: str) -> dict:
    return {"destination": target, "type": "bind", "source": source, "options": ["rbind", mode]}


if __name__ == "__main__":
    sys.exit(main())
