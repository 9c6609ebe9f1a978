"""Facts for tests: written short, and drawn at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shoal.model.contract.discovery import (
    CardFacts,
    GpuFacts,
    NodeFacts,
    PartitionFacts,
    SharingFacts,
    VgpuFacts,
)

A100 = CardFacts(model="NVIDIA A100-SXM4-40GB", memory=40960, capability=(8, 0), mig=False, pci="0302")
T4 = CardFacts(model="Tesla T4", count=2, memory=15360, capability=(7, 5), pci="0302")
SLICE = PartitionFacts(
    profile="1g.5gb", memory=4864, multiprocessors=14, gpu_slices=1, compute_slices=1, copy=1, decoder=0
)


def gpus(*cards: CardFacts, **parts: Any) -> GpuFacts:
    """What the driver tells of these cards."""
    known = {"since": 1_700_000_000, "driver": "550.107.02", "cuda": (12, 4), "machine": "DGX A100", **parts}
    return GpuFacts(cards=cards or (T4,), **known)


def node(*cards: CardFacts, **parts: Any) -> NodeFacts:
    """A node with these cards."""
    told = gpus(*cards, **parts)
    return NodeFacts(version=1, pci=tuple(sorted({card.pci for card in told.cards if card.pci})), gpus=told)


_amounts = st.integers(0, 2**20)
_profiles = st.from_regex(r"\A([1-9]c\.)?[1-9]g\.[0-9]{1,5}gb([.-][a-z]{1,8}){0,2}\Z")
_names = st.text(max_size=255)
_resources = st.just("nvidia.com/gpu") | _profiles.map(lambda profile: f"nvidia.com/mig-{profile}")
partitions = st.builds(
    PartitionFacts,
    profile=_profiles,
    count=st.integers(1, 7),
    memory=st.integers(0, 2**31),
    **dict.fromkeys(
        ("multiprocessors", "gpu_slices", "compute_slices", "copy", "decoder", "encoder", "jpeg", "ofa"), _amounts
    ),
)
cards = st.builds(
    CardFacts,
    model=st.text(min_size=1, max_size=255) | st.just("NVIDIA " + "very long name of a card " * 8),
    count=st.integers(1, 8),
    memory=st.integers(0, 2**31),
    capability=st.tuples(st.integers(0, 15), st.integers(0, 15)),
    mig=st.none() | st.booleans(),
    pci=st.sampled_from(["", "0300", "0302", "0b40"]),
    fabric=st.just("") | st.from_regex(r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10}\Z"),
    partitions=st.lists(partitions, max_size=4).map(tuple),
)
gpu_facts = st.builds(
    GpuFacts,
    since=st.integers(0, 2**40),
    driver=st.from_regex(r"\A[0-9]{1,6}(\.[0-9]{1,6}){1,2}\Z"),
    cuda=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    machine=_names,
    cards=st.lists(cards, min_size=1, max_size=6).map(tuple),
    mig_strategy=st.sampled_from(["none", "single", "mixed"]),
    sharing=st.lists(
        st.builds(
            SharingFacts,
            resource=_resources,
            strategy=st.sampled_from(["time-slicing", "mps"]),
            replicas=st.integers(2, 1000),
            renamed=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    vgpus=st.none()
    | st.lists(
        st.builds(VgpuFacts, host_version=st.sampled_from(["", "535.161.05"]), host_branch=st.just("r535_00")),
        max_size=2,
    ).map(tuple),
)
node_facts = st.builds(
    NodeFacts,
    version=st.just(1),
    pci=st.lists(st.sampled_from(["0300", "0302", "0b40"]), unique=True, max_size=3).map(tuple),
    gpus=st.none() | gpu_facts,
)
