"""Tables as pages show them: heads that sort, filters, pages of a hundred rows. All of it stands in the address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlencode

from multidict import MultiDict, MultiMapping

from shoal.dashboard.answers import Refusal
from shoal.dashboard.queries import ListQuery, Page, query_of

Q = TypeVar("Q", bound=ListQuery)
T = TypeVar("T")

#: Rows of a page.
ROWS: Final = 100
_CONTINUE: Final = "continue"
_LIMIT: Final = "limit"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its title, what it means, what it is sorted by, and whether the largest comes first then."""

    title: str
    tip: str = ""
    sort: str = ""
    number: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column on a page."""

    title: str
    tip: str
    number: bool
    href: str = ""
    order: str = ""


@dataclass(frozen=True, slots=True)
class Filter:
    """A choice among some words."""

    name: str
    title: str
    choices: Sequence[tuple[str, str]]
    value: str = ""


@dataclass(frozen=True, slots=True)
class Pager:
    """Which rows are shown, and the way to the others."""

    words: str
    first: str = ""
    next: str = ""
    size: int = ROWS


@dataclass(frozen=True, slots=True)
class TableSurroundings:
    """Everything around the rows of a table."""

    path: str
    heads: Sequence[Head]
    filters: Sequence[Filter]
    pager: Pager
    search: str
    sort: str
    narrowed: bool


def asked(kind: type[Q], given: MultiMapping[str], **fixed: str) -> Q:
    """The parameters of a table; a field that was left empty is not one. Raises Refusal."""
    plain = MultiDict((name, value) for name, value in given.items() if value)
    if set(plain) & set(fixed):
        raise Refusal(400, f"{', '.join(sorted(set(plain) & set(fixed)))} cannot be chosen on this page")
    if plain.get(_LIMIT, "").isdecimal() and int(plain[_LIMIT][:6]) > ROWS:
        raise Refusal(400, f"{_LIMIT}: a page has at most {ROWS} rows")
    plain.update(fixed)
    return query_of(kind, plain)


def listing(
    path: str,
    given: Mapping[str, str],
    page: Page[T],
    *,
    columns: Iterable[TableColumn],
    sort: str,
    filters: Iterable[tuple[str, str, Sequence[tuple[str, str]]]] = (),
    what: str,
) -> TableSurroundings:
    """What stands around a page of rows. `given` are the parameters as they came, `sort` what holds."""
    kept = {name: value for name, value in given.items() if value and name != _CONTINUE}
    shown = (
        f"{len(page.items)} of {page.total:,} {what}" if page.next or _CONTINUE in given else f"{page.total:,} {what}"
    )
    return TableSurroundings(
        path=path,
        heads=[_head(path, kept, column, sort) for column in columns],
        filters=[Filter(name, title, choices, kept.get(name, "")) for name, title, choices in filters],
        pager=Pager(
            words=shown,
            first=link(path, kept) if given.get(_CONTINUE) else "",
            next=link(path, {**kept, _CONTINUE: page.next}) if page.next else "",
        ),
        search=kept.get("search", ""),
        sort=kept.get("sort", ""),
        narrowed=bool(kept.keys() - {"sort", _LIMIT}),
    )


def _head(path: str, kept: Mapping[str, str], column: TableColumn, sort: str) -> Head:
    if not column.sort:
        return Head(column.title, column.tip, column.number)
    current = sort.removeprefix("-") == column.sort
    falling = sort.startswith("-")
    order = ("descending" if falling else "ascending") if current else ""
    # Numbers are asked for by their largest, names by their first.
    other = (not falling) if current else column.number
    href = link(path, {**kept, "sort": ("-" if other else "") + column.sort})
    return Head(column.title, f"{column.tip} Sorts the table.".strip(), column.number, href, order)


def link(path: str, parameters: Mapping[str, str]) -> str:
    """An address with parameters."""
    return f"{path}?{urlencode(parameters)}" if parameters else path
