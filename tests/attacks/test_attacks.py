"""Every attack of the table, with one line of defence at a time.

*Who may write*: with the admission policies, each hostile write is refused in words that name the key. *What is
believed*: without them all writes pass, and nobody gets, hides or blocks what was not booked for them.
"""

from collections.abc import Iterator

import pytest

from tests.attacks.arena import Arena, Object, Tenant
from tests.attacks.embedded import EmbeddedArena
from tests.attacks.play import Play
from tests.attacks.table import Attack, attacks

ATTACKS = attacks()
REFUSABLE = [attack for attack in ATTACKS if attack.refused]


def named(attack: Attack) -> str:
    return attack.name


@pytest.fixture
def play(arena: Arena) -> Iterator[Play]:
    """A tenant and a neighbour; all their pods are gone afterwards, and the cards free."""
    played = Play(arena, Tenant(arena.api, "tenant"), Tenant(arena.api, "neighbour"))
    yield played
    for whose in (played.tenant, played.neighbour):
        whose.leave()
    played.settle()


def prepare(play: Play, attack: Attack, *, bound: bool = False) -> None:
    for short in attack.pods:
        play.place(play.filled(short), bound=bound)
    for step in attack.before:
        play.hold(step)


@pytest.mark.parametrize("attack", REFUSABLE, ids=named)
def test_who_may_write(play: Play, attack: Attack) -> None:
    play.arena.policies(on=True)
    prepare(play, attack, bound=True)
    for write in attack.writes:
        for answer in play.write(write):
            if write.get("passes"):
                assert answer.status in (200, 201), answer
            elif "apply" in write and answer.status == 201:
                play.never_made(write["apply"], attack.refused)
            else:
                assert answer.status in (403, 422), (write, answer.status, answer.body)
                assert all(word in answer.body["message"] for word in attack.refused), answer.body["message"]
    play.check()


@pytest.mark.parametrize("attack", ATTACKS, ids=named)
def test_what_is_believed(play: Play, attack: Attack) -> None:
    if attack.only and not isinstance(play.arena, EmbeddedArena):
        pytest.skip("the embedded cluster shows as much")
    play.arena.policies(on=False)
    prepare(play, attack)
    for write in attack.writes:
        for answer in play.write(write):
            assert answer.status in (200, 201), (write, answer.body)
    for step in attack.holds:
        play.hold(step)
    play.check()


def test_ordinary_changes_stay_allowed(play: Play) -> None:
    play.arena.policies(on=True)
    play.place({"name": "own", "mem": 4})
    changes: list[Object] = [
        {"patch": "own", "labels": {"app": "x", "team": "y"}},
        {"patch": "own", "annotations": {"example.com/note": "z"}},
        {"patch": "own", "metadata": {"finalizers": ["example.com/mine"]}},
        {"patch": "own", "metadata": {"finalizers": None}},
        {"patch": "own", "spec": {"activeDeadlineSeconds": 1000}},
        {"patch-status": "own", "annotations": {"example.com/note": "s"}},
        {"create": {"name": "plain"}},
        {"create": {"name": "held", "mem": 2, "spec": {"schedulerName": "nobody"}}},
        {"bind": "held", "annotations": {"example.com/note": "b"}},
    ]
    for change in changes:
        (answer,) = play.write(change)
        assert answer.status in (200, 201), (change, answer.body)
    play.check()
