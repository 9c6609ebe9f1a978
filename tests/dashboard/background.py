"""An async context manager in a thread of its own, for tests that are not async."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@contextlib.contextmanager
def in_background(made: AbstractAsyncContextManager[T]) -> Iterator[tuple[T, Run]]:
    """What it makes, and a function that runs a coroutine there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="background")
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(300)

    try:
        value = run(made.__aenter__())
        try:
            yield value, run
        finally:
            run(made.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
