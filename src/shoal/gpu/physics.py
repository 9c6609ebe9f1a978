"""How a simulated card warms up, draws power and counts energy.

Power follows the load at once: `idle + (limit - idle) × load`. Temperature follows power: it moves towards
`AMBIENT + (max - AMBIENT) × power / limit` and covers 63 % of the way in `TIME_CONSTANT` seconds. A fan follows
temperature. Between two changes of load all this is known in closed form, so the numbers do not depend on how often
somebody looks. Readings carry a little noise, which depends on card, second and seed alone.

Not a model of any real card: clocks do not throttle, and neighbours do not heat each other.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Final

from shoal.gpu.models import CardModel
from shoal.gpu.protocol import Profile

AMBIENT_C: Final = 28.0
TIME_CONSTANT_S: Final = 60.0
#: Noise of a reading, as a part of it.
NOISE: Final = 0.02
#: Clocks at rest, as a part of the highest.
REST: Final = 0.15
#: Bytes a second on the bus at full load, to the card and back.
PCIE_RECEIVED: Final = 2_000_000_000
PCIE_SENT: Final = 500_000_000
#: Bytes a second over all NVLinks at full load, each way.
NVLINK: Final = 50_000_000_000
_COOLEST_FAN: Final = 30
_MEMORY_ABOVE_C: Final = 6
#: Stacked memory is on a wide bus.
_STACKED_BITS: Final = 2048


@dataclass(frozen=True, slots=True)
class Heat:
    """A card's warmth and energy at one moment, under a load that has held since."""

    at: float
    load: float
    temperature_c: float
    energy_j: float
    #: Seconds of work: at half load a second counts half. And those at full load, where power is at its limit.
    busy_s: float = 0.0
    capped_s: float = 0.0


def cold(at: float, model: CardModel) -> Heat:
    """A card that has been idle for long."""
    return Heat(at, 0.0, _target(model, 0.0), 0.0)


def moved(heat: Heat, model: CardModel, at: float) -> Heat:
    """The same card later, its load unchanged. A clock that went back moves nothing."""
    passed = max(0.0, at - heat.at)
    target = _target(model, heat.load)
    return Heat(
        at=max(at, heat.at),
        load=heat.load,
        temperature_c=target + (heat.temperature_c - target) * math.exp(-passed / TIME_CONSTANT_S),
        energy_j=heat.energy_j + power_w(model, heat.load) * passed,
        busy_s=heat.busy_s + heat.load * passed,
        capped_s=heat.capped_s + (passed if heat.load >= 1 else 0.0),
    )


def loaded(heat: Heat, model: CardModel, at: float, load: float) -> Heat:
    """The card from now on under another load, from 0 to 1."""
    later = moved(heat, model, at)
    return replace(later, load=min(1.0, max(0.0, load)))


def power_w(model: CardModel, load: float) -> float:
    """What the card draws."""
    return model.idle_w + (model.power_w - model.idle_w) * load


def memory_temperature(model: CardModel, temperature_c: float) -> int | None:
    """What the memory's own sensor says; only stacked memory has one."""
    return round(temperature_c + _MEMORY_ABOVE_C) if model.bus_width_bits >= _STACKED_BITS else None


def fan_percent(model: CardModel, temperature_c: float) -> int | None:
    """How fast the fan turns; None without one."""
    if not model.fan:
        return None
    warm = (temperature_c - AMBIENT_C) / (model.max_c - AMBIENT_C)
    return round(min(100.0, max(_COOLEST_FAN, 100 * warm)))


def clock_mhz(highest: int, load: float) -> int:
    """A clock: low at rest, at its highest as soon as there is work."""
    return highest if load > 0 else round(highest * REST)


def clock_event_reasons(load: float) -> frozenset[str]:
    """Why the clocks are low: nothing to do. At full load the power is at its limit."""
    return frozenset({"gpu_idle"} if load <= 0 else {"sw_power_cap"} if load >= 1 else ())


def profile(load: float, *, linked: bool) -> Profile:
    """How busy the parts of the card are, in whole percent and MiB a second as the driver tells them."""

    def share(part: float) -> float:
        return round(100 * part * load) / 100

    def rate(most: int) -> float:
        return float(2**20 * round(most * load / 2**20))

    return Profile(
        graphics_active=share(1.0),
        sm_active=share(0.9),
        sm_occupancy=share(0.5),
        tensor_active=share(0.4),
        dram_active=share(0.6),
        fp64_active=0.0,
        fp32_active=share(0.3),
        fp16_active=share(0.2),
        pcie_sent=rate(PCIE_SENT),
        pcie_received=rate(PCIE_RECEIVED),
        nvlink_sent=rate(NVLINK) if linked else None,
        nvlink_received=rate(NVLINK) if linked else None,
    )


def noisy(value: float, *, seed: str, at: float, what: str) -> float:
    """A reading with its noise: the same for the same second."""
    drawn = zlib.crc32(f"{seed}/{what}/{math.floor(at)}".encode()) / 2**31 - 1
    return value * (1 + NOISE * drawn)


def _target(model: CardModel, load: float) -> float:
    return AMBIENT_C + (model.max_c - AMBIENT_C) * power_w(model, load) / model.power_w
