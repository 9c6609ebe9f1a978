"""The bounded cache keeps what was used last, and never more than its size."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from shoal.model.bounded_cache import BoundedCache


def test_the_key_unused_for_longest_goes_first() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert list(cache) == ["a", "c"]
    assert "b" not in cache
    assert cache.get("b") is None
    assert list(cache.values()) == [1, 3]


def test_a_value_is_made_once_while_it_is_kept() -> None:
    cache: BoundedCache[str, list[str]] = BoundedCache(1)
    made: list[str] = []

    def make(key: str) -> list[str]:
        made.append(key)
        return [key]

    first = cache.of("a", lambda: make("a"))
    assert cache.of("a", lambda: make("a")) is first
    cache.of("b", lambda: make("b"))
    assert cache.of("a", lambda: make("a")) is not first
    assert made == ["a", "b", "a"]


def test_a_dropped_key_is_gone() -> None:
    cache: BoundedCache[str, int] = BoundedCache(3)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.pop("a") == 1
    assert cache.pop("a") is None
    assert len(cache) == 1
    cache.clear()
    assert len(cache) == 0


def test_nothing_is_kept_of_what_could_not_be_made() -> None:
    cache: BoundedCache[str, int] = BoundedCache(1)
    cache.put("kept", 1)

    def fail() -> int:
        raise LookupError

    for _ in range(2):
        try:
            cache.of("broken", fail)
        except LookupError:
            assert list(cache) == ["kept"]
        else:
            raise AssertionError("what cannot be made was given")


steps = st.lists(st.tuples(st.sampled_from(["get", "put", "of", "pop"]), st.integers(0, 5)), max_size=60)


@given(size=st.integers(1, 4), steps=steps)
def test_it_does_as_an_ordered_dictionary_does(size: int, steps: list[tuple[str, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(size)
    plain: OrderedDict[int, int] = OrderedDict()
    for number, (step, key) in enumerate(steps, start=1):
        if step == "get":
            assert cache.get(key) == plain.get(key)
        elif step == "of":
            assert cache.of(key, lambda number=number: number) == plain.setdefault(key, number)  # type: ignore[misc]
        elif step == "put":
            cache.put(key, number)
            plain[key] = number
        else:
            assert cache.pop(key) == plain.pop(key, None)
        if key in plain:
            plain.move_to_end(key)
        while len(plain) > size:
            plain.popitem(last=False)
        assert list(cache) == list(plain)
        assert list(cache.values()) == list(plain.values())


def test_what_is_dropped_for_want_of_room_is_told() -> None:
    dropped: list[int] = []
    cache: BoundedCache[str, int] = BoundedCache(1, dropped=dropped.append)
    cache.put("a", 1)
    cache.put("a", 2)
    cache.pop("a")
    assert dropped == []
    cache.put("b", 3)
    cache.of("c", lambda: 4)
    assert dropped == [3]


def test_the_size_is_that_of_all_values_where_they_are_weighed() -> None:
    dropped: list[str] = []
    cache: BoundedCache[str, str] = BoundedCache(10, dropped=dropped.append, weigh=len)
    cache.put("a", "aaaa")
    cache.put("b", "bbbb")
    cache.put("c", "cc")
    assert len(cache) == 3
    cache.get("a")
    cache.put("d", "d")
    assert dropped == ["bbbb"]
    cache.put("a", "aaaaaa")
    assert list(cache) == ["c", "d", "a"]
    cache.pop("a")
    cache.of("e", lambda: "eeeeeeee")
    assert list(cache) == ["d", "e"]
    cache.put("f", "f" * 20)
    assert list(cache) == ["f"], "what is too large alone is kept alone"
    cache.clear()
    cache.put("g", "g" * 10)
    cache.put("h", "")
    assert list(cache) == ["g", "h"]
