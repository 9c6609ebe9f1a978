"""The reconcile on a small cluster: it comes to rest, whatever the operator is killed between."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract.operator import FINALIZER, TAINT_STARTING
from shoal.operator.actions import Action, Apply, Delete, PatchNode, SetFinalizer, SetStatus, Tell
from shoal.operator.reconcile import due, in_force, needs_all_pods, reconcile
from shoal.operator.world import World
from tests.operator.cluster_model import played, settled
from tests.operator.scene import LABELLED, PREFIX, PRESENT, node, nvidia_policy, operands, policy, world

#: More passes than any change needs.
ENOUGH = 12


def rest(start: World) -> World:
    """The world when the operator has nothing to do any more."""
    there = start
    for _ in range(ENOUGH):
        actions = [one for one in reconcile(there) if not isinstance(one, Tell)]
        after = there
        for action in actions:
            after = played(after, action)
        after = settled(after)
        if not actions and after == there:
            return there
        there = after
    raise AssertionError(f"still at it: {actions}")


def bare(**parts: Any) -> World:
    """A cluster with three GPU nodes and one without, on which nothing is."""
    return world(
        node("a", PRESENT, taints=(TAINT_STARTING,)),
        node("b", {"gpushare": "true"}),
        node("c", {"gpu": "on"}),
        node("d", {}),
        **{"policies": (policy(operator={"startupTaint": True}),), **parts},
    )


def state(there: World) -> Any:
    return (there.policies[0].get("status") or {}).get("state")


def test_from_nothing_to_ready() -> None:
    there = rest(bare())
    assert state(there) == "ready"
    assert there.policies[0]["status"]["ready"] == "3/3"
    assert there.policies[0]["metadata"]["finalizers"] == [FINALIZER]
    assert not there.nodes["a"].spec.taints
    assert there.nodes["b"].metadata.labels[PREFIX + "client"] == "true"
    assert not there.nodes["d"].metadata.labels
    assert {name for kind, name in there.owned if kind == "RuntimeClass"} == {"nvidia", "nvidia-cdi", "nvidia-legacy"}


def test_the_first_write_is_the_finalizer_and_the_last_the_status() -> None:
    actions = reconcile(bare())
    assert isinstance(actions[0], SetFinalizer)
    assert isinstance(actions[-1], SetStatus)
    # Nodes are labelled before there is a DaemonSet, which then makes its pods all at once.
    labelled = [number for number, one in enumerate(actions) if isinstance(one, PatchNode)]
    kinds = {n: one.manifest["kind"] for n, one in enumerate(actions) if isinstance(one, Apply)}
    assert max(labelled) < min(number for number, kind in kinds.items() if kind == "DaemonSet")
    assert max(number for number, kind in kinds.items() if kind != "DaemonSet") < min(labelled)


def test_what_the_chart_has_no_manifest_of_any_more_stays_while_the_policy_enables_it() -> None:
    there = rest(bare())
    driver = [key for key in there.owned if key[1] == "shoal-driver"]
    assert driver
    without = dataclasses.replace(
        there, operands={key: value for key, value in there.operands.items() if key != "driver"}
    )
    assert not [one for one in reconcile(without) if isinstance(one, Delete)]
    off = ({**without.policies[0], "spec": {"driver": {"enabled": False}}},)
    gone = [one for one in reconcile(dataclasses.replace(without, policies=off)) if isinstance(one, Delete)]
    assert {one.name for one in gone} == {"shoal-driver"}


def walk(start: World) -> None:
    """Kill the operator after every write of every pass, each time with and without the others having caught up."""
    final = rest(start)
    pending = [start]
    passes = 0
    while pending and passes < ENOUGH:
        passes += 1
        there = pending.pop()
        actions: list[Action] = [one for one in reconcile(there) if not isinstance(one, Tell)]
        if not actions:
            continue
        after = there
        for action in actions:
            after = played(after, action)
            for begun in (after, settled(after)):
                assert _comparable(rest(begun)) == _comparable(final)
        pending.append(settled(after))


def _comparable(there: World) -> Any:
    return there.policies, there.owned.keys(), there.nodes, there.operand_pods.keys()


def test_killed_between_any_two_writes_while_installing() -> None:
    walk(bare())


@pytest.mark.parametrize(
    "spec",
    [
        {"driver": {"enabled": False}, "toolkit": {"enabled": False}},
        {"devicePlugin": {"enabled": False}},
        {"sharing": {"mpsClients": 3}},
        {"operator": {"runtimeClass": ""}},
    ],
    ids=str,
)
def test_killed_between_any_two_writes_while_changing(spec: dict[str, Any]) -> None:
    there = rest(bare())
    changed: dict[str, Any] = {**there.policies[0], "spec": spec}
    changed["metadata"] = {**changed["metadata"], "generation": 2}
    walk(dataclasses.replace(there, policies=(changed,)))


@pytest.mark.parametrize("key", ["driver", "toolkit", "devicePlugin", "gfd", "dcgmExporter"])
def test_each_component_off_and_on(key: str) -> None:
    there = rest(bare())

    def with_spec(now: World, spec: Any) -> World:
        return rest(dataclasses.replace(now, policies=({**now.policies[0], "spec": spec},)))

    off = with_spec(there, {key: {"enabled": False}})
    gone = set(there.owned) - set(off.owned)
    assert {kind for kind, _ in gone} >= {"DaemonSet"}
    assert state(off) == "ready"
    on = with_spec(off, there.policies[0]["spec"])
    assert set(on.owned) == set(there.owned)
    assert state(on) == "ready"


def test_drift_of_every_object_is_repaired() -> None:
    there = rest(bare())
    for key, found in there.owned.items():
        broken = {**found, "metadata": {**found["metadata"], "labels": {}}}
        drifted = dataclasses.replace(there, owned={**there.owned, key: broken})
        assert [one for one in reconcile(drifted) if isinstance(one, Apply)], key
        assert rest(drifted).owned[key]["metadata"]["labels"] == found["metadata"]["labels"]
        without = dataclasses.replace(there, owned={one: obj for one, obj in there.owned.items() if one != key})
        assert set(rest(without).owned) == set(there.owned)


def test_objects_that_are_not_wanted_go() -> None:
    there = rest(bare())
    other: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "old", "namespace": "x", "uid": "1"},
    }
    more = dataclasses.replace(there, owned={**there.owned, ("ConfigMap", "old"): other})
    assert reconcile(more) == [Delete("v1", "ConfigMap", "old", "x", "1")]
    going = {**other, "metadata": {**other["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert reconcile(dataclasses.replace(there, owned={**there.owned, ("ConfigMap", "old"): going})) == []


def test_labels_vanish_and_return() -> None:
    there = rest(bare())
    without = dataclasses.replace(
        there, nodes={**there.nodes, "a": node("a", LABELLED | {"nvidia.com/gpu.present": "false"})}
    )
    gone = rest(without)
    assert gone.nodes["a"].metadata.labels == {"nvidia.com/gpu.present": "false"}
    assert gone.policies[0]["status"]["ready"] == "2/2"
    back = rest(dataclasses.replace(gone, nodes={**gone.nodes, "a": node("a", PRESENT)}))
    assert back.policies[0]["status"]["ready"] == "3/3"


def test_an_administrators_label_stays() -> None:
    there = rest(bare())
    off = node("a", LABELLED | {PREFIX + "dcgm-exporter": "false"})
    after = rest(dataclasses.replace(there, nodes={**there.nodes, "a": off}))
    assert after.nodes["a"].metadata.labels[PREFIX + "dcgm-exporter"] == "false"
    assert state(after) == "ready"


def test_two_policies_the_oldest_wins() -> None:
    old = policy("old", born="2026-01-01T00:00:00Z")
    young = policy("a-young", born="2026-02-01T00:00:00Z", devicePlugin={"enabled": False})
    there = rest(bare(policies=(young, old)))
    states = {one["metadata"]["name"]: one["status"] for one in there.policies}
    assert states["old"]["state"] == "ready"
    assert states["a-young"]["state"] == "ignored"
    assert "old" in states["a-young"]["waitingFor"]
    assert ("DaemonSet", "shoal-agent") in there.owned
    # The young one takes over when the old one is gone.
    alone = rest(
        dataclasses.replace(there, policies=tuple(p for p in there.policies if p["metadata"]["name"] != "old"))
    )
    assert state(alone) == "ready"
    assert ("DaemonSet", "shoal-agent") not in alone.owned


def test_of_equal_age_the_lowest_name_wins() -> None:
    first, second = policy("a"), policy("b")
    assert in_force((second, first)) is first
    assert in_force(()) is None


def test_without_a_policy_nothing_is_touched() -> None:
    assert reconcile(bare(policies=())) == []
    assert not needs_all_pods(bare(policies=()))
    assert due(bare()) is None


def test_beside_nvidias_operator() -> None:
    theirs = nvidia_policy(devicePlugin={"enabled": False}, gfd={"enabled": False})
    nodes = {one.metadata.name: one for one in (node("a", LABELLED), node("g", {"gpushare": "true"}))}
    there = rest(bare(nvidia_policies=(theirs,), nodes=nodes))
    assert {name for kind, name in there.owned if kind == "DaemonSet"} == {
        *("shoal-agent", "shoal-mps", "shoal-validator", "shoal-validator-runtime"),
        *("shoal-discovery-bus", "shoal-discovery-cards"),
    }
    assert not [name for kind, name in there.owned if kind == "RuntimeClass"]
    assert state(there) == "ready"
    on = rest(dataclasses.replace(there, nvidia_policies=(nvidia_policy(),)))
    assert not {"shoal-agent", "shoal-mps"} & {name for _, name in on.owned}
    assert state(on) == "notReady"
    back = rest(dataclasses.replace(on, nvidia_policies=()))
    assert {"shoal-agent", "shoal-driver"} <= {name for _, name in back.owned}


def test_a_node_gets_one_write_for_what_may_be_written_at_once() -> None:
    there = settled(rest(bare()))
    fresh = dataclasses.replace(there, nodes={**there.nodes, "new": node("new", PRESENT)})
    written = [one.name for one in reconcile(fresh) if isinstance(one, PatchNode)]
    assert written == ["new"]


def test_manifests_that_change_are_followed() -> None:
    there = rest(bare())
    newer = operands()
    for one in newer["metrics"]:
        if one["kind"] == "DaemonSet":
            one["spec"]["template"]["spec"]["containers"][0]["image"] = "shoal:2"
    after = rest(dataclasses.replace(there, operands=newer))
    pod = after.owned["DaemonSet", "shoal-metrics"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "shoal:2"


_SECTIONS = ("driver", "toolkit", "devicePlugin", "gfd", "dcgmExporter", "cdi")
_SPECS = st.dictionaries(st.sampled_from(_SECTIONS), st.fixed_dictionaries({"enabled": st.booleans()}))
_LABELS = st.dictionaries(
    st.sampled_from(["nvidia.com/gpu.present", "gpushare", PREFIX + "operands", PREFIX + "driver", PREFIX + "client"]),
    st.sampled_from(["true", "false", "", "paused-for-driver-upgrade"]),
)


@given(_SPECS, st.lists(_LABELS, max_size=3), st.none() | _SPECS)
def test_it_comes_to_rest_and_stays_there(
    spec: dict[str, Any], labels: list[dict[str, str]], theirs: dict[str, Any] | None
) -> None:
    nodes = {f"n{number}": node(f"n{number}", found) for number, found in enumerate(labels)}
    there = rest(
        world(
            policies=(policy(**spec),),
            nodes=nodes,
            nvidia_policies=() if theirs is None else (nvidia_policy(**theirs),),
        )
    )
    assert reconcile(there) == []
    later = dataclasses.replace(there, now=there.now + 10_000)
    assert reconcile(later) == []
    served = there.policies[0]["status"]["ready"].split("/")[1]
    assert not (state(there) == "ready" and served == "0")
