"""`Object{...}` and `JSONPatch{...}`: the values that mutations are written with, and their way through CEL.

Kubernetes has types of any name that begins with `Object`, which the runtime here cannot be told of. So an initialiser
is rewritten into a map that carries the name of its type under a key that nobody can guess. For the check of what an
expression evaluates to, before it is ever used, it is rewritten into a call that has the type instead.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from shoal.embedded.policies.errors import CelError

#: The name of the type of a map that was an initialiser stands under this key.
_TYPE: Final = f"type-{secrets.token_hex(8)}"
_OBJECT: Final = "Object"
_JSON_PATCH: Final = "JSONPatch"
_PARTS: Final = ("op", "path", "from", "value")
_BRACKETS: Final = ("(", "[", "{")
#: The API server finds no map in such a list, and refuses the patch when it is used.
_MAP_IN_LIST: Final = (
    "a list in an Object has a map {...} in it, which the API server cannot merge: "
    "write an initialiser such as Object.spec.containers{...}"
)
#: The API server breaks off the request here.
_OBJECT_IN_LIST: Final = (
    "a list or map that is the value of a JSONPatch has an Object{...} in it, on which the API server breaks: "
    "write a map {...} there"
)
#: Beyond this a number of JSON is not exact, and the API server writes it as text.
_SAFE: Final = 2**53
_TOKEN: Final = re.compile(
    r"""(?P<skipped>//[^\n]*|[rR][bB]?(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|"[^"\n]*")"""
    r"""|[bB]?(?:'''(?:\\.|.)*?'''|\"\"\"(?:\\.|.)*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))"""
    r"""|(?<![\w.])(?P<type>Object(?:\s*\.\s*[A-Za-z_]\w*)*|JSONPatch)\s*\{"""
    r"""|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<word>\w+|\s+)|(?P<other>.)""",
    re.DOTALL,
)
_FIELD: Final = re.compile(r"\s*(\??)\s*([A-Za-z_]\w*)\s*:")


def as_maps(expression: str) -> str:
    """The expression to evaluate: initialisers are maps."""
    return "".join(_rewritten(expression, typed=False))


def as_calls(expression: str) -> str:
    """The expression to check: initialisers have types."""
    return "".join(_rewritten(expression, typed=True))


def _rewritten(expression: str, *, typed: bool) -> Iterator[str]:
    """The text in parts. Names of fields become texts where an initialiser has them: at its start, and after commas."""
    #: What is open: the types of initialisers, and other brackets.
    opened: list[str] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        assert match is not None, "every character is a token"
        at = match.end()
        if match["type"]:
            opened.append(re.sub(r"\s", "", match["type"]))
            yield _opening(opened[-1], typed=typed)
        elif match["close"]:
            yield "})" if opened and opened.pop() not in _BRACKETS and typed else match[0]
            continue
        else:
            yield match[0]
            if match["open"]:
                if match[0] == "{" and len(opened) > 1 and opened[-1] == "[" and opened[-2].startswith(_OBJECT):
                    raise CelError(_MAP_IN_LIST)
                opened.append(match[0])
        field = _FIELD.match(expression, at)
        if field is not None and opened and opened[-1] not in _BRACKETS and (match["type"] or match[0] == ","):
            yield ("," if match["type"] and not typed else "") + _field(field, opened[-1])
            at = field.end()


def _opening(name: str, *, typed: bool) -> str:
    if not typed:
        return f'{{"{_TYPE}": "{name}"'
    return f"typed.{name if name in (_OBJECT, _JSON_PATCH) else 'field'}({{"


def _field(match: re.Match[str], of: str) -> str:
    optional, name = match.groups()
    if of == _JSON_PATCH and name not in _PARTS:
        raise CelError(f"compilation failed: undefined field '{name}' in type '{_JSON_PATCH}'")
    return f' {optional}"{name}":'


def operations(value: Any) -> list[dict[str, Any]]:
    """A JSON patch as plain data, of what an expression gave. CelError if it is none."""
    if not isinstance(value, list):
        raise CelError("type mismatch: JSONPatchType.expression should evaluate to array")
    return [_operation(one) for one in value]


def _operation(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get(_TYPE) != _JSON_PATCH:
        raise CelError("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch")
    made: dict[str, Any] = {"op": "", "path": ""}
    for name, part in value.items():
        if name == _TYPE:
            continue
        if name not in _PARTS:
            raise CelError(f"unexpected JSONPatchType field: {name}")
        if name == "value":
            _check_names(part)
            if _has_initialiser(part):
                raise CelError(_OBJECT_IN_LIST)
            made[name] = _json(part)
        elif not isinstance(part, str):
            raise CelError(f"unexpected type {type(part).__name__} for JSONPatchType '{name}' field")
        else:
            made[name] = part
    return made


def configuration(value: Any) -> dict[str, Any]:
    """An apply configuration as plain data, of what an expression gave. CelError if it is none."""
    if not isinstance(value, dict) or value.get(_TYPE) != _OBJECT:
        raise CelError("unsupported return type from ApplyConfiguration expression: it is no Object")
    _check_names(value)
    made: dict[str, Any] = _native(value)
    return made


def _check_names(value: Any) -> None:
    """An initialiser under a field must be named after its path."""
    if isinstance(value, dict) and _TYPE in value:
        wrong = list(_wrong_names(value, value[_TYPE]))
        if wrong:
            raise CelError("type mismatch: " + "\n".join(wrong))


def _wrong_names(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _wrong_names(item, path)
    elif isinstance(value, dict):
        name = value.get(_TYPE)
        if name not in (None, path):
            yield (
                f'unexpected type name "{name}", expected "{path}", which matches field name path from root Object type'
            )
        for key, item in value.items():
            if key != _TYPE:
                yield from _wrong_names(item, path if name is None else f"{path}.{key}")


def _has_initialiser(value: Any) -> bool:
    """Whether there is an initialiser in a list or map that is none itself."""
    if isinstance(value, dict):
        if _TYPE in value:
            return False
        value = list(value.values())
    return isinstance(value, list) and any(
        (isinstance(item, dict) and _TYPE in item) or _has_initialiser(item) for item in value
    )


def _json(value: Any) -> Any:
    """A value of CEL as JSON has it."""
    if isinstance(value, dict):
        return {_key(key): _json(item) for key, item in value.items() if key != _TYPE}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_SAFE < value < _SAFE else str(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _native(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _native(item) for key, item in value.items() if key != _TYPE}
    if isinstance(value, list):
        return [_native(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise CelError(f"the embedded API server applies no {type(value).__name__}: write it as text")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise CelError(f"map key {key!r} is of type {type(key).__name__}, not string")
    return key
