"""The stand-in for NVIDIA's driver library: built with gcc against NVIDIA's header, told its cards by a file beside it.

`describe` writes that file from simulated cards, so both backends of `shoal.gpu` can be shown the same machine.
"""

import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.gpu.describe import CardDescription
from shoal.gpu.protocol import CLOCK_EVENT_REASONS, Card, Driver, NvlinkCounters, Profile, Sample

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
LIBRARY = "libnvidia-ml.so.1"
CUDA_SOURCE = Path(__file__).with_name("libcuda.c")
CUDA_LIBRARY = "libcuda.so.1"
STATE = "nvml.txt"
TOLD = "nvml.told"
EVENT_TYPES = {"ecc-corrected": 0x1, "ecc-uncorrected": 0x2, "xid": 0x8}
_SWITCH = 2
_NO_FUNCTION = 13
_WEAK = "__attribute__((weak))"


def header() -> Path:
    """NVIDIA's nvml.h, from the package nvidia-nvml-dev. FileNotFoundError without it."""
    try:
        files = importlib.metadata.files("nvidia-nvml-dev") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise FileNotFoundError("nvml.h") from error
    return next(Path(str(file.locate())) for file in files if file.name == "nvml.h")


def declared() -> set[str]:
    """All functions that the header declares, those of older versions too."""
    return set(re.findall(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml\w+)\s*\(", header().read_text()))


def build(directory: Path) -> Path:
    """Compile the library into a folder. FileNotFoundError without gcc or the header."""
    library = directory / LIBRARY
    # Weak, so that the calls of SOURCE stand in their place.
    others = directory / "others.c"
    others.write_text(
        "".join(f"{_WEAK} int {name}(void) {{ return {_NO_FUNCTION}; }}\n" for name in sorted(declared()))
    )
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}"]
    compile_c(library, SOURCE, others, *options, "-lpthread", "-ldl")
    return library


def build_cuda(directory: Path) -> Path:
    """Compile the stand-in for CUDA's library into a folder."""
    library = directory / CUDA_LIBRARY
    compile_c(
        library, CUDA_SOURCE, "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-Wl,-soname,{CUDA_LIBRARY}", "-ldl"
    )
    return library


def compile_c(target: Path, *arguments: Path | str) -> None:
    """Run gcc, with the header at hand."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("gcc")
    subprocess.run([compiler, f"-I{header().parent}", "-o", target, *arguments], check=True)


class Shim:
    """One machine's library: a copy in a folder of its own, with the file of its cards."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.directory = directory
        self.library = directory / LIBRARY
        shutil.copy(library, self.library)

    def write(self, state: str | bytes) -> None:
        """Change the machine, all at once."""
        fresh = self.directory / f"{STATE}.new"
        fresh.write_bytes(state if isinstance(state, bytes) else state.encode())
        fresh.replace(self.directory / STATE)

    def told(self) -> list[str]:
        """What the library was told to do."""
        path = self.directory / TOLD
        return path.read_text().splitlines() if path.exists() else []


def describe(
    driver: Driver,
    cards: Iterable[tuple[Card, Sample | None, CardDescription]],
    *,
    events: Iterable[tuple[int, str, int]] = (),
    errors: Iterable[tuple[str, int]] = (),
    hangs: Iterable[tuple[int, str]] = (),
    time: float | None = None,
    cgroups: Mapping[tuple[int, str], int] | None = None,
) -> str:
    """The file of a machine. A card without a sample is lost. `cgroups` is used bytes by card and path.

    `hangs` are functions that do not return, by the card's index. `time` is when its processes computed last, by the
    driver's clock in seconds; without one they always do.
    """
    major, minor = driver.cuda or (0, 0)
    lines = [f"driver {driver.version}", f"cuda {1000 * major + 10 * minor}"]
    lines += [f"error {function} {code}" for function, code in errors]
    cards = list(cards)
    address = {card.index: card.pci for card, _, _ in cards}
    for card, sample, description in cards:
        lines += _fixed(card, description, address)
        lines += ["lost 1"] if sample is None else _readings(sample)
        lines += [f"hang {function}" for index, function in hangs if index == card.index]
        lines += [] if time is None else [f"time {round(time * 10**6)}"]
        lines += [f"cgroup {used} {path}" for (index, path), used in (cgroups or {}).items() if index == card.index]
    lines += [f"event {index} {EVENT_TYPES[kind]} {data}" for index, kind, data in events]
    return "\n".join(lines) + "\n"


def _fixed(card: Card, description: CardDescription, address: Mapping[int, str]) -> list[str]:
    capability = card.compute_capability or (None, None)
    limits = card.limits
    domain, bus, device = _place(card.pci)
    numbers = {
        "memory": card.memory_bytes,
        "reserved": card.reserved_bytes,
        "minor": card.minor,
        "numa": card.numa,
        "domain": domain,
        "bus": bus,
        "device": device,
        "cc_major": capability[0],
        "cc_minor": capability[1],
        "cores": card.cores,
        "bus_width": card.bus_width_bits,
        "ecc": None if card.ecc is None else int(card.ecc),
        "mig_mode": None if card.mig is None else int(card.mig),
        "power_limit": limits.power_mw,
        "sm_max": limits.sm_clock_mhz,
        "memory_clock_max": limits.memory_clock_mhz,
        "slowdown": limits.slowdown_c,
        "shutdown": limits.shutdown_c,
        "gpu_max": limits.max_c,
    }
    lines = [f"card {card.uuid}", f"name {card.model}", *_numbers(numbers)]
    lines += [
        f"mig {part.profile[0]} {part.memory_mib} {part.uuid} {card.model} MIG {part.profile}"
        for part in card.mig_instances
    ]
    if card.fabric is not None:
        lines.append(f"fabric {card.fabric.clique} {card.fabric.cluster.replace('-', '')}")
    if description.switched and description.links:
        lines += [f"link {_SWITCH} 0 255 0"] * description.links[0][1]
    else:
        for peer, lanes in description.links:
            lines += ["link 0 {} {} {}".format(*_place(address[peer]))] * lanes
    return lines


def _readings(sample: Sample) -> list[str]:
    reasons = sample.clock_event_reasons
    lines = _numbers(
        {
            "used": sample.memory_used_bytes,
            "load": sample.utilisation,
            "memory_load": sample.memory_utilisation,
            "encoder": sample.encoder_utilisation,
            "decoder": sample.decoder_utilisation,
            "temperature": sample.temperature_c,
            "power": sample.power_mw,
            "fan": sample.fan,
            "sm_clock": sample.sm_clock_mhz,
            "memory_clock": sample.memory_clock_mhz,
            "clock_events": None if reasons is None else sum(1 << CLOCK_EVENT_REASONS.index(name) for name in reasons),
            "pcie_sent": None if sample.pcie_sent is None else sample.pcie_sent // 1000,
            "pcie_received": None if sample.pcie_received is None else sample.pcie_received // 1000,
            "replays": sample.pcie_replays,
            **{f"field_{number}": value for number, value in _fields(sample).items()},
            **{f"gpm_{number}": value for number, value in _gpm(sample.profile).items()},
        }
    )
    if sample.remapped is not None:
        rows = sample.remapped
        numbers = rows.corrected, rows.uncorrected, int(rows.pending), int(rows.failed)
        lines.append("remapped {} {} {} {}".format(*numbers))
    part_of = {process.pid: place for place, part in enumerate(sample.mig, start=1) for process in part.processes}
    for process in sample.processes:
        part = part_of.get(process.pid, 0)
        lines.append(
            f"process {process.pid} {process.memory_bytes} {process.utilisation or 0} {int(process.mps)} {part}"
        )
    return lines


def _fields(sample: Sample) -> dict[int, int | None]:
    """NVML's fields by their numbers in the header."""
    causes = ("power", "thermal", "sync_boost", "board_limit", "low_utilisation", "reliability")
    links = sample.nvlink or NvlinkCounters()
    return {
        3: sample.ecc_corrected,
        4: sample.ecc_uncorrected,
        5: sample.ecc_corrected_lifetime,
        6: sample.ecc_uncorrected_lifetime,
        29: sample.retired_single_bit,
        30: sample.retired_double_bit,
        31: None if sample.retired_pending is None else int(sample.retired_pending),
        38: links.crc_flit_errors,
        45: links.crc_data_errors,
        52: links.replay_errors,
        59: links.recovery_errors,
        **{74 + place: sample.violation_ns.get(cause) for place, cause in enumerate(causes)},
        82: sample.memory_temperature_c,
        83: sample.energy_mj,
        138: None if links.sent_bytes is None else links.sent_bytes // 1024,
        139: None if links.received_bytes is None else links.received_bytes // 1024,
    }


def _gpm(profile: Profile | None) -> dict[int, int | None]:
    """GPM's metrics by their numbers in the header, in millionths of percent and of MiB a second."""
    if profile is None:
        return {}
    shares = {
        1: profile.graphics_active,
        2: profile.sm_active,
        3: profile.sm_occupancy,
        5: profile.tensor_active,
        10: profile.dram_active,
        11: profile.fp64_active,
        12: profile.fp32_active,
        13: profile.fp16_active,
    }
    rates = {
        20: profile.pcie_sent,
        21: profile.pcie_received,
        60: profile.nvlink_received,
        61: profile.nvlink_sent,
    }
    found = {number: None if share is None else round(share * 100 * 10**6) for number, share in shares.items()}
    return found | {number: None if rate is None else round(rate / 2**20 * 10**6) for number, rate in rates.items()}


def _numbers(numbers: Mapping[str, int | None]) -> list[str]:
    return [f"{key} {value}" for key, value in numbers.items() if value is not None]


def _place(pci: str) -> tuple[int, int, int]:
    domain, bus, rest = pci.split(":")
    return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)
