"""What kube-scheduler is answered, on books that the test writes."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.policy import PodDisruptionBudget, PodDisruptionBudgetSpec
from shoal.kube.store import Change, ChangeType
from shoal.model.contract import mechanisms
from shoal.placement.policies import POLICIES
from shoal.scheduler.extender import filtering, refused
from shoal.scheduler.extender.verbs import scores
from tests.scheduler.extender.requests import args, pod, preemption
from tests.scheduler.extender.scene import Scene

FULL = "Insufficient GPU Memory in one device"


@pytest.fixture
def scene() -> Scene:
    """Node `a` has 4 and 16 GiB free, `b` 2 and 2, `bare` no card."""
    scene = Scene()
    for name in ("a", "b"):
        scene.add_node(name, 2)
    scene.add_node("bare", 0)
    scene.bind(pod("p1", mem="12"), "a", 0, 12)
    scene.bind(pod("p2", mem="14", priority=1), "b", 0, 14)
    scene.bind(pod("p3", mem="14", priority=2), "b", 1, 14)
    assert (scene.free("a"), scene.free("b")) == ([4, 16], [2, 2])
    return scene


def test_filter_by_cards(scene: Scene) -> None:
    answer = scene.filter(args(pod(mem="8"), ["b", "a", "bare", "new"]))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {"b": FULL, "new": "The node is not known to the GPU scheduler yet"},
        "FailedAndUnresolvableNodes": {"bare": "The node is not for GPU share, need skip"},
        "Error": "",
    }


@pytest.mark.parametrize("mechanism", ["claims", "to-claims", "to-devices"])
async def test_nodes_that_serve_a_name_by_claims_are_not_for_kube_scheduler(scene: Scene, mechanism: str) -> None:
    """Nor those that are changing that; pods of other names go there."""
    known = scene.state.node("a")
    assert known is not None
    annotations = {
        **known.metadata.annotations,
        mechanisms.ANNOTATION_MECHANISMS: f'{{"aliyun.com/gpu-mem": "{mechanism}"}}',
    }
    meta = msgspec.structs.replace(known.metadata, annotations=annotations)
    scene.state.on_node(Change(ChangeType.MODIFIED, known, msgspec.structs.replace(known, metadata=meta)))
    answer = scene.filter(args(pod(mem="1"), ["a", "b"]))
    assert answer["NodeNames"] == ["b"]
    assert "such pods need the gpu-scheduler" in answer["FailedAndUnresolvableNodes"]["a"]
    assert "a" not in answer["FailedNodes"]
    late = pod("late", mem="1")
    scene.add_pod(late)
    meta = late["metadata"]
    binding = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": "a"}
    told = json.loads(await scene.verbs.bind(json.dumps(binding).encode()))
    assert told["Error"] == "a does not serve aliyun.com/gpu-mem by devices"
    assert scene.state.engine.ledger.booking(meta["uid"]) is None


def test_details_are_told_when_no_node_is_left(scene: Scene) -> None:
    answer = scene.filter(args(pod(mem="8"), ["b", "bare", "new"]))
    assert answer == {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": {
            "b": f"{FULL}: b (0 of 2 cards fit 8192 MiB, 1 wanted: GPU0 2048 MiB free of 16384, 8192 wanted, "
            "GPU1 2048 MiB free of 16384, 8192 wanted)",
            "new": "The node is not known to the GPU scheduler yet",
        },
        "FailedAndUnresolvableNodes": {"bare": "The node bare is not for GPU share, need skip"},
        "Error": "",
    }


def test_filter_answers_in_the_form_it_was_asked(scene: Scene) -> None:
    answer = scene.filter(args(pod(mem="2"), ["a", "b", "bare"], whole=True))
    assert answer["NodeNames"] is None
    assert [node["metadata"]["labels"]["l"] for node in answer["Nodes"]["items"]] == ["a", "b"]


def test_what_no_empty_card_could_hold_is_unresolvable(scene: Scene) -> None:
    answer = scene.filter(args(pod(mem="17"), ["a", "b"]))
    assert answer["FailedNodes"] == {}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"a", "b"}
    answer = scene.filter(args(pod(gpu="2"), ["a", "b"]))
    assert set(answer["FailedNodes"]) == {"a", "b"}
    assert all(reason.startswith("Insufficient whole GPUs") for reason in answer["FailedNodes"].values())
    answer = scene.filter(args(pod(gpu="3"), ["a", "b"]))
    assert set(answer["FailedAndUnresolvableNodes"]) == {"a", "b"}


def test_a_pod_that_fits_nowhere_counts_as_demand(scene: Scene) -> None:
    engine = scene.state.engine
    waiting = scene.add_pod(pod("w", mem="16"))
    pod_class = engine.class_of(scene.state.request(waiting))
    for _ in range(2):
        scene.filter(args(pod("w", mem="16"), ["b"]))
        assert engine.demand.counts[pod_class] == 1


def test_a_bad_request_is_told_in_the_words_of_the_model(scene: Scene) -> None:
    answer = scene.filter(args(pod(mem="-1"), ["a", "b"]))
    reasons = set(answer["FailedAndUnresolvableNodes"].values())
    assert answer["NodeNames"] == []
    assert len(reasons) == 1
    assert "-1" in reasons.pop()
    odd = pod(mem="1")
    odd["metadata"]["annotations"] = {"shoal.dev/policy": "nonsense"}
    answer = scene.filter(args(odd, ["a"]))
    assert "no policy 'nonsense'" in answer["FailedAndUnresolvableNodes"]["a"]


def test_pods_without_gpus_pass_everywhere(scene: Scene) -> None:
    names = ["a", "b", "bare", "new"]
    assert scene.filter(args(pod(cpu="1"), names))["NodeNames"] == names
    assert set(scene.prioritize(args(pod(cpu="1"), names)).values()) == {0}
    assert scene.preempt(preemption(pod(cpu="1", priority=5), {"b": ["uid-p2"]})).keys() == {"b"}


def test_details_are_for_the_first_nodes_only() -> None:
    scene = Scene()
    names = [f"n{n}" for n in range(100)]
    for name in names:
        scene.add_node(name, 1)
        scene.bind(pod(f"on-{name}", mem="10"), name, 0, 10)
    answer = scene.filter(args(pod(mem="8"), names))
    reasons = answer["FailedNodes"]
    assert len(reasons) == 100
    assert len(set(reasons.values())) == filtering.DETAILED + 1
    assert reasons["n99"] == FULL
    assert reasons["n0"].startswith(f"{FULL}: n0 (")
    assert max(map(len, reasons.values())) <= filtering.MAX_DETAIL


def test_an_unreadable_request_is_answered_with_an_error(scene: Scene) -> None:
    assert "cannot be read" in scene.filter(b"{")["Error"]
    assert scene.filter(b'{"NodeNames":[]}')["Error"] == "arg or pod is nil"


def test_prioritize_lets_the_best_stand_out(scene: Scene) -> None:
    scene.add_node("c", 2)
    found = scene.prioritize(args(pod(mem="2"), ["a", "b", "c", "bare", "new"]))
    assert found["b"] == 10, "binpack: the fullest card"
    assert found["a"] > found["c"] > found["bare"] == found["new"] == 0
    assert found["a"] <= 8


@given(st.lists(st.floats(-1e6, 1e6) | st.just(-np.inf), min_size=1, max_size=60))
def test_scores_keep_the_order(worths: list[float]) -> None:
    fitting = [place for place, worth in enumerate(worths) if worth > -np.inf]
    best = max(fitting, key=lambda place: worths[place]) if fitting else None
    found = scores(np.array(worths), np.array(worths) > -np.inf, best)
    assert all(0 <= score <= 10 for score in found)
    assert [score > 0 for score in found] == [worth > -np.inf for worth in worths]
    for one in range(len(worths)):
        for other in range(len(worths)):
            if worths[one] < worths[other]:
                assert found[one] <= found[other]
    if best is not None:
        assert [place for place, score in enumerate(found) if score == 10] == [best]
        levels = len({worths[place] for place in fitting if place != best})
        assert len({found[place] for place in fitting if place != best}) == min(levels, 8)


# Holds


def test_the_best_node_is_held_for_the_next_pods() -> None:
    scene = Scene()
    scene.add_node("a", 1)
    scene.add_node("b", 1)
    names = ["a", "b"]
    assert scene.prioritize(args(pod("one", mem="10"), names))["a"] == 10
    assert (scene.free("a"), scene.free("b")) == ([6], [16])
    assert scene.filter(args(pod("two", mem="10"), names))["NodeNames"] == ["b"]
    assert scene.free("b") == [6], "one node was left, so kube-scheduler takes it"
    scene.filter(args(pod("one", mem="10"), names))
    assert scene.free("a") == [6], "tried anew: the old hold made way for the new one"
    assert len(scene.verbs.holds) == 2


def test_a_pod_refused_for_holds_alone_is_an_error_and_no_refusal() -> None:
    scene = Scene()
    scene.add_node("a", 1)
    scene.filter(args(pod("one", mem="10"), ["a"]))
    answer = scene.filter(args(pod("two", mem="10"), ["a"]))
    assert "held for some seconds for other pods" in answer["Error"]
    assert answer["FailedNodes"] == {}
    answer = scene.filter(args(pod("three", mem="17"), ["a"]))
    assert (answer["Error"], set(answer["FailedAndUnresolvableNodes"])) == ("", {"a"})


def test_a_refused_pod_that_fits_by_now_is_tried_again(scene: Scene) -> None:
    body = args(pod("late", mem="8"), ["b", "bare"])
    assert scene.filter(body)["NodeNames"] == []
    scene.verbs.tend()
    assert scene.again == [], "nothing has changed"
    scene.gone(scene.bind(pod("other", mem="4"), "a", 0, 4))
    scene.verbs.tend()
    assert scene.again == [], "it was not asked for on that node"
    scene.gone(scene.add_pod({**pod("p3", mem="14", priority=2), "spec": {"nodeName": "b", "containers": []}}))
    scene.verbs.tend()
    assert [pod.metadata.name for pod in scene.again] == ["late"]
    scene.verbs.tend()
    assert len(scene.again) == 1, "once is enough"
    assert scene.filter(body)["NodeNames"] == ["b"]


def test_a_pod_that_was_asked_for_again_is_not_pointed_out(scene: Scene) -> None:
    assert scene.filter(args(pod("late", mem="8"), ["b"]))["NodeNames"] == []
    assert scene.filter(args(pod("late", mem="8"), ["a", "b"]))["NodeNames"] == ["a"]
    scene.gone(scene.add_pod({**pod("p3", mem="14", priority=2), "spec": {"nodeName": "b", "containers": []}}))
    scene.verbs.tend()
    assert scene.again == []


def test_many_refused_pods_are_pointed_out_a_few_at_a_time(scene: Scene) -> None:
    for n in range(refused.MOST + 10):
        assert scene.filter(args(pod(f"late-{n}", mem="8"), ["b"]))["NodeNames"] == []
    scene.gone(scene.add_pod({**pod("p3", mem="14", priority=2), "spec": {"nodeName": "b", "containers": []}}))
    scene.verbs.tend()
    assert len(scene.again) == refused.AT_ONCE
    for _ in range(refused.MOST // refused.AT_ONCE):
        scene.verbs.tend()
    assert len({pod.metadata.uid for pod in scene.again}) == len(scene.again) == refused.MOST


def test_holds_end_by_themselves() -> None:
    scene = Scene()
    scene.add_node("a", 1)
    scene.filter(args(pod("one", mem="10"), ["a"]))
    scene.now += 29.9
    scene.verbs.holds.expire()
    assert scene.free("a") == [6]
    scene.now += 0.2
    assert scene.filter(args(pod("two", mem="10"), ["a"]))["NodeNames"] == ["a"]
    assert scene.verbs.holds.uids() == {"uid-two"}
    scene.now += 31
    scene.verbs.holds.expire()
    assert (scene.free("a"), len(scene.verbs.holds)) == ([16], 0)
    assert scene.metrics.holds.value("expired") == 2


def test_a_hold_goes_with_its_pod() -> None:
    scene = Scene()
    scene.add_node("a", 1)
    waiting = scene.add_pod(pod("one", mem="10"))
    scene.filter(args(pod("one", mem="10"), ["a"]))
    scene.gone(waiting)
    assert scene.free("a") == [16]
    scene.now += 31
    scene.verbs.holds.expire()
    assert scene.free("a") == [16]


def test_a_pod_bound_by_somebody_else_keeps_what_it_has() -> None:
    scene = Scene()
    scene.add_node("a", 2)
    scene.filter(args(pod("one", mem="10"), ["a"]))
    held = scene.verbs.holds.of("uid-one")
    assert held is not None
    other = 1 - held.allocation.containers[0].cards[0].index
    scene.bind(pod("one", mem="10"), "a", other, 10)
    expected = [6, 16] if other == 0 else [16, 6]
    assert scene.free("a") == expected
    scene.now += 31
    scene.verbs.holds.expire()
    assert scene.free("a") == expected
    scene.filter(args(pod("one", mem="10"), ["a"]))
    assert scene.free("a") == expected


@given(
    st.lists(st.tuples(st.sampled_from(["filter", "prioritize", "wait", "gone"]), st.integers(0, 5)), max_size=40),
    st.sampled_from([0, 100]),
)
def test_no_sequence_leaks_or_overbooks(steps: list[tuple[str, int]], all_up_to: int) -> None:
    """Whatever is asked in whatever order: cards are never over-booked, and time alone frees all of them."""
    scene = Scene(all_up_to=all_up_to)
    for name in ("a", "b"):
        scene.add_node(name, 2)
    for step, number in steps:
        manifest = pod(f"p{number}", mem=str(5 + number))
        if step == "wait":
            scene.now += 6 * number
        elif step == "gone":
            scene.gone(scene.add_pod(manifest))
        elif step == "filter":
            scene.filter(args(manifest, ["a", "b"]))
        else:
            scene.prioritize(args(manifest, ["a", "b"]))
        assert scene.state.engine.ledger.over_booked() == []
        assert len(list(scene.state.engine.ledger.bookings())) <= len(scene.verbs.holds)
    scene.now += 30
    scene.verbs.holds.expire()
    assert (scene.free("a"), scene.free("b"), len(scene.verbs.holds)) == ([16, 16], [16, 16], 0)


# The best node alone

FAVOURED = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "l", "operator": "Exists"}]}}
    ]
}


def test_asked_about_many_nodes_the_best_alone_is_offered_and_held() -> None:
    scene = Scene(all_up_to=2)
    for name in ("a", "b", "c"):
        scene.add_node(name, 1)
    scene.bind(pod("p1", mem="6"), "b", 0, 6)
    assert scene.filter(args(pod("few"), ["a", "b"]))["NodeNames"] == ["a", "b"]
    for whole in (False, True):
        answer = scene.filter(args(pod("one"), ["a", "b", "c", "new"], whole=whole))
        names = [node["metadata"]["name"] for node in answer["Nodes"]["items"]] if whole else answer["NodeNames"]
        assert names == ["b"], "binpack: the fullest card"
        assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}
        assert scene.free("b") == [6], "held"
    answer = scene.filter(args(pod("two", mem="17"), ["a", "b", "c"]))
    assert (answer["NodeNames"], len(answer["FailedAndUnresolvableNodes"])) == ([], 3)
    liking = pod("liking")
    liking["spec"]["affinity"] = {"nodeAffinity": FAVOURED}
    assert scene.filter(args(liking, ["a", "b", "c"]))["NodeNames"] == ["a", "b", "c"]


@given(
    st.lists(st.integers(0, 16), min_size=6, max_size=6),
    st.lists(st.sampled_from(["n0", "n1", "n2", "n3", "n4", "n5", "new", ""]), min_size=1, unique=True),
    st.integers(1, 17),
    st.sampled_from(sorted(POLICIES)),
)
def test_the_best_alone_is_the_one_prioritize_would_choose(
    full: list[int], names: list[str], mem: int, policy: str
) -> None:
    """The way by scores is the reference: the same node, the same cards, and the same reasons when none fits."""
    scenes = [Scene(policy=policy, all_up_to=up_to) for up_to in (0, 100)]
    found = []
    for scene in scenes:
        for number, used in enumerate(full):
            scene.add_node(f"n{number}", 1)
            if used:
                scene.bind(pod(f"on-{number}", mem=str(used)), f"n{number}", 0, used)
        answer = scene.filter(args(pod("p", mem=str(mem)), names))
        if answer["NodeNames"]:
            scene.prioritize(args(pod("p", mem=str(mem)), answer["NodeNames"]))
            answer = {}
        hold = scene.verbs.holds.of("uid-p")
        found.append((answer, None if hold is None else hold.allocation))
    alone, scored = found
    assert alone == scored


# Preempt


def test_preempt_keeps_nodes_where_pods_that_go_make_room(scene: Scene) -> None:
    wanted = pod(mem="8", priority=5)
    for whole in (False, True):
        found = scene.preempt(preemption(wanted, {"b": ["uid-p3"], "bare": ["u"]}, whole=whole))
        assert found == {"b": {"Pods": [{"UID": "uid-p2"}], "NumPDBViolations": 0}}, "the less important of two"
    assert scene.preempt(preemption(pod(mem="8", priority=1), {"b": ["uid-p2"]})) == {}, "nobody below"
    assert scene.preempt(preemption(pod(mem="17", priority=5), {"b": ["uid-p2"]})) == {}, "no card could hold it"


def test_nobody_gives_way_while_kube_scheduler_knows_of_room_the_books_do_not_know_of(scene: Scene) -> None:
    scene.bind(pod("p4", mem="14"), "a", 1, 14)
    wanted = pod("wanted", mem="8", priority=5)
    assert scene.filter(args(wanted, ["b"]))["NodeNames"] == [], "by kube-scheduler's count there is room on b"
    on_a = preemption(wanted, {"a": ["uid-p4"]})
    assert scene.preempt(on_a) == {}
    assert scene.preempt(preemption(wanted, {"a": ["uid-p4"], "b": ["uid-p2"]})).keys() == {"a", "b"}
    assert scene.preempt(on_a) == {}
    scene.now += 11
    assert scene.preempt(on_a).keys() == {"a"}, "it seems not to count at all"


@pytest.mark.parametrize("pointed_out", [False, True])
def test_nobody_gives_way_when_the_books_have_caught_up_since_the_refusal(scene: Scene, pointed_out: bool) -> None:
    scene.bind(pod("p4", mem="14"), "a", 1, 14)
    leaving = scene.bind(pod("p2", mem="14", priority=1), "b", 0, 14)
    wanted = pod("wanted", mem="8", priority=5)
    assert scene.filter(args(wanted, ["b"]))["NodeNames"] == [], "kube-scheduler has heard that p2 is gone"
    scene.gone(leaving)
    if pointed_out:
        scene.verbs.tend()
        assert [one.metadata.name for one in scene.again] == ["wanted"]
    assert scene.preempt(preemption(wanted, {"a": ["uid-p4"]})) == {}, "it fits on b by now"
    scene.verbs.tend()
    assert [one.metadata.name for one in scene.again] == ["wanted"], "once for every refusal"
    assert scene.filter(args(wanted, ["b"]))["NodeNames"] == ["b"]


def test_pods_give_way_when_the_node_has_room_and_no_card_has(scene: Scene) -> None:
    scene.add_node("c", 2)
    for card in (0, 1):
        scene.bind(pod(f"c{card}", mem="10"), "c", card, 10)
    wanted = pod("wanted", mem="8", priority=5)
    assert scene.filter(args(wanted, ["c"]))["NodeNames"] == []
    assert scene.preempt(preemption(wanted, {"b": ["uid-p2"]})).keys() == {"b"}


def test_victims_on_the_wrong_cards_are_exchanged() -> None:
    """By node totals two pods of 8 GiB must go for 12; only two on one card help."""
    scene = Scene()
    scene.add_node("n", 2)
    for name, card in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        scene.bind(pod(name, mem="8"), "n", card, 8)
    found = scene.preempt(preemption(pod(mem="12", priority=5), {"n": ["uid-a", "uid-b"]}))
    victims = {entry["UID"] for entry in found["n"]["Pods"]}
    assert victims in ({"uid-a", "uid-c"}, {"uid-b", "uid-d"})


def test_broken_budgets_are_avoided_or_counted() -> None:
    scene = Scene()
    scene.add_node("n", 1)
    for name, gib in (("kept", 6), ("other", 10)):
        scene.bind(pod(name, mem=str(gib), priority=1), "n", 0, gib)
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="kept", namespace="default"),
        spec=PodDisruptionBudgetSpec(selector={"matchLabels": {"app": "kept"}}),
    )
    list(scene.budgets.replace([budget]))
    found = scene.preempt(preemption(pod(mem="6", priority=5), {"n": ["uid-kept"]}))
    assert found == {"n": {"Pods": [{"UID": "uid-other"}], "NumPDBViolations": 0}}
    found = scene.preempt(preemption(pod(mem="12", priority=5), {"n": ["uid-kept"]}))
    assert {entry["UID"] for entry in found["n"]["Pods"]} == {"uid-kept", "uid-other"}
    assert found["n"]["NumPDBViolations"] == 1


def test_pods_that_are_not_bound_yet_are_no_victims(scene: Scene) -> None:
    scene.add_node("c", 1)
    scene.filter(args(pod("held", mem="10"), ["c"]))
    assert scene.preempt(preemption(pod(mem="10", priority=5), {"c": ["uid-held"]})) == {}


def test_unknown_nodes_and_bad_requests_have_no_victims(scene: Scene) -> None:
    assert scene.preempt(preemption(pod(mem="8", priority=5), {"new": ["u"]})) == {}
    assert scene.preempt(preemption(pod(mem="-8", priority=5), {"b": ["uid-p2"]})) == {}


amounts = st.sampled_from(["0", "1", "4", "12", "16", "17", "-1", "1.5", "10G", "x", ""]) | st.text(max_size=3)


@given(
    st.dictionaries(st.sampled_from(["mem", "mps", "gpu", "cpu"]), amounts, min_size=1),
    st.lists(st.sampled_from(["a", "b", "bare", "new", ""]), unique=True),
    st.booleans(),
)
def test_every_node_is_answered_for_exactly_once(limits: dict[str, str], names: list[str], whole: bool) -> None:
    scene = Scene()
    scene.add_node("a", 2)
    scene.add_node("b", 1)
    scene.add_node("bare", 0)
    wanted = pod("p")
    names_of = {"mem": "aliyun.com/gpu-mem", "mps": "keti.com/mpsgpu", "gpu": "nvidia.com/gpu", "cpu": "cpu"}
    wanted["spec"]["containers"][0]["resources"] = {"limits": {names_of[key]: limits[key] for key in limits}}
    answer = scene.filter(args(wanted, names, whole=whole))
    assert answer["Error"] == ""
    passed = [node["metadata"]["name"] for node in answer["Nodes"]["items"]] if whole else answer["NodeNames"]
    refused = [*answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]]
    assert sorted([*passed, *refused]) == sorted(names)
    scored = scene.prioritize(args(wanted, passed, whole=whole))
    assert list(scored) == passed
    assert all(0 <= score <= 10 for score in scored.values())
    assert scene.preempt(preemption(wanted, {name: ["u"] for name in names}, whole=whole)).keys() <= set(names)


@given(st.binary(max_size=200) | st.dictionaries(st.text(), st.integers()).map(lambda d: json.dumps(d).encode()))
def test_any_bytes_are_answered(body: bytes) -> None:
    scene = Scene()
    scene.add_node("a", 1)
    answer = scene.filter(body)
    assert set(answer) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert answer["Error"]
