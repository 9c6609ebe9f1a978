from shoal.simulate.cluster import POLICY_NAMES
from shoal.simulate.report.plots import COLOURS


def test_every_policy_has_a_colour_of_its_own() -> None:
    assert sorted(COLOURS) == sorted(POLICY_NAMES)
    assert len(set(COLOURS.values())) == len(COLOURS)
