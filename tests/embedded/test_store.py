import pytest

from shoal.embedded.errors import ApiStatus
from shoal.embedded.selectors import everything, label_selector
from shoal.embedded.store import Object, ObjectStore

PODS = ("", "pods")
NODES = ("", "nodes")


def pod(name: str, namespace: str = "a", **labels: str) -> Object:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels}}


def names(objects: list[Object]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def test_one_counter_for_all_kinds() -> None:
    store = ObjectStore()
    first = store.put(PODS, pod("p"))
    second = store.put(NODES, {"kind": "Node", "metadata": {"name": "n"}})
    assert int(second["metadata"]["resourceVersion"]) == int(first["metadata"]["resourceVersion"]) + 1


def test_what_is_given_is_not_changed_by_storing() -> None:
    given = pod("p")
    ObjectStore().put(PODS, given)
    assert "resourceVersion" not in given["metadata"]


def test_an_earlier_version_is_read_as_it_was() -> None:
    store = ObjectStore()
    store.put(PODS, pod("kept"))
    gone = store.put(PODS, pod("gone"))
    then = store.version
    store.remove(PODS, gone)
    store.put(PODS, pod("new"))
    store.put(PODS, pod("kept", colour="red"))
    assert names(store.objects(PODS)) == ["kept", "new"]
    before = store.objects_at(PODS, "", then)
    assert names(before) == ["gone", "kept"]
    assert before[1]["metadata"]["labels"] == {}


def test_history_is_bounded_and_says_so() -> None:
    store = ObjectStore(history=10)
    for number in range(100):
        store.put(PODS, pod(f"p{number}"))
    assert len(store.changes_after(PODS, store.version - 10)) >= 10
    with pytest.raises(ApiStatus) as refused:
        store.changes_after(PODS, 2)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert refused.value.message.startswith("too old resource version: 2 (")
    with pytest.raises(ApiStatus, match=r"The resourceVersion for the provided list is too old\."):
        store.objects_at(PODS, "", 2)


def test_no_change_is_lost_or_doubled_at_the_edge_of_history() -> None:
    store = ObjectStore(history=10)
    seen: list[int] = []
    at = store.version
    for number in range(57):
        store.put(PODS, pod(f"p{number}"))
        if number % 5 == 4:
            seen += [change.version for change in store.changes_after(PODS, at)]
            at = store.version
    assert seen == list(range(2, 57))


def test_a_watcher_sees_objects_enter_and_leave_its_selector() -> None:
    store = ObjectStore()
    red = label_selector("colour=red")
    start = store.version
    store.put(PODS, pod("p", colour="blue"))
    store.put(PODS, pod("p", colour="red"))
    store.put(PODS, pod("p", colour="red", size="big"))
    last = store.put(PODS, pod("p", colour="green"))
    store.remove(PODS, last)
    changes = store.changes_after(PODS, start)
    events = [change.seen_by(red) for change in changes]
    assert [event and event[0] for event in events] == [None, "ADDED", "MODIFIED", "DELETED", None]
    left = events[3]
    assert left is not None
    # It leaves in the state in which it was last seen, with the version of the write that took it away.
    assert left[1]["metadata"]["labels"] == {"colour": "red", "size": "big"}
    assert left[1]["metadata"]["resourceVersion"] == last["metadata"]["resourceVersion"]
    everywhere = [event[0] for change in changes if (event := change.seen_by(everything))]
    assert everywhere == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]


def placed(name: str, node: str) -> Object:
    return {**pod(name), "spec": {"nodeName": node} if node else {}}


def test_a_slice_holds_what_came_into_it_and_what_left_it() -> None:
    store = ObjectStore()
    start = store.version
    store.put(PODS, placed("p", ""))
    bound = store.put(PODS, placed("p", "n1"))
    store.put(PODS, placed("q", "n2"))
    store.remove(PODS, bound)
    here = store.changes_after(PODS, start, "n1")
    assert [(change.before is None, change.after is None) for change in here] == [(False, False), (False, True)]
    assert [change.key[1] for change in store.changes_after(PODS, start, "n2")] == ["q"]
    assert [change.version for change in store.changes_after(PODS, start, "")] == [start + 1, start + 2]


def test_who_listens_to_a_slice_hears_of_nothing_else() -> None:
    store = ObjectStore()
    heard: list[str] = []
    store.listen(PODS, lambda: heard.append("any"))
    store.listen(PODS, here := lambda: heard.append("n1"), "n1")
    store.put(PODS, placed("p", ""))
    store.put(PODS, placed("p", "n1"))
    store.put(PODS, placed("q", "n2"))
    assert heard == ["any", "any", "n1", "any"]
    store.unlisten(PODS, here, "n1")
    store.put(PODS, placed("r", "n1"))
    assert heard[4:] == ["any"]


def test_a_slice_only_forgets_what_was_in_it() -> None:
    store = ObjectStore(history=10)
    quiet = store.put(PODS, placed("quiet", "n1"))
    at = int(quiet["metadata"]["resourceVersion"])
    busy = store.version
    for number in range(100):
        store.put(PODS, placed("busy", "n2"))
        if number == 30:
            busy = store.version
    # Whoever was at this version has missed nothing of its own, though the kind has forgotten much.
    assert store.changes_after(PODS, at, "n1") == []
    with pytest.raises(ApiStatus):
        store.changes_after(PODS, at - 1, "n1")
    with pytest.raises(ApiStatus):
        store.changes_after(PODS, busy, "n2")
    with pytest.raises(ApiStatus):
        store.require(PODS, at)
