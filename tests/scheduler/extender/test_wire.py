"""The documents between kube-scheduler and the extender."""

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.errors import WireError
from shoal.scheduler.extender import wire
from shoal.scheduler.extender.wire import BindingArgs, Filtered, Victims
from tests.scheduler.extender import requests

READERS = (wire.read_args, wire.read_binding, wire.read_preemption)


def test_names_and_whole_nodes_are_read() -> None:
    for whole in (False, True):
        args = wire.read_args(requests.args(requests.pod(), ["a", "b"], whole=whole))
        assert (args.pod.name, list(args.names), args.nodes is not None) == ("p", ["a", "b"], whole)


def test_nodes_go_back_as_they_came() -> None:
    names = wire.read_args(requests.args(requests.pod(), ["a", "b", "c"]))
    answer = json.loads(wire.filter_answer(Filtered([True, False, True], {"b": "full"}, {}), names))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["a", "c"],
        "FailedNodes": {"b": "full"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    whole = wire.read_args(requests.args(requests.pod(), ["a", "b", "c"], whole=True))
    answer = json.loads(wire.filter_answer(Filtered([False, True, False], {}, {"a": "no card"}), whole))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [{"metadata": {"name": "b", "labels": {"l": "b"}}}]
    assert answer["FailedAndUnresolvableNodes"] == {"a": "no card"}


def test_no_node_left_is_an_empty_list_and_not_null() -> None:
    args = wire.read_args(requests.args(requests.pod(), ["a"]))
    assert json.loads(wire.filter_answer(Filtered([False]), args))["NodeNames"] == []


def test_an_error_comes_without_nodes() -> None:
    args = wire.read_args(requests.args(requests.pod(), ["a"]))
    answer = json.loads(wire.filter_answer(Filtered([True], error="wait"), args))
    assert (answer["NodeNames"], answer["Nodes"], answer["Error"]) == (None, None, "wait")


def test_the_other_answers() -> None:
    assert wire.prioritize_answer(["a", "b"], [10, 0]) == b'[{"Host":"a","Score":10},{"Host":"b","Score":0}]'
    assert wire.bind_answer() == b'{"Error":""}'
    assert json.loads(wire.preempt_answer({"a": Victims(("u1", "u2"), 1)})) == {
        "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1}}
    }


def test_victims_are_read_in_both_forms() -> None:
    for whole in (False, True):
        body = requests.preemption(requests.pod(), {"a": ["u1", "u2"], "b": []}, whole=whole, broken=2)
        assert wire.read_preemption(body).victims == {"a": Victims(("u1", "u2"), 2), "b": Victims((), 2)}


def test_a_binding_is_read() -> None:
    assert wire.read_binding(requests.binding(requests.pod("q"), "n")) == BindingArgs("q", "default", "uid-q", "n")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "cannot be read"),
        (b"null", "cannot be read"),
        (b"{}", "arg or pod is nil"),
        (b'{"Pod":null,"NodeNames":["a"]}', "arg or pod is nil"),
        (b'{"Pod":{}}', "cannot get node names"),
        (b'{"Pod":{},"NodeNames":null,"Nodes":null}', "cannot get node names"),
        (b'{"Pod":{},"NodeNames":[1]}', "cannot be read"),
        (b'{"Pod":{"metadata":[]},"NodeNames":[]}', "cannot be read"),
        (b'{"Pod":{},"Nodes":{"items":[7]}}', "cannot be read"),
        (b'{"Pod":{},"Nodes":{"items":[{"metadata":{"labels":{"l":"\x80"}}}]}}', "cannot be read"),
        (b'{"Pod":' + b"[" * 100_000, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told(body: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        wire.read_args(body)


def respelled(value: object, rng: Random, names: frozenset[str]) -> object:
    """The document with the case of Go's own keys changed at random."""
    if isinstance(value, dict):
        return {
            "".join(rng.choice((c.lower(), c.upper())) for c in key) if key in names else key: respelled(
                inner, rng, names
            )
            for key, inner in value.items()
        }
    return [respelled(inner, rng, names) for inner in value] if isinstance(value, list) else value


KEYS = frozenset(
    {
        *("Pod", "Nodes", "NodeNames", "PodName", "PodNamespace", "PodUID", "Node", "items", "Pods", "UID"),
        *("NodeNameToVictims", "NodeNameToMetaVictims", "NumPDBViolations"),
    }
)


@given(st.randoms(use_true_random=False), st.booleans(), st.permutations(["x", "y", "z"]))
def test_keys_are_read_in_any_case(rng: Random, whole: bool, names: list[str]) -> None:
    for read, body in (
        (wire.read_args, requests.args(requests.pod(), names, whole=whole)),
        (wire.read_binding, requests.binding(requests.pod(), names[0])),
        (wire.read_preemption, requests.preemption(requests.pod(), {names[0]: names}, whole=whole, broken=3)),
    ):
        other = json.dumps(respelled(json.loads(body), rng, KEYS)).encode()
        expected, found = read(body), read(other)
        if isinstance(expected, wire.ExtenderArgs) and isinstance(found, wire.ExtenderArgs):
            assert (found.pod, found.names) == (expected.pod, expected.names)
        else:
            assert found == expected


def read_or_refuse(read: Callable[[bytes], object], body: bytes) -> None:
    """Any other exception is a crash."""
    try:
        words = repr(read(body))
    except WireError as error:
        words = str(error)
    assert words


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_in_words(body: bytes) -> None:
    for read in READERS:
        read_or_refuse(read, body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(KEYS)), json_values))
def test_any_document_is_read_or_refused_in_words(document: dict[str, object]) -> None:
    for read in READERS:
        read_or_refuse(read, json.dumps(document).encode())


@given(st.data())
def test_mutated_requests_are_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(requests.args(requests.pod(), ["a", "b"], whole=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not body:
            break
    try:
        args = wire.read_args(bytes(body))
    except WireError:
        return
    answer = json.loads(wire.filter_answer(Filtered([True] * len(args.names)), args))
    if args.nodes is None:
        assert answer["NodeNames"] == list(args.names)
    else:
        assert len(answer["Nodes"]["items"]) == len(args.names)
