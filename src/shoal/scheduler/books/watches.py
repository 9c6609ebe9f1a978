"""What the watch brings besides nodes and pods: namespaces, volumes, and KETI's policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from shoal.kube.events import Recorder, reference_to
from shoal.kube.objects.node import Namespace
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.kube.resources import CONFIG_MAPS
from shoal.kube.store import Change
from shoal.placement.engine import Engine
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.keti_policy import KetiPolicy
from shoal.scheduler.queue.wake import Wake

log = logging.getLogger(__name__)

REASON_POLICY: Final = "PolicyUnreadable"


class Policies:
    """Has the engine follow KETI's policy ConfigMap."""

    def __init__(
        self, engine: Engine, *, namespaces: Sequence[str], news: Callable[[Wake], None], recorder: Recorder
    ) -> None:
        self._engine = engine
        self._keti = KetiPolicy(engine.policy, namespaces=namespaces)
        self._news = news
        self._recorder = recorder

    def on_config_map(self, change: Change[ConfigMap]) -> None:
        configmap = change.object
        outcome = self._keti.remove(configmap) if change.new is None else self._keti.apply(change.new)
        for problem in outcome.problems:
            log.warning("ConfigMap %s/%s: %s", configmap.metadata.namespace, configmap.metadata.name, problem)
            self._recorder.record(reference_to(CONFIG_MAPS, configmap), "Warning", REASON_POLICY, problem)
        if outcome.policy is not None:
            log.info("policy %s from ConfigMap %s", outcome.policy.name, configmap.metadata.name)
            self._engine.use(outcome.policy)
            self._news(Wake.POLICY)


class Volumes:
    """Tells the filters about namespaces, volumes, claims and storage classes."""

    def __init__(self, cluster: Cluster, *, news: Callable[[Wake], None]) -> None:
        self._cluster = cluster
        self._news = news

    def on_namespace(self, change: Change[Namespace]) -> None:
        if change.new is None:
            self._cluster.remove_namespace(change.object.metadata.name)
        else:
            self._cluster.set_namespace(change.new)
        self._news(Wake.PODS)

    def on_volume(self, change: Change[PersistentVolume]) -> None:
        if change.new is None:
            self._cluster.remove_volume(change.object.metadata.name)
        else:
            self._cluster.set_volume(change.new)
        self._news(Wake.VOLUMES)

    def on_claim(self, change: Change[PersistentVolumeClaim]) -> None:
        if change.new is None:
            meta = change.object.metadata
            self._cluster.remove_claim(meta.namespace, meta.name)
        else:
            self._cluster.set_claim(change.new)
        self._news(Wake.VOLUMES)

    def on_storage_class(self, change: Change[StorageClass]) -> None:
        if change.new is None:
            self._cluster.remove_storage_class(change.object.metadata.name)
        else:
            self._cluster.set_storage_class(change.new)
        self._news(Wake.VOLUMES)
