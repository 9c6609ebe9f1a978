"""The joined clusters: read live from files, Secrets and ClusterProfiles, each asked who it is and whether it answers.

A cluster is known by the UID of its namespace kube-system. One that is read twice is joined once; two that go by one
name are both left out until one has another. Whatever goes wrong with one is a row of `problems` and keeps none of the
others. Credentials that change are replaced under their users; a changed address is another client, and the earlier one
stays open for a while, so that whoever is in the middle of a call can let go.

It only reads. What a cluster may be used for is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Annotated, Final

import msgspec

from shoal.clusters.entries import (
    PROFILES,
    ClusterEntry,
    ClusterProfile,
    file_entries,
    profile_of,
    readable,
    secret_entries,
    slim,
)
from shoal.clusters.errors import UnusableAccountError
from shoal.clusters.member import Health, Member, MemberState
from shoal.kube.access.credentials import Access, ReplaceableContent, ReplaceableCredential
from shoal.kube.client import Client
from shoal.kube.errors import AnswerError, ForbiddenError, KubeError, NotFoundError, UnauthorizedError
from shoal.kube.objects.others import Secret
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NAMESPACES, SECRETS
from shoal.kube.store import Change
from shoal.model.backoff import Backoff
from shoal.model.contract import clusters
from shoal.model.contract.clusters import MAX_CLUSTERS

log = logging.getLogger(__name__)

#: The namespace whose UID is the identity of its cluster: it is made with it, and nobody can delete it.
IDENTITY_NAMESPACE: Final = "kube-system"
OWN: Final = "the manager's own cluster"
_ANSWER_BYTES: Final = 1 << 20
_AT_ONCE: Final = 16
_VERSION_LENGTH: Final = 64
_START_SECONDS: Final = 0.2
_BACKOFF: Final = Backoff(first=1.0, longest=30.0)


@dataclass(frozen=True, slots=True)
class ProbePace:
    """How often things are looked at, in seconds."""

    #: Whether a cluster that answers still does, and how long an answer may take.
    every: float = 10.0
    patience: float = 10.0
    #: Between looks at one that does not.
    backoff: Backoff = _BACKOFF
    files: float = 10.0
    profiles: float = 60.0
    #: How long the client of a cluster that left stays open for those who are using it.
    drain: float = 60.0


class _Metadata(msgspec.Struct):
    uid: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{1,64}\Z")]


class _Identity(msgspec.Struct):
    metadata: _Metadata


class _ServerVersion(msgspec.Struct, rename="camel"):
    git_version: str = ""


async def cluster_uid(client: Client) -> str:
    """The identity of a cluster. Raises KubeError."""
    path = NAMESPACES.path(name=IDENTITY_NAMESPACE)
    try:
        answer = await client.request("GET", path, max_bytes=_ANSWER_BYTES)
        return msgspec.json.decode(answer, type=_Identity).metadata.uid
    except ForbiddenError as error:
        raise UnusableAccountError(
            f"the account may not read namespace {IDENTITY_NAMESPACE}, by which a cluster is known: grant get of "
            "namespaces, or join anew: shoal clusters join"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(f"GET {path}: the answer is no namespace: check the server's address") from error


async def server_version(client: Client) -> str:
    """What a server says its version is. Raises KubeError."""
    answer = await client.request("GET", "/version", max_bytes=_ANSWER_BYTES)
    try:
        said = msgspec.json.decode(answer, type=_ServerVersion).git_version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return readable(said[:_VERSION_LENGTH])


# Which entry is which cluster: pure.


@dataclass(frozen=True, slots=True)
class Sighting:
    """An entry, and what its cluster said when it was asked. The identity is empty while it is not known."""

    entry: ClusterEntry
    uid: str = ""
    health: Health = Health.UNKNOWN
    why: str = ""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which entry each joined cluster is used by, by name, and what is wrong with the others."""

    joined: Mapping[str, Sighting]
    problems: Mapping[str, str]


def arrange(sightings: Sequence[Sighting]) -> Arrangement:
    """Join each cluster once, under one name; those entries that come first win."""
    problems = _Problems()
    usable = []
    for one in sightings:
        if one.entry.access is None:
            problems.add("", one.entry.where, one.entry.problem)
        else:
            usable.append(one)
    joined: dict[str, Sighting] = {}
    for name, rivals in _by_name(_once(usable, problems)).items():
        known = {one.uid: one for one in rivals if one.uid}
        if len(known) > 1:
            places = " and ".join(f"{one.entry.where} (UID {uid})" for uid, one in known.items())
            problems.add(
                name,
                name,
                f"{name} names {len(known)} clusters, {places}: none of them is used: give all but one another name, "
                f"by the label {clusters.LABEL_CLUSTER} of the Secret, or in `clusters` and `contexts` of the file",
            )
            continue
        chosen = next((one for one in rivals if one.uid), rivals[0])
        joined[name] = chosen
        for one in rivals:
            if one.health not in (Health.ANSWERS, Health.UNKNOWN):
                problems.add(name, one.entry.where, one.why)
    return Arrangement(joined, problems.rows)


class _Problems:
    """Rows by name, and by place where the name is taken."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def add(self, name: str, where: str, words: str) -> None:
        key = name if name and name not in self.rows else where
        self.rows.setdefault(key, readable(words))


def _once(sightings: Sequence[Sighting], problems: _Problems) -> Iterator[Sighting]:
    """One entry of each cluster: the first that answers, of those that are known to be it."""
    groups: dict[str, list[Sighting]] = {}
    for number, one in enumerate(sightings):
        groups.setdefault(one.uid or f"unknown {number}", []).append(one)
    for uid, group in groups.items():
        # Anybody can answer with another's UID: where it was written down for an entry, no other speaks for it.
        trusted = [one for one in group if one.entry.uid] or group
        chosen = next((one for one in trusted if one.health is Health.ANSWERS), trusted[0])
        yield chosen
        for one in group:
            if one.entry.name != chosen.entry.name and one.entry.where != OWN:
                problems.add(
                    one.entry.name,
                    one.entry.where,
                    f"{one.entry.where} is the cluster {chosen.entry.name} (UID {uid}) of {chosen.entry.where}, which "
                    "is joined once, under that name: remove one of the two",
                )


def _by_name(sightings: Iterator[Sighting]) -> dict[str, list[Sighting]]:
    names: dict[str, list[Sighting]] = {}
    for one in sightings:
        names.setdefault(one.entry.name, []).append(one)
    return names


# Live


@dataclass(eq=False)
class _Contact:
    """An entry with its client, and how the last look at it went."""

    entry: ClusterEntry
    client: Client
    credentials: ReplaceableCredential
    authority: ReplaceableContent | None
    #: When it was last known to answer, or first asked.
    since: float
    uid: str = ""
    version: str = ""
    health: Health = Health.UNKNOWN
    why: str = ""
    failures: int = 0
    #: Whichever cluster answers next is the one that is meant.
    fresh: bool = True
    #: Look now, and: it left.
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def sighting(self) -> Sighting:
        return Sighting(self.entry, self.known_uid, self.health, self.why)

    @property
    def known_uid(self) -> str:
        """Which cluster it is: the one that was joined, or the one that answered; empty if nobody knows."""
        return self.entry.uid or self.uid

    def take(self, entry: ClusterEntry) -> bool:
        """Go on by a changed entry; False if that needs another client."""
        before, after = self.entry.access, entry.access
        if before is None or after is None or _address(before) != _address(after):
            return False
        if entry.digest != self.entry.digest:
            self.fresh = True
            self.credentials.source = after.credentials
            if self.authority is not None and after.authority is not None:
                self.authority.content = after.authority
        if (entry.digest, entry.uid) != (self.entry.digest, self.entry.uid):
            self.wake.set()
        self.entry = entry
        return True


def _address(access: Access) -> tuple[object, ...]:
    """All that a client cannot change while it is open."""
    return (
        access.server,
        access.verify,
        access.server_name,
        access.proxy,
        access.headers,
        access.namespace,
        access.authority is None,
    )


class Members:
    """The clusters of the moment (`shoal.clusters.member.MemberTable`). Use it in `async with`.

    `home` is the manager's own cluster, in whose `namespace` the Secrets are. `own`: home as a member of its own,
    where no other entry is it; None, and it is none then.
    """

    def __init__(
        self,
        home: Client,
        *,
        namespace: str,
        files: Sequence[Path] = (),
        own: ClusterEntry | None = None,
        environ: Mapping[str, str] | None = None,
        pace: ProbePace | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._home = home
        self._paths = tuple(files)
        self._own = own
        self._environ = os.environ if environ is None else environ
        self._pace = pace or ProbePace()
        self._clock = clock
        self._rng = rng or random.Random()
        self._secrets = Reflector(
            home,
            SECRETS,
            namespace=namespace,
            labels=clusters.LABEL_CLUSTER,
            slim=slim,
            consumers=[self._secret_changed],
        )
        self._contacts: dict[str, _Contact] = {}
        self._unusable: tuple[ClusterEntry, ...] = ()
        #: How many entries were read beyond those that are taken.
        self._beyond = 0
        self._profiles: dict[str, ClusterProfile] = {}
        self._members: dict[str, Member] = {}
        self._problems: dict[str, str] = {}
        self._joined: dict[str, str] = {}
        self._calls: list[Callable[[], None]] = []
        self._dirty = asyncio.Event()
        self._settled = asyncio.Event()
        self._read = False
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        #: The identity of the manager's own cluster.
        self.home_uid = ""
        self._home_version = ""

    async def __aenter__(self) -> Members:
        self.home_uid = await cluster_uid(self._home)
        self._home_version = await server_version(self._home)
        self._task = asyncio.create_task(self._run(), name="clusters")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    @property
    def members(self) -> Mapping[str, Member]:
        """Those that answer, by name."""
        return MappingProxyType(self._members)

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong, by name or by where it was read: the cause and the fix."""
        return MappingProxyType(self._problems)

    @property
    def states(self) -> Mapping[str, MemberState]:
        """All that are joined, by name, also those that do not answer now."""
        return {name: self._state(name, where) for name, where in self._joined.items()}

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this whenever a cluster comes, goes, or answers again."""
        self._calls.append(call)

    async def settled(self) -> None:
        """Return when all that was read at the start has been asked once; raise if the reading ended before."""
        assert self._task is not None
        waiter = asyncio.create_task(self._settled.wait())
        try:
            await asyncio.wait({waiter, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not self._settled.is_set():
                self._task.result()
        finally:
            waiter.cancel()

    async def ended(self) -> None:
        """Raise what ended the reading, should that ever be: for whoever runs it beside other work."""
        assert self._task is not None
        await asyncio.wait({self._task})
        self._task.result()

    def _secret_changed(self, _: Change[Secret]) -> None:
        self._dirty.set()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group, self._secrets:
            group.create_task(self._read_profiles())
            group.create_task(self._first_list())
            while True:
                self._dirty.clear()
                files = await asyncio.to_thread(file_entries, self._paths, environ=self._environ)
                # Secrets that cannot be read keep no file from being used; those that are only not read yet do.
                if self._secrets.synced.is_set() or self._secrets.last_error is not None:
                    self._read = True
                    self._take([*files, *secret_entries(self._secrets.store, environ=self._environ)], group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._dirty.wait()

    def _pause(self) -> float | None:
        """Until the files are looked at again, and whether Secrets can be read."""
        if not self._read:
            return _START_SECONDS
        return self._pace.files if self._paths or not self._secrets.synced.is_set() else None

    async def _first_list(self) -> None:
        await self._secrets.synced.wait()
        self._dirty.set()

    def _take(self, entries: Sequence[ClusterEntry], group: asyncio.TaskGroup) -> None:
        """Let go of what is no longer there, take up what is new, and go on with the rest."""
        self._beyond = max(0, len(entries) - MAX_CLUSTERS)
        taken = {one.where: one for one in entries[:MAX_CLUSTERS]}
        self._unusable = tuple(one for one in taken.values() if one.access is None)
        kept: dict[str, _Contact] = {}
        for where, contact in self._contacts.items():
            entry = taken.get(where)
            if entry is not None and contact.take(entry):
                kept[where] = contact
            else:
                contact.gone.set()
                contact.wake.set()
        # In the order of the entries: those that come first win.
        self._contacts = {}
        for where, entry in taken.items():
            if entry.access is not None:
                self._contacts[where] = kept.get(where) or self._contact(entry, entry.access, group)
        self._publish()

    def _contact(self, entry: ClusterEntry, access: Access, group: asyncio.TaskGroup) -> _Contact:
        credentials = ReplaceableCredential(access.credentials)
        authority = None if access.authority is None else ReplaceableContent(access.authority)
        client = Client(dataclasses.replace(access, credentials=credentials, authority=authority))
        contact = _Contact(entry, client, credentials, authority, self._clock())
        group.create_task(self._keep(contact), name=f"cluster {entry.name}")
        return contact

    async def _keep(self, contact: _Contact) -> None:
        """Ask a cluster how it is for as long as it is joined, and keep its client open for a while longer."""
        async with contact.client:
            while not contact.gone.is_set():
                contact.wake.clear()
                await self._look(contact)
                if contact.gone.is_set():
                    break
                self._publish()
                pause = self._pace.backoff.jittered(contact.failures, self._rng) or self._pace.every
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await contact.wake.wait()
            await asyncio.sleep(self._pace.drain)

    async def _look(self, contact: _Contact) -> None:
        try:
            async with self._room, asyncio.timeout(self._pace.patience):
                uid = await cluster_uid(contact.client)
                contact.version = contact.version or await server_version(contact.client)
            meant = contact.entry.uid or ("" if contact.fresh else contact.uid)
            if meant not in ("", uid):
                raise UnusableAccountError(
                    f"{contact.entry.where}: cluster {meant} was joined and {uid} answers: join that one under a name "
                    f"of its own, or this one anew: shoal clusters join {contact.entry.name}"
                )
        except (UnauthorizedError, UnusableAccountError) as error:
            self._failed(contact, Health.REFUSED, str(error))
        except TimeoutError:
            words = f"no answer in {self._pace.patience:g} s: check that the server runs, and the network to it"
            self._failed(contact, Health.SILENT, words)
        except KubeError as error:
            self._failed(contact, Health.SILENT, str(error))
        else:
            if contact.health is not Health.ANSWERS or contact.uid != uid:
                log.info("cluster %s answers: UID %s, %s", contact.entry.name, uid, contact.entry.where)
            contact.uid, contact.health, contact.why, contact.failures = uid, Health.ANSWERS, "", 0
            contact.since, contact.fresh = self._clock(), False

    def _failed(self, contact: _Contact, health: Health, why: str) -> None:
        contact.failures += 1
        contact.why = readable(why)
        if contact.health is not health:
            log.warning("cluster %s is %s: %s", contact.entry.name, health, contact.why)
        contact.health = health

    async def _read_profiles(self) -> None:
        while True:
            try:
                page = await self._home.page(PROFILES, limit=MAX_CLUSTERS)
                found = [profile for one in page.items or () if (profile := profile_of(one)) is not None]
            except (NotFoundError, ForbiddenError):
                found = []  # the kind is not there, or not for us
            except KubeError as error:
                log.warning("ClusterProfiles: %s", error)
                found = list(self._profiles.values())
            self._profiles = {one.name: one for one in found}
            self._publish()
            await asyncio.sleep(self._pace.profiles)

    def _publish(self) -> None:
        """Work out who is joined, and tell if that has changed."""
        if not self._read:
            return
        sightings = [*map(Sighting, self._unusable), *(one.sighting() for one in self._contacts.values())]
        if self._own is not None:
            sightings.append(Sighting(self._own, self.home_uid, Health.ANSWERS))
        arrangement = arrange(sightings)
        members = {name: self._member(one) for name, one in arrangement.joined.items() if one.health is Health.ANSWERS}
        problems = {**arrangement.problems, **self._more_problems(arrangement)}
        changed = (members, problems) != (self._members, self._problems)
        self._members, self._problems = members, problems
        self._joined = {name: one.entry.where for name, one in arrangement.joined.items()}
        if all(one.health is not Health.UNKNOWN for one in self._contacts.values()):
            self._settled.set()
        if changed:
            self._tell()

    def _tell(self) -> None:
        for call in self._calls:
            try:
                call()
            except Exception:
                log.exception("%r failed and does not know of the clusters of now", call)

    def _more_problems(self, arrangement: Arrangement) -> dict[str, str]:
        rows = {}
        if self._secrets.last_error is not None:
            rows["Secrets"] = readable(f"labelled Secrets cannot be read: {self._secrets.last_error}")
        if self._beyond:
            rows["more"] = f"{self._beyond} more clusters were read: at most {MAX_CLUSTERS} are joined: remove some"
        for one in self._profiles.values():
            if one.name not in arrangement.joined and one.name not in arrangement.problems:
                rows[one.where] = (
                    f"{one.where} has no credentials here: shoal clusters join {one.name} --kubeconfig FILE"
                )
        return rows

    def _member(self, one: Sighting) -> Member:
        """A joined cluster; the one of before while nothing has changed."""
        entry = one.entry
        client = self._home if entry.where == OWN else self._contacts[entry.where].client
        member = Member(
            entry.name,
            one.uid,
            client,
            own=one.uid == self.home_uid,
            joined=bool(entry.uid),
            cost=entry.cost,
            preference=entry.preference,
            namespace=entry.namespace,
            pod_account=entry.pod_account,
            offer_url=entry.offer_url,
            offer_authority=entry.offer_authority,
        )
        # Who follows a member knows by `is` that it is still the same.
        before = self._members.get(entry.name)
        return before if before == member else member

    def _state(self, name: str, where: str) -> MemberState:
        profile = self._profiles.get(name)
        properties = profile.properties if profile else {}
        contact = self._contacts.get(where)
        if contact is None:
            return MemberState(
                name, where, self.home_uid, True, Health.ANSWERS, version=self._home_version, properties=properties
            )
        answers = contact.health is Health.ANSWERS
        return MemberState(
            name,
            where,
            contact.known_uid,
            contact.known_uid == self.home_uid,
            contact.health,
            None if answers else self._clock() - contact.since,
            contact.why,
            contact.version,
            properties,
        )
