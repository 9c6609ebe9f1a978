"""Parts that fail are started again, and hold up nobody."""

import asyncio
import logging

import pytest

from shoal.metrics.supervision import supervised
from shoal.model.backoff import Backoff
from tests.logs import own_records

SOON = Backoff(first=0.001, longest=0.01)


async def test_a_part_that_fails_or_ends_is_told_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    starts = 0
    third = asyncio.Event()

    async def part() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise OSError("the disk is full")
        if starts == 3:
            third.set()
            await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(supervised("history", part, backoff=SOON))
        await third.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.getMessage() for record in own_records(caplog)] == [
        "history failed: it is started again",
        "history ended, which it should not: it is started again",
    ]
    assert "the disk is full" in caplog.text


async def test_one_that_hangs_or_fails_holds_up_no_other() -> None:
    turns = 0
    enough = asyncio.Event()

    async def works() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 50:
                enough.set()
            await asyncio.sleep(0)

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def fails() -> None:
        raise ValueError("no")

    tasks = [asyncio.create_task(supervised(part.__name__, part, backoff=SOON)) for part in (works, hangs, fails)]
    await enough.wait()
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
