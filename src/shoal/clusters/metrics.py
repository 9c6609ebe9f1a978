"""What the cluster manager tells Prometheus of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from shoal.observe.prometheus import MetricRegistry, head, sample

_UP = "shoal_clusters_member_up"
_COPIES = "shoal_clusters_copies"


class ManagerMetrics:
    """The families of the manager."""

    def __init__(self, members: Callable[[], Mapping[str, tuple[bool, int]]], waiting: Callable[[], int]) -> None:
        """`members`: whether each answers, and its copies; `waiting`: pods that wait to be seen to."""
        self.registry = registry = MetricRegistry()
        self._members = members
        self._waiting = waiting
        self.steps = registry.counter(
            "shoal_clusters_steps_total", "Calls of dispatches, by call and what came of it.", ["call", "result"]
        )
        self.dispatches = registry.counter(
            "shoal_clusters_dispatches_total", "Copies that were opened, by cluster.", ["cluster"]
        )
        self.opened = registry.histogram(
            "shoal_clusters_dispatch_seconds", "From when a pod was first seen until its copy was opened."
        )
        self.mirrored = registry.counter("shoal_clusters_mirrored_total", "Statuses that were written at home.")
        self.leads = registry.gauge("shoal_clusters_leads", "1 while this replica leads.")
        self.answers = registry.counter(
            "shoal_clusters_http_requests_total", "Answers of the ports for probes and metrics.", ["route", "status"]
        )
        registry.add(self)

    def lines(self) -> Iterator[str]:
        """The state of the members."""
        members = self._members()
        yield from head(_UP, "1 while the watch of a member's copies is without error.", "gauge")
        for name, (up, _) in members.items():
            yield sample(_UP, {"cluster": name}, int(up))
        yield from head(_COPIES, "Copies in a member, by cluster.", "gauge")
        for name, (_, copies) in members.items():
            yield sample(_COPIES, {"cluster": name}, copies)
        yield from head("shoal_clusters_queue", "Pods that wait to be seen to.", "gauge")
        yield sample("shoal_clusters_queue", {}, self._waiting())

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.answers.inc(route, str(status))
