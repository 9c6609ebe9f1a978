"""Which devices a selector accepts: the CEL expressions of classes and claims, evaluated on devices of slices.

What is not supported is refused with the expression and the reason, never passed over. Devices that an expression
cannot tell apart are evaluated once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.kube.objects.claims import DeviceAttribute, SliceDevice
from shoal.model.bounded_cache import BoundedCache
from shoal.scheduler.claims.costs import Meter
from shoal.scheduler.claims.errors import CostLimitError, EvaluationError, SelectorError
from shoal.scheduler.claims.evaluation import (
    BUDGET,
    Domains,
    Scope,
    amount_of,
    compiled,
    looks_at_all,
    size_of,
    texts_of,
    version_of,
)
from shoal.scheduler.claims.expressions import MAX_LENGTH, parse

#: Expressions kept; the ones unused for longest are forgotten beyond it.
_EXPRESSIONS: Final = 1_000
#: Kinds of devices of which an expression keeps its answer.
_ANSWERS: Final = 50_000
#: Units for a device of which the answer is known, and for a character of an expression that is read.
_KNOWN_COST: Final = 4
_READ_COST: Final = 10
_SHOWN: Final = 200


class Selector:
    """One expression, ready to be asked about devices."""

    def __init__(self, expression: str) -> None:
        """Raises SelectorError for what is not supported."""
        self.expression = expression
        try:
            tree = parse(expression)
            self._function = compiled(tree, frozenset({"device"}))
        except SelectorError as error:
            raise SelectorError(f"selector {_shown(expression)} {error}") from error
        except RecursionError:
            raise SelectorError(f"selector {_shown(expression)} is nested too deep") from None
        self._size = size_of(tree)
        self._texts = None if looks_at_all(tree) else texts_of(tree)
        self._answers: BoundedCache[object, bool | str] = BoundedCache(_ANSWERS)

    def accepts(self, values: DeviceValues, meter: Meter) -> bool:
        """Whether the expression is true of a device.

        Raises EvaluationError when it has no answer, PodCostError when the meter runs out.
        """
        meter.spend(_KNOWN_COST)
        key = values.key(self._texts)
        known = self._answers.get(key)
        if known is None:
            known, cost = self._evaluated(values)
            self._answers.put(key, known)
            meter.spend(cost)
        if isinstance(known, str):
            raise EvaluationError(f"selector {_shown(self.expression)}: {known}")
        return known

    def _evaluated(self, values: DeviceValues) -> tuple[bool | str, int]:
        """The answer, or why there is none, and the units that it cost."""
        scope = Scope({"device": values.variable})
        answer: Any
        try:
            answer = self._function(scope)
            if not isinstance(answer, bool):
                answer = f"gives {type(answer).__name__}, and no bool"
        except (EvaluationError, CostLimitError) as error:
            answer = str(error)
        except RecursionError:
            answer = "is nested too deep"
        return answer, self._size + BUDGET - max(0, scope.budget)


class DeviceValues:
    """What selectors see of one device."""

    __slots__ = ("_key", "_parts", "variable")

    def __init__(self, device: SliceDevice, driver: str) -> None:
        """Raises EvaluationError for a value that no selector can read."""
        attributes: Domains = Domains()
        for name, attribute in device.attributes.items():
            domain, own = _qualified(name, driver)
            attributes.setdefault(domain, {})[own] = _value_of(name, attribute)
        capacity: Domains = Domains()
        for name, amount in device.capacity.items():
            domain, own = _qualified(name, driver)
            capacity.setdefault(domain, {})[own] = amount_of(amount.value)
        self.variable: Mapping[str, Any] = {
            "driver": driver,
            "allowMultipleAllocations": bool(device.allow_multiple_allocations),
            "attributes": attributes,
            "capacity": capacity,
        }
        self._parts = tuple(
            sorted(
                (kind, domain, own, repr(value))
                for kind, domains in (("attributes", attributes), ("capacity", capacity))
                for domain, values in domains.items()
                for own, value in values.items()
            )
        )
        self._key: dict[frozenset[str] | None, object] = {}

    def key(self, texts: frozenset[str] | None) -> object:
        """The same for devices that an expression cannot tell apart which names only these; None: it may see all."""
        known = self._key.get(texts)
        if known is None:
            parts = self._parts if texts is None else tuple(part for part in self._parts if part[2] in texts)
            domains = tuple(sorted({(kind, domain) for kind, domain, _, _ in self._parts}))
            shared = self.variable["driver"], self.variable["allowMultipleAllocations"], domains
            known = (*shared, parts)
            if len(self._key) < _EXPRESSIONS:
                self._key[texts] = known
        return known


class Selectors:
    """Expressions, each read once."""

    def __init__(self) -> None:
        self._known: BoundedCache[str, Selector | str] = BoundedCache(_EXPRESSIONS)

    def of(self, expression: str, meter: Meter) -> Selector:
        """The selector of an expression. Raises SelectorError, and PodCostError when the meter runs out."""
        known = self._known.get(expression)
        if known is None:
            meter.spend(_READ_COST * min(len(expression), MAX_LENGTH))
            known = _read(expression)
            self._known.put(expression, known)
        if isinstance(known, str):
            raise SelectorError(known)
        return known


def _read(expression: str) -> Selector | str:
    try:
        return Selector(expression)
    except SelectorError as error:
        return str(error)


def _shown(expression: str) -> str:
    text = " ".join(expression.split())
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, mark, own = name.partition("/")
    return (domain, own) if mark else (driver, name)


def _value_of(name: str, attribute: DeviceAttribute) -> Any:
    if attribute.int_ is not None:
        return attribute.int_
    if attribute.bool_ is not None:
        return attribute.bool_
    if attribute.string is not None:
        return attribute.string
    if attribute.version is not None:
        return version_of(attribute.version)
    raise EvaluationError(f"attribute {name} has no value that a selector can read")
