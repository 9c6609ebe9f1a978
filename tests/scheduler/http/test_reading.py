"""Requests out of bytes: what is read, what is refused, and that it does not matter how the bytes arrive."""

import contextlib
from http import HTTPStatus
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.http.messages import HttpError, Request
from shoal.scheduler.http.reading import MAX_HEAD, Reader

MAX_BODY = 1000


def read(*pieces: bytes) -> list[Request]:
    reader = Reader(max_body=MAX_BODY)
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (request := reader.take()) is not None:
            found.append(request)
    return found


def refused(content: bytes) -> HTTPStatus:
    with pytest.raises(HttpError) as refusal:
        read(content)
    return refusal.value.status


def test_requests_one_after_another() -> None:
    assert read(
        b"POST /a?x=1 HTTP/1.1\r\nHost: h\r\ncontent-LENGTH:  3 \r\n\r\nabcGET /b%20c HTTP/1.1\r\n\r\n"
        b"\r\nGET http://h/d HTTP/1.1\r\nConnection: close\r\n\r\n"
    ) == [
        Request("POST", "/a", b"abc"),
        Request("GET", "/b c", b""),
        Request("GET", "/d", b"", keep=False),
    ]
    assert read(b"GET / HTTP/1.0\r\n\r\n") == [Request("GET", "/", b"", keep=False)]


def test_chunks() -> None:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert read(head + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET / HTTP/1.1\r\n\r\n") == [
        Request("POST", "/", b"abc0123456789"),
        Request("GET", "/", b""),
    ]
    assert refused(head + b"3\r\nabcd\r\n") == HTTPStatus.BAD_REQUEST
    assert refused(head + b"x\r\n") == HTTPStatus.BAD_REQUEST
    assert refused(head + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n") == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


@pytest.mark.parametrize(
    "content",
    [
        b"GET /\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nspace : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    ],
)
def test_what_is_no_plain_request_is_refused(content: bytes) -> None:
    assert refused(content) == HTTPStatus.BAD_REQUEST


def test_sizes_are_bounded() -> None:
    assert refused(b"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n") == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert refused(b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD) == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert refused(chunked + b"1;" + b"x" * MAX_HEAD) == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


def test_a_caller_that_waits_is_told_to_go_on_once() -> None:
    reader = Reader(max_body=MAX_BODY)
    reader.feed(b"POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert reader.take() is None
    assert [reader.waits, reader.waits] == [True, False]
    reader.feed(b"ab")
    assert reader.take() == Request("POST", "/", b"ab")


bodies = st.binary(max_size=60)
sizes = st.lists(st.integers(1, 20), max_size=5)


def chunked(body: bytes, lengths: list[int]) -> bytes:
    """The body in chunks of these lengths, the rest in one."""
    chunks = []
    for length in [*lengths, len(body)]:
        chunk, body = body[:length], body[length:]
        if chunk:
            chunks.append(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    return b"".join([*chunks, b"0\r\n\r\n"])


@given(st.lists(st.tuples(bodies, st.none() | sizes), max_size=4), st.lists(st.integers(0, 400)))
def test_it_does_not_matter_how_the_bytes_arrive(wanted: list[tuple[bytes, list[int] | None]], cuts: list[int]) -> None:
    stream = b""
    for body, lengths in wanted:
        if lengths is None:
            stream += b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        else:
            stream += b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, lengths)
    ends = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[begin:end] for begin, end in pairwise(ends)]
    assert read(*pieces) == [Request("POST", "/x", body) for body, _ in wanted]
    assert read(*(stream[place : place + 1] for place in range(len(stream)))) == read(stream)


@given(
    st.sampled_from([b"", b"POST / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"]),
    st.binary(max_size=300),
)
def test_any_bytes_are_read_or_refused(begin: bytes, content: bytes) -> None:
    with contextlib.suppress(HttpError):
        read(begin + content)
