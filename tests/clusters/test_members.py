"""Where clusters are read, and which entry is which cluster: every kind of rubbish keeps to its own row."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.clusters.entries import (
    ClusterEntry,
    file_entries,
    profile_of,
    secret_entries,
    secret_entry,
)
from shoal.clusters.member import Health
from shoal.clusters.members import OWN, Arrangement, Sighting, arrange
from shoal.kube.access.credentials import Access, ReplaceableCredential, StoredCredential
from shoal.model.contract.clusters import ANNOTATION_CLUSTER_UID, ANNOTATION_COST, MAX_CLUSTERS
from tests.clusters.kubeconfigs import kubeconfig, secret

GOOD = kubeconfig("good")


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def read(*paths: Path) -> list[ClusterEntry]:
    return file_entries(paths, environ={})


async def tokens(entries: list[ClusterEntry]) -> dict[str, str]:
    """By name: the token that the entry's requests carry."""
    return {e.name: (await e.access.credentials.current()).token for e in entries if e.access is not None}


# Files


async def test_every_context_has_its_own_credentials(tmp_path: Path) -> None:
    found = read(write(tmp_path, "config", kubeconfig("a", "b", "c", current="b-admin@b")))
    assert await tokens(found) == {"a": "token-of-a", "b": "token-of-b", "c": "token-of-c"}
    assert found[0].name == "b"  # the current one comes first
    assert {e.access.server for e in found if e.access} == {f"https://{n}.example:6443" for n in "abc"}


async def test_files_that_use_the_same_names_do_not_mix(tmp_path: Path) -> None:
    """As kubeadm writes them: every cluster is `kubernetes`, every user `kubernetes-admin`."""
    first, second = kubeconfig("kubernetes"), kubeconfig("kubernetes")
    second["clusters"][0]["cluster"]["server"] = "https://second.example:6443"
    second["users"][0]["user"]["token"] = "second"
    found = read(write(tmp_path, "a", first), write(tmp_path, "b", second))
    seen = [(e.access.server, (await e.access.credentials.current()).token) for e in found if e.access]
    assert seen == [
        ("https://kubernetes.example:6443", "token-of-kubernetes"),
        ("https://second.example:6443", "second"),
    ]
    assert len({e.where for e in found}) == 2


async def test_a_context_may_name_what_another_file_has(tmp_path: Path) -> None:
    whole = kubeconfig("a")
    contexts = {"contexts": whole.pop("contexts")}
    assert await tokens(read(write(tmp_path, "1", contexts), write(tmp_path, "2", whole))) == {"a": "token-of-a"}


def test_a_folder_is_read_as_mounted_and_as_kubectl_keeps_it(tmp_path: Path) -> None:
    write(tmp_path, "config", GOOD)
    write(tmp_path, "other", kubeconfig("other"))
    write(tmp_path, "cache/discovery/x.json", "{}")  # kubectl's own
    write(tmp_path, "..2026_01_01/config", "rubbish: [")  # a mounted Secret's earlier version
    found = read(tmp_path)
    assert [(e.name, e.problem) for e in found] == [("good", ""), ("other", "")]


RUBBISH: dict[str, tuple[Any, str]] = {
    "no YAML": ("a: [", "is no YAML, see line"),
    "bytes": (b"\x00\xff\xfe\x80", "is no YAML"),
    "a word": ("hello", "has the wrong form"),
    "a list": ([1, 2], "has the wrong form"),
    "another document": ({"apiVersion": "v1", "kind": "Pod"}, "has no contexts: add one"),
    "empty": ("", "has no contexts: add one"),
    "nested": ("[" * 200_000 + "]" * 200_000, "is nested deeper than 100"),
    "contexts of the wrong form": ({"contexts": "x"}, "has the wrong form"),
    "no such cluster": ({**kubeconfig("x"), "clusters": []}, "has no cluster 'x': choose one of good"),
    "no such user": ({**kubeconfig("x"), "users": []}, "has no user 'x-admin': choose one of good-admin"),
    "no server": (kubeconfig("x", cluster={"server": None}), "has no usable server"),
    "bad server": (kubeconfig("x", cluster={"server": "ftp://x"}), "has no usable server"),
    "bad base64": (kubeconfig("x", cluster={"certificate-authority-data": "%"}), "is not base64"),
    "a password": (kubeconfig("x", user={"username": "u", "password": "p"}), "has a password"),
    "auth-provider": (kubeconfig("x", user={"auth-provider": {"name": "gcp"}}), "auth-provider"),
    "a key alone": (kubeconfig("x", user={"client-key-data": "aaaa"}), "without a key, or the reverse"),
    "a plugin without command": (kubeconfig("x", user={"exec": {"apiVersion": "v1"}}), "without a command"),
    "a name that is none": (
        kubeconfig("arn:aws:eks:x/y", cluster={"server": "https://x"}),
        "which is no name for one: rename it",
    ),
    "a socks proxy": (kubeconfig("x", cluster={"proxy-url": "socks5://x"}), "not SOCKS"),
}


@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_is_told_with_its_fix_and_keeps_no_other(tmp_path: Path, what: str) -> None:
    content, words = RUBBISH[what]
    bad, good = write(tmp_path, "bad", content), write(tmp_path, "good", GOOD)
    found = read(bad, good)
    assert [(e.name, e.problem) for e in found if e.access is not None] == [("good", "")]
    (row,) = [e for e in found if e.access is None]
    assert words in row.problem
    assert str(bad) in row.problem  # which file it is
    assert ": " in row.problem  # cause and fix


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    write(tmp_path, "config", GOOD)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # to open it would block for ever
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    problems = {Path(e.where).name: e.problem for e in read(tmp_path, tmp_path / "missing") if e.access is None}
    assert set(problems) == {"folder", "pipe", "dangling", "missing"}
    assert "move its files up, or name it in KUBECONFIG" in problems["folder"]
    assert "no regular file" in problems["pipe"]
    assert all("is not there" in problems[name] for name in ("dangling", "missing"))


def test_a_missing_current_context_is_no_matter(tmp_path: Path) -> None:
    assert [e.name for e in read(write(tmp_path, "c", kubeconfig("a", current="")))] == ["a"]
    assert [e.name for e in read(write(tmp_path, "c", kubeconfig("a", current="none")))] == ["a"]


def test_files_without_end_are_bounded(tmp_path: Path) -> None:
    for number in range(2 * MAX_CLUSTERS + 5):
        write(tmp_path, f"{number:04}", kubeconfig(f"c{number}"))
    found = read(tmp_path)
    assert len([e for e in found if e.access]) == 2 * MAX_CLUSTERS
    assert any("at most 200 are read" in e.problem for e in found)


def test_a_digest_tells_whether_credentials_changed(tmp_path: Path) -> None:
    path = write(tmp_path, "c", kubeconfig("a", "b"))
    before = {e.name: e.digest for e in read(path)}
    assert {e.name: e.digest for e in read(path)} == before
    changed = kubeconfig("a", "b")
    changed["users"][0]["user"]["token"] = "new"
    after = {e.name: e.digest for e in read(write(tmp_path, "c", changed))}
    assert after["a"] != before["a"]
    assert after["b"] == before["b"]


# Secrets


async def test_a_secret_is_a_cluster() -> None:
    annotations = {ANNOTATION_COST: "2.5", ANNOTATION_CLUSTER_UID: "u-1", "shoal.dev/scheduler-namespace": "gpu"}
    found = secret_entry(secret("west", kubeconfig("x"), annotations=annotations), environ={})
    assert (found.name, found.where, found.problem) == ("west", "Secret shoal/west", "")
    assert (found.cost, found.preference, found.uid, found.namespace) == (2.5, 0.0, "u-1", "gpu")
    assert await tokens([found]) == {"west": "token-of-x"}
    assert "token-of-x" not in repr(found)


HOSTILE: dict[str, tuple[Any, str]] = {
    "a program": (
        kubeconfig("x", user={"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/touch"}}),
        "names a program, which is not run: store a token",
    ),
    "a program beside a token": (
        kubeconfig("x", user={"token": "t", "exec": {"command": "touch"}}),
        "names a program, which is not run",
    ),
    "a token's file": (
        kubeconfig("x", user={"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}),
        "tokenFile names a file, which is not read",
    ),
    "a key's file": (
        kubeconfig("x", user={"client-certificate-data": "aaaa", "client-key": "/etc/key"}),
        "client-key names a file",
    ),
    "a certificate's file": (
        kubeconfig("x", user={"client-certificate": "/etc/cert", "client-key-data": "aaaa"}),
        "client-certificate names a file",
    ),
    "an authority's file": (
        kubeconfig("x", cluster={"certificate-authority": "/etc/shadow"}),
        "certificate-authority names a file",
    ),
    "an unknown server": (
        kubeconfig("x", cluster={"insecure-skip-tls-verify": True}),
        "insecure-skip-tls-verify is set: remove it",
    ),
    "plain http": (kubeconfig("x", cluster={"server": "http://x"}), "is not https://"),
    "a deep nest": (b"[" * 200_000 + b"]" * 200_000, "is nested deeper than 100"),
    "aliases": (b"a: &a [x]\nclusters: *a\n", "holds YAML aliases"),
    "a laughing billion": (
        b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (i, i, i - 1, i - 1) for i in range(98, 122)),
        "holds YAML aliases",
    ),
    "objects of Python": (b"!!python/object/apply:os.system [true]", "is no YAML"),
    "nothing": (b"{}", "no current-context"),
    "rubbish": (b"\x00", "is no YAML"),
    "too long": (b"#" * (2 << 20), "a kubeconfig has at most"),
    "two contexts, none current": (kubeconfig("x", "y", current=""), "choose one of x-admin@x, y-admin@y"),
    "no such context": (kubeconfig("x", current="y"), "has no context 'y'"),
    "a password": (kubeconfig("x", user={"username": "u", "password": "p"}), "has a password"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_secret_runs_nothing_and_reads_nothing(what: str) -> None:
    content, words = HOSTILE[what]
    found = secret_entry(secret("west", content), environ={})
    assert found.access is None
    assert words in found.problem
    assert "Secret shoal/west" in found.problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": {}}, "has no key kubeconfig"),
        ({"data": {"kubeconfig": "%%%"}}, "is not base64"),
        ({"label": ""}, "which is no name for one: correct its label"),
        ({"annotations": {ANNOTATION_COST: "cheap"}}, "shoal.dev/cost holds 'cheap': write a number"),
        ({"annotations": {ANNOTATION_COST: "nan"}}, "write a number"),
        ({"annotations": {ANNOTATION_COST: "1e300"}}, "write a number"),
        ({"annotations": {"shoal.dev/offer-url": "http://x"}}, "write https://HOST:PORT"),
    ],
)
def test_what_else_is_wrong_with_a_secret(change: dict[str, Any], words: str) -> None:
    made = secret("west", GOOD, label=change.get("label"), annotations=change.get("annotations"))
    if "data" in change:
        made = msgspec.structs.replace(made, data=change["data"])
    found = secret_entry(made, environ={})
    assert found.access is None
    assert words in found.problem


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_no_content_of_a_secret_raises(content: bytes) -> None:
    found = secret_entry(secret("west", content), environ={})
    assert found.access is None
    assert found.problem.isprintable()


def test_the_older_secret_comes_first() -> None:
    made = [
        secret("b", GOOD, created="2026-01-02T00:00:00Z"),
        secret("a", GOOD, created="2026-01-03T00:00:00Z"),
        secret("c", GOOD, created="2026-01-01T00:00:00Z"),
    ]
    assert [e.name for e in secret_entries(made, environ={})] == ["c", "b", "a"]


async def test_credentials_are_replaced_under_their_users() -> None:
    old, new = (StoredCredential(token=None) for _ in range(2))
    held = ReplaceableCredential(old)
    before = await held.current()
    held.source = new
    assert await held.refresh(before) == await new.current()


# Which is which

ACCESS = Access("https://x", StoredCredential())


def seen(name: str, uid: str = "", health: Health = Health.ANSWERS, *, where: str = "", why: str = "") -> Sighting:
    return Sighting(ClusterEntry(where or f"Secret shoal/{name}", name, ACCESS), uid, health, why)


def names(found: Arrangement) -> dict[str, str]:
    """By name: where the joined cluster was read."""
    return {name: one.entry.where for name, one in found.joined.items()}


def test_each_is_joined_by_its_name() -> None:
    found = arrange([seen("a", "1"), seen("b", "2")])
    assert names(found) == {"a": "Secret shoal/a", "b": "Secret shoal/b"}
    assert found.problems == {}


def test_one_under_two_names_is_joined_once() -> None:
    found = arrange([seen("a", "1"), seen("b", "1"), seen("c", "2")])
    assert set(names(found)) == {"a", "c"}
    assert set(found.problems) == {"b"}
    assert "is the cluster a (UID 1)" in found.problems["b"]
    assert "remove one of the two" in found.problems["b"]


def test_two_contexts_of_one_cluster_are_no_problem() -> None:
    found = arrange([seen("a", "1", where="context x"), seen("a", "1", where="context y")])
    assert (names(found), found.problems) == ({"a": "context x"}, {})


def test_the_entry_that_works_is_used() -> None:
    refused = seen("a", "1", Health.REFUSED, where="context x", why="401")
    assert names(arrange([refused, seen("a", "1", where="context y")])) == {"a": "context y"}


@pytest.mark.parametrize("health", [Health.ANSWERS, Health.SILENT, Health.REFUSED])
def test_nobody_takes_the_place_of_a_cluster_that_was_joined(health: Health) -> None:
    """An entry without a UID comes first, and its cluster answers with another's."""
    joined = Sighting(ClusterEntry("Secret shoal/west", "west", ACCESS, uid="1"), "1", health, "cause: fix")
    found = arrange([seen("liar", "1"), joined])
    assert names(found) == {"west": "Secret shoal/west"}
    assert "is the cluster west (UID 1)" in found.problems["liar"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_under_one_name_are_both_refused(order: tuple[int, int]) -> None:
    both = [seen("kubernetes", "1", where="context x"), seen("kubernetes", "2", where="context y")]
    found = arrange([*(both[n] for n in order), seen("c", "3")])
    assert set(names(found)) == {"c"}
    words = found.problems["kubernetes"]
    assert "context x (UID 1)" in words
    assert "context y (UID 2)" in words
    assert "give all but one another name" in words


def test_an_unknown_rival_takes_nothing_away() -> None:
    """Somebody writes a second entry of a name, and its cluster has never answered."""
    rival = seen("a", "", Health.SILENT, where="context y", why="no connection")
    for order in ([seen("a", "1"), rival], [rival, seen("a", "1")]):
        found = arrange(order)
        assert names(found) == {"a": "Secret shoal/a"}
        assert found.problems == {"a": "no connection"}


def test_silent_clusters_stay_joined_and_are_told() -> None:
    found = arrange([seen("a", "1", Health.SILENT, why="no route"), seen("b", "", Health.REFUSED, why="401")])
    assert set(names(found)) == {"a", "b"}
    assert found.problems == {"a": "no route", "b": "401"}


def test_the_own_cluster_goes_by_the_name_that_an_entry_gives_it() -> None:
    own = seen("home", "h", where=OWN)
    assert names(arrange([own])) == {"home": OWN}
    found = arrange([seen("west", "h"), own])
    assert (names(found), found.problems) == ({"west": "Secret shoal/west"}, {})


def test_unreadable_entries_are_rows_of_their_own() -> None:
    bad = [Sighting(ClusterEntry(f"Secret shoal/{n}", "a", problem=f"cause {n}: fix")) for n in (1, 2)]
    found = arrange([*bad, seen("a", "1")])
    assert set(names(found)) == {"a"}
    assert found.problems == {"Secret shoal/1": "cause 1: fix", "Secret shoal/2": "cause 2: fix"}


def test_words_of_others_cannot_write_to_a_terminal() -> None:
    found = arrange([seen("a", "1", Health.SILENT, why="\x1b[2Jgone\n" + "x" * 5000)])
    assert found.problems["a"].isprintable()
    assert len(found.problems["a"]) < 1000


SIGHTINGS = st.lists(
    st.builds(
        lambda number, name, uid, health: seen(name, uid, health, where=f"place {number}", why="cause: fix"),
        st.integers(0, 10**9),
        st.sampled_from("abcd"),
        st.sampled_from(["", "1", "2", "3"]),
        st.sampled_from([Health.ANSWERS, Health.SILENT, Health.REFUSED]),
    ),
    max_size=8,
    unique_by=lambda one: one.entry.where,
)


@given(SIGHTINGS)
def test_no_cluster_is_joined_twice_and_none_is_lost_without_a_word(sightings: list[Sighting]) -> None:
    found = arrange(sightings)
    uids = [one.uid for one in found.joined.values() if one.uid]
    assert len(uids) == len(set(uids))
    # By the entry that speaks for each cluster: no other cluster goes by the name of a joined one.
    speaker: dict[str, Sighting] = {}
    for one in sorted(sightings, key=lambda one: one.health is not Health.ANSWERS):
        speaker.setdefault(one.uid, one)
    for name, one in found.joined.items():
        assert one.entry.name == name
        if one.uid:
            assert [uid for uid, other in speaker.items() if uid and other.entry.name == name] == [one.uid]
    told = {*found.joined, *found.problems}
    for one in sightings:
        joined_as = any(one.uid and one.uid == other.uid for other in found.joined.values())
        assert joined_as or one.entry.name in told or one.entry.where in told


# ClusterProfiles


PROFILES: dict[str, tuple[Any, tuple[str, dict[str, str]] | None]] = {
    "whole": (
        {
            "metadata": {"name": "west", "namespace": "fleet"},
            "status": {"properties": [{"name": "region", "value": "eu"}, {"name": "x"}, 3]},
        },
        ("west", {"region": "eu"}),
    ),
    "bare": ({"metadata": {"name": "west"}}, ("west", {})),
    "no name": ({"metadata": {}}, None),
    "no metadata": ({}, None),
    "a bad name": ({"metadata": {"name": "a b"}}, None),
    "a wrong form": ({"metadata": {"name": "west"}, "status": {"properties": {"a": 1}}}, ("west", {})),
    "endless": (
        {
            "metadata": {"name": "west"},
            "status": {"properties": [{"name": f"k{n}", "value": "v" * 9999} for n in range(999)]},
        },
        ("west", {f"k{n}": "v" * 256 for n in range(64)}),
    ),
}


@pytest.mark.parametrize("what", PROFILES)
def test_profiles_are_read_in_bounds(what: str) -> None:
    obj, wanted = PROFILES[what]
    found = profile_of(obj)
    assert (found and (found.name, dict(found.properties))) == wanted
