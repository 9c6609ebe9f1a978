"""The filters agree with plain loops, on clusters out of dice, kept by change and built anew."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.feasibility import reference, reference_favour
from tests.scheduler.feasibility.made_up import NAMESPACES, Dice
from tests.scheduler.feasibility.rows import Rows, pod_of
from tests.scheduler.feasibility.world import Manifest, World
from tests.soak import times

STEPS = 25


def made_up_world(dice: Dice, nodes: int, pods: int) -> World:
    world = World()
    for name, labels in NAMESPACES.items():
        world.namespaces[name] = {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}}
    names = [f"n-{number}" for number in range(nodes)]
    for name in names:
        world.nodes[name] = dice.node(name)
    dice.storage(world, names)
    for _ in range(pods):
        put(world, dice)
    return world


def claim_names(world: World) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in NAMESPACES} | {"blue": ["missing"]}
    for namespace, name in world.claims:
        found[namespace].append(name)
    return found


def put(world: World, dice: Dice) -> Manifest:
    """A pod on a node, wherever it wants to be; often one like another that is there."""
    pod = dice.pod(claims=claim_names(world), wishes=0.6)
    if world.pods and dice.chance(0.4):
        other = copy.deepcopy(dice.one(*world.pods.values()))
        pod["spec"] = other["spec"]
        pod["metadata"] |= {"labels": other["metadata"]["labels"], "namespace": other["metadata"]["namespace"]}
    pod["spec"]["nodeName"] = dice.one(*world.nodes)
    if dice.chance(0.1):
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.pods[pod["metadata"]["uid"]] = pod
    return pod


def compare(world: World, rows: Rows, pod: Manifest) -> None:
    verdict = rows.verdict(pod)
    expected = reference.allowed(world, pod)
    assert rows.names(verdict.allowed) == expected, pod
    refused: set[str] = set()
    for refusal in verdict.rejections:
        refused |= rows.names(refusal.rows)
    assert refused == set(world.nodes) - expected
    favour = reference_favour.favour(world, pod, expected)
    if not favour:
        assert verdict.favour is None
    else:
        assert verdict.favour is not None
        for name, value in favour.items():
            assert verdict.favour[rows.rows[name]] == pytest.approx(value, abs=1e-9), (name, pod)


class Change:
    """One thing that happens to a cluster, told to the manifests and to the rows."""

    def __init__(self, dice: Dice, world: World, rows: Rows) -> None:
        self.dice, self.world, self.rows = dice, world, rows

    def happen(self) -> None:
        kinds = [self.pod_comes] * 5 + [self.pod_goes] * 4 + [self.pod_changes, self.node_changes, self.node_changes]
        kinds += [self.namespace_changes, self.namespace_changes, self.storage_changes]
        self.dice.one(*kinds, self.node_comes, self.node_goes)()

    def pod_comes(self) -> None:
        self.rows.add_pod(put(self.world, self.dice))

    def pod_goes(self) -> None:
        if self.world.pods:
            uid = self.dice.one(*self.world.pods)
            del self.world.pods[uid]
            self.rows.tables.remove_pod(uid)

    def pod_changes(self) -> None:
        if not self.world.pods:
            return
        pod = copy.deepcopy(self.world.pods[self.dice.one(*self.world.pods)])
        if self.dice.chance(0.6):
            pod["metadata"]["labels"] = self.dice.labels()
        if self.dice.chance(0.3):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if self.dice.chance(0.3):
            pod["status"] = {"phase": self.dice.one("Succeeded", "Failed", "Running")}
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            del self.world.pods[pod["metadata"]["uid"]]
        else:
            self.world.pods[pod["metadata"]["uid"]] = pod
        self.rows.add_pod(pod)

    def node_comes(self) -> None:
        name = self.dice.name("late")
        self.world.nodes[name] = self.dice.node(name)
        self.rows.set_node(self.world.nodes[name])

    def node_goes(self) -> None:
        """Its pods go later than it does, or with the next node that gets its row."""
        if len(self.world.nodes) > 2:
            name = self.dice.one(*self.world.nodes)
            del self.world.nodes[name]
            orphans = [uid for uid, pod in self.world.pods.items() if pod["spec"]["nodeName"] == name]
            self.rows.remove_node(name)
            for uid in orphans:
                del self.world.pods[uid]
                if self.dice.chance(0.5):
                    self.rows.tables.remove_pod(uid)

    def node_changes(self) -> None:
        name = self.dice.one(*self.world.nodes)
        fresh, old = self.dice.node(name), self.world.nodes[name]
        part = self.dice.one("metadata", "spec", "status")
        self.world.nodes[name] = {**old, part: fresh[part]}
        self.rows.set_node(self.world.nodes[name])

    def namespace_changes(self) -> None:
        name = self.dice.one(*NAMESPACES)
        labels = self.dice.one({}, {"team": "x"}, {"team": "z"})
        self.world.namespaces[name] = {"metadata": {"name": name, "labels": labels}}
        self.rows.take_in(World(namespaces={name: self.world.namespaces[name]}))

    def storage_changes(self) -> None:
        fresh = World(claims=dict(self.world.claims))
        self.dice.storage(fresh, list(self.world.nodes))
        for name in set(self.world.volumes) - set(fresh.volumes):
            self.rows.tables.remove_volume(name)
        self.world.volumes, self.world.claims, self.world.classes = fresh.volumes, fresh.claims, fresh.classes
        self.rows.take_in(World(volumes=fresh.volumes, claims=fresh.claims, classes=fresh.classes))


@settings(max_examples=times(120))
@given(seed=st.integers(0, 2**32))
def test_the_filters_agree_with_plain_loops(seed: int) -> None:
    dice = Dice(seed)
    world = made_up_world(dice, nodes=dice.one(1, 4, 8, 12), pods=dice.one(0, 10, 30))
    rows = Rows(world)
    for _ in range(15):
        compare(world, rows, dice.pod(claims=claim_names(world)))


@settings(max_examples=times(60))
@given(seed=st.integers(0, 2**32))
def test_kept_by_change_is_as_built_anew(seed: int) -> None:
    """The same waiting pods, again and again, while the cluster changes under them."""
    dice = Dice(seed)
    world = made_up_world(dice, nodes=dice.one(3, 6, 9), pods=dice.one(5, 20))
    rows = Rows(world)
    change = Change(dice, world, rows)
    waiting = [dice.pod(claims=claim_names(world), wishes=1.5) for _ in range(6)]
    for _ in range(STEPS):
        before = rows.tables.version
        allowed = [rows.verdict(pod).allowed.copy() for pod in waiting]
        change.happen()
        for pod, was in zip(waiting, allowed, strict=True):
            compare(world, rows, pod)
            if rows.tables.version == before:
                assert (rows.verdict(pod).allowed == was).all(), "the version hides a change"
    anew = Rows(world)
    for pod in waiting:
        one, other = rows.verdict(pod), anew.verdict(pod)
        assert rows.names(one.allowed) == anew.names(other.allowed)
        told = [
            {(r.filter, r.reason, r.resolvable): side.names(r.rows) for r in verdict.rejections}
            for side, verdict in ((rows, one), (anew, other))
        ]
        assert told[0] == told[1]


@settings(max_examples=times(60))
@given(seed=st.integers(0, 2**32))
def test_fits_without_is_a_verdict_on_the_cluster_without(seed: int) -> None:
    dice = Dice(seed)
    world = made_up_world(dice, nodes=4, pods=dice.one(10, 25))
    rows = Rows(world)
    for _ in range(6):
        pod = dice.pod(claims=claim_names(world))
        for name in world.nodes:
            there = [uid for uid, other in world.pods.items() if other["spec"]["nodeName"] == name]
            gone = set(dice.rng.sample(there, dice.rng.randint(0, len(there))))
            less = copy.copy(world)
            less.pods = {uid: other for uid, other in world.pods.items() if uid not in gone}
            expected = reference.fits(less, pod, world.nodes[name])
            assert rows.feasibility.fits_without(pod_of(pod), rows.rows[name], gone) == expected, (pod, gone)


@settings(max_examples=times(30))
@given(seed=st.integers(0, 2**32), data=st.data())
def test_telling_everything_twice_changes_nothing(seed: int, data: Any) -> None:
    dice = Dice(seed)
    world = made_up_world(dice, nodes=4, pods=15)
    rows = Rows(world)
    pod = dice.pod(claims=claim_names(world))
    verdict, version = rows.verdict(pod), rows.tables.version
    rows.take_in(world)
    assert rows.tables.version == version
    assert rows.verdict(pod) is verdict
    for uid in list(world.pods):
        rows.tables.remove_pod(uid)
        rows.tables.remove_pod(uid)
    compare(
        World(
            nodes=world.nodes,
            namespaces=world.namespaces,
            volumes=world.volumes,
            claims=world.claims,
            classes=world.classes,
        ),
        rows,
        pod,
    )
