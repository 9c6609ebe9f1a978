"""The labels that follow from a node's facts: pure, and to the letter of NFD and of NVIDIA's feature discovery (GFD).

Whatever facts say, keys are those of `is_listed` and values are valid: a name that is too long loses its end, not its
suffix. Where GFD leaves the choice to chance, the same facts give the same labels here: of several models the one with
the most cards, then the first by name; a card in MIG mode counts only where no other is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from shoal.model.contract import nvidia
from shoal.model.contract.discovery import CardFacts, GpuFacts, NodeFacts, PartitionFacts, SharingFacts

_NONE, _SINGLE, _MIXED = nvidia.MIG_STRATEGIES
_UNSHARED, _, _MPS = nvidia.SHARING_STRATEGIES
_COMPUTE, _GRAPHICS, _UNKNOWN_MODE = nvidia.GPU_MODES
_MODES: Final = {"0302": _COMPUTE, "0300": _GRAPHICS}
_UNKNOWN_MACHINE: Final = "unknown"

#: What each resource has, of whole cards and of partitions.
_OF_RESOURCES: Final = ("product", "count", "replicas", "sharing-strategy", "memory")
_OF_PARTITIONS: Final = (
    *("multiprocessors", "slices.gi", "slices.ci"),
    *("engines.copy", "engines.decoder", "engines.encoder", "engines.jpeg", "engines.ofa"),
)
#: The classes of cards for which there is a label; `shoal.model.contract.nvidia.LABELS_PCI_PRESENT` has the labels.
PCI_CLASSES: Final = ("0300", "0302")
PCI_KEYS: Final = frozenset(nvidia.LABELS_PCI_PRESENT)
#: All labels of GFD but those of partitions under the strategy `mixed`.
GFD_KEYS: Final = frozenset(
    {
        nvidia.LABEL_TIMESTAMP,
        *(nvidia.LABEL_DRIVER_MAJOR, nvidia.LABEL_DRIVER_MINOR, nvidia.LABEL_DRIVER_REVISION),
        *(nvidia.LABEL_DRIVER_VERSION_MAJOR, nvidia.LABEL_DRIVER_VERSION_MINOR),
        *(nvidia.LABEL_DRIVER_VERSION_REVISION, nvidia.LABEL_DRIVER_VERSION_FULL),
        *(nvidia.LABEL_RUNTIME_MAJOR, nvidia.LABEL_RUNTIME_MINOR),
        *(nvidia.LABEL_RUNTIME_VERSION_MAJOR, nvidia.LABEL_RUNTIME_VERSION_MINOR, nvidia.LABEL_RUNTIME_VERSION_FULL),
        *(nvidia.LABEL_MACHINE, nvidia.LABEL_FAMILY, nvidia.LABEL_COMPUTE_MAJOR, nvidia.LABEL_COMPUTE_MINOR),
        *(nvidia.LABEL_MODE, nvidia.LABEL_CLIQUE),
        *(nvidia.LABEL_MIG_CAPABLE, nvidia.LABEL_MIG_STRATEGY, nvidia.LABEL_MPS_CAPABLE),
        *(nvidia.LABEL_VGPU_PRESENT, nvidia.LABEL_VGPU_HOST_DRIVER_VERSION, nvidia.LABEL_VGPU_HOST_DRIVER_BRANCH),
        *(f"{nvidia.RESOURCE_GPU}.{part}" for part in (*_OF_RESOURCES, *_OF_PARTITIONS)),
    }
)
_MIXED_KEY: Final = re.compile(
    re.escape(nvidia.RESOURCE_MIG_PREFIX)
    + r"([1-9]c\.)?[1-9]g\.[0-9]{1,5}gb([.-][a-z]{1,8}){0,2}\.("
    + "|".join(re.escape(part) for part in (*_OF_RESOURCES, *_OF_PARTITIONS))
    + ")"
)


def is_of_gfd(key: str) -> bool:
    """Whether a label is one of GFD's."""
    return key in GFD_KEYS or _MIXED_KEY.fullmatch(key) is not None


def is_listed(key: str) -> bool:
    """Whether discovery may write a label at all."""
    return key in PCI_KEYS or key == nvidia.LABEL_PRESENT or is_of_gfd(key)


def pci_labels(facts: NodeFacts) -> dict[str, str]:
    """NFD's labels of cards on the bus: by vendor, as NVIDIA's operator sets NFD up, and by class and vendor."""
    classes = [one for one in facts.pci if one in PCI_CLASSES]
    names = [nvidia.PCI_VENDOR, *(f"{one}_{nvidia.PCI_VENDOR}" for one in classes)] if classes else []
    return {f"{nvidia.LABEL_PCI_PREFIX}{name}.present": "true" for name in names}


def gpu_labels(gpus: GpuFacts) -> dict[str, str]:
    """GFD's labels."""
    found = {
        nvidia.LABEL_TIMESTAMP: str(gpus.since),
        nvidia.LABEL_MACHINE: nvidia.sanitised(gpus.machine.strip() or _UNKNOWN_MACHINE),
        **_versions(gpus),
        nvidia.LABEL_MIG_CAPABLE: _boolean(any(card.mig is not None for card in gpus.cards)),
        nvidia.LABEL_MPS_CAPABLE: _boolean(_mps_capable(gpus)),
        **_whole_cards(gpus),
        **_partitions(gpus),
        nvidia.LABEL_MODE: _mode(gpus.cards),
        **_clique(gpus.cards),
        **_vgpus(gpus),
    }
    return found


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _versions(gpus: GpuFacts) -> dict[str, str]:
    major, minor, *rest = gpus.driver.split(".")
    revision = rest[0] if rest else ""
    cuda, cuda_minor = map(str, gpus.cuda)
    return {
        nvidia.LABEL_DRIVER_MAJOR: major,
        nvidia.LABEL_DRIVER_MINOR: minor,
        nvidia.LABEL_DRIVER_REVISION: revision,
        nvidia.LABEL_DRIVER_VERSION_MAJOR: major,
        nvidia.LABEL_DRIVER_VERSION_MINOR: minor,
        nvidia.LABEL_DRIVER_VERSION_REVISION: revision,
        nvidia.LABEL_DRIVER_VERSION_FULL: gpus.driver,
        nvidia.LABEL_RUNTIME_MAJOR: cuda,
        nvidia.LABEL_RUNTIME_MINOR: cuda_minor,
        nvidia.LABEL_RUNTIME_VERSION_MAJOR: cuda,
        nvidia.LABEL_RUNTIME_VERSION_MINOR: cuda_minor,
        nvidia.LABEL_RUNTIME_VERSION_FULL: f"{cuda}.{cuda_minor}",
    }


def _mps_capable(gpus: GpuFacts) -> bool:
    """MPS is configured, and no card is cut. GFD writes no label at all where one is."""
    return any(one.strategy == _MPS for one in gpus.sharing) and not any(card.mig for card in gpus.cards)


def _whole_cards(gpus: GpuFacts) -> dict[str, str]:
    counts: Counter[str] = Counter()
    for card in gpus.cards:
        counts[card.model] += card.count
    card = min(gpus.cards, key=lambda card: (bool(card.mig), -counts[card.model], card.model))
    shared = None if card.mig else _shared(gpus.sharing, nvidia.RESOURCE_GPU)
    replicas = 0 if card.mig else 1 if shared is None else shared.replicas
    found = {
        **_resource(nvidia.RESOURCE_GPU, card.model, counts[card.model], replicas, shared),
        **({} if not card.memory else {nvidia.LABEL_MEMORY: str(card.memory)}),
    }
    major, minor = card.capability
    if major:
        found[nvidia.LABEL_FAMILY] = nvidia.family(card.capability)
        found[nvidia.LABEL_COMPUTE_MAJOR] = str(major)
        found[nvidia.LABEL_COMPUTE_MINOR] = str(minor)
    return found


def _shared(sharing: Iterable[SharingFacts], resource: str) -> SharingFacts | None:
    return next((one for one in sharing if one.resource == resource), None)


def _resource(
    resource: str, model: str, count: int, replicas: int, shared: SharingFacts | None, *, profile: str | None = None
) -> dict[str, str]:
    product = nvidia.product_label(model, mig_profile=profile, shared=shared is not None and not shared.renamed)
    return {
        f"{resource}.product": product,
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(replicas),
        f"{resource}.sharing-strategy": _UNSHARED if shared is None else shared.strategy,
    }


def _partitions(gpus: GpuFacts) -> dict[str, str]:
    if gpus.mig_strategy == _NONE:
        return {}
    found: dict[str, str] = {nvidia.LABEL_MIG_STRATEGY: gpus.mig_strategy}
    cut = [card for card in gpus.cards if card.mig]
    if gpus.mig_strategy == _MIXED:
        for profile, alike in _by_profile(cut).items():
            found |= _partition(f"{nvidia.RESOURCE_MIG_PREFIX}{profile}", alike, gpus)
    elif cut:
        kinds = _by_profile(cut)
        if len(cut) < len(gpus.cards) or len(kinds) != 1 or not all(card.partitions for card in cut):
            return found | _invalid(cut[0])
        found |= _partition(nvidia.RESOURCE_GPU, next(iter(kinds.values())), gpus)
    return found


def _by_profile(cards: Iterable[CardFacts]) -> Mapping[str, list[tuple[CardFacts, PartitionFacts]]]:
    """The partitions of cards in MIG mode, in the order of their names."""
    found: dict[str, list[tuple[CardFacts, PartitionFacts]]] = {}
    for card in cards:
        for part in card.partitions:
            found.setdefault(part.profile, []).append((card, part))
    return dict(sorted(found.items()))


def _partition(resource: str, alike: list[tuple[CardFacts, PartitionFacts]], gpus: GpuFacts) -> dict[str, str]:
    card, part = alike[0]
    shared = _shared(gpus.sharing, resource)
    count = sum(card.count * part.count for card, part in alike)
    attributes = {
        "memory": part.memory,
        "multiprocessors": part.multiprocessors,
        "slices.gi": part.gpu_slices,
        "slices.ci": part.compute_slices,
        "engines.copy": part.copy,
        "engines.decoder": part.decoder,
        "engines.encoder": part.encoder,
        "engines.jpeg": part.jpeg,
        "engines.ofa": part.ofa,
    }
    replicas = 1 if shared is None else shared.replicas
    return {
        **_resource(resource, card.model, count, replicas, shared, profile=part.profile),
        **{f"{resource}.{name}": str(value) for name, value in attributes.items()},
    }


def _invalid(card: CardFacts) -> dict[str, str]:
    """The strategy `single` on cards that are not all cut alike: nothing can be served."""
    return {
        nvidia.LABEL_PRODUCT: nvidia.product_label(card.model, mig_profile=nvidia.PRODUCT_MIG_INVALID),
        nvidia.LABEL_COUNT: "0",
        nvidia.LABEL_REPLICAS: "0",
        nvidia.LABEL_SHARING_STRATEGY: "",
        nvidia.LABEL_MEMORY: "0",
    }


def _mode(cards: Iterable[CardFacts]) -> str:
    classes = {card.pci for card in cards}
    return _MODES.get(classes.pop(), _UNKNOWN_MODE) if len(classes) == 1 else _UNKNOWN_MODE


def _clique(cards: Iterable[CardFacts]) -> dict[str, str]:
    """The clique, where all cards that are on a fabric are in the same one."""
    fabrics = {card.fabric for card in cards if card.fabric}
    return {nvidia.LABEL_CLIQUE: fabrics.pop()} if len(fabrics) == 1 else {}


def _vgpus(gpus: GpuFacts) -> dict[str, str]:
    if gpus.vgpus is None:
        return {}
    found = {nvidia.LABEL_VGPU_PRESENT: _boolean(bool(gpus.vgpus))}
    for one in gpus.vgpus:
        found[nvidia.LABEL_VGPU_HOST_DRIVER_VERSION] = one.host_version
        found[nvidia.LABEL_VGPU_HOST_DRIVER_BRANCH] = one.host_branch
    return found
