"""Which walls a node can build, and around what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.limits.tiers import (
    STRENGTH,
    IsolationSetting,
    Means,
    chosen,
    container_limits,
    hindrances,
    weakest,
)
from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Card, Driver
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from shoal.model.allocation import CardShare, ContainerAllocation
from shoal.model.gpu import Isolation, LimitedBy
from shoal.model.request import Share

OLD = Driver("550.54", (12, 4))
ALL = Means(NEWEST, cgroup2=True, hook=True, cdi=True, mps=True, namespaces=True)


def card(model: object) -> Card:
    return SimulatedNvml(parse_cards(model), clock=lambda: 0.0).survey().cards[0]


A30, P100, MIG = card("1xA30"), card("1xP100"), card([{"model": "A30", "mig": ["1g.6gb"]}])


@pytest.mark.parametrize(
    ("which", "means", "mode"),
    [
        (A30, ALL, "cgroup+mps-namespace"),
        (A30, replace(ALL, mps=False, namespaces=False), "cgroup"),
        (A30, replace(ALL, cgroup2=False), "mps-namespace"),
        (A30, replace(ALL, hook=False), "mps-namespace"),
        (A30, replace(ALL, driver=OLD, namespaces=False), "mps"),
        (A30, replace(ALL, hook=False, mps=False, namespaces=False), "none"),
        (A30, replace(ALL, cdi=False), "none"),
        (P100, replace(ALL, driver=OLD, namespaces=False), "none"),
        (P100, ALL, "cgroup"),
        (MIG, ALL, "none"),
    ],
)
def test_memory_by_the_driver_and_compute_by_mps_where_the_node_has_both(which: Card, means: Means, mode: str) -> None:
    assert chosen(which, means, IsolationSetting.AUTO) == (LimitedBy.read(mode), "")


def test_only_cgroup_is_a_memory_limit_that_a_tenant_cannot_lift() -> None:
    assert [mode for mode in Isolation if mode.enforces_memory] == [Isolation.CGROUP]


@pytest.mark.parametrize(
    ("containers", "pod"),
    [
        (["cgroup+mps-namespace", "cgroup+mps-namespace"], "cgroup+mps-namespace"),
        (["cgroup+mps-namespace", "cgroup"], "cgroup"),
        (["cgroup+mps-namespace", "mps-namespace"], "mps-namespace"),
        (["mps-namespace", "none+mps-namespace"], "none+mps-namespace"),
        (["mps-namespace", "none"], "none"),
    ],
)
def test_a_pod_is_limited_as_the_weakest_of_its_containers(containers: list[str], pod: str) -> None:
    assert str(weakest(LimitedBy.read(one) or LimitedBy() for one in containers)) == pod
    assert weakest([]) is None


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
    mode, problem = chosen(A30, means, wanted)
    assert mode == LimitedBy()
    assert words in problem


@given(
    st.sampled_from([A30, P100, MIG]),
    st.builds(Means, st.sampled_from([NEWEST, OLD]), *[st.booleans()] * 5),
    st.sampled_from(IsolationSetting),
)
def test_never_silently_weaker_than_asked(which: Card, means: Means, wanted: IsolationSetting) -> None:
    mode, problem = chosen(which, means, wanted)
    tier = mode.memory
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
