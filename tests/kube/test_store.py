"""What lists and events mean for a store, as a property over all histories."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.codec import WatchEvent
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import ConfigMap
from shoal.kube.store import Change, ChangeType, Store


def version(name: str, uid: int, number: int) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="n", uid=f"{name}-{uid}", resource_version=str(number)))


class Cluster:
    """A history of objects under a few names, as a server would have it."""

    def __init__(self) -> None:
        self.live: dict[str, ConfigMap] = {}
        self.log: list[WatchEvent[ConfigMap]] = []
        self.uids = 0

    def step(self, name: str, *, delete: bool) -> None:
        number = len(self.log) + 1
        known = self.live.get(name)
        if known is None:
            self.uids += 1
            self.live[name] = version(name, self.uids, number)
            self.log.append(WatchEvent(type="ADDED", object=self.live[name]))
            return
        uid = int(known.metadata.uid.rpartition("-")[2])
        after = version(name, uid, number)
        if delete:
            del self.live[name]
            self.log.append(WatchEvent(type="DELETED", object=after))
        else:
            self.live[name] = after
            self.log.append(WatchEvent(type="MODIFIED", object=after))


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["watch", "watch", "lost", "relist"])), max_size=40
)


@given(steps)
def test_any_mixture_of_watching_and_listing(history: list[tuple[str, bool, str]]) -> None:
    cluster, store = Cluster(), Store[ConfigMap]()
    told: dict[str, ConfigMap] = {}
    blind = False
    for name, delete, how in history:
        cluster.step(name, delete=delete)
        blind = blind or how == "lost"
        if how == "relist" or (blind and how == "watch"):
            changes = list(store.replace(cluster.live.values()))
            blind = False
        elif blind:
            continue
        else:
            changes = list(store.apply(cluster.log[-1]))
        for change in changes:
            _follow(told, change)
        assert {obj.metadata.name: obj for obj in store} == cluster.live == told


def _follow(told: dict[str, ConfigMap], change: Change[ConfigMap]) -> None:
    name = change.object.metadata.name
    if change.kind is ChangeType.DELETED:  # as it was at its end
        assert change.object.metadata.uid == told[name].metadata.uid
    else:
        assert change.old == told.get(name)
    assert (change.old is None, change.new is None) == (
        change.kind is ChangeType.ADDED,
        change.kind is ChangeType.DELETED,
    )
    if change.new is None:
        del told[name]
        return
    if change.old is not None:
        assert change.old.metadata.uid == change.new.metadata.uid
    told[name] = change.new


def test_the_same_news_twice_is_no_news() -> None:
    store = Store[ConfigMap]()
    added = WatchEvent(type="ADDED", object=version("a", 1, 1))
    assert len(list(store.apply(added))) == 1
    assert list(store.apply(added)) == []
    assert list(store.replace([added.object])) == []


def test_a_delete_tells_the_end_and_its_version() -> None:
    store = Store[ConfigMap]()
    list(store.apply(WatchEvent(type="ADDED", object=version("a", 1, 1))))
    (change,) = store.apply(WatchEvent(type="DELETED", object=version("a", 1, 7)))
    assert (change.object, change.version) == (version("a", 1, 7), "7")
    list(store.apply(WatchEvent(type="ADDED", object=version("a", 2, 8))))
    (change,) = store.replace([], "12")
    assert (change.object, change.version) == (version("a", 2, 8), "12")


def test_deletes_of_strangers_are_passed_over() -> None:
    store = Store[ConfigMap]()
    list(store.apply(WatchEvent(type="ADDED", object=version("a", 2, 2))))
    assert list(store.apply(WatchEvent(type="DELETED", object=version("a", 1, 3)))) == []
    assert list(store.apply(WatchEvent(type="DELETED", object=version("b", 1, 3)))) == []
    assert list(store.apply(WatchEvent(type="SOMETHING", object=version("a", 2, 9)))) == []
    assert ("n", "a") in store
    assert len(store) == 1


def test_an_add_over_another_object_is_a_delete_and_an_add() -> None:
    store = Store[ConfigMap]()
    list(store.apply(WatchEvent(type="ADDED", object=version("a", 1, 1))))
    changes = list(store.apply(WatchEvent(type="ADDED", object=version("a", 2, 5))))
    assert [change.kind for change in changes] == [ChangeType.DELETED, ChangeType.ADDED]
