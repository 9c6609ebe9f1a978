"""Which labels a node shall have: pure, from what is on the node and from its facts.

Missing facts change nothing: a label that is there stays. Two things alone take labels back: facts that say otherwise,
and no sign of a card for the grace time. Labels that NFD lists as its own keep the value they have, and so do all of
GFD's where its timestamp is not ours; they stand in what is applied all the same, since server-side apply would remove
what Shoal wrote before NFD came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.discovery.labels import PCI_KEYS, gpu_labels, is_listed, is_of_gfd, pci_labels
from shoal.model.contract import nvidia
from shoal.model.contract.discovery import NodeFacts

_NFD_DOMAIN: Final = "feature.node.kubernetes.io/"
_MOST_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """A node as the leader sees it."""

    #: Of the labels that discovery may write, those that are there.
    labels: Mapping[str, str]
    #: The labels that NFD lists as its own; None: NFD does not run here.
    nfd: frozenset[str] | None = None
    #: None: none, or none that can be read.
    facts: NodeFacts | None = None
    #: Labels that another manager owns, with the value they had when that was found out.
    foreign: Mapping[str, str | None] = field(default_factory=dict)


def nfd_keys(annotations: Mapping[str, str]) -> frozenset[str] | None:
    """The labels that NFD lists as its own: names without a domain are in NFD's. None: it lists nothing.

    Several NFDs may run, each with its name before the annotation's.
    """
    lists = [text for key, text in annotations.items() if key.endswith(nvidia.ANNOTATION_NFD_LABELS)]
    if not lists:
        return None
    names = [name.strip() for text in lists for name in text.split(",", _MOST_KEYS)[:_MOST_KEYS]]
    return frozenset(name if "/" in name else _NFD_DOMAIN + name for name in names if name)


def has_card(node: NodeLabels) -> bool | None:
    """Whether there is a sign of a card; None if nobody says anything."""
    by_label = [key for key in PCI_KEYS if node.labels.get(key) == "true"]
    if node.facts is not None and node.facts.pci:
        return True
    if any(key in (node.nfd or ()) or node.facts is None or key in node.foreign for key in by_label):
        return True
    return None if node.facts is None and node.nfd is None else False


def planned(node: NodeLabels, *, gone: bool) -> dict[str, str]:
    """The labels to apply. `gone`: for the grace time there has been no sign of a card."""
    facts = node.facts
    kept = node.labels
    wanted: dict[str, str] = {}
    on_bus = facts is not None and bool(facts.pci)
    if facts is not None and on_bus:
        wanted |= pci_labels(facts)
    elif not gone:
        wanted |= {key: value for key, value in kept.items() if key in PCI_KEYS}
    if facts is not None and on_bus and facts.gpus is not None:
        wanted |= gpu_labels(facts.gpus)
    elif not gone:
        wanted |= {key: value for key, value in kept.items() if is_of_gfd(key)}
    if has_card(node):
        wanted[nvidia.LABEL_PRESENT] = "true"
    elif nvidia.LABEL_PRESENT in kept:
        # Whoever wrote a label of the bus that is still there says that there is a card.
        falls = gone and not any(kept.get(key) == "true" for key in PCI_KEYS)
        wanted[nvidia.LABEL_PRESENT] = "false" if falls else kept[nvidia.LABEL_PRESENT]
    _leave(wanted, kept, node.nfd or frozenset())
    if nvidia.LABEL_TIMESTAMP in (node.nfd or ()) or nvidia.LABEL_TIMESTAMP in node.foreign:
        _leave(wanted, kept, {key for key in wanted.keys() | kept.keys() if is_of_gfd(key)})
    for key in node.foreign:
        wanted.pop(key, None)
    return {key: value for key, value in sorted(wanted.items()) if is_listed(key)}


def _leave(wanted: dict[str, str], kept: Mapping[str, str], keys: frozenset[str] | set[str]) -> None:
    """Have these labels stay as they are."""
    for key in keys:
        if key in kept:
            wanted[key] = kept[key]
        else:
            wanted.pop(key, None)


def differs(node: NodeLabels, wanted: Mapping[str, str]) -> bool:
    """Whether applying would change the node, as far as can be seen: a label too many may be another manager's."""
    too_many = node.labels.keys() - wanted.keys() - node.foreign.keys()
    return bool(too_many) or any(node.labels.get(key) != value for key, value in wanted.items())
