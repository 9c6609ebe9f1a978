"""Hypothesis strategies shared by the tests of the model."""

from __future__ import annotations

from hypothesis import strategies as st

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.gpu import Gpu, Isolation, Link, MigInstance
from shoal.model.request import ContainerKind, Share

uuids = st.uuids().map(lambda u: f"GPU-{u}")
names = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)

#: Anything a caller could pass by mistake.
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.binary(max_size=12)
    | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

shares = st.builds(
    Share,
    memory_mib=st.integers(0, 2**31),
    compute=st.integers(0, 100),
    clients=st.integers(0, 48),
    exclusive=st.booleans(),
)


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    containers = []
    for name in draw(st.lists(names, unique=True, max_size=4)):
        cards = draw(st.lists(uuids, unique=True, max_size=4))
        containers.append(
            ContainerAllocation(
                name=name,
                cards=tuple(CardShare(uuid, draw(st.integers(0, 255)), draw(shares)) for uuid in cards),
                kind=draw(st.sampled_from(ContainerKind)),
                memory_limit_mib=draw(st.none() | st.integers(0, 2**31)),
            )
        )
    return Allocation(draw(names), tuple(containers), draw(st.sampled_from(["", "binpack", "spread"])))


@st.composite
def inventories(draw: st.DrawFn) -> tuple[Gpu, ...]:
    known = draw(st.lists(uuids, unique=True, max_size=4))
    indices = draw(st.lists(st.integers(0, 63), unique=True, min_size=len(known), max_size=len(known)))
    return tuple(
        Gpu(
            uuid=uuid,
            index=index,
            memory_mib=draw(st.integers(0, 2**20)),
            model=draw(st.text(max_size=20)),
            minor=draw(st.none() | st.integers(0, 255)),
            numa=draw(st.none() | st.integers(0, 7)),
            links=tuple(Link(peer, draw(st.integers(1, 18))) for peer in known if peer != uuid),
            healthy=draw(st.booleans()),
            fault=draw(st.text(max_size=20)),
            mig=draw(st.booleans()),
            mig_instances=tuple(
                MigInstance(f"MIG-{mig}", "1g.10gb", 9856) for mig in draw(st.lists(st.uuids(), max_size=2))
            ),
            mps_clients=draw(st.integers(0, 48)),
            isolation=draw(st.sampled_from(Isolation)),
            compute_isolation=draw(st.sampled_from(Isolation)),
        )
        for uuid, index in zip(known, indices, strict=True)
    )
