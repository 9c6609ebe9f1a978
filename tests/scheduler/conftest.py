"""The tests on a real control plane have a client and a namespace of their own."""

from tests.testbed.room import client, room

__all__ = ["client", "room"]
