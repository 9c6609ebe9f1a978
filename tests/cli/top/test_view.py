"""Keys: what they do, and what the bytes of a terminal mean."""

import pytest

from shoal.cli.top import view
from shoal.cli.top.session import keys_of
from shoal.cli.top.view import Order, Subject, View, after


def pressed(*keys: str, page: int = 10) -> View:
    found = View()
    for key in keys:
        found = after(found, key, page=page)
    return found


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["1"], View(Subject.NODES)),
        (["3"], View(Subject.PODS)),
        (["s"], View(order=Order.USED)),
        (["s"] * 4, View()),
        (["s", "s", "s", "3"], View(Subject.PODS)),
        (["3", "s", "s"], View(Subject.PODS)),
        (["/", "n", "1"], View(filter="n1", typing=True)),
        (["/", "q", view.ENTER], View(filter="q")),
        (["/", "q", view.ENTER, "q"], View(filter="q", over=True)),
        (["/", "q", view.ESCAPE], View()),
        (["/", "q", "x", view.BACKSPACE], View(filter="q", typing=True)),
        (["/", *"a" * 300], View(filter="a" * 253, typing=True)),
        ([view.DOWN, view.DOWN, view.UP], View(first=1)),
        ([view.UP], View()),
        ([view.PAGE_DOWN, "j", "k"], View(first=10)),
        ([view.PAGE_DOWN, view.HOME], View()),
        ([view.PAGE_DOWN, "s"], View(order=Order.USED)),
        (["q"], View(over=True)),
        (["/", view.QUIT], View(typing=True, over=True)),
        (["x", "?"], View()),
    ],
)
def test_keys(keys: list[str], expected: View) -> None:
    assert pressed(*keys) == expected


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[Bs", [view.UP, view.DOWN, "s"]),
        (b"\x1bOA", [view.UP]),
        (b"\x1b[5~\x1b[6~", [view.PAGE_UP, view.PAGE_DOWN]),
        (b"\x1b", [view.ESCAPE]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\x1b[", []),
        (b"\x7f\r", [view.BACKSPACE, view.ENTER]),
        (b"\x03", [view.QUIT]),
        ("é\x00\x1f".encode(), []),
    ],
)
def test_bytes(content: bytes, keys: list[str]) -> None:
    assert list(keys_of(content)) == keys
