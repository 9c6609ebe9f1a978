"""KETI's policy ConfigMap as a placement policy, applied while the scheduler runs.

Both names count, the newer first, and all keys with either separator. A value that cannot be read keeps the last good
one of its key, or KETI's built-in one, and is told; the rest of the ConfigMap applies. When the last ConfigMap is gone,
the configured policy is back. Keys that KETI's newest scheduler reads and does not use are accepted and have no effect:
`multi-gpu-node-prefer`, `node-reservation-permit`, `pod-re-schedule-permit`, `multi-node-allocation-permit` and
`non-gpu-node-prefer`.

KETI's scheduler obeys a ConfigMap of any namespace, so that whoever may write one anywhere decides for the cluster.
Here only the namespaces that were named count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.kube.events import Recorder, reference_to
from shoal.kube.objects.others import ConfigMap
from shoal.kube.resources import CONFIG_MAPS, Key, key_of
from shoal.kube.store import Change
from shoal.model.contract import keti
from shoal.model.errors import CodecError, shown
from shoal.placement.engine import Engine
from shoal.placement.policies import Policy, keti_policy
from shoal.scheduler.cluster_events import ClusterEvent

log = logging.getLogger(__name__)

REASON_POLICY: Final = "PolicyUnreadable"
#: Problems of one ConfigMap that are reported; more would not help anyone.
MAX_PROBLEMS: Final = 10
_KEYS: Final = frozenset(keti.encode_policy(keti.DEFAULT_POLICY))


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What follows from a change: the policy from now on, None when it stays, and what to tell about the ConfigMap.

    A new policy is handed to the engine, which must forget the columns it keeps: they go by the policy's name, and all
    of KETI's have one name. Parked pods are then woken by `ClusterEvent.POLICY`.
    """

    policy: Policy | None
    problems: tuple[str, ...] = ()


class KetiPolicyReader:
    """Follows the ConfigMaps. `namespaces` are those that count, the first before the others."""

    def __init__(self, configured: Policy, *, namespaces: Sequence[str] = (keti.NAMESPACE,)) -> None:
        self._configured = configured
        self._places = [(namespace, name) for name in keti.POLICY_CONFIGMAPS for namespace in namespaces]
        #: What was good of each ConfigMap that is there.
        self._good: dict[Key, dict[str, str]] = {}
        self._settings: keti.KetiPolicy | None = None

    @property
    def settings(self) -> keti.KetiPolicy | None:
        """What KETI's ConfigMap says now; None when there is none and the configured policy counts."""
        return self._settings

    def concerns(self, configmap: ConfigMap) -> bool:
        """Whether this ConfigMap is one of those that count."""
        return key_of(configmap) in self._places

    def apply(self, configmap: ConfigMap) -> PolicyOutcome:
        """A ConfigMap appeared or changed; one that does not count changes nothing."""
        key = key_of(configmap)
        if not self.concerns(configmap):
            return PolicyOutcome(None)
        good, problems = _readable(configmap.data, last=self._good.get(key, {}))
        self._good[key] = good
        first = self._first()
        if first != key:
            problems.insert(0, f"not used while ConfigMap {'/'.join(first or ())} exists: delete one of them")
        left = len(problems) - MAX_PROBLEMS
        told = [*problems[:MAX_PROBLEMS], f"and {left} more problems"] if left > 0 else problems
        return PolicyOutcome(self._change(), tuple(told))

    def remove(self, configmap: ConfigMap) -> PolicyOutcome:
        """A ConfigMap is gone: the next one counts, or the configured policy."""
        self._good.pop(key_of(configmap), None)
        return PolicyOutcome(self._change())

    def _first(self) -> Key | None:
        return next((place for place in self._places if place in self._good), None)

    def _change(self) -> Policy | None:
        first = self._first()
        settings = None if first is None else keti.decode_policy(self._good[first])
        if settings == self._settings:
            return None
        self._settings = settings
        return self._configured if settings is None else keti_policy(settings)


def _readable(data: Mapping[str, str], *, last: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The values that can be read, the last good one in place of each that cannot, and what is wrong."""
    good: dict[str, str] = {}
    problems: list[str] = []
    for key, value in sorted(data.items()):
        if key not in _KEYS:
            problems.append(f"policy key {shown(key)} is not known and has no effect: correct or remove it")
            continue
        try:
            keti.decode_policy({key: value})
        except CodecError as error:
            kept = last.get(key)
            instead = "the built-in value" if kept is None else f"the last good value {shown(kept)}"
            problems.append(f"{error}; until then {instead} counts")
            if kept is not None:
                good[key] = kept
        else:
            good[key] = value
    return good, problems


class KetiPolicyWatch:
    """Has the engine follow KETI's policy ConfigMap."""

    def __init__(
        self, engine: Engine, *, namespaces: Sequence[str], news: Callable[[ClusterEvent], None], recorder: Recorder
    ) -> None:
        self._engine = engine
        self._keti = KetiPolicyReader(engine.policy, namespaces=namespaces)
        self._news = news
        self._recorder = recorder

    def on_config_map(self, change: Change[ConfigMap]) -> None:
        """A ConfigMap of one of the names appeared, changed or went away."""
        configmap = change.object
        outcome = self._keti.remove(configmap) if change.new is None else self._keti.apply(change.new)
        for problem in outcome.problems:
            log.warning("ConfigMap %s/%s: %s", configmap.metadata.namespace, configmap.metadata.name, problem)
            self._recorder.record(reference_to(CONFIG_MAPS, configmap), "Warning", REASON_POLICY, problem)
        if outcome.policy is not None:
            log.info("policy %s from ConfigMap %s", outcome.policy.name, configmap.metadata.name)
            self._engine.use(outcome.policy)
            self._news(ClusterEvent.POLICY)
