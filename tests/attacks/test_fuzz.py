"""Two tenants write whatever they can think of, in any order, with no policy in the way: nobody steals a card.

Whatever was written: no card is given to more than it has room for, no container has more than its pod asked for when
it was created, the scheduler counts what runs and no more than was asked for, and an honest pod that fits runs, as does
one that was there before and crashes. One cluster lives through all of it, since what matters is the sequence; the
test's name tells the seed. `SHOAL_FUZZ` asks for more of it, and then for a proof that it finds something: with each
check of `mutants` taken out it must find a theft.
"""

import os
import random
import uuid
from collections.abc import Iterator

import pytest

from tests.attacks import truth
from tests.attacks.arena import Tenant
from tests.attacks.claim_forger import ClaimForger
from tests.attacks.embedded import EmbeddedArena
from tests.attacks.forger import HONEST, RESIDENT, Forger
from tests.attacks.mutants import MUTANTS, Mutant
from tests.attacks.watched import Watched
from tests.kubelet.device_plugin import PluginLoop

EFFORT = int(os.environ.get("SHOAL_FUZZ", "0"))
#: As many as there are kinds of attempts, those that come several times included.
ATTEMPTS = 44
#: Attempts, of a few writes each.
STEPS = max(ATTEMPTS, EFFORT // 2000)
SEEDS = range(1 + EFFORT // 200_000)
#: An honest pod comes after as many of them.
EVERY = 4


def attempts(arena: EmbeddedArena, rng: random.Random, steps: int) -> Iterator[Forger]:
    """So many attempts, after which no tenant is left."""
    arena.policies(on=False)
    tenants = [Tenant(arena.api, "one"), Tenant(arena.api, "two")]
    play = Watched(arena, tenants[0], Tenant(arena.api, "neighbour"))
    play.place({"name": "resident", "of": "neighbour", "mem": RESIDENT, "at": arena.here})
    index = play.filled("$index_resident")
    forger = ClaimForger(play, arena, rng, tenants, target=(arena.here, index))
    try:
        for number in range(1, steps + 1):
            forger.step()
            play.look()
            if number % EVERY == 0:
                honest(play, forger)
            if number % (3 * EVERY) == 0:
                play.hold({"restarts": "resident"})
            yield forger
    except (AssertionError, TimeoutError) as error:
        error.add_note("\n".join(map(str, forger.told[-40:])))
        raise
    finally:
        for whose in (*tenants, play.neighbour):
            whose.leave()
    play.settle()


def honest(play: Watched, forger: Forger) -> None:
    """Somebody comes with a pod that fits, is served, and goes."""
    name = f"honest-{uuid.UUID(int=forger.rng.getrandbits(128)).hex[:6]}"
    play.place({"name": name, "of": "neighbour", "mem": HONEST})
    play.hold({"given": {name: [HONEST * truth.UNIT]}})
    play.wait(play.all_counted, "counted: all that run", lambda: (play.arena.given(), play.booked()))
    play.hold({"gone": name})


@pytest.fixture(scope="module")
def claims_arena(plugin_loop: PluginLoop) -> Iterator[EmbeddedArena]:
    """One cluster for all seeds."""
    arena = EmbeddedArena(plugin_loop, names_by_claims=True)
    yield arena
    arena.stop()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_writes_steal_nothing(claims_arena: EmbeddedArena, seed: int) -> None:
    assert sum(1 for _ in attempts(claims_arena, random.Random(seed), STEPS)) == STEPS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_are_of_checks_that_are_there(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)


@pytest.mark.skipif(not EFFORT, reason="minutes for what only shows that the fuzz is good")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_check_is_found(plugin_loop: PluginLoop, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of a few seeds: who comes first is not in the seed's hand."""
    monkeypatch.setattr("tests.attacks.play.PATIENCE", 10.0)
    mutant.apply(monkeypatch)
    assert any(_finds(plugin_loop, seed) for seed in range(4))


def _finds(plugin_loop: PluginLoop, seed: int) -> bool:
    arena = EmbeddedArena(plugin_loop, names_by_claims=True)
    try:
        return sum(1 for _ in attempts(arena, random.Random(seed), ATTEMPTS)) < ATTEMPTS
    except AssertionError:
        return True
    finally:
        arena.stop()
