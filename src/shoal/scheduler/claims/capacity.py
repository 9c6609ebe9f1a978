"""What a claim consumes of a device that several share, by the rules of Kubernetes' own scheduler.

A request is rounded up to what the device's policy allows; what is not asked for gets the policy's default, or all. The
stock scheduler counts what was written as consumed, so it must be the amount that it would have written itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from shoal.kube.objects.claims import CapacityRange, CapacityRequestPolicy, DeviceCapacity
from shoal.model import quantity

Amounts = Mapping[str, str | int | float]


def consumed(requests: Amounts, capacity: Mapping[str, DeviceCapacity]) -> dict[str, Fraction] | None:
    """What a share consumes of each capacity; None when the device can never give it. Raises QuantityError."""
    if any(name not in capacity for name in requests):
        return None
    taken: dict[str, Fraction] = {}
    for name, has in capacity.items():
        amount = _amount(requests.get(name), has)
        if _violates(amount, has.request_policy) or amount > quantity.parse(has.value):
            return None
        taken[name] = amount
    return taken


def _amount(asked: str | int | float | None, has: DeviceCapacity) -> Fraction:
    policy = has.request_policy
    if asked is None:
        return quantity.parse(has.value if policy is None or policy.default is None else policy.default)
    wanted = quantity.parse(asked)
    if policy is None:
        return wanted
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _within(wanted, policy.valid_range)
    if policy.valid_values:
        values = (quantity.parse(value) for value in policy.valid_values)
        return next((value for value in values if wanted <= value), wanted)
    return wanted


def _within(wanted: Fraction, valid: CapacityRange) -> Fraction:
    least = quantity.parse(valid.min)
    if wanted < least:
        return least
    if valid.step is None:
        return wanted
    # Kubernetes counts steps in whole numbers.
    step, first = math.ceil(quantity.parse(valid.step)), math.ceil(least)
    if step <= 0:
        return wanted
    return Fraction(first + step * -((first - math.ceil(wanted)) // step))


def _violates(amount: Fraction, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and amount == quantity.parse(policy.default)):
        return False
    if policy.valid_range is not None:
        valid = policy.valid_range
        if valid.max is not None and amount > quantity.parse(valid.max):
            return True
        if valid.step is None:
            return False
        step, first = math.ceil(quantity.parse(valid.step)), math.ceil(quantity.parse(valid.min or 0))
        return step <= 0 or (math.ceil(amount) - first) % step != 0
    if policy.valid_values:
        return all(amount != quantity.parse(value) for value in policy.valid_values)
    return False
