"""Random lives of pods in three clusters while everything goes wrong; `make faults` has ten thousand of them."""

import pytest

from shoal.clusters.dispatch import CopyPod, Dispatch, DispatchCall, DispatchView, HomePod, LastRead, Wish, next_step
from tests.clusters.fault_run import play
from tests.soak import times

#: Runs in each part; parts can go side by side.
RUNS = times(25)


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_doubled_and_nothing_lost(part: int) -> None:
    faults = 0
    for number in range(part * RUNS, (part + 1) * RUNS):
        outcome = play(number)
        faults += outcome.faults.total()
        assert outcome.well, "\n".join([*outcome.doubles, *outcome.losses, *outcome.story])
    assert faults > RUNS, "runs without faults show little"


@pytest.mark.parametrize(
    "home",
    [
        HomePod("new", "1", held=True, kept=True, ran=True, dispatch=Dispatch("east", 1)),
        HomePod("new", "1", held=True, kept=True, deleting=True, dispatch=Dispatch("east", 1)),
        HomePod("new", "1", held=True, kept=True, dispatch=Dispatch("east", 1)),
        HomePod("new", "1", held=True, kept=True, dispatch=Dispatch("east", 1, leaving=True)),
    ],
    ids=["it ran", "it is being deleted", "it was sent", "it leaves"],
)
@pytest.mark.parametrize("last", [LastRead.NEITHER, LastRead.HOME])
def test_the_copy_of_an_earlier_pod_is_looked_at_again(home: HomePod, last: LastRead) -> None:
    """A watch that lags shows it where the pod's own copy runs by now."""
    earlier = CopyPod("copy", "1", origin="old", attempt=1, gated=False, placed=True, over=True)
    assert next_step(DispatchView(home, earlier, last), Wish()).call is DispatchCall.READ_COPY
    assert next_step(DispatchView(home, earlier, LastRead.COPY), Wish()).call is not DispatchCall.READ_COPY
