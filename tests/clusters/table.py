"""The members of a test, which come and go as it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.clusters.member import Member


class Table:
    """A `MemberTable` by hand."""

    def __init__(self, *members: Member, problems: Mapping[str, str] | None = None) -> None:
        self.members: Mapping[str, Member] = {member.name: member for member in members}
        self.problems: Mapping[str, str] = problems or {}
        self._calls: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def set(self, *members: Member) -> None:
        """Other members from now on."""
        self.members = {member.name: member for member in members}
        for call in self._calls:
            call()
