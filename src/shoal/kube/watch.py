"""A watch stream cut into events, in batches as they arrive.

It ends when the server ends it. Resuming, listing anew and keeping a store are for `shoal.kube.reflector`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, TypeVar

from shoal.kube.codec import Batch, Codec
from shoal.kube.errors import AnswerError, ApiError

T = TypeVar("T")
#: Above what etcd stores of one object, in JSON.
MAX_LINE: Final = 32 << 20


async def batches(pieces: AsyncIterator[bytes], codec: Codec[T], *, asked: str) -> AsyncGenerator[Batch[T], None]:
    """Events in the order of the stream. What came before an error line is given before the error is raised."""
    rest: list[bytes] = []
    held = 0
    async for piece in pieces:
        head, *lines = piece.split(b"\n")
        rest.append(head)
        held += len(head)
        if held > MAX_LINE:
            raise AnswerError(f"{asked}: a line of more than {MAX_LINE} bytes: watch with a narrower selector")
        if not lines:
            continue
        lines.insert(0, b"".join(rest))
        rest = [lines.pop()]
        held = len(rest[0])
        batch: Batch[T] = []
        try:
            # Filled line by line, so it holds what came before a line that cannot be read.
            batch.extend(codec.event(line, asked=asked) for line in lines if line)
        except (ApiError, AnswerError):
            if batch:
                yield batch
            raise
        if batch:
            yield batch
