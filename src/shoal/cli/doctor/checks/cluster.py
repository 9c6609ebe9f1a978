"""The cluster itself: its version, and whether clocks agree."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from shoal.cli.doctor.facts import Facts
from shoal.cli.doctor.finding import Finding, failed, note, ok, some, unknown, warning

_OLDEST: Final = (1, 20)
_ADMISSION: Final = (1, 30)
#: kubelet renews its lease every 10 s, and a node whose lease is 40 s old is not ready any more.
_AHEAD_SECONDS: Final = 5.0
_BEHIND_SECONDS: Final = 60.0
#: What half of all leases are never older than, unless the clock here goes ahead.
_MEDIAN_SECONDS: Final = 30.0


def version(facts: Facts) -> Iterator[Finding]:
    """What the API server is, and what it lacks."""
    match = re.match(r"v?(\d+)\.(\d+)", facts.version)
    if match is None:
        yield warning("kubernetes", f"says its version is {facts.version!r}", "use a released Kubernetes")
        return
    numbers = int(match[1]), int(match[2])
    if numbers < _OLDEST:
        yield failed("kubernetes", f"{facts.version} is older than 1.20", "update the cluster")
    elif numbers < _ADMISSION:
        yield note("kubernetes", f"{facts.version}: no admission policies before 1.30", "events tell of bad requests")
    else:
        yield ok("kubernetes", facts.version)


def clocks(facts: Facts) -> Iterator[Finding]:
    """Each kubelet writes the time into its node's lease; those of ready nodes are fresh."""
    if facts.node_leases is None:
        yield unknown("clocks", "the leases of the nodes may not be read")
        return
    ready = {
        node.metadata.name
        for node in facts.nodes
        if any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
    }
    ages = {
        lease.metadata.name: (facts.now - renewed).total_seconds()
        for lease in facts.node_leases
        if lease.metadata.name in ready and (renewed := moment(lease.spec.renew_time)) is not None
    }
    if not ages:
        yield unknown("clocks", "no ready node renews a lease")
        return
    middle = statistics.median(ages.values())
    if not -_AHEAD_SECONDS <= middle <= _MEDIAN_SECONDS:
        way = "behind" if middle < 0 else "ahead of"
        yield failed(
            "clocks",
            f"the clock of this machine is about {abs(middle):.0f} s {way} those of the nodes",
            "run NTP here: tokens and certificates depend on it",
        )
        return
    # A lease is renewed some seconds before another: only one of the future, or a very old one, tells of a wrong clock.
    odd = sorted(name for name, age in ages.items() if age < -_AHEAD_SECONDS or age - middle > _BEHIND_SECONDS)
    if odd:
        yield failed("clocks", f"wrong on {some(odd)}", "run NTP on these nodes: leases and tokens depend on it")
    else:
        yield ok("clocks", f"{len(ages)} node(s) agree with this machine")


def moment(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
