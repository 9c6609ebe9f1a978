"""CEL as admission policies speak it: Google's runtime with what Kubernetes adds to the language.

Of Kubernetes' own functions those are there that policies about pods need: quantities, `find` and `findAll`, `min` and
`max`, the authorizer, and `jsonpatch.escapeKey`. Whatever else a policy uses is a compile error that names it.

The runtime hands values to Python and back as plain data. So a quantity and an authorizer are maps here, and
`variables.x` is rewritten into a call that evaluates the variable when it is first needed: an error in a variable that
nobody needs is none, as in Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from shoal.embedded.policies.errors import CelError
from shoal.embedded.policies.initialisers import as_calls, as_maps
from shoal.model import quantity
from shoal.model.errors import QuantityError

if TYPE_CHECKING:
    from cel_expr_python import cel

#: The names that every expression may use.
NAMES: Final = ("object", "oldObject", "request", "namespaceObject", "params", "authorizer")
#: Whether a user may do something: group, resource, subresource, namespace, name and verb.
Authorize = Callable[[Mapping[str, str]], bool]

_VARIABLE: Final = re.compile(
    r"""(?P<text>[rR]?(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))"""
    r"""|(?<![\w.])variables\.(?P<name>[A-Za-z_]\w*)""",
    re.DOTALL,
)
_PATH: Final = re.compile(r"[\w.?]+(?:\.orValue\((?:\{\}|\[\]|'[^'\\]*')\))?|'[^'\\]*'|\{\}|\[\]")
#: What the runtime says of a key that is not there; the API server says it in other words.
_NO_KEY: Final = re.compile(r'(?:NOT_FOUND: )?Key not found in map : "(.*)"', re.DOTALL)
#: The types of the runtime by their names in Kubernetes' messages.
_TYPE_NAMES: Final = re.compile(r"\b[A-Z]+\b")
#: Compiled expressions that are kept.
_EXPRESSIONS: Final = 4096
_INT64: Final = 2**63
_QUANTITY: Final = "quantity"
#: What an authorizer in the making has been told.
_ASKED: Final = ("group", "resource", "subresource", "namespace", "name")


class CelEnvironment:
    """Compiles expressions; one at a time is evaluated."""

    def __init__(self) -> None:
        try:
            from cel_expr_python import cel
            from cel_expr_python.ext import ext_optional, ext_strings
        except ImportError as error:
            raise CelError(
                "the embedded API server needs a CEL runtime for its admission policies: pip install 'shoal[embedded]'"
            ) from error
        # A policy is compiled when it is written and when it is first asked, parts of it stand in several.
        self._compile = lru_cache(maxsize=_EXPRESSIONS)(self._compile_anew)
        self._error = cel.Type.ERROR
        self._now: Evaluation | None = None
        self._env = cel.NewEnv(
            variables=dict.fromkeys(NAMES, cel.Type.DYN),
            extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
            functions=_functions(cel, self._variable, self._allowed),
        )

    def compile(self, expression: str, inlined: Mapping[str, str] | None = None) -> cel.Expression:
        """An expression to evaluate. Variables that are `inlined` stand in it as they are."""
        return self.compile_plain(with_variables(expression, inlined or {}))

    def compile_plain(self, expression: str) -> cel.Expression:
        """An expression that knows no variables."""
        return self._compile(expression)

    def _compile_anew(self, expression: str) -> cel.Expression:
        try:
            return self._env.compile(expression)
        except (RuntimeError, ValueError) as error:
            why = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
            raise CelError(f"compilation failed: {why}") from None

    def compile_mutation(
        self, expression: str, wanted: str, inlined: Mapping[str, str] | None = None
    ) -> cel.Expression:
        """An expression with initialisers, which must evaluate to a type: `Object` or `list(JSONPatch)`."""
        made = _type_name(self.compile(as_calls(expression), inlined).return_type().name())
        if made != wanted:
            raise CelError(f"must evaluate to {wanted} but got {made}")
        return self.compile(as_maps(expression), inlined)

    def seen(self, data: dict[str, Any]) -> cel.Activation:
        """What all expressions about one write see."""
        return self._env.Activation(data)

    def evaluate(self, evaluation: Evaluation, expression: cel.Expression) -> Any:
        """The value as plain data. CelError tells what went wrong."""
        before, self._now = self._now, evaluation
        try:
            value = expression.eval(evaluation.activation)
            if value.type() == self._error:
                raise CelError(_in_words(str(value.value())))
            return value.plain_value()
        except (RuntimeError, TypeError) as error:
            raise CelError(f"the value is none that can be kept here: {error}") from error
        finally:
            self._now = before

    def _variable(self, name: str) -> Any:
        """What `variables.name` is rewritten into."""
        assert self._now is not None
        return self._now.variable(name)

    def _allowed(self, asked: Mapping[str, str]) -> bool:
        assert self._now is not None
        return self._now.authorize(asked)


class Evaluation:
    """What one write looks like to the expressions of one policy, and the variables that were needed so far."""

    def __init__(
        self,
        environment: CelEnvironment,
        activation: cel.Activation,
        variables: Mapping[str, cel.Expression],
        authorize: Authorize,
    ) -> None:
        self.activation = activation
        self.authorize = authorize
        self._environment = environment
        self._expressions = variables
        self._known: dict[str, Any] = {}

    def of(self, expression: cel.Expression) -> Any:
        """The value of an expression."""
        return self._environment.evaluate(self, expression)

    def variable(self, name: str) -> Any:
        """The value of a variable, found once."""
        if name not in self._known:
            if name not in self._expressions:
                raise ValueError(f"undefined field '{name}' of variables")
            try:
                self._known[name] = self.of(self._expressions[name])
            except CelError as error:
                raise ValueError(f"variable {name}: {error}") from error
        return self._known[name]


def _in_words(error: str) -> str:
    match = _NO_KEY.fullmatch(error)
    return f"no such key: {match[1]}" if match else error


def _type_name(name: str) -> str:
    """`LIST<DYN>` as `list(dyn)`."""
    return _TYPE_NAMES.sub(lambda match: match[0].lower(), name).replace("<", "(").replace(">", ")")


def with_variables(expression: str, inlined: Mapping[str, str]) -> str:
    """An expression whose variables are calls, or the text that is inlined for them."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        return f"({inlined[name]})" if name in inlined else f'variable("{name}")'

    return _VARIABLE.sub(replaced, expression)


def variables_of(expression: str) -> list[str]:
    """The names of the variables that an expression uses."""
    return [match["name"] for match in _VARIABLE.finditer(expression) if match["name"]]


def is_path(expression: str) -> bool:
    """Whether an expression only says where something is, so that it costs less to say it again than to keep it."""
    return _PATH.fullmatch(expression.strip()) is not None and "variables" not in expression


def _functions(cel: Any, variable: Callable[[str], Any], allowed: Callable[[Mapping[str, str]], bool]) -> list[Any]:
    kinds = cel.Type
    text, number, truth, map_, list_ = kinds.STRING, kinds.INT, kinds.BOOL, kinds.MAP, kinds.List(kinds.DYN)

    def function(name: str, *overloads: tuple[Any, list[Any], Callable[..., Any]], member: bool = True) -> Any:
        made = [
            cel.Overload(
                f"{name.replace('.', '_')}_{place}",
                return_type=returned,
                parameters=parameters,
                is_member=member,
                impl=implementation,
            )
            for place, (returned, parameters, implementation) in enumerate(overloads)
        ]
        return cel.FunctionDecl(name, made)

    def asked(part: str) -> Any:
        return function(part, (map_, [map_, text], lambda so_far, value: {**so_far, part: value}))

    return [
        function("variable", (kinds.DYN, [text], variable), member=False),
        function("quantity", (map_, [text], _quantity), (map_, [number], _quantity), member=False),
        function("isQuantity", (truth, [text], _is_quantity), member=False),
        function("isGreaterThan", (truth, [map_, map_], lambda a, b: _amount(a) > _amount(b))),
        function("isLessThan", (truth, [map_, map_], lambda a, b: _amount(a) < _amount(b))),
        function("compareTo", (number, [map_, map_], lambda a, b: _sign(_amount(a) - _amount(b)))),
        function("isInteger", (truth, [map_], lambda a: _is_integer(_amount(a)))),
        function("asInteger", (number, [map_], _as_integer)),
        function("asApproximateFloat", (kinds.DOUBLE, [map_], lambda a: float(_amount(a)))),
        function("sign", (number, [map_], lambda a: _sign(_amount(a)))),
        function("find", (text, [text, text], _find)),
        function(
            "findAll",
            (kinds.List(text), [text, text], _find_all),
            (kinds.List(text), [text, text, number], _find_all),
        ),
        function("min", (kinds.DYN, [list_], min)),
        function("max", (kinds.DYN, [list_], max)),
        function("jsonpatch.escapeKey", (text, [text], _escaped), member=False),
        # Only to be compiled: see `initialisers`.
        function("typed.Object", (kinds.AbstractType("Object"), [map_], dict), member=False),
        function("typed.JSONPatch", (kinds.AbstractType("JSONPatch"), [map_], dict), member=False),
        function("typed.field", (kinds.DYN, [map_], dict), member=False),
        *(asked(part) for part in _ASKED),
        function("check", (map_, [map_, text], lambda so_far, verb: {"allowed": allowed({**so_far, "verb": verb})})),
        function("allowed", (truth, [map_], lambda decision: decision["allowed"])),
    ]


def _quantity(value: object) -> dict[str, str]:
    try:
        quantity.parse(value)
    except QuantityError as error:
        raise ValueError(str(error)) from error
    return {_QUANTITY: str(value)}


def _is_quantity(value: str) -> bool:
    try:
        quantity.parse(value)
    except QuantityError:
        return False
    return True


def _amount(value: Mapping[str, str]) -> Fraction:
    return quantity.parse(value[_QUANTITY])


def _is_integer(amount: Fraction) -> bool:
    return amount.denominator == 1 and -_INT64 <= amount < _INT64


def _as_integer(value: Mapping[str, str]) -> int:
    amount = _amount(value)
    if not _is_integer(amount):
        raise ValueError(f"cannot convert value to integer: {value[_QUANTITY]}")
    return int(amount)


def _sign(amount: Fraction) -> int:
    return (amount > 0) - (amount < 0)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _find(value: str, pattern: str) -> str:
    match = re.search(pattern, value)
    return match[0] if match else ""


def _find_all(value: str, pattern: str, most: int = -1) -> list[str]:
    found = [match[0] for match in re.finditer(pattern, value)]
    return found if most < 0 else found[:most]
