"""CEL evaluated: a tree becomes a function of the variables, with what Kubernetes adds to the language.

Values are Python's own, besides `Amount` (a quantity), `SemanticVersion` and `Optional`. Errors are absorbed by `&&`
and `||` as CEL does.

Whoever may create a claim writes expressions, so every evaluation has a budget, counted and not timed. A unit is one
part of an expression evaluated, or one element of a value visited; 16 characters of a text cost a unit too. Loops,
comparisons, functions and regular expressions spend before they work, and before they make something large. Exceeding
the budget ends the evaluation: `&&` and `||` do not absorb that. The rest of an expression costs no more than its
parts. Regular expressions are RE2's, as in Kubernetes: matching takes time linear in the text.

Types are looked at when a value is used and not before: what is badly typed the API server refuses when the claim or
class is created. Functions that are not listed here are refused by name.
"""

from __future__ import annotations

import math
import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering
from typing import Any, Final

from shoal.model import quantity
from shoal.model.errors import QuantityError, shown
from shoal.scheduler.claims import patterns
from shoal.scheduler.claims.errors import CostLimitError, EvaluationError, SelectorError
from shoal.scheduler.claims.expressions import (
    FunctionCall,
    Index,
    ListLiteral,
    Literal,
    MapLiteral,
    Name,
    Node,
    Operation,
    Select,
)

#: Units that one evaluation may cost.
BUDGET: Final = 10_000
#: Characters, or elements that are only copied, that cost one unit.
_PER_UNIT: Final = 16
_INT64: Final = 2**63
#: Instructions of all regular expressions of one selector.
_MAX_INSTRUCTIONS: Final = 10_000


class Domains(dict[str, Any]):
    """Attributes or capacity by domain: a domain nobody uses is there, and empty."""

    def __missing__(self, key: str) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity."""

    value: Fraction

    def compared(self, other: Amount) -> int:
        return (self.value > other.value) - (self.value < other.value)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class SemanticVersion:
    """A semantic version; what is built of it does not count."""

    major: int
    minor: int
    patch: int
    #: Identifiers: numbers come before words, and a version without any comes last.
    pre: tuple[tuple[int, int, str], ...] = ()

    def _key(self) -> tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]:
        return self.major, self.minor, self.patch, not self.pre, self.pre

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemanticVersion) and self._key() == other._key()

    def __lt__(self, other: SemanticVersion) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def compared(self, other: SemanticVersion) -> int:
        return (self > other) - (self < other)


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may not be there."""

    there: bool
    value: object = None


NONE: Final = Optional(False)


class Scope:
    """The variables of one evaluation, and the units that it may still cost."""

    __slots__ = ("budget", "names")

    def __init__(self, names: dict[str, Any], budget: int = BUDGET) -> None:
        self.names = names
        self.budget = budget

    def spend(self, cost: int) -> None:
        """Charge an operation before it runs. Raises CostLimitError."""
        self.budget -= cost
        if self.budget < 0:
            raise CostLimitError(f"costs more than {BUDGET} units for one device: make it simpler")


Function = Callable[[Scope], Any]

_VERSION: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


def version_of(text: str) -> SemanticVersion:
    """The semantic version in a text. Raises EvaluationError."""
    match = _VERSION.fullmatch(text) if len(text) <= 256 else None
    if match is None:
        raise EvaluationError(f"{text[:64]!r} is no semantic version")
    pre = []
    for part in match[4].split(".") if match[4] else ():
        if part.isdigit():
            if len(part) > 1 and part[0] == "0":
                raise EvaluationError(f"{text[:64]!r} is no semantic version")
            pre.append((0, int(part), ""))
        else:
            pre.append((1, 0, part))
    return SemanticVersion(int(match[1]), int(match[2]), int(match[3]), tuple(pre))


def amount_of(text: object) -> Amount:
    """The quantity in a text. Raises EvaluationError."""
    try:
        return Amount(quantity.parse(text))
    except QuantityError as error:
        raise EvaluationError(str(error)) from error


# From the tree to a function


def compiled(node: Node, names: frozenset[str]) -> Function:
    """A function of the variables `names`. Raises SelectorError for what is not supported."""
    _check_patterns(node)
    return _compiled(node, names)


def size_of(node: Node) -> int:
    """How many parts a tree has: what one pass through it costs."""
    return sum(1 for _ in _walk(node))


def texts_of(node: Node) -> frozenset[str]:
    """Every name of a field and every text in a tree: nothing else of a device can be asked for by name."""
    fields = {part.field for part in _walk(node) if isinstance(part, Select)}
    literals = {part.value for part in _walk(node) if isinstance(part, Literal) and isinstance(part.value, str)}
    return frozenset(fields | literals)


def looks_at_all(node: Node) -> bool:
    """Whether a tree may look at attributes without naming them: by a macro over a map, or a name put together."""
    return any(_looks_at_all(part) for part in _walk(node))


def _looks_at_all(node: Node) -> bool:
    if isinstance(node, FunctionCall) and node.function in (*_LOOPS, "size", "ofNonZeroValue"):
        return True
    if isinstance(node, Index) and not isinstance(node.key, Literal):
        return True
    if isinstance(node, Operation) and node.operator in ("==", "!=", "in"):
        # Whole maps could be compared, unless they are compared with something that is none.
        left, right = node.operands
        return not isinstance(left, Literal) and not _is_plain(right)
    return False


def _is_plain(node: Node) -> bool:
    """A constant, or a list of constants."""
    return isinstance(node, Literal) or (
        isinstance(node, ListLiteral) and all(isinstance(item, Literal) for item in node.items)
    )


def _walk(node: Node, *, into_loops: bool = True) -> Iterator[Node]:
    """All nodes of a tree, each once; those that a loop evaluates for every element may be left out."""
    left = [node]
    while left:
        one = left.pop()
        yield one
        if not into_loops and isinstance(one, FunctionCall) and one.function in _LOOPS and one.target is not None:
            left.append(one.target)
        else:
            left.extend(_parts(one))


def _parts(node: Node) -> Iterable[Node]:
    match node:
        case Select():
            return (node.operand,)
        case Index():
            return node.operand, node.key
        case FunctionCall():
            return node.arguments if node.target is None else (node.target, *node.arguments)
        case Operation():
            return node.operands
        case ListLiteral():
            return node.items
        case MapLiteral():
            return [part for entry in node.entries for part in entry]
    return ()


def _compiled(node: Node, names: frozenset[str]) -> Function:
    match node:
        case Literal():
            value = node.value
            return lambda scope: value
        case Name():
            return _name(node, names)
        case Select():
            return _select(node, names)
        case Index():
            return _index(node, names)
        case Operation():
            return _operation(node, names)
        case FunctionCall():
            return _call(node, names)
        case ListLiteral():
            items = [_compiled(item, names) for item in node.items]
            return lambda scope: [item(scope) for item in items]
        case MapLiteral():
            entries = [(_compiled(key, names), _compiled(value, names)) for key, value in node.entries]
            return lambda scope: {_key(scope, key(scope)): value(scope) for key, value in entries}


def _name(node: Name, names: frozenset[str]) -> Function:
    name = node.name
    if name not in names:
        raise SelectorError(f"uses {shown(name)}, which is not known: a selector knows device")
    if name == "device":
        return lambda scope: scope.names[name]

    def variable(scope: Scope) -> Any:
        value = scope.names[name]
        if isinstance(value, _Failed):
            raise EvaluationError(value.message)
        return value

    return variable


def _select(node: Select, names: frozenset[str]) -> Function:
    field = node.field
    if isinstance(node.operand, Name) and node.operand.name == "device" and field not in DEVICE_FIELDS:
        raise SelectorError(f"uses device.{field[:64]}, which is not known: a device has {', '.join(DEVICE_FIELDS)}")
    operand = _compiled(node.operand, names)
    if node.optional:
        return lambda scope: _found(scope, operand(scope), field)

    def select(scope: Scope) -> Any:
        return _member(scope, operand(scope), field)

    return select


DEVICE_FIELDS: Final = ("driver", "attributes", "capacity", "allowMultipleAllocations")


def _member(scope: Scope, value: Any, field: str) -> Any:
    if isinstance(value, dict):
        try:
            return value[field]
        except KeyError:
            raise EvaluationError(f"no such key: {shown(field)}") from None
    if isinstance(value, Optional):
        return _found(scope, value, field)
    raise EvaluationError(f"no such field: {shown(field)} of {_type(value)}")


def _index(node: Index, names: frozenset[str]) -> Function:
    operand, key = _compiled(node.operand, names), _compiled(node.key, names)
    if node.optional:
        return lambda scope: _found(scope, operand(scope), key(scope))

    def index(scope: Scope) -> Any:
        value, wanted = operand(scope), key(scope)
        if isinstance(value, list):
            place = _place(wanted)
            if not 0 <= place < len(value):
                raise EvaluationError(f"index out of bounds: {place}")
            return value[place]
        if isinstance(value, dict):
            try:
                return value[_key(scope, wanted)]
            except KeyError:
                raise EvaluationError(f"no such key: {shown(wanted)}") from None
        if isinstance(value, Optional):
            return _found(scope, value, wanted)
        raise EvaluationError(f"no such overload: {_type(value)}[{_type(wanted)}]")

    return index


def _place(wanted: Any) -> int:
    if type(wanted) is float and wanted.is_integer():
        return int(wanted)
    if type(wanted) is not int:
        raise EvaluationError(f"no such overload: list[{_type(wanted)}]")
    return wanted


def _found(scope: Scope, value: Any, key: Any) -> Optional:
    """`value.?key` and `value[?key]`."""
    if isinstance(value, Optional):
        return _found(scope, value.value, key) if value.there else NONE
    if isinstance(value, Domains):
        return Optional(True, value[_key(scope, key)])
    if isinstance(value, dict):
        wanted = _key(scope, key)
        return Optional(True, value[wanted]) if wanted in value else NONE
    if isinstance(value, list):
        place = _place(key)
        return Optional(True, value[place]) if 0 <= place < len(value) else NONE
    raise EvaluationError(f"no such key: {shown(key)} of {_type(value)}")


def _key(scope: Scope, value: Any) -> Any:
    if type(value) is str:
        scope.spend(len(value) // _PER_UNIT)
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) not in (int, bool):
        raise EvaluationError(f"a key cannot be of type {_type(value)}")
    # True and 1 are one key of a Python map, and two of CEL's.
    return ("bool", value) if type(value) is bool else value


# Operators


def _operation(node: Operation, names: frozenset[str]) -> Function:
    operands = [_compiled(operand, names) for operand in node.operands]
    if node.operator in ("&&", "||"):
        return _logic(operands, decides=node.operator == "||")
    if node.operator == "?:":
        condition, yes, no = operands

        def ternary(scope: Scope) -> Any:
            return yes(scope) if _truth(condition(scope)) else no(scope)

        return ternary
    if node.operator == "!":
        (one,) = operands
        return lambda scope: not _truth(one(scope))
    if node.operator == "neg":
        (one,) = operands
        return lambda scope: _negative(one(scope))
    left, right = operands
    if node.operator == "==":
        return lambda scope: equal(scope, left(scope), right(scope))
    if node.operator == "!=":
        return lambda scope: not equal(scope, left(scope), right(scope))
    if node.operator == "in":
        return lambda scope: _contains(scope, right(scope), left(scope))
    if node.operator in _ORDER:
        compare = _ORDER[node.operator]
        return lambda scope: _ordered(scope, compare, left(scope), right(scope))
    calculate = _ARITHMETIC[node.operator]
    return lambda scope: calculate(scope, left(scope), right(scope))


def _logic(operands: Iterable[Function], *, decides: bool) -> Function:
    """`||` is decided by true and `&&` by false, whatever else goes wrong."""

    def logic(scope: Scope) -> bool:
        error: EvaluationError | None = None
        for operand in operands:
            try:
                value = operand(scope)
            except EvaluationError as wrong:
                error = error or wrong
                continue
            if value is decides:
                return bool(decides)
            if not isinstance(value, bool):
                error = error or EvaluationError(f"no such overload: {_type(value)} is no bool")
        if error is not None:
            raise error
        return not decides

    return logic


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise EvaluationError(f"no such overload: {_type(value)} is no bool")


def equal(scope: Scope, left: Any, right: Any) -> bool:
    """CEL's equality: numbers of any type compare, other values of different types are not equal.

    Every pair of elements is charged: a list that holds another one twice is small, and may be long to compare.
    """
    kind, other = type(left), type(right)
    if kind is str and other is str:
        scope.spend(1 + min(len(left), len(right)) // _PER_UNIT)
        return bool(left == right)
    scope.spend(2)
    if kind is list and other is list:
        if len(left) != len(right):
            return False
        for one, two in zip(left, right, strict=True):  # noqa: SIM110 - a generator for each list costs more
            if not equal(scope, one, two):
                return False
        return True
    if isinstance(left, dict) and isinstance(right, dict):
        return _equal_maps(scope, left, right)
    if kind is other:
        if kind is Optional:
            return left.there == right.there and (not left.there or equal(scope, left.value, right.value))
        return bool(left == right)
    if kind in _NUMBERS and other in _NUMBERS:
        return bool(left == right)
    if kind in (Amount, SemanticVersion) and right is not None:
        raise EvaluationError(f"no such overload: {_type(left)} == {_type(right)}")
    return False


def _equal_maps(scope: Scope, left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    if len(left) != len(right):
        return False
    for key in left:
        scope.spend(1 + (len(key) // _PER_UNIT if type(key) is str else 0))
        if key not in right:
            return False
    return all(equal(scope, left[key], right[key]) for key in left)


_NUMBERS: Final = (int, float)
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _ordered(scope: Scope, compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    kind, other = type(left), type(right)
    if kind is str and other is str:
        scope.spend(min(len(left), len(right)) // _PER_UNIT)
        return bool(compare(left, right))
    if (kind in _NUMBERS and other in _NUMBERS) or (kind is other and kind is bool):
        return bool(compare(left, right))
    raise EvaluationError(f"no such overload: {_type(left)} compared with {_type(right)}")


def _contains(scope: Scope, where: Any, what: Any) -> bool:
    if isinstance(where, dict):
        return _key(scope, what) in where
    if not isinstance(where, list):
        raise EvaluationError(f"no such overload: {_type(what)} in {_type(where)}")
    error: EvaluationError | None = None
    for one in where:
        try:
            if equal(scope, what, one):
                return True
        except EvaluationError as wrong:
            error = wrong
    if error is not None:
        raise error
    return False


def _number(value: int) -> int:
    if not -_INT64 <= value < _INT64:
        raise EvaluationError("integer overflow")
    return value


def _negative(value: Any) -> Any:
    if type(value) is int:
        return _number(-value)
    if type(value) is float:
        return -value
    raise EvaluationError(f"no such overload: -{_type(value)}")


def _plus(scope: Scope, left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is type(right):
        if kind is int:
            return _number(left + right)
        if kind is float:
            return left + right
        if kind in (str, list):
            scope.spend((len(left) + len(right)) // _PER_UNIT)
            return left + right
    raise EvaluationError(f"no such overload: {_type(left)} + {_type(right)}")


def _whole_or_float(name: str, on_int: Callable[[int, int], int], on_float: Callable[[float, float], float]) -> Any:
    def calculate(scope: Scope, left: Any, right: Any) -> Any:
        if type(left) is int and type(right) is int:
            return _number(on_int(left, right))
        if type(left) is float and type(right) is float:
            return on_float(left, right)
        raise EvaluationError(f"no such overload: {_type(left)} {name} {_type(right)}")

    return calculate


def _divided(left: int, right: int) -> int:
    if not right:
        raise EvaluationError("division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _divided_floats(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _rest(left: int, right: int) -> int:
    if not right:
        raise EvaluationError("modulus by zero")
    return int(math.copysign(1, left)) * (abs(left) % abs(right))


def _no_rest(left: float, right: float) -> float:
    raise EvaluationError("no such overload: double % double")


_ARITHMETIC: Final[dict[str, Callable[[Scope, Any, Any], Any]]] = {
    "+": _plus,
    "-": _whole_or_float("-", operator.sub, operator.sub),
    "*": _whole_or_float("*", operator.mul, operator.mul),
    "/": _whole_or_float("/", _divided, _divided_floats),
    "%": _whole_or_float("%", _rest, _no_rest),
}


# Macros and functions


def _call(node: FunctionCall, names: frozenset[str]) -> Function:
    if node.target is None:
        return _global(node, names)
    if isinstance(node.target, Name) and node.target.name not in names:
        return _of_namespace(node, node.target.name, names)
    if node.function in _LOOPS:
        return _loop(node, names)
    if node.function in ("optMap", "optFlatMap"):
        return _opt_map(node, names)
    return _function(node.function, [node.target, *node.arguments], _METHODS, names)


def _global(node: FunctionCall, names: frozenset[str]) -> Function:
    if node.function != "has":
        return _function(node.function, list(node.arguments), _GLOBALS, names)
    if len(node.arguments) != 1 or not isinstance(node.arguments[0], Select) or node.arguments[0].optional:
        raise SelectorError("uses has() on what is no field: write has(a.b)")
    field, operand = node.arguments[0].field, _compiled(node.arguments[0].operand, names)

    def has(scope: Scope) -> bool:
        value = operand(scope)
        if isinstance(value, Domains):
            return True
        if isinstance(value, dict):
            return field in value
        if isinstance(value, Optional):
            return _found(scope, value, field).there
        raise EvaluationError(f"no such field: {shown(field)} of {_type(value)}")

    return has


def _of_namespace(node: FunctionCall, namespace: str, names: frozenset[str]) -> Function:
    name = f"{namespace}.{node.function}"
    if name != "cel.bind":
        return _function(name, list(node.arguments), _GLOBALS, names)
    if len(node.arguments) != 3 or not isinstance(node.arguments[0], Name):
        raise SelectorError("uses cel.bind() without a name, a value and an expression")
    variable = node.arguments[0].name
    value = _compiled(node.arguments[1], names)
    body = _compiled(node.arguments[2], names | {variable})

    def bind(scope: Scope) -> Any:
        # A value that fails fails where it is used.
        bound: Any
        try:
            bound = value(scope)
        except EvaluationError as error:
            bound = _Failed(str(error))
        return _within(scope, variable, bound, body)

    return bind


@dataclass(frozen=True, slots=True)
class _Failed:
    """A bound value that could not be had."""

    message: str


def _within(scope: Scope, variable: str, value: Any, body: Function) -> Any:
    """The body with one variable more."""
    before, had = scope.names.get(variable), variable in scope.names
    scope.names[variable] = value
    try:
        return body(scope)
    finally:
        if had:
            scope.names[variable] = before
        else:
            del scope.names[variable]


_LOOPS: Final = ("all", "exists", "exists_one", "filter", "map")


def _loop(node: FunctionCall, names: frozenset[str]) -> Function:
    if len(node.arguments) not in ((2, 3) if node.function == "map" else (2,)) or not isinstance(
        node.arguments[0], Name
    ):
        raise SelectorError(f"uses {node.function}() in a form that is not supported here: write {node.function}(x, …)")
    assert node.target is not None
    target, variable = _compiled(node.target, names), node.arguments[0].name
    inner = names | {variable}
    parts = [_compiled(part, inner) for part in node.arguments[1:]]
    # Loops inside charge for themselves.
    cost = 1 + sum(1 for part in node.arguments[1:] for _ in _walk(part, into_loops=False))
    macro = _MACROS[node.function]

    def loop(scope: Scope) -> Any:
        over = target(scope)
        if not isinstance(over, (list, dict)):
            raise EvaluationError(f"no such overload: {node.function}() of {_type(over)}")

        def each(part: Function, one: Any) -> Any:
            scope.spend(cost)
            return _within(scope, variable, one, part)

        return macro([_plain_key(one) for one in over] if isinstance(over, dict) else over, each, parts)

    return loop


def _plain_key(key: Any) -> Any:
    return key[1] if isinstance(key, tuple) else key


_Each = Callable[[Function, Any], Any]


def _all(over: list[Any], each: _Each, parts: list[Function]) -> bool:
    return _any_or_all(over, each, parts[0], decides=False)


def _exists(over: list[Any], each: _Each, parts: list[Function]) -> bool:
    return _any_or_all(over, each, parts[0], decides=True)


def _any_or_all(over: list[Any], each: _Each, part: Function, *, decides: bool) -> bool:
    def one_of(value: Any) -> Function:
        return lambda scope: each(part, value)

    return bool(_logic((one_of(value) for value in over), decides=decides)(_NOTHING))


_NOTHING: Final = Scope({})


def _exists_one(over: list[Any], each: _Each, parts: list[Function]) -> bool:
    return sum(_truth(each(parts[0], one)) for one in over) == 1


def _filter(over: list[Any], each: _Each, parts: list[Function]) -> list[Any]:
    return [one for one in over if _truth(each(parts[0], one))]


def _map(over: list[Any], each: _Each, parts: list[Function]) -> list[Any]:
    if len(parts) == 2:
        return [each(parts[1], one) for one in over if _truth(each(parts[0], one))]
    return [each(parts[0], one) for one in over]


_MACROS: Final[dict[str, Callable[[list[Any], _Each, list[Function]], Any]]] = {
    "all": _all,
    "exists": _exists,
    "exists_one": _exists_one,
    "filter": _filter,
    "map": _map,
}


def _opt_map(node: FunctionCall, names: frozenset[str]) -> Function:
    if len(node.arguments) != 2 or not isinstance(node.arguments[0], Name):
        raise SelectorError(f"uses {node.function}() without a name and an expression")
    assert node.target is not None
    target, variable = _compiled(node.target, names), node.arguments[0].name
    body, flat = _compiled(node.arguments[1], names | {variable}), node.function == "optFlatMap"

    def opt_map(scope: Scope) -> Optional:
        value = target(scope)
        if not isinstance(value, Optional):
            raise EvaluationError(f"no such overload: {node.function}() of {_type(value)}")
        if not value.there:
            return NONE
        made = _within(scope, variable, value.value, body)
        if not flat:
            return Optional(True, made)
        if not isinstance(made, Optional):
            raise EvaluationError("no such overload: optFlatMap() needs an optional")
        return made

    return opt_map


@dataclass(frozen=True, slots=True)
class _Known:
    """A function: what it does with how many values, of which types, and what it costs beside reading them."""

    run: Callable[..., Any]
    #: Types of the values; those beyond `needs` may be left out.
    types: tuple[tuple[type, ...], ...]
    needs: int
    #: Units for the values of one call.
    cost: Callable[..., int] | None = None


def _function(name: str, arguments: list[Node], known: dict[str, _Known], names: frozenset[str]) -> Function:
    function = known.get(name)
    if function is None:
        raise SelectorError(f"uses {name[:64]}(), which is not supported here: use {', '.join(sorted(known))}")
    if not function.needs <= len(arguments) <= len(function.types):
        raise SelectorError(f"uses {name}() with {len(arguments)} values")
    parts, run, types, cost = [_compiled(one, names) for one in arguments], function.run, function.types, function.cost
    if name in ("orValue", "or"):  # the other value only when it is needed
        return lambda scope: run(scope, parts[0](scope), parts[1])

    def call(scope: Scope) -> Any:
        values = [part(scope) for part in parts]
        for value, allowed in zip(values, types, strict=False):
            if allowed and type(value) not in allowed:
                raise EvaluationError(f"no such overload: {name}({', '.join(map(_type, values))})")
            if type(value) in (str, list):
                scope.spend(len(value) // _PER_UNIT)
        if cost is not None:
            scope.spend(cost(*values))
        return run(*values)

    return call


def _type(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)


_TYPE_NAMES: Final[dict[type, str]] = {
    str: "string",
    float: "double",
    dict: "map",
    Domains: "map",
    type(None): "null",
    Amount: "quantity",
    SemanticVersion: "semver",
    Optional: "optional",
}


def _or_value(scope: Scope, value: Any, other: Function) -> Any:
    if not isinstance(value, Optional):
        raise EvaluationError(f"no such overload: orValue() of {_type(value)}")
    return value.value if value.there else other(scope)


def _or(scope: Scope, value: Any, other: Function) -> Any:
    if not isinstance(value, Optional):
        raise EvaluationError(f"no such overload: or() of {_type(value)}")
    return value if value.there else other(scope)


def _value(value: Optional) -> Any:
    if not value.there:
        raise EvaluationError("optional.none() dereference")
    return value.value


def _of_non_zero(value: Any) -> Optional:
    zero = value is None or (type(value) in (bool, int, float, str, list, dict) and not value)
    return NONE if zero else Optional(True, value)


def _comparable(left: Any, right: Any) -> int:
    if type(left) is not type(right):
        raise EvaluationError(f"no such overload: compareTo({_type(left)}, {_type(right)})")
    return int(left.compared(right))


def _added(sign: int) -> Callable[[Amount, Any], Amount]:
    def added(left: Amount, right: Any) -> Amount:
        return Amount(left.value + sign * (right.value if isinstance(right, Amount) else right))

    return added


def _is_integer(one: Amount) -> bool:
    return one.value.denominator == 1 and -_INT64 <= one.value < _INT64


def _as_integer(one: Amount) -> int:
    if not _is_integer(one):
        raise EvaluationError("cannot convert value to integer")
    return int(one.value)


def _answers(read: Callable[..., object]) -> Callable[..., bool]:
    def answers(*values: Any) -> bool:
        try:
            read(*values)
        except EvaluationError:
            return False
        return True

    return answers


def _semver(text: str, normalise: bool = False) -> SemanticVersion:
    """A version; normalised, one `v` before it and missing numbers are let pass, and zeros before numbers."""
    if normalise:
        text = text.removeprefix("v")
        core, mark, rest = re.match(r"([^-+]*)([-+]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        numbers = core.split(".")
        if len(numbers) < 3 and mark:
            raise EvaluationError(f"{text[:64]!r} is no semantic version")
        numbers = [part.lstrip("0") or "0" if part else part for part in numbers] + ["0"] * (3 - len(numbers))
        text = ".".join(numbers) + mark + rest
    return version_of(text)


def _size(value: Any) -> int:
    return len(value)


def _string(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is float:
        return _go_float(value)
    return str(value)


def _go_float(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return repr(value)


def _int(value: Any) -> int:
    if type(value) is str:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value, re.ASCII):
            raise EvaluationError(f"type conversion error from string to int: {value[:64]!r}")
        return _number(int(value))
    if type(value) is float and not -_INT64 < value < _INT64:
        raise EvaluationError("integer overflow")
    return int(value)


def _double(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise EvaluationError(f"type conversion error from string to double: {value[:64]!r}") from None


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    known = {**dict.fromkeys(("true", "True", "TRUE", "t", "1"), True)}
    known.update(dict.fromkeys(("false", "False", "FALSE", "f", "0"), False))
    if value not in known:
        raise EvaluationError(f"type conversion error from string to bool: {value[:64]!r}")
    return known[value]


def _char_at(text: str, place: int) -> str:
    if not 0 <= place <= len(text):
        raise EvaluationError(f"index out of range: {place}")
    return text[place : place + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not 0 <= start <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, last: int | None = None) -> int:
    if last is None:
        return text.rfind(part)
    if not 0 <= last <= len(text):
        raise EvaluationError(f"index out of range: {last}")
    return text.rfind(part, 0, last + len(part))


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise EvaluationError(f"index out of range: {start} to {end}")
    return text[start:end]


def _split(text: str, separator: str, most: int = -1) -> list[str]:
    if most == 0:
        return []
    if separator:
        return text.split(separator, most - 1 if most > 0 else -1)
    letters = list(text)
    return letters if most < 0 or len(letters) <= most else [*letters[: most - 1], "".join(letters[most - 1 :])]


def _join(parts: list[Any], between: str = "") -> str:
    if not all(type(part) is str for part in parts):
        raise EvaluationError("no such overload: join() of what is no text")
    return between.join(parts)


def _cost_of_join(parts: list[Any], between: str = "") -> int:
    texts = sum(len(part) for part in parts if type(part) is str)
    return len(parts) + (texts + len(parts) * len(between)) // _PER_UNIT


def _cost_of_search(text: str, part: str, *rest: int) -> int:
    """Python's search may compare the part at every place of the text."""
    return (len(text) // _PER_UNIT) * (1 + len(part) // _PER_UNIT)


def _cost_of_replace(text: str, old: str, new: str, most: int = -1) -> int:
    places = (len(text) + 1) // max(1, len(old)) + 1
    return _cost_of_search(text, old) + places * len(new) // _PER_UNIT


def _cost_of_numbers(*values: Any) -> int:
    """Quantities and versions are read and compared digit by digit."""
    return 10


_LOWER: Final = {ord(letter): letter.lower() for letter in string.ascii_uppercase}
_UPPER: Final = {ord(letter): letter.upper() for letter in string.ascii_lowercase}


# Patterns


def _check_patterns(tree: Node) -> None:
    """Refuse patterns that are no regular expressions of RE2, and too many or too large ones. Raises SelectorError."""
    instructions = 0
    for node in _walk(tree):
        if isinstance(node, FunctionCall) and node.function == "matches" and node.arguments:
            pattern = node.arguments[-1]
            if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
                raise SelectorError("uses matches() with a pattern that is not written out: write it as a text")
            instructions += patterns.size(pattern.value)
            if instructions > _MAX_INSTRUCTIONS:
                raise SelectorError("uses matches() with patterns that are too large together: make them simpler")


_TEXT, _WHOLE, _TRUTH, _LIST = (str,), (int,), (bool,), (list,)
_ANY: tuple[type, ...] = ()
_AMOUNT, _EITHER = (Amount,), (Amount, SemanticVersion)


def _known(
    run: Callable[..., Any],
    *types: tuple[type, ...],
    needs: int | None = None,
    cost: Callable[..., int] | None = None,
) -> _Known:
    return _Known(run, types, len(types) if needs is None else needs, cost)


_GLOBALS: Final[dict[str, _Known]] = {
    "size": _known(_size, (str, list, dict, Domains)),
    "string": _known(_string, (str, int, float, bool)),
    "int": _known(_int, (int, float, str)),
    "double": _known(_double, (int, float, str)),
    "bool": _known(_bool, (bool, str)),
    "dyn": _known(lambda value: value, _ANY),
    "matches": _known(patterns.matches, _TEXT, _TEXT, cost=patterns.cost),
    "quantity": _known(amount_of, _TEXT, cost=_cost_of_numbers),
    "sign": _known(lambda one: (one.value > 0) - (one.value < 0), _AMOUNT),
    "isQuantity": _known(_answers(amount_of), _TEXT, cost=_cost_of_numbers),
    "semver": _known(_semver, _TEXT, _TRUTH, needs=1, cost=_cost_of_numbers),
    "isSemver": _known(_answers(_semver), _TEXT, _TRUTH, needs=1, cost=_cost_of_numbers),
    "optional.of": _known(lambda value: Optional(True, value), _ANY),
    "optional.none": _known(lambda: NONE),
    "optional.ofNonZeroValue": _known(_of_non_zero, _ANY),
}
_METHODS: Final[dict[str, _Known]] = {
    "size": _known(_size, (str, list, dict, Domains)),
    "startsWith": _known(str.startswith, _TEXT, _TEXT),
    "endsWith": _known(str.endswith, _TEXT, _TEXT),
    "contains": _known(lambda text, part: part in text, _TEXT, _TEXT, cost=_cost_of_search),
    "matches": _known(patterns.matches, _TEXT, _TEXT, cost=patterns.cost),
    "charAt": _known(_char_at, _TEXT, _WHOLE),
    "indexOf": _known(_index_of, _TEXT, _TEXT, _WHOLE, needs=2, cost=_cost_of_search),
    "lastIndexOf": _known(_last_index_of, _TEXT, _TEXT, _WHOLE, needs=2, cost=_cost_of_search),
    "join": _known(_join, _LIST, _TEXT, needs=1, cost=_cost_of_join),
    "lowerAscii": _known(lambda text: text.translate(_LOWER), _TEXT),
    "upperAscii": _known(lambda text: text.translate(_UPPER), _TEXT),
    "replace": _known(str.replace, _TEXT, _TEXT, _TEXT, _WHOLE, needs=3, cost=_cost_of_replace),
    "split": _known(_split, _TEXT, _TEXT, _WHOLE, needs=2, cost=_cost_of_search),
    "substring": _known(_substring, _TEXT, _WHOLE, _WHOLE, needs=2),
    "trim": _known(lambda text: text.strip(), _TEXT),
    "isGreaterThan": _known(lambda left, right: _comparable(left, right) > 0, _EITHER, _EITHER, cost=_cost_of_numbers),
    "isLessThan": _known(lambda left, right: _comparable(left, right) < 0, _EITHER, _EITHER, cost=_cost_of_numbers),
    "compareTo": _known(_comparable, _EITHER, _EITHER, cost=_cost_of_numbers),
    "isInteger": _known(_is_integer, _AMOUNT),
    "asInteger": _known(_as_integer, _AMOUNT),
    "asApproximateFloat": _known(lambda one: float(one.value), _AMOUNT, cost=_cost_of_numbers),
    "add": _known(_added(+1), _AMOUNT, (Amount, int), cost=_cost_of_numbers),
    "sub": _known(_added(-1), _AMOUNT, (Amount, int), cost=_cost_of_numbers),
    "major": _known(lambda one: one.major, (SemanticVersion,)),
    "minor": _known(lambda one: one.minor, (SemanticVersion,)),
    "patch": _known(lambda one: one.patch, (SemanticVersion,)),
    "hasValue": _known(lambda one: one.there, (Optional,)),
    "value": _known(_value, (Optional,)),
    "orValue": _known(_or_value, _ANY, _ANY),
    "or": _known(_or, _ANY, _ANY),
}
