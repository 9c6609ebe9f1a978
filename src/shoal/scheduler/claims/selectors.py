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

#: Expressions kept, where a long one counts as several; the ones unused for longest are forgotten beyond it.
_EXPRESSIONS: Final = 1_000
_CHARACTERS: Final = 500
#: Answers kept, of all expressions together.
_ANSWERS: Final = 200_000
#: Keys that a device keeps for expressions that look at different attributes.
_KEYS: Final = 32
#: Units for a device of which the answer is known, and for a character of an expression that is read.
_KNOWN_COST: Final = 4
_READ_COST: Final = 10
_SHOWN: Final = 200


#: By expression and kind of device: whether it is accepted, or why there is no answer.
Answers = BoundedCache[tuple[str, object], bool | str]


class Selector:
    """One expression, ready to be asked about devices."""

    def __init__(self, expression: str, answers: Answers | None = None) -> None:
        """Its answers are kept in `answers`, beside those of others. Raises SelectorError for what is not supported."""
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
        self._answers: Answers = BoundedCache(_ANSWERS) if answers is None else answers

    def accepts(self, values: DeviceValues, meter: Meter) -> bool:
        """Whether the expression is true of a device.

        Raises EvaluationError when it has no answer, PodCostError when the meter runs out.
        """
        meter.spend(_KNOWN_COST)
        key = self.expression, values.key(self._texts)
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

    __slots__ = ("_keys", "_parts", "_shared", "variable")

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
        domains = tuple(sorted({(kind, domain) for kind, domain, _, _ in self._parts}))
        self._shared = driver, bool(device.allow_multiple_allocations), domains
        self._keys: BoundedCache[frozenset[str] | None, object] = BoundedCache(_KEYS)

    def key(self, texts: frozenset[str] | None) -> object:
        """The same for devices that an expression cannot tell apart which names only these; None: it may see all."""
        return self._keys.of(texts, lambda: self._key(texts))

    def _key(self, texts: frozenset[str] | None) -> object:
        parts = self._parts if texts is None else tuple(part for part in self._parts if part[2] in texts)
        return *self._shared, parts


class Selectors:
    """Expressions, each read once."""

    def __init__(self) -> None:
        self._known: BoundedCache[str, _Read] = BoundedCache(_EXPRESSIONS, weigh=_weight)
        self._answers: Answers = BoundedCache(_ANSWERS)

    def of(self, expression: str, meter: Meter) -> Selector:
        """The selector of an expression. Raises SelectorError, and PodCostError when the meter runs out."""
        known = self._known.get(expression)
        if known is None:
            meter.spend(_READ_COST * min(len(expression), MAX_LENGTH))
            known = self._read(expression)
            self._known.put(expression, known)
        if isinstance(known, str):
            raise SelectorError(known)
        return known

    def _read(self, expression: str) -> _Read:
        try:
            return Selector(expression, self._answers)
        except SelectorError as error:
            return str(error)


#: An expression, or why it is refused.
_Read = Selector | str


def _weight(known: _Read) -> int:
    return 1 + len(known if isinstance(known, str) else known.expression) // _CHARACTERS


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
