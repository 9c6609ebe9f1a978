"""Where a pod stands between its home and the cluster it was sent to, and the one API call that comes next: pure.

The pod at home is held by a gate, and kept by a finalizer. Its dispatch (an annotation) says to which cluster it was
sent, for the which time, and whether it is being taken back. The copy there begins behind a gate too. Every write is
conditional: home by its resourceVersion, a copy by its UID, a removal by its version too. Three rules keep a pod from
running twice, whoever else believes to lead and wherever a manager is killed:

- a copy is opened only after home has been read again, and still says so;
- a copy is taken back only in a version that has no node;
- what is not there counts as gone only if it was looked for after home was read.

A pod whose cluster is lost is given up, if its copy was made under the fence (`shoal.clusters.fences`): that stands at
home before the pod is over there, for good, and whatever is found of it later is removed.

`tests/clusters/test_dispatch_search.py` plays every order of events on this function.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Where a pod was sent."""

    #: Empty: taken back, and sent nowhere yet.
    cluster: str
    #: Counts the times it was sent; never falls.
    attempt: int
    leaving: bool = False
    #: The copy is made under the fence: its cluster removes it when home has been silent for long enough.
    replace: bool = False
    #: Given up, since that cluster is lost: its owner replaces it, and nothing of it runs again.
    lost: bool = False


@dataclass(frozen=True, slots=True)
class HomePod:
    """A pod in the cluster where it was submitted."""

    uid: str
    version: str
    #: The gate is there.
    held: bool
    #: The finalizer is there.
    kept: bool
    deleting: bool = False
    #: Its status is final: it has run, and never runs again.
    over: bool = False
    #: Its status tells that it ran where it was sent.
    ran: bool = False
    dispatch: Dispatch | None = None


@dataclass(frozen=True, slots=True)
class CopyPod:
    """A pod that was made for another cluster's pod."""

    uid: str
    version: str
    #: UID of the pod at home, and its attempt.
    origin: str
    attempt: int
    #: The gate is there: nothing schedules it.
    gated: bool
    #: It has a node: it runs, or has run.
    placed: bool = False
    #: The finalizer is there, from the moment it was opened: it does not vanish unseen.
    kept: bool = False
    deleting: bool = False
    #: Nothing of it runs any more.
    over: bool = False


class Absent(Enum):
    """Why an object is not shown."""

    #: The server has no such object.
    GONE = "gone"
    #: The cluster does not answer.
    UNKNOWN = "unknown"


class LastRead(StrEnum):
    """Which of the two was read last, from the server itself and not from a watch."""

    NEITHER = "neither"
    HOME = "home"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class DispatchView:
    """A pod and its copy as a manager knows them. The copy is the one in the cluster that `home` says."""

    home: HomePod
    copy: CopyPod | Absent = Absent.UNKNOWN
    last: LastRead = LastRead.NEITHER
    #: The cluster has been silent for so long that nothing under the fence runs there any more.
    silenced: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """What was chosen for a pod that is nowhere, and whether one without a node shall be taken back."""

    cluster: str = ""
    #: The cluster is the pod's own.
    own: bool = False
    leave: bool = False


class DispatchCall(StrEnum):
    """What to do next; each but WAIT is one API call."""

    WAIT = "wait"
    READ_HOME = "read home"
    READ_COPY = "read copy"
    #: Write the dispatch at home, in the version seen.
    CLAIM = "claim"
    #: Take gate and finalizer from the pod at home, in the version seen: it runs there.
    OPEN_AT_HOME = "open at home"
    CREATE_COPY = "create copy"
    #: Take the gate from the copy and give it the finalizer, if it is the one seen.
    OPEN_COPY = "open copy"
    #: Write at home that the copy is taken back, in the version seen; and that it stays.
    LEAVE = "leave"
    STAY = "stay"
    #: Delete the copy in the version seen.
    DELETE_COPY = "delete copy"
    #: Delete the copy, if it is the one seen, whatever it does.
    END_COPY = "end copy"
    #: Write at home that the pod is nowhere, in the version seen; the attempt stays.
    UNCLAIM = "unclaim"
    #: Write at home that the pod is given up, in the version seen.
    GIVE_UP = "give up"
    #: Write the status of the copy at home.
    MIRROR = "mirror"
    #: Write at home that the pod is over, since its copy is, or since it is given up.
    FINISH = "finish"
    #: Take the finalizer from the copy, if it is the one seen; from the pod at home, in the version seen.
    RELEASE_COPY = "release copy"
    RELEASE_HOME = "release home"


@dataclass(frozen=True, slots=True)
class DispatchStep:
    """A call, what it says, and the reason where nothing can be done."""

    call: DispatchCall
    cluster: str = ""
    attempt: int = 0
    why: str = ""


def next_step(view: DispatchView, wish: Wish) -> DispatchStep:
    """The one call that comes next."""
    home, sent = view.home, view.home.dispatch
    if not home.held:
        # It runs at home, or somebody let it: nothing of it goes elsewhere.
        return DispatchStep(DispatchCall.RELEASE_HOME) if home.kept else _wait("it runs at home")
    if sent is None or not sent.cluster:
        return _unsent(home, sent.attempt if sent else 0, wish)
    if sent.lost:
        return _given_up(home)
    match view.copy:
        case Absent.UNKNOWN if view.silenced and sent.replace and (home.deleting or not home.over):
            return DispatchStep(DispatchCall.GIVE_UP, sent.cluster)
        case Absent.UNKNOWN:
            return DispatchStep(DispatchCall.READ_COPY, sent.cluster) if view.last is LastRead.HOME else _wait(_SILENT)
        case Absent.GONE:
            return _without_copy(view, sent, wish)
        case copy:
            return _with_copy(view, sent, copy, wish)


def _unsent(home: HomePod, attempt: int, wish: Wish) -> DispatchStep:
    if home.deleting or home.over:
        return DispatchStep(DispatchCall.RELEASE_HOME) if home.deleting and home.kept else _wait("it is over")
    if not wish.cluster:
        return _wait("no cluster was chosen")
    if wish.own:
        return DispatchStep(DispatchCall.OPEN_AT_HOME)
    return DispatchStep(DispatchCall.CLAIM, wish.cluster, attempt + 1)


def _given_up(home: HomePod) -> DispatchStep:
    """Its cluster is lost. Nothing is waited for: whatever is found there later goes (`collect`)."""
    if not home.over:
        return DispatchStep(DispatchCall.FINISH, why="its cluster is lost")
    return DispatchStep(DispatchCall.RELEASE_HOME) if home.deleting and home.kept else _wait("it was given up")


def _without_copy(view: DispatchView, sent: Dispatch, wish: Wish) -> DispatchStep:
    home = view.home
    if home.over and not home.deleting:
        return _wait("it is over")
    if home.deleting or home.ran or sent.leaving:
        # Only a look that came after home was read proves that nothing is there.
        if view.last is not LastRead.COPY:
            return DispatchStep(DispatchCall.READ_COPY, sent.cluster)
        if home.deleting:
            return DispatchStep(DispatchCall.RELEASE_HOME) if home.kept else _wait("it is being deleted")
        if home.ran:
            # Its copy was removed by force, finalizer and all: it is not run a second time.
            return DispatchStep(DispatchCall.FINISH, why="its copy was removed by force")
        return DispatchStep(DispatchCall.UNCLAIM, attempt=sent.attempt)
    if wish.leave:
        return DispatchStep(DispatchCall.LEAVE)
    return DispatchStep(DispatchCall.CREATE_COPY, sent.cluster, sent.attempt)


def _with_copy(view: DispatchView, sent: Dispatch, copy: CopyPod, wish: Wish) -> DispatchStep:
    home = view.home
    if copy.origin != home.uid:
        return _not_ours(view, sent)
    if home.deleting:
        return _ended(home, copy)
    if copy.placed or copy.over:
        return _placed(view, sent, copy)
    # One that ran had a node: this is another, made for a pod that was not known to have run.
    if copy.attempt != sent.attempt or sent.leaving or home.over or home.ran:
        return DispatchStep(DispatchCall.DELETE_COPY, sent.cluster) if not copy.deleting else _going(copy)
    if copy.deleting:
        # Somebody there deleted it before it had a node: it has not run.
        return _going(copy) if copy.kept else DispatchStep(DispatchCall.READ_COPY, sent.cluster)
    if wish.leave:
        return DispatchStep(DispatchCall.LEAVE)
    if not copy.gated:
        return DispatchStep(DispatchCall.MIRROR)
    if view.last is not LastRead.HOME:
        return DispatchStep(DispatchCall.READ_HOME)
    return DispatchStep(DispatchCall.OPEN_COPY, sent.cluster)


def _placed(view: DispatchView, sent: Dispatch, copy: CopyPod) -> DispatchStep:
    """The copy has a node: the pod belongs there, whatever was meant."""
    home = view.home
    if sent.leaving:
        return DispatchStep(DispatchCall.STAY)
    if not (copy.over or copy.deleting):
        return DispatchStep(DispatchCall.MIRROR)
    if not copy.over:
        return DispatchStep(DispatchCall.MIRROR, why="it is being deleted there")
    if not home.over:
        return DispatchStep(DispatchCall.FINISH)
    # That it is over stands at home before the last trace of it may vanish there.
    return DispatchStep(DispatchCall.RELEASE_COPY, sent.cluster) if copy.kept and copy.deleting else _wait("it is over")


def _ended(home: HomePod, copy: CopyPod) -> DispatchStep:
    """Home is being deleted: the copy goes, and then home may."""
    if not copy.deleting:
        return DispatchStep(DispatchCall.END_COPY)
    if copy.kept and (copy.over or not copy.placed):
        return DispatchStep(DispatchCall.RELEASE_COPY)
    return _wait("its copy is ending")


def _going(copy: CopyPod) -> DispatchStep:
    """A copy without a node that is being deleted has not run and never will: servers bind none that is."""
    return DispatchStep(DispatchCall.RELEASE_COPY) if copy.kept else _wait("its copy is being deleted")


def _not_ours(view: DispatchView, sent: Dispatch) -> DispatchStep:
    """A pod of that name is there and is somebody else's, so that the copy is not."""
    home = view.home
    if view.last is not LastRead.COPY:
        # A watch that lags shows the copy of an earlier pod of that name while ours runs.
        return DispatchStep(DispatchCall.READ_COPY, sent.cluster)
    if home.deleting:
        return DispatchStep(DispatchCall.RELEASE_HOME) if home.kept else _wait("it is being deleted")
    why = "another pod of that name is there"
    if home.ran and not home.over:
        return DispatchStep(DispatchCall.FINISH, why="its copy was removed by force")
    return DispatchStep(DispatchCall.UNCLAIM if sent.leaving else DispatchCall.LEAVE, attempt=sent.attempt, why=why)


def collect(copy: CopyPod, home: HomePod | Absent, cluster: str, *, last: LastRead) -> DispatchStep:
    """What becomes of a copy in a cluster: removed, if home is gone, gave it up or has sent its pod elsewhere since.

    `home` is the pod at home with the UID that the copy names.
    """
    if home is Absent.UNKNOWN:
        return _wait(_SILENT)
    if last is not LastRead.HOME:
        return DispatchStep(DispatchCall.READ_HOME)
    if isinstance(home, Absent) or (home.dispatch is not None and home.dispatch.lost):
        if not copy.deleting:
            return DispatchStep(DispatchCall.END_COPY, cluster)
        if copy.kept and (copy.over or not copy.placed):
            return DispatchStep(DispatchCall.RELEASE_COPY, cluster)
        return _wait("it is ending")
    sent = home.dispatch
    if home.held and sent is not None and sent.cluster == cluster and sent.attempt == copy.attempt:
        return _wait("it belongs here")
    if copy.placed:
        return _wait("it has a node, and home does not know of it: look at both pods")
    return DispatchStep(DispatchCall.DELETE_COPY, cluster) if not copy.deleting else _going(copy)


def _wait(why: str) -> DispatchStep:
    return DispatchStep(DispatchCall.WAIT, why=why)


_SILENT = "the cluster does not answer"
