"""What the screen of `shoal top` shows, and how keys change it. Pure: a view and a key in, a view out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Subject(StrEnum):
    """What there is one line for."""

    NODES = "nodes"
    CARDS = "cards"
    PODS = "pods"


class Order(StrEnum):
    """What the lines are sorted by; everything but the name from the most to the least."""

    NAME = "name"
    USED = "used"
    FREE = "free"
    PODS = "pods"


_SUBJECTS: Final = {"1": Subject.NODES, "2": Subject.CARDS, "3": Subject.PODS}
_ORDERS: Final = {
    Subject.NODES: tuple(Order),
    Subject.CARDS: tuple(Order),
    Subject.PODS: (Order.NAME, Order.USED),
}
#: Longer filters are cut: no name is longer.
_MAX_FILTER: Final = 253

UP: Final = "up"
DOWN: Final = "down"
PAGE_UP: Final = "page up"
PAGE_DOWN: Final = "page down"
HOME: Final = "home"
ENTER: Final = "enter"
ESCAPE: Final = "escape"
BACKSPACE: Final = "backspace"
QUIT: Final = "quit"


@dataclass(frozen=True, slots=True)
class View:
    """What is shown. `first` is the first line in sight; `typing` while the filter is typed."""

    subject: Subject = Subject.CARDS
    order: Order = Order.NAME
    filter: str = ""
    first: int = 0
    typing: bool = False
    over: bool = False


def after(view: View, key: str, *, page: int) -> View:
    """The view after a key. `page` is how many lines are in sight."""
    if key == QUIT:
        return replace(view, over=True)
    steps = {UP: -1, DOWN: 1, PAGE_UP: -page, PAGE_DOWN: page}
    if key in steps:
        return replace(view, first=max(0, view.first + steps[key]))
    if key == HOME:
        return replace(view, first=0)
    return _typed(view, key) if view.typing else _pressed(view, key)


def _typed(view: View, key: str) -> View:
    if key == ENTER:
        return replace(view, typing=False)
    if key == ESCAPE:
        return replace(view, typing=False, filter="", first=0)
    if key == BACKSPACE:
        return replace(view, filter=view.filter[:-1], first=0)
    if len(key) == 1 and key.isprintable():
        return replace(view, filter=(view.filter + key)[:_MAX_FILTER], first=0)
    return view


def _pressed(view: View, key: str) -> View:
    if key == "q":
        return replace(view, over=True)
    if key in _SUBJECTS:
        subject = _SUBJECTS[key]
        order = view.order if view.order in _ORDERS[subject] else Order.NAME
        return replace(view, subject=subject, order=order, first=0)
    if key == "s":
        orders = _ORDERS[view.subject]
        return replace(view, order=orders[(orders.index(view.order) + 1) % len(orders)], first=0)
    if key == "/":
        return replace(view, typing=True)
    if key == ESCAPE:
        return replace(view, filter="", first=0)
    if key in ("j", "k"):
        return replace(view, first=max(0, view.first + (1 if key == "j" else -1)))
    return view
