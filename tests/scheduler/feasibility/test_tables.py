"""The cluster's arrays: growing, reused rows, any order of events, and what is forgotten and counted anew."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kube.objects.node import Node
from shoal.scheduler.feasibility.tables import ClusterTables
from tests.scheduler.feasibility import reference
from tests.scheduler.feasibility.made_up import HOST, Dice
from tests.scheduler.feasibility.rows import Rows, pod_of
from tests.scheduler.feasibility.test_reference import claim_names, compare, made_up_world, put
from tests.scheduler.feasibility.world import Manifest, World
from tests.soak import times


def apart_from(app: str) -> Manifest:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def simple(name: str, app: str, on: str = "", **spec: object) -> Manifest:
    metadata = {"name": name, "namespace": "red", "uid": name, "labels": {"app": app}}
    node = {"nodeName": on} if on else {}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}], **node, **spec}}


def node(name: str) -> Manifest:
    status = {"allocatable": {"pods": "110"}}
    return {"metadata": {"name": name, "labels": {HOST: name}}, "spec": {}, "status": status}


def test_terms_of_others_hold_where_they_are_now() -> None:
    rows = Rows(World(nodes={name: node(name) for name in ("a", "b", "c")}))
    waiting = simple("w", "x")
    rows.add_pod(simple("one", "y", on="a", affinity=apart_from("x")))
    assert rows.names(rows.verdict(waiting).allowed) == {"b", "c"}
    rows.add_pod(simple("two", "y", on="b", affinity=apart_from("x")))
    assert rows.names(rows.verdict(waiting).allowed) == {"c"}
    rows.tables.remove_pod("one")
    assert rows.names(rows.verdict(waiting).allowed) == {"a", "c"}
    rows.tables.remove_pod("two")
    assert rows.verdict(waiting).allowed.sum() == 3


def test_a_pod_that_begins_to_leave_counts_no_more_for_spread() -> None:
    rows = Rows(World(nodes={name: node(name) for name in ("a", "b")}))
    there = simple("one", "x", on="a")
    rows.add_pod(there)
    constraint = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    waiting = simple("w", "x", topologySpreadConstraints=[constraint])
    assert rows.names(rows.verdict(waiting).allowed) == {"b"}
    there["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    rows.add_pod(there)
    assert rows.names(rows.verdict(waiting).allowed) == {"a", "b"}


def test_namespaces_change_who_is_meant() -> None:
    rows = Rows(World(nodes={name: node(name) for name in ("a", "b")}))
    rows.add_pod(simple("one", "x", on="a"))
    affinity = apart_from("x")
    term = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    term["namespaceSelector"] = {"matchLabels": {"team": "y"}}
    waiting = simple("w", "z", affinity=affinity)
    carrier = simple("carrier", "z", on="b", affinity=affinity)
    met = simple("v", "x")
    rows.add_pod(carrier)
    for labels, allowed in (({}, {"a", "b"}), ({"team": "y"}, {"b"}), ({"team": "n"}, {"a", "b"})):
        rows.take_in(World(namespaces={"red": {"metadata": {"name": "red", "labels": labels}}}))
        assert rows.names(rows.verdict(waiting).allowed) == allowed
        assert rows.names(rows.verdict(met).allowed) == ({"a"} if labels == {"team": "y"} else {"a", "b"})
    rows.tables.remove_namespace("red")
    assert rows.names(rows.verdict(waiting).allowed) == {"a", "b"}


def test_rows_grow_under_verdicts() -> None:
    dice = Dice(7)
    world = made_up_world(dice, nodes=3, pods=5)
    rows = Rows(world)
    waiting = [dice.pod(claims=claim_names(world)) for _ in range(8)]
    for number in range(150):
        name = f"more-{number}"
        world.nodes[name] = dice.node(name)
        rows.set_node(world.nodes[name])
        rows.add_pod(put(world, dice))
        if number % 30 == 0:
            for pod in waiting:
                compare(world, rows, pod)
    for pod in waiting:
        compare(world, rows, pod)


@settings(max_examples=times(40))
@given(seed=st.integers(0, 2**32))
def test_the_order_of_events_does_not_matter(seed: int) -> None:
    """Pods before their nodes, claims before their classes."""
    dice = Dice(seed)
    world = made_up_world(dice, nodes=5, pods=15)
    rows = Rows()
    steps = [
        *(World(nodes={name: item}) for name, item in world.nodes.items()),
        *(World(pods={uid: item}) for uid, item in world.pods.items()),
        *(World(namespaces={name: item}) for name, item in world.namespaces.items()),
        *(World(volumes={name: item}) for name, item in world.volumes.items()),
        *(World(claims={name: item}) for name, item in world.claims.items()),
        *(World(classes={name: item}) for name, item in world.classes.items()),
    ]
    dice.rng.shuffle(steps)
    waiting = [dice.pod(claims=claim_names(world)) for _ in range(5)]
    for step in steps:
        rows.take_in(step)
        for pod in waiting:
            rows.verdict(pod)
    for pod in waiting:
        compare(world, rows, pod)


def test_selectors_beyond_the_number_kept_are_counted_anew() -> None:
    world = World(nodes={name: node(name) for name in ("a", "b")})
    rows = Rows(world)
    waiting = [simple(f"w{number}", "none", affinity=apart_from(f"app-{number}")) for number in range(600)]
    for pod in waiting:
        assert rows.names(rows.verdict(pod).allowed) == {"a", "b"}
    for number in range(0, 600, 50):
        there = simple(f"there-{number}", f"app-{number}", on="a")
        world.pods[there["metadata"]["uid"]] = there
        rows.add_pod(there)
    for pod in waiting:
        assert rows.names(rows.verdict(pod).allowed) == reference.allowed(world, pod)


def test_a_row_of_another_node_does_not_inherit_its_pods() -> None:
    rows = Rows(World(nodes={"old": node("old")}))
    rows.add_pod(simple("bound", "x", on="old"))
    rows.tables.add_pod(pod_of(simple("assumed", "x")), rows.rows["old"])
    waiting = simple("w", "y", affinity=apart_from("x"))
    assert not rows.names(rows.verdict(waiting).allowed)
    row = rows.rows["old"]
    rows.remove_node("old")
    early = simple("early", "z", on="new")
    rows.add_pod(early)  # the ledger may know the pod before the node
    rows.set_node(node("new"))
    assert rows.rows["new"] == row
    assert rows.names(rows.verdict(waiting).allowed) == {"new"}
    assert not rows.names(rows.verdict(simple("v", "y", affinity=apart_from("z"))).allowed)


def test_a_node_that_comes_back_finds_its_pods() -> None:
    rows = Rows(World(nodes={"a": node("a")}))
    rows.add_pod(simple("bound", "x", on="a"))
    row = rows.rows["a"]
    rows.tables.remove_node(row)
    waiting = simple("w", "y", affinity=apart_from("x"))
    assert not rows.verdict(waiting).allowed.any()
    assert rows.verdict(waiting).rejections == ()
    rows.tables.set_node(row, msgspec.convert(node("a"), Node))
    assert [refusal.filter for refusal in rows.verdict(waiting).rejections] == ["InterPodAffinity"]


def test_only_what_could_alter_a_verdict_counts_as_a_change() -> None:
    rows = Rows(World(nodes={"a": node("a")}))
    rows.verdict(simple("w", "x", nodeSelector={"disk": "ssd"}))
    before = rows.tables.version

    def change(labels: dict[str, str], conditions: list[Manifest]) -> int:
        made = node("a")
        made["metadata"]["labels"] |= labels
        made["status"]["conditions"] = conditions
        rows.set_node(made)
        return rows.tables.version

    assert change({}, [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]) == before
    assert change({"unasked": "1"}, []) == before
    assert change({"disk": "ssd"}, []) > before
    assert rows.names(rows.verdict(simple("w", "x", nodeSelector={"disk": "ssd"})).allowed) == {"a"}
    # Asked for the first time: the value that came before anybody asked is there.
    rows.set_node({**node("a"), "metadata": {"name": "a", "labels": {"unasked": "2"}}})
    assert rows.names(rows.verdict(simple("w", "x", nodeSelector={"unasked": "2"})).allowed) == {"a"}


def test_nothing_is_left_of_pods_that_are_gone() -> None:
    dice = Dice(3)
    world = made_up_world(dice, nodes=4, pods=40)
    rows = Rows(world)
    for _ in range(10):
        rows.verdict(dice.pod(claims=claim_names(world)))
    for uid in list(world.pods):
        rows.tables.remove_pod(uid)
    pods = rows.tables.pods
    assert not pods.placed
    assert not pods.ports
    assert not pods.claims
    assert not pods.existing_terms_for("red", {"app": "a"})
    fresh = ClusterTables()
    for name in world.nodes:
        fresh.set_node(rows.rows[name], msgspec.convert(world.nodes[name], Node))
    for resource, free in rows.tables.free.amounts.items():
        assert (free == fresh.free.of(resource)).all(), resource
