"""Who has which device: the books, and the checkpoint they are kept in."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.embedded.nodes.devices import checkpoint
from shoal.embedded.nodes.devices.accounting import Accounts, PluginDevice, Reuse
from shoal.embedded.nodes.devices.checkpoint import Checkpoint, Entry
from shoal.embedded.nodes.devices.manager import DeviceManager
from shoal.embedded.nodes.errors import AllocationError, CheckpointError
from shoal.kubelet import constants
from tests.embedded.nodes.manual_clock import ManualClock

#: Written by a real kubelet 1.36.3.
REAL = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"e4422157-dfbf-4fcf-a97d-de6682929ec2","ContainerName":"main",'
    '"ResourceName":"shoal.test/d6bffaa1","DeviceIDs":{"-1":["d6bffaa1-2","d6bffaa1-1"]},'
    '"AllocResp":"Kh0KG3Nob2FsLnRlc3Qvc2hhcmU9ZDZiZmZhYTEtMQ=="}],"RegisteredDevices":{"shoal.test/d6bffaa1":'
    '["d6bffaa1-0","d6bffaa1-1","d6bffaa1-2","d6bffaa1-3"]}},"Checksum":1958860825}'
)
R = "shoal.test/r"


def accounts(*devices: str, resource: str = R) -> Accounts:
    made = Accounts(random.Random(1))
    made.listed(resource, [PluginDevice(one) for one in devices])
    return made


def take(books: Accounts, pod: str, container: str, count: int, reusable: set[str] | None = None) -> set[str]:
    choice = books.choose(pod, container, R, count, reusable or set())
    assert choice is not None
    ids = books.take(R, choice)
    books.hold(pod, container, R, ids, b"")
    return set(ids)


def test_a_checkpoint_of_the_real_kubelet() -> None:
    found = checkpoint.decode(REAL.encode())
    assert [(one.container, one.ids) for one in found.entries] == [("main", frozenset({"d6bffaa1-1", "d6bffaa1-2"}))]
    assert checkpoint.encode(found).decode() == REAL
    assert json.loads(checkpoint.encode(Checkpoint()))["Data"] == {"PodDeviceEntries": None, "RegisteredDevices": {}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        REAL[:-2],
        REAL.replace("1958860825", "1"),
        REAL.replace("d6bffaa1-3", "d6bffaa1-4"),
        REAL.replace("Kh0KG3", "!!!!!!"),
        REAL.replace('"-1"', '"here"'),
    ],
)
def test_a_damaged_checkpoint(content: str) -> None:
    with pytest.raises(CheckpointError):
        checkpoint.decode(content.encode())


TEXT = st.text(alphabet="abc/.-0123456789", min_size=1, max_size=8)
ENTRIES = st.builds(
    Entry,
    pod_uid=TEXT,
    container=TEXT,
    resource=TEXT,
    devices=st.dictionaries(st.integers(-1, 3), st.lists(TEXT, max_size=3).map(tuple), max_size=2),
    response=st.binary(max_size=10),
)


@given(st.lists(ENTRIES, max_size=3), st.dictionaries(TEXT, st.lists(TEXT, max_size=3).map(tuple), max_size=3))
def test_checkpoints_are_read_as_they_are_written(entries: list[Entry], registered: dict) -> None:
    written = Checkpoint(tuple(entries), registered)
    assert checkpoint.decode(checkpoint.encode(written)) == written


def test_short_of_devices() -> None:
    books = accounts("a", "b", "c")
    take(books, "one", "main", 2)
    with pytest.raises(AllocationError) as short:
        books.choose("two", "main", R, 2, set())
    assert str(short.value) == f"requested number of devices unavailable for {R}. Requested: 2, Available: 1"
    assert books.choose("one", "main", R, 2, set()) is None, "it has its own already"
    with pytest.raises(
        AllocationError, match=r'container "main" changed request for resource "shoal.test/r" from 2 to 3'
    ):
        books.choose("one", "main", R, 3, set())
    books.keep_only(["two"])
    assert take(books, "two", "main", 3) == {"a", "b", "c"}


def test_devices_that_are_not_there() -> None:
    books = accounts("a", "b")
    with pytest.raises(AllocationError, match="cannot allocate unregistered device other"):
        books.choose("p", "c", "other", 1, set())
    take(books, "p", "c", 2)
    books.listed(R, [PluginDevice("a"), PluginDevice("b", healthy=False)])
    assert books.counts() == {R: (2, 1)}
    with pytest.raises(AllocationError, match="previously allocated devices are no longer healthy"):
        books.choose("p", "c", R, 2, set())
    books.lost(R)
    assert books.counts() == {R: (2, 0)}
    with pytest.raises(AllocationError, match=f"no healthy devices present; cannot allocate unhealthy devices {R}"):
        books.choose("p", "c", R, 2, set())
    books.forget(R)
    assert books.counts() == {}
    assert books.is_known(R), "somebody has devices of it"
    books.keep_only([])
    assert not books.is_known(R)


def test_what_the_plugin_prefers() -> None:
    books = accounts(*"abcdef")
    choice = books.choose("p", "c", R, 3, {"f"})
    assert choice is not None
    assert (choice.taken, choice.needed) == (frozenset({"f"}), 2)
    assert set(books.take(R, choice, ["nonsense", "f", "d", "d"])) > {"f", "d"}


def test_numa_nodes_are_written_down() -> None:
    books = Accounts(random.Random(1))
    books.listed(R, [PluginDevice("a", numa=(0,)), PluginDevice("b", numa=(0, 1)), PluginDevice("c")])
    take(books, "p", "c", 3)
    (entry,) = books.checkpoint().entries
    assert {numa: set(ids) for numa, ids in entry.devices.items()} == {0: {"a", "b"}, 1: {"b"}, -1: {"c"}}


def test_init_containers_hand_their_devices_on() -> None:
    """As seen on the real kubelet: i1 2, sidecar 2, i2 4, app 3."""
    books, reuse = accounts(*"abcdefghij"), Reuse()

    def start(container: str, count: int, *, init: bool = False) -> set[str]:
        ids = take(books, "p", container, count, reuse.of(R))
        (reuse.offer if init else reuse.withdraw)(books.held_by("p", container))
        return ids

    i1, sidecar = start("i1", 2, init=True), start("sidecar", 2)
    i2, app = start("i2", 4, init=True), start("app", 3)
    assert i1 == sidecar
    assert app < i2
    assert not sidecar & app
    assert books.in_use() == {R: 6}


def test_a_restart_keeps_whose_devices_are_taken_and_waits_for_the_plugin() -> None:
    books = accounts("a", "b", "c")
    held = take(books, "one", "main", 2)
    again = Accounts(random.Random(2))
    again.restore(checkpoint.decode(checkpoint.encode(books.checkpoint())))
    assert again.counts() == {R: (0, 0)}
    with pytest.raises(AllocationError, match="no healthy devices present"):
        again.choose("two", "main", R, 1, set())
    again.listed(R, [PluginDevice(one) for one in "abc"])
    assert take(again, "two", "main", 1) == {"a", "b", "c"} - held


async def test_a_plugin_that_stays_away_is_forgotten_after_five_minutes(tmp_path: Path) -> None:
    clock = ManualClock()
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    checkpoint.write(folder / constants.CHECKPOINT, accounts("a", "b").checkpoint())
    manager = DeviceManager(folder, clock=clock, rng=random.Random(1), changed=lambda: None)
    await manager.open()
    assert manager.counts() == ({R: (0, 0)}, [])
    await clock.advance(300)
    assert manager.counts() == ({R: (0, 0)}, [])
    await clock.advance(1)
    assert manager.counts() == ({}, [R])
    assert manager.counts() == ({}, [])
    await manager.close()
    assert checkpoint.read(folder / constants.CHECKPOINT) == Checkpoint()


class Books(RuleBasedStateMachine):
    """Pods come and go, devices fall ill: no device has two owners, and none is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.books = accounts(*"abcdefgh")
        self.pods: dict[str, int] = {}
        self.number = 0

    @rule(count=st.integers(1, 5))
    def add(self, count: int) -> None:
        self.number += 1
        pod = f"p{self.number}"
        try:
            choice = self.books.choose(pod, "c", R, count, set())
        except AllocationError:
            self.books.settle()
            assert len(self.books.healthy[R] - self.taken()) < count
            return
        assert choice is not None
        ids = self.books.take(R, choice)
        assert set(ids) <= self.books.healthy[R]
        self.books.hold(pod, "c", R, ids, b"")
        self.pods[pod] = count

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.pods:
            del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
            self.books.keep_only(self.pods)

    @rule(ill=st.sets(st.sampled_from("abcdefgh"), max_size=8))
    def listed(self, ill: set[str]) -> None:
        self.books.listed(R, [PluginDevice(one, healthy=one not in ill) for one in "abcdefgh"])

    @rule()
    def restart(self) -> None:
        again = Accounts(random.Random(3))
        again.restore(self.books.checkpoint())
        again.listed(R, self.books.devices[R].values())
        self.books = again

    def taken(self) -> set[str]:
        return {one for ids in self.ids() for one in ids}

    def ids(self) -> Iterator[frozenset[str]]:
        for pod in self.pods:
            yield self.books.held_by(pod, "c")[R].ids

    @invariant()
    def each_device_has_one_owner(self) -> None:
        found = [one for ids in self.ids() for one in ids]
        assert len(found) == len(set(found)) == sum(self.pods.values())
        assert self.books.in_use().get(R, 0) == len(found)
        assert self.books.pods() == set(self.pods)


TestBooks = Books.TestCase
