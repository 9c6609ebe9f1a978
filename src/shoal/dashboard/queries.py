"""What a caller may ask of a list: typed parameters, and one page of what they choose.

A page begins after the last item of the one before, by what it is sorted by, so that a picture that changes in between
neither repeats nor skips what stays.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from multidict import MultiMapping

from shoal.dashboard.answers import Refusal

T = TypeVar("T")
Q = TypeVar("Q", bound="Query")

MOST: Final = 500
_SHOWN: Final = 60

Name = Annotated[str, msgspec.Meta(max_length=253)]
Search = Annotated[str, msgspec.Meta(max_length=200)]


class Query(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Root of the parameters of a question."""


class ListQuery(Query, frozen=True, kw_only=True):
    """What every list takes."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST, description="items of a page")] = 100
    continue_: Annotated[
        str, msgspec.Meta(max_length=1024, pattern=r"^[A-Za-z0-9_=-]*$", description="`next` of the page before")
    ] = msgspec.field(default="", name="continue")
    search: Annotated[str, msgspec.Meta(max_length=200, description="part of a name, in any case")] = ""


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True, rename="camel"):
    """One page of a list: `total` counts what was asked for, `next` continues it, null at the end."""

    items: tuple[T, ...]
    total: int
    next: str | None


def query_of(kind: type[Q], given: MultiMapping[str]) -> Q:
    """The parameters of a request. Raises Refusal with the name of the one that is wrong."""
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name in given:
        if name not in known:
            takes = ", ".join(known) or "none"
            raise Refusal(400, f"{name[:_SHOWN]!r} is no parameter of this: it takes {takes}")
        if len(given.getall(name)) > 1:
            raise Refusal(400, f"{name} is given more than once")
    # A form sends what was not filled in as empty: it is not given.
    plain = {name: given[name] for name in given if given[name]}
    try:
        return msgspec.convert(plain, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(400, _words(str(error))) from None


def _words(error: str) -> str:
    """msgspec's words with the parameter first."""
    what, _, path = error.partition(" - at `$.")
    return f"{path.rstrip('`')}: {what}" if path else what


#: By what a list is sorted: a value of each item, None where there is none, which stands last.
Sorts = Mapping[str, Callable[[T], Any]]


def page_of(items: Iterable[T], query: ListQuery, sort: str, sorts: Sorts[T], identity: Callable[[T], Any]) -> Page[T]:
    """The page that is asked for."""
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    value = sorts[name]

    def key(item: T) -> list[Any]:
        found = value(item)
        return [found is None, _Reversed(found) if descending and found is not None else found, identity(item)]

    keyed = sorted(((key(item), item) for item in items), key=lambda pair: _comparable(pair[0]))
    total = len(keyed)
    if query.continue_:
        after = _after(query.continue_, sort, descending=descending)
        try:
            keyed = [pair for pair in keyed if _comparable(pair[0]) > after]
        except TypeError:
            raise _not_ours() from None
    shown = keyed[: query.limit]
    more = len(keyed) > query.limit
    return Page(
        items=tuple(item for _, item in shown), total=total, next=_token(sort, shown[-1][0]) if more and shown else None
    )


class _Reversed:
    """Sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def _comparable(key: list[Any]) -> tuple[Any, ...]:
    missing, value, identity = key
    return (missing, 0 if missing else value, identity)


def _token(sort: str, key: list[Any]) -> str:
    missing, value, identity = key
    plain = value.value if isinstance(value, _Reversed) else value
    return base64.urlsafe_b64encode(msgspec.json.encode([sort, missing, plain, identity])).decode()


def _after(token: str, sort: str, *, descending: bool) -> tuple[Any, ...]:
    try:
        kind, missing, value, identity = msgspec.json.decode(
            base64.urlsafe_b64decode(token), type=tuple[str, bool, Any, Any]
        )
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        raise _not_ours() from None
    if kind != sort:
        raise Refusal(400, "continue: it is of a list that was sorted otherwise: begin again without it")

    def again(part: Any) -> Any:
        return tuple(again(one) for one in part) if isinstance(part, list) else part

    value, identity = again(value), again(identity)
    return (missing, 0 if missing else _Reversed(value) if descending else value, identity)


def _not_ours() -> Refusal:
    return Refusal(400, "continue: it is not what an earlier page said: begin again without it")


def found(search: str, *texts: str) -> bool:
    """Whether a text contains what is searched for."""
    wanted = search.casefold()
    return not wanted or any(wanted in text.casefold() for text in texts)
