"""Which walls a node can build, and around what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.limits.tiers import STRENGTH, IsolationSetting, Means, chosen, container_limits, hindrances
from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Card, Driver
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from shoal.model.allocation import CardShare, ContainerAllocation
from shoal.model.gpu import Isolation
from shoal.model.request import Share

OLD = Driver("550.54", (12, 4))
ALL = Means(NEWEST, cgroup2=True, hook=True, cdi=True, mps=True, namespaces=True)


def card(model: object) -> Card:
    return SimulatedNvml(parse_cards(model), clock=lambda: 0.0).survey().cards[0]


A30, P100, MIG = card("1xA30"), card("1xP100"), card([{"model": "A30", "mig": ["1g.6gb"]}])


@pytest.mark.parametrize(
    ("which", "means", "tier"),
    [
        (A30, ALL, Isolation.CGROUP),
        (A30, replace(ALL, cgroup2=False), Isolation.NAMESPACE),
        (A30, replace(ALL, hook=False), Isolation.NAMESPACE),
        (A30, replace(ALL, driver=OLD, namespaces=False), Isolation.MPS),
        (A30, replace(ALL, hook=False, mps=False, namespaces=False), Isolation.NONE),
        (A30, replace(ALL, cdi=False), Isolation.NONE),
        (P100, replace(ALL, driver=OLD, namespaces=False), Isolation.NONE),
        (P100, ALL, Isolation.CGROUP),
        (MIG, ALL, Isolation.NONE),
    ],
)
def test_best_there_is(which: Card, means: Means, tier: Isolation) -> None:
    assert chosen(which, means, IsolationSetting.AUTO) == (tier, "")


@pytest.mark.parametrize(
    ("wanted", "means", "words"),
    [
        (
            IsolationSetting.CGROUP,
            replace(ALL, driver=OLD),
            "cgroup is asked for and cannot be had: it needs driver R615",
        ),
        (IsolationSetting.CGROUP, replace(ALL, hook=False), "set limitHook"),
        (IsolationSetting.CGROUP, replace(ALL, cgroup2=False), "no cgroup v2"),
        (IsolationSetting.CGROUP, replace(ALL, cdi=False), "no CDI"),
        (IsolationSetting.NAMESPACE, replace(ALL, namespaces=False), "R615"),
        (IsolationSetting.MPS, replace(ALL, mps=False, namespaces=False), "set mpsProgram"),
    ],
)
def test_tier_that_cannot_be_had_is_not_replaced(wanted: IsolationSetting, means: Means, words: str) -> None:
    tier, problem = chosen(A30, means, wanted)
    assert tier is Isolation.NONE
    assert words in problem


@given(
    st.sampled_from([A30, P100, MIG]),
    st.builds(Means, st.sampled_from([NEWEST, OLD]), *[st.booleans()] * 5),
    st.sampled_from(IsolationSetting),
)
def test_never_silently_weaker_than_asked(which: Card, means: Means, wanted: IsolationSetting) -> None:
    tier, problem = chosen(which, means, wanted)
    if wanted is not IsolationSetting.AUTO:
        assert bool(problem) != (tier.value == wanted.value)
    else:
        stronger = [one for one in Isolation if STRENGTH[one] > STRENGTH[tier]]
        assert all(one in hindrances(which, means) for one in stronger)
        assert not problem


def container(*shares: Share, limit: int | None = None) -> ContainerAllocation:
    return ContainerAllocation(
        "main",
        tuple(CardShare(f"GPU-{number}", number, share) for number, share in enumerate(shares)),
        memory_limit_mib=limit,
    )


def test_walls() -> None:
    assert not container_limits(container(Share(exclusive=True)))
    assert not container_limits(container(Share(exclusive=True), limit=4096)), "a whole card has no wall in it"
    assert container_limits(container(Share(3072))).memory_mib == {"GPU-0": 3072}
    assert container_limits(container(Share(3072), Share(1024))).memory_mib == {"GPU-0": 3072, "GPU-1": 1024}
    client = container_limits(container(Share(2048, clients=1), limit=4096))
    assert (client.memory_mib, client.client) == ({"GPU-0": 4096}, True)
    assert container_limits(container(Share(1024, compute=30))).threads == 30
    assert container_limits(container(Share(1024, compute=100))).threads is None
    assert container_limits(container(Share(1024)), yields=True).yields
    assert not container_limits(container(Share(exclusive=True)), yields=True), "a whole card gives way to nobody"
