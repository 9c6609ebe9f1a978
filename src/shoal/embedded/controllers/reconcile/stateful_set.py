"""StatefulSets: pods with names that stay, made, deleted and replaced in order or all at once.

Volume claims are made and never deleted: the policies that delete them are not obeyed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from shoal.embedded.controllers.execute import Action, Create, EventAction, Owned, Removal, Requeue, StatusUpdate
from shoal.embedded.controllers.reconcile import pods, revisions
from shoal.embedded.controllers.reconcile.pods import claim
from shoal.embedded.controllers.reconcile.revisions import History
from shoal.embedded.kinds import CLAIMS, PODS, REVISIONS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.store import Object

_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
#: Pods made in one look at a set that may make them all at once.
BURST: Final = 100


def reconcile(stateful_set: Object, owned: Owned, now: datetime) -> list[Action]:
    """What to do about one StatefulSet."""
    ours = [pod for pod in owned.pods if _is_numbered(stateful_set, pod)]
    claimed, adopted = claim(stateful_set, ours, PODS)
    history = revisions.history_of(stateful_set, owned.revisions)
    step = _Step(stateful_set, claimed, history, owned.claims, now)
    actions: list[Action] = []
    if owned.failure is None and not pods.is_deleted(stateful_set):
        step.proceed()
        actions = [*adopted, *history.actions, *step.actions, *_forgotten(stateful_set, claimed, history)]
    status = step.status()
    if status != stateful_set.get("status"):
        actions.append(StatusUpdate({**stateful_set, "status": status}))
    min_ready = stateful_set["spec"].get("minReadySeconds", 0)
    again = pods.next_available(claimed, min_ready, now) if min_ready else None
    return [*actions, Requeue(again)] if again else actions


class _Step:
    """One look at a StatefulSet."""

    def __init__(
        self, stateful_set: Object, present: list[Object], history: History, claims: frozenset[str], now: datetime
    ) -> None:
        self.actions: list[Action] = []
        self._set = stateful_set
        self._spec = stateful_set["spec"]
        self._history = history
        self._claims = claims
        self._now = now
        self._present = present
        self._update: str = history.update["metadata"]["name"]
        named = history.named((stateful_set.get("status") or {}).get("currentRevision", ""))
        self._current: Object = named or history.update
        self._ordered = self._spec.get("podManagementPolicy") != "Parallel"
        self._min_ready = self._spec.get("minReadySeconds", 0)
        self._deleted_current = 0

    def proceed(self) -> None:
        """Make what is missing, then delete what is too much, then replace what is of an old template."""
        start = (self._spec.get("ordinals") or {}).get("start", 0)
        wanted = range(start, start + self._spec["replicas"])
        by_ordinal = {_number(pod): pod for pod in self._present}
        if self._filled(wanted, by_ordinal):
            return
        spare = [by_ordinal[number] for number in sorted(set(by_ordinal) - set(wanted), reverse=True)]
        if self._emptied(spare, [by_ordinal[number] for number in wanted if number in by_ordinal]):
            return
        if self._spec.get("updateStrategy", {}).get("type") != "OnDelete":
            self._replaced([by_ordinal.get(number) for number in wanted])

    def _filled(self, wanted: range, by_ordinal: dict[int, Object]) -> bool:
        """Make the missing pods; whether to go no further is the answer."""
        for number in wanted:
            pod = by_ordinal.get(number)
            if pod is None:
                self._create(number)
                if self._ordered or len(self.actions) >= BURST:
                    return True
            elif pods.is_finished(pod):
                if not pods.is_deleted(pod):
                    self._delete(pod)
                if self._ordered:
                    return True
            elif self._ordered and not self._is_up(pod):
                return True
        return False

    def _emptied(self, spare: list[Object], kept: list[Object]) -> bool:
        """Delete the pods beyond the size, the highest first; whether to go no further is the answer."""
        lowest_first = [*kept, *reversed(spare)]
        first_down = next((pod for pod in lowest_first if not self._is_up(pod)), None)
        for pod in spare:
            if pods.is_deleted(pod):
                if self._ordered:
                    return True
                continue
            if self._ordered and not self._is_up(pod) and pod is not first_down:
                return True
            self._delete(pod)
            if self._ordered:
                return True
        return False

    def _replaced(self, replicas: list[Object | None]) -> None:
        """Delete the highest pod of an old template, if all above it run the new one."""
        rolling = self._spec.get("updateStrategy", {}).get("rollingUpdate") or {}
        for pod in reversed(replicas[rolling.get("partition", 0) :]):
            if pod is None:
                return
            if _revision(pod) != self._update and not pods.is_deleted(pod):
                self._delete(pod)
                self._deleted_current = 1
                return
            if not self._is_up(pod):
                return

    def status(self) -> Object:
        """The counters, and the revisions."""
        alive = [pod for pod in self._present if not pods.is_deleted(pod)]
        ready = [pod for pod in self._present if pods.phase(pod) == "Running" and pods.is_ready(pod)]
        current = self._current["metadata"]["name"]
        count = {
            "replicas": len(self._present),
            "readyReplicas": len(ready),
            "availableReplicas": sum(pods.is_available(pod, self._min_ready, self._now) for pod in ready),
            "currentReplicas": sum(_revision(pod) == current for pod in alive) - self._deleted_current,
            "updatedReplicas": sum(_revision(pod) == self._update for pod in alive),
        }
        rolling = self._spec.get("updateStrategy", {}).get("type") == "RollingUpdate"
        whole = ("updatedReplicas", "readyReplicas", "replicas")
        if rolling and all(count[name] == self._spec["replicas"] for name in whole):
            current, count["currentReplicas"] = self._update, count["updatedReplicas"]
        return pods.counters(
            {
                "observedGeneration": self._set["metadata"].get("generation", 0),
                **count,
                "currentRevision": current,
                "updateRevision": self._update,
                "collisionCount": (self._set.get("status") or {}).get("collisionCount", 0),
            },
            shown=("replicas", "availableReplicas", "collisionCount"),
        )

    def _is_up(self, pod: Object) -> bool:
        return (
            not pods.is_deleted(pod)
            and pods.phase(pod) == "Running"
            and pods.is_available(pod, self._min_ready, self._now)
        )

    def _create(self, number: int) -> None:
        strategy = self._spec.get("updateStrategy", {})
        start = (self._spec.get("ordinals") or {}).get("start", 0)
        partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
        revision = self._current if number < start + partition else self._history.update
        pod = _made(self._set, revision, number)
        self._create_claims(pod, number)
        name, owner = pod["metadata"]["name"], self._set["metadata"]["name"]
        text = f"Create Pod {name} in StatefulSet {owner}"
        done = EventAction("SuccessfulCreate", f"{text} successful")
        refused = EventAction("FailedCreate", f"{text} failed error: {{error}}", warning=True)
        self.actions.append(Create(PODS, pod, done, refused))

    def _create_claims(self, pod: Object, number: int) -> None:
        owner = self._set["metadata"]["name"]
        for template in self._spec.get("volumeClaimTemplates") or ():
            claim_name = _claim_name(self._set, template, number)
            if claim_name in self._claims:
                continue
            labels = {
                **(template["metadata"].get("labels") or {}),
                **(self._spec["selector"].get("matchLabels") or {}),
            }
            metadata = {**copied(template["metadata"]), "name": claim_name, "labels": labels}
            text = f"Create Claim {claim_name} Pod {pod['metadata']['name']} in StatefulSet {owner} success"
            made = {"metadata": metadata, "spec": copied(template.get("spec") or {})}
            self.actions.append(Create(CLAIMS, made, EventAction("SuccessfulCreate", text)))

    def _delete(self, pod: Object) -> None:
        text = f"Delete Pod {pod['metadata']['name']} in StatefulSet {self._set['metadata']['name']}"
        done = EventAction("SuccessfulDelete", f"{text} successful")
        refused = EventAction("FailedDelete", f"{text} failed error: {{error}}", warning=True)
        self.actions.append(Removal(PODS, pod, done, refused))


def _made(stateful_set: Object, revision: Object, number: int) -> Object:
    """The pod of that number, from the template of a revision."""
    pod = pods.from_template(revisions.template_of(revision), stateful_set)
    metadata, name = pod["metadata"], f"{stateful_set['metadata']['name']}-{number}"
    metadata["name"] = name
    metadata["labels"] = {
        **metadata.get("labels", {}),
        _POD_NAME: name,
        _POD_INDEX: str(number),
        revisions.LABEL: revision["metadata"]["name"],
    }
    pod["spec"]["hostname"] = name
    if stateful_set["spec"].get("serviceName"):
        pod["spec"]["subdomain"] = stateful_set["spec"]["serviceName"]
    templates = stateful_set["spec"].get("volumeClaimTemplates") or ()
    claimed = {one["metadata"]["name"]: _claim_name(stateful_set, one, number) for one in templates}
    if claimed:
        volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claimed.items()]
        others = [volume for volume in pod["spec"].get("volumes") or () if volume.get("name") not in claimed]
        pod["spec"]["volumes"] = [*volumes, *others]
    return pod


def _claim_name(stateful_set: Object, template: Object, number: int) -> str:
    return f"{template['metadata']['name']}-{stateful_set['metadata']['name']}-{number}"


def _forgotten(stateful_set: Object, present: list[Object], history: History) -> list[Action]:
    """Delete the oldest revisions beyond the limit, of those that no pod was made from."""
    status, limit = stateful_set.get("status") or {}, stateful_set["spec"].get("revisionHistoryLimit", 10)
    live = {history.update["metadata"]["name"], status.get("currentRevision", ""), *map(_revision, present)}
    dead = [one for one in history.all if one["metadata"]["name"] not in live]
    return [Removal(REVISIONS, one) for one in dead[: max(0, len(dead) - limit)]]


def _is_numbered(stateful_set: Object, pod: Object) -> bool:
    """Whether a pod could be one of this set, by its name."""
    base, _, number = pod["metadata"]["name"].rpartition("-")
    return bool(base == stateful_set["metadata"]["name"] and number.isdigit())


def _number(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _revision(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(revisions.LABEL, ""))
