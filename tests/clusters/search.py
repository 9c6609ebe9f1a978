"""Plays every order of events on `shoal.clusters.dispatch`: managers that all believe to lead and are killed anywhere,
two members whose schedulers bind what is open, a tenant who deletes, and a member's admin who does, also by force.

One member may be cut off. Time is not counted here (`test_fence_times.py` does that): its fence may fall whenever
nobody renews it, and removes what was made under it; home's time is up only after that, and after what it removed has
ended. Calls that are on their way into the cut may arrive at any later time.

Objects change only as an API server would let them: writes at home are refused in another version, those of copies for
another UID, removals in another version. Versions are the objects' content, so that a write that comes back to an old
state passes where a server would refuse it: more can happen here than in truth.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from shoal.clusters.dispatch import (
    Absent,
    CopyPod,
    Dispatch,
    DispatchCall,
    DispatchStep,
    DispatchView,
    HomePod,
    LastRead,
    Wish,
    collect,
    next_step,
)

MEMBERS = ("b", "c")
#: The one that may be cut off.
FENCED = "b"
OWN = "a"
_UID = "pod"
_Next = Callable[[DispatchView, Wish], DispatchStep]
_Collect = Callable[..., DispatchStep]


@dataclass(frozen=True, slots=True)
class Manager:
    """What a manager has read: home, a copy and in which cluster, and which of them last."""

    home: HomePod | Absent = Absent.UNKNOWN
    copy: CopyPod | Absent = Absent.UNKNOWN
    place: str = ""
    last: LastRead = LastRead.NEITHER


@dataclass(frozen=True, slots=True)
class Scene:
    """All clusters and all managers."""

    home: HomePod | None
    copies: tuple[CopyPod | None, ...]
    #: UIDs that were given to copies.
    made: int
    #: Times that something of this pod was given a node.
    runs: int
    #: A manager took back what had a node, though home wanted it.
    killed: bool
    managers: tuple[Manager, ...]
    #: The fenced member is cut off; its fence has fallen; home's time is up, as the manager counts it.
    cut: bool = False
    fallen: bool = False
    silenced: bool = False
    #: UID of a copy in the fenced member for which the call that opens it is on its way.
    late: str = ""
    #: The pod's owner has made another, which runs somewhere.
    succeeded: bool = False

    def copy_in(self, place: str) -> CopyPod | None:
        """The copy in a member."""
        return self.copies[MEMBERS.index(place)]

    def with_copy(self, place: str, copy: CopyPod | None) -> Scene:
        """The same with another copy."""
        return replace(self, copies=tuple(copy if one == place else self.copy_in(one) for one in MEMBERS))


@dataclass(frozen=True, slots=True)
class Rules:
    """The functions that are searched, and what the servers enforce; tests take a rule out."""

    next_step: _Next = next_step
    collect: _Collect = collect
    #: Removals are conditional on the version.
    version_checked: bool = True
    #: Admission keeps tenants from opening gates.
    gates_guarded: bool = True
    #: Copies begin behind a gate.
    copies_gated: bool = True
    #: Opened copies have the finalizer.
    copies_kept: bool = True
    #: Who deletes what they may: the tenant at home, the admin of a member; and who removes there by force.
    people: frozenset[str] = frozenset({"tenant", "member"})
    attempts: int = 2
    copies: int = 2
    managers: int = 2
    #: A member may be cut off.
    cuts: bool = False
    #: Pods are of the mode Replace.
    replaced: bool = True
    #: The member removes what was made under the fence; also what has no node.
    fence: bool = True
    fence_unplaced: bool = True
    #: Home's time is longer than the member's, by more than copies take to end; and counted anew by each manager.
    margin: bool = True
    grace: bool = True
    counted_anew: bool = True


def first(rules: Rules) -> Scene:
    """A held pod, and managers that know nothing."""
    home = HomePod(uid=_UID, version="", held=True, kept=True)
    return Scene(home, (None, None), 0, 0, False, (Manager(),) * rules.managers)


def following(scene: Scene, rules: Rules) -> Iterator[Scene]:
    """Every scene that may come next."""
    yield from _schedulers(scene)
    yield from _people(scene, rules)
    if rules.cuts:
        yield from _network(scene)
        yield from _fence(scene, rules)
    for number, manager in enumerate(scene.managers):

        def knowing(seen: Manager, changed: Scene = scene, number: int = number) -> Scene:
            managers = tuple(seen if place == number else one for place, one in enumerate(changed.managers))
            return replace(changed, managers=managers)

        # A watch may show home at any time, and a manager that has looked for the copy remembers what it saw.
        yield knowing(_read_home(scene, manager))
        if manager != Manager() or scene.silenced:
            # Killed, and started again.
            yield knowing(Manager(), replace(scene, silenced=scene.cut and not rules.counted_anew))
        if manager == Manager():
            # One that looks for copies without a home begins with the copy.
            for place in MEMBERS:
                if scene.copy_in(place) is not None and _answers(scene, place):
                    there = _heard(scene, place)
                    seen = Manager(copy=there.copy_in(place) or Absent.GONE, place=place, last=LastRead.COPY)
                    yield knowing(seen, there)
        for step in _steps(manager, scene.silenced, rules):
            yield from (knowing(seen, changed) for changed, seen in _done(scene, manager, step, rules))


def _answers(scene: Scene, place: str) -> bool:
    return not (scene.cut and place == FENCED)


def _heard(scene: Scene, place: str) -> Scene:
    """The same after an answer of a member."""
    return replace(scene, silenced=False) if place == FENCED and scene.silenced else scene


def _network(scene: Scene) -> Iterator[Scene]:
    """The cut comes and goes; and a call that was on its way arrives, the copy being what it is by then."""
    yield replace(scene, cut=not scene.cut)
    copy = scene.copy_in(FENCED)
    if scene.late:
        arrived = replace(scene, late="")
        yield arrived.with_copy(FENCED, _opened(copy)) if copy is not None and copy.uid == scene.late else arrived


def _fence(scene: Scene, rules: Rules) -> Iterator[Scene]:
    """What the member, the manager and the owner do by their clocks."""
    copy = scene.copy_in(FENCED)
    if rules.fence and rules.replaced and (not scene.fallen or (copy is not None and not copy.deleting)):
        left = copy
        if copy is not None and (copy.placed or rules.fence_unplaced):
            left = replace(copy, deleting=True) if copy.kept else None
        yield replace(scene.with_copy(FENCED, left), fallen=True)
    if scene.fallen and not scene.cut:
        yield replace(scene, fallen=False, silenced=False)  # renewed
    removed = copy is None or not rules.fence or not rules.replaced or not rules.fence_unplaced or copy.deleting
    ended = copy is None or copy.over or not copy.placed or not (rules.grace and rules.fence and rules.replaced)
    down = (scene.fallen and removed and ended) or not rules.margin or not rules.replaced or not rules.fence
    if scene.cut and not scene.silenced and down:
        yield replace(scene, silenced=True)
    home = scene.home
    if home is not None and home.over and home.dispatch is not None and home.dispatch.lost and not scene.succeeded:
        yield replace(scene, succeeded=True)


def _read_home(scene: Scene, manager: Manager) -> Manager:
    home = scene.home or Absent.GONE
    sent = home.dispatch if isinstance(home, HomePod) else None
    place = sent.cluster if sent is not None else ""
    if place and place != manager.place:
        return Manager(home, Absent.UNKNOWN, place, LastRead.HOME)
    return replace(manager, home=home, last=LastRead.HOME)


@functools.lru_cache(maxsize=1 << 16)
def _steps(manager: Manager, silenced: bool, rules: Rules) -> frozenset[DispatchStep]:
    """Whatever a manager may do next, by all wishes."""
    return frozenset(_wished(manager, silenced, rules))


def _wished(manager: Manager, silenced: bool, rules: Rules) -> Iterator[DispatchStep]:
    if isinstance(manager.home, HomePod):
        sent = manager.home.dispatch
        same = sent is not None and sent.cluster == manager.place
        copy = manager.copy if same else Absent.UNKNOWN
        gone = silenced and sent is not None and sent.cluster == FENCED
        view = DispatchView(
            manager.home, Absent.UNKNOWN if gone else copy, manager.last if same else LastRead.HOME, silenced=gone
        )
        wishes = [Wish(OWN, own=True), *map(Wish, MEMBERS), Wish(leave=True), Wish()]
        if sent is not None and sent.cluster and not same:
            wishes = []
        yield from (rules.next_step(view, wish) for wish in wishes)
    if isinstance(manager.copy, CopyPod):
        yield rules.collect(manager.copy, manager.home, manager.place, last=manager.last)
        if manager.home is Absent.UNKNOWN:
            yield DispatchStep(DispatchCall.READ_HOME)


def _done(scene: Scene, manager: Manager, step: DispatchStep, rules: Rules) -> Iterator[tuple[Scene, Manager]]:
    """What comes of a step: the answer may be lost, which is the manager being killed right after."""
    home, place = scene.home, manager.place
    fresh = Manager()
    if step.call in _THERE:
        if step.call is DispatchCall.OPEN_COPY and rules.cuts and place == FENCED and not scene.late:
            assert isinstance(manager.copy, CopyPod)
            yield replace(scene, late=manager.copy.uid), fresh
        if not _answers(scene, place):
            return
        scene = _heard(scene, place)
    match step.call:
        case DispatchCall.WAIT:
            return
        case DispatchCall.MIRROR:
            # Of a status only matters here that it tells of a run.
            if isinstance(manager.copy, CopyPod) and manager.copy.placed and isinstance(manager.home, HomePod):
                told = replace(manager.home, ran=True) if home == manager.home else home
                if told != home:
                    yield replace(scene, home=told), fresh
        case DispatchCall.READ_HOME:
            seen = scene.home or Absent.GONE
            sent = seen.dispatch if isinstance(seen, HomePod) else None
            moved = isinstance(manager.home, HomePod) and sent is not None and sent.cluster != place
            yield scene, replace(manager, home=seen, last=LastRead.HOME) if not moved else fresh
        case DispatchCall.READ_COPY:
            yield scene, replace(manager, copy=scene.copy_in(place) or Absent.GONE, last=LastRead.COPY)
        case DispatchCall.CREATE_COPY:
            if scene.copy_in(place) is None and scene.made < rules.copies:
                gated = rules.copies_gated
                copy = CopyPod(f"copy-{scene.made}", "", _UID, step.attempt, gated, kept=not gated)
                changed = replace(scene.with_copy(place, copy), made=scene.made + 1)
                yield changed, replace(manager, copy=copy, last=LastRead.COPY)
            else:
                yield scene, fresh
        case DispatchCall.OPEN_COPY | DispatchCall.DELETE_COPY | DispatchCall.END_COPY | DispatchCall.RELEASE_COPY:
            yield _copy_written(scene, manager, step.call, rules), fresh
        case _:
            # Every write at home is in the version that was seen.
            written = _home_written(manager.home, step, rules) if home == manager.home else home
            yield replace(scene, home=written), fresh


_THERE = frozenset(
    {
        DispatchCall.READ_COPY,
        DispatchCall.CREATE_COPY,
        DispatchCall.OPEN_COPY,
        DispatchCall.DELETE_COPY,
        DispatchCall.END_COPY,
        DispatchCall.RELEASE_COPY,
    }
)


def _home_written(home: HomePod | Absent, step: DispatchStep, rules: Rules) -> HomePod | None:
    assert isinstance(home, HomePod), "a manager writes what it has seen"
    match step.call:
        case DispatchCall.CLAIM:
            under = rules.cuts and rules.replaced and step.cluster == FENCED
            return replace(home, dispatch=Dispatch(step.cluster, step.attempt, replace=under))
        case DispatchCall.GIVE_UP:
            assert home.dispatch is not None
            return replace(home, dispatch=replace(home.dispatch, lost=True))
        case DispatchCall.OPEN_AT_HOME:
            return replace(home, held=False, kept=False)
        case DispatchCall.LEAVE | DispatchCall.STAY:
            assert home.dispatch is not None
            return replace(home, dispatch=replace(home.dispatch, leaving=step.call is DispatchCall.LEAVE))
        case DispatchCall.UNCLAIM:
            return replace(home, dispatch=Dispatch("", step.attempt))
        case DispatchCall.FINISH:
            return replace(home, over=True)
        case DispatchCall.RELEASE_HOME:
            return None if home.deleting else replace(home, kept=False)
    raise AssertionError(step)


def _copy_written(scene: Scene, manager: Manager, call: DispatchCall, rules: Rules) -> Scene:
    seen, there = manager.copy, scene.copy_in(manager.place)
    assert isinstance(seen, CopyPod)
    if there is None or there.uid != seen.uid:
        return scene
    match call:
        case DispatchCall.OPEN_COPY:
            opened = _opened(there)
            return scene.with_copy(manager.place, replace(opened, kept=opened.kept and rules.copies_kept))
        case DispatchCall.RELEASE_COPY:
            return scene.with_copy(manager.place, None if there.deleting else there)
        case DispatchCall.DELETE_COPY if rules.version_checked and there != seen:
            return scene
    killed = scene.killed or (call is DispatchCall.DELETE_COPY and there.placed)
    return replace(scene.with_copy(manager.place, replace(there, deleting=True) if there.kept else None), killed=killed)


def _opened(copy: CopyPod) -> CopyPod:
    return replace(copy, gated=False, kept=True) if copy.gated and not copy.deleting else copy


def _schedulers(scene: Scene) -> Iterator[Scene]:
    """Bind what is open; and what runs ends, by itself or since it is deleted."""
    home = scene.home
    if home is not None and not home.held and not home.over and not home.deleting:
        yield replace(scene, home=replace(home, over=True), runs=scene.runs + 1)
    for place in MEMBERS:
        copy = scene.copy_in(place)
        if copy is None:
            continue
        if not copy.gated and not copy.placed and not copy.deleting:
            yield replace(scene.with_copy(place, replace(copy, placed=True)), runs=scene.runs + 1)
        if copy.placed and not copy.over:
            yield scene.with_copy(place, replace(copy, over=True))


def _people(scene: Scene, rules: Rules) -> Iterator[Scene]:
    home = scene.home
    if "tenant" in rules.people and home is not None and not home.deleting:
        yield replace(scene, home=replace(home, deleting=True) if home.kept else None)
        yield replace(scene, home=None)  # by force, with its finalizer removed
    if home is not None and home.held and not rules.gates_guarded:
        yield replace(scene, home=replace(home, held=False))
    for place in MEMBERS:
        copy = scene.copy_in(place)
        if "member" in rules.people and copy is not None and not copy.deleting:
            yield scene.with_copy(place, replace(copy, deleting=True) if copy.kept else None)
        if "force" in rules.people and copy is not None and copy.placed and home is not None and home.ran:
            yield scene.with_copy(place, None)  # finalizer and all, after home has heard that it runs


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found."""

    scenes: int
    #: From the beginning to a scene that is wrong; empty if there is none.
    wrong: tuple[Scene, ...]
    #: Scenes from which neither a run nor a clean end can be reached.
    stuck: tuple[Scene, ...]


class _Names:
    """Short names of objects, equal for equal ones: comparing scenes by these costs a tenth."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int]] = {}
        self._names: dict[object, int] = {}

    def of(self, obj: object) -> int:
        """The name of an object."""
        found = self._known.get(id(obj))
        if found is None:
            found = obj, self._names.setdefault(obj, len(self._names))
            self._known[id(obj)] = found  # and the object stays, so that no other gets its id
        return found[1]

    def key(self, scene: Scene) -> tuple[int, ...]:
        """The name of a scene. Managers are alike: which is which does not matter."""
        managers = sorted(map(self.of, scene.managers))
        network = (scene.cut, scene.fallen, scene.silenced, scene.late, scene.succeeded)
        events = (scene.made, scene.runs, scene.killed, self.of(network))
        return (self.of(scene.home), *map(self.of, scene.copies), *events, *managers)


_Key = tuple[int, ...]


def search(rules: Rules) -> Found:
    """Every scene that can be reached, looked at."""
    return _search(rules)[0]


def reached(rules: Rules) -> Collection[Scene]:
    """Every scene that can be reached."""
    return _search(rules)[1].values()


def _search(rules: Rules) -> tuple[Found, dict[_Key, Scene]]:
    start, names = first(rules), _Names()
    scenes: dict[_Key, Scene] = {names.key(start): start}
    before: dict[_Key, _Key | None] = {names.key(start): None}
    backwards: dict[_Key, list[_Key]] = {}
    todo = deque(scenes)
    while todo:
        here = todo.popleft()
        scene = scenes[here]
        if is_wrong(scene):
            return Found(len(scenes), tuple(scenes[key] for key in _path(before, here)), ()), scenes
        for after in following(scene, rules):
            if _attempts(after) > rules.attempts:
                continue
            key = names.key(after)
            backwards.setdefault(key, []).append(here)
            if key not in scenes:
                scenes[key], before[key] = after, here
                todo.append(key)
    return Found(len(scenes), (), _stuck(scenes, backwards, rules)), scenes


def _attempts(scene: Scene) -> int:
    return scene.home.dispatch.attempt if scene.home is not None and scene.home.dispatch is not None else 0


def _path(before: dict[_Key, _Key | None], last: _Key | None) -> list[_Key]:
    path = []
    while last is not None:
        path.append(last)
        last = before[last]
    return path[::-1]


def is_wrong(scene: Scene) -> bool:
    """It ran twice, was ended while it ran, or runs beside the one that replaced it."""
    runs = any(copy is not None and copy.placed and not copy.over for copy in scene.copies)
    return scene.runs > 1 or scene.killed or (scene.succeeded and runs)


def is_settled(scene: Scene) -> bool:
    """It has run and that is known at home, or home is gone or gave it up and nothing is left of it anywhere."""
    if scene.home is None:
        return all(copy is None for copy in scene.copies)
    if scene.home.dispatch is not None and scene.home.dispatch.lost:
        return scene.home.over and all(copy is None for copy in scene.copies)
    return scene.home.over


def _stuck(scenes: dict[_Key, Scene], backwards: dict[_Key, list[_Key]], rules: Rules) -> tuple[Scene, ...]:
    good = [key for key, scene in scenes.items() if is_settled(scene)]
    can, todo = set(good), deque(good)
    while todo:
        for one in backwards.get(todo.popleft(), ()):
            if one not in can:
                can.add(one)
                todo.append(one)
    # Those that ran out of what the search allows are not stuck.
    return tuple(
        scene
        for key, scene in scenes.items()
        if key not in can and scene.made < rules.copies and _attempts(scene) < rules.attempts
    )
