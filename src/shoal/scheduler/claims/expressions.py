"""CEL as text: an expression of a device selector becomes a tree, or is refused with the reason.

Whoever may create a claim writes these, so length, nesting and size are bounded before anything is evaluated. Of the
language there is what selectors use: logic, comparison, arithmetic, `in`, `has`, optionals, lists, maps, macros over
them and `cel.bind`. Bytes, unsigned numbers and messages are refused by name. What the functions do, and what is known
of a device, is said in `evaluation` and `selectors`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from shoal.model.errors import shown
from shoal.scheduler.claims.errors import SelectorError

#: As Kubernetes bounds an expression.
MAX_LENGTH: Final = 10 * 1024
#: How deep parts of an expression may lie in each other, and how many parts there may be.
MAX_DEPTH: Final = 50
MAX_NODES: Final = 2_000

_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: object


@dataclass(frozen=True, slots=True)
class Name:
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`operand.field`; `optional` for `operand.?field`."""

    operand: Node
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """`operand[key]`; `optional` for `operand[?key]`."""

    operand: Node
    key: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function, or a method of `target`."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator on its operands: `&&` and `||` on any number, `!` and `neg` on one, `?:` on three."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """`[a, b]`."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """`{a: b}`."""

    entries: tuple[tuple[Node, Node], ...]


Node = Literal | Name | Select | Index | FunctionCall | Operation | ListLiteral | MapLiteral


def parse(expression: str) -> Node:
    """The tree of an expression. Raises SelectorError."""
    if len(expression) > MAX_LENGTH:
        raise SelectorError(f"is longer than {MAX_LENGTH} characters")
    return _Parser(_tokens(expression)).whole()


_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<bytes>[bB][rR]?["'])
    |(?P<text>[rR]?(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    |(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<unsigned>(?:0[xX][0-9a-fA-F]+|[0-9]+)[uU])
    |(?P<int>0[xX][0-9a-fA-F]+|[0-9]+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE: Final = re.compile(
    r"""\\(?:(?P<one>[abfnrtv\\?"'`])|x(?P<x>[0-9a-fA-F]{2})|X(?P<X>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"""
    r"""|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<bad>.|$))""",
    re.DOTALL,
)
_ONE: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "namespace"),
        *("package", "return", "var", "void", "while"),
    )
)
#: Operators by how strongly they bind; those of one line bind from the left.
_BINDING: Final = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 1),
    **dict.fromkeys("+-", 2),
    **dict.fromkeys("*/%", 3),
}

#: Kind and text.
_Token = tuple[str, str]
_END: Final[_Token] = ("end", "")


def _tokens(expression: str) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    while place < len(expression):
        match = _TOKEN.match(expression, place)
        if match is None:
            raise SelectorError(f"cannot be read at character {place + 1}: {expression[place : place + 10]!r}")
        kind = match.lastgroup or ""
        if kind in ("bytes", "unsigned"):
            raise SelectorError(f"uses {kind} at character {place + 1}, which are not supported here")
        if kind != "space":
            found.append((kind, match[0]))
        place = match.end()
    return found


def _text_of(token: str) -> str:
    raw = token[0] in "rR"
    body = token[1:] if raw else token
    quotes = 3 if body[:3] in ("'''", '"""') else 1
    inner = body[quotes:-quotes]
    return inner if raw or "\\" not in inner else _ESCAPE.sub(_unescaped, inner)


def _unescaped(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    text = match[kind]
    if kind == "one":
        return _ONE.get(text, text)
    if kind == "bad":
        raise SelectorError(f"has an escape that is none: {match[0]!r}")
    code = int(text, 8 if kind == "octal" else 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise SelectorError(f"has an escape that is no character: {match[0]!r}")
    return chr(code)


class _Parser:
    """Recursive descent, one method for each level of the grammar."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0
        self._nodes = 0

    def whole(self) -> Node:
        node = self._expression()
        if self._next != _END:
            raise self._unexpected()
        return node

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place] if self._place < len(self._tokens) else _END

    def _take(self) -> _Token:
        token = self._next
        self._place += 1
        return token

    def _is(self, mark: str) -> bool:
        kind, text = self._next
        return text == mark and kind in ("mark", "name")

    def _accept(self, mark: str) -> bool:
        if self._is(mark):
            self._place += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise self._unexpected(f", where {mark!r} is expected")

    def _unexpected(self, where: str = "") -> SelectorError:
        _, text = self._next
        return SelectorError(f"cannot be read at {shown(text)}{where}" if text else f"ends too early{where}")

    def _count(self, node: Node) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise SelectorError(f"has more than {MAX_NODES} parts")
        return node

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError(f"is nested more than {MAX_DEPTH} deep")
        node = self._chain("||")
        if self._accept("?"):
            yes = self._chain("||")
            self._expect(":")
            node = self._count(Operation("?:", (node, yes, self._expression())))
        self._depth -= 1
        return node

    def _chain(self, operator: str) -> Node:
        """`a || b || c` of `a && b && c`: any number, so that long ones do not nest."""
        operands = [self._operand_of(operator)]
        while self._accept(operator):
            operands.append(self._operand_of(operator))
        return operands[0] if len(operands) == 1 else self._count(Operation(operator, tuple(operands)))

    def _operand_of(self, operator: str) -> Node:
        return self._chain("&&") if operator == "||" else self._binary(1)

    def _binary(self, least: int) -> Node:
        node = self._unary()
        links = 0
        while (binding := self._binding()) >= least:
            links += 1
            if links > MAX_DEPTH:
                raise SelectorError(f"has more than {MAX_DEPTH} operators in a row")
            _, operator = self._take()
            node = self._count(Operation(operator, (node, self._binary(binding + 1))))
        return node

    def _binding(self) -> int:
        kind, text = self._next
        return _BINDING.get(text, 0) if kind in ("mark", "name") else 0

    def _unary(self) -> Node:
        marks = []
        while self._is("!") or self._is("-"):
            marks.append(self._take()[1])
        if len(marks) > MAX_DEPTH:
            raise SelectorError(f"has more than {MAX_DEPTH} operators in a row")
        if marks and marks[-1] == "-" and self._next[0] == "int":
            marks.pop()
            node = self._members(self._count(Literal(_int64(-_integer(self._take()[1])))))
        else:
            node = self._members(self._primary())
        for mark in reversed(marks):
            node = self._count(Operation("neg" if mark == "-" else mark, (node,)))
        return node

    def _members(self, node: Node) -> Node:
        links = 0
        while True:
            links += 1
            if links > MAX_DEPTH:
                raise SelectorError(f"has more than {MAX_DEPTH} members in a row")
            if self._accept(".?"):
                node = Select(node, self._identifier(), optional=True)
            elif self._accept("."):
                name = self._identifier()
                node = FunctionCall(name, node, self._arguments()) if self._accept("(") else Select(node, name)
            elif self._is("[?") or self._is("["):
                optional = self._take()[1] == "[?"
                node = Index(node, self._expression(), optional)
                self._expect("]")
            else:
                return node
            self._count(node)

    def _identifier(self) -> str:
        kind, text = self._take()
        if kind != "name" or text == "in":
            self._place -= 1
            raise self._unexpected(", where a name is expected")
        return text

    def _arguments(self) -> tuple[Node, ...]:
        return self._several(")")

    def _several(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._accept(end):
            if self._is("?"):
                raise SelectorError("uses optional elements of a list, which are not supported here")
            items.append(self._expression())
            if not self._accept(","):
                self._expect(end)
                break
        return tuple(items)

    def _primary(self) -> Node:
        kind, text = self._next
        if kind == "name":
            return self._named()
        self._take()
        if kind == "text":
            return self._count(Literal(_text_of(text)))
        if kind == "int":
            return self._count(Literal(_int64(_integer(text))))
        if kind == "float":
            return self._count(Literal(float(text)))
        if text == "(":
            node = self._expression()
            self._expect(")")
            return node
        if text == "[":
            return self._count(ListLiteral(self._several("]")))
        if text == "[?":
            raise SelectorError("uses optional elements of a list, which are not supported here")
        if text == "{":
            return self._count(self._map())
        self._place -= 1
        raise self._unexpected()

    def _named(self) -> Node:
        _, text = self._take()
        if text in ("true", "false", "null"):
            return self._count(Literal({"true": True, "false": False, "null": None}[text]))
        if text in _RESERVED or text == "in":
            raise SelectorError(f"uses {shown(text)}, which is reserved")
        if self._accept("("):
            return self._count(FunctionCall(text, None, self._arguments()))
        if self._is("{"):
            raise SelectorError(f"makes a {shown(text)} message, which is not supported here")
        return self._count(Name(text))

    def _map(self) -> MapLiteral:
        entries: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            if self._is("?"):
                raise SelectorError("uses optional entries of a map, which are not supported here")
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._accept(","):
                self._expect("}")
                break
        return MapLiteral(tuple(entries))


def _integer(text: str) -> int:
    # Python limits how many digits it reads by itself; nobody needs more than these.
    if len(text) > 20:
        raise SelectorError(f"has a number out of range: {text[:20]}…")
    return int(text, 16 if text[:2] in ("0x", "0X") else 10)


def _int64(number: int) -> int:
    if not -_INT64 <= number < _INT64:
        raise SelectorError(f"has a number out of range: {number}")
    return number
