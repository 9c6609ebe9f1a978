"""NVIDIA's ClusterPolicy becomes Shoal's: what is kept, what is dropped in words, and what the command takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli.main import main
from shoal.operator.migrate import MAX_DROPPED, MAX_POLICIES, MigrationError, migrate, written_short
from shoal.operator.policy import read_policy
from tests.operator.migration_cases import MIGRATIONS, MigrationCase, nvidia_policy


def run(*arguments: str, text: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["migrate", "clusterpolicy", *arguments], input=text)


@pytest.mark.parametrize("case", MIGRATIONS, ids=lambda case: case.name)
def test_a_policy_becomes_one_of_shoals(case: MigrationCase) -> None:
    (made,) = migrate([nvidia_policy(case.nvidia)])
    assert made.policy == {
        "apiVersion": "shoal.dev/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": case.spec,
    }
    told = [str(one) for one in made.dropped]
    for words in case.dropped:
        assert any(line.startswith(words) for line in told), told
    assert len(told) == len(case.dropped), told
    for words in case.notes:
        assert any(words in note for note in made.notes), made.notes
    assert read_policy(made.policy).problems == ()


def test_the_command_prints_the_policy_and_tells_what_it_dropped(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(nvidia_policy({"migManager": {"enabled": True}, "gfd": {"enabled": False}})))
    result = run(str(file))
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["spec"]["gfd"] == {"enabled": False}
    assert "cluster-policy: dropped spec.migManager.enabled true: Shoal does not run it" in result.stderr
    assert "cluster-policy: note: while NVIDIA's policy is there" in result.stderr
    assert run(str(file), "--strict").exit_code == 3
    assert run("-", "--strict", text=yaml.safe_dump(nvidia_policy({"gfd": {"enabled": False}}))).exit_code == 0


def test_lists_and_several_documents_are_taken() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [nvidia_policy({}), nvidia_policy({}, name="two")]}
    result = run("-", text=json.dumps(listed))
    assert [one["metadata"]["name"] for one in yaml.safe_load_all(result.stdout)] == ["cluster-policy", "two"]
    assert "of these 2 policies the oldest alone is in force" in result.stderr
    typed = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicyList", "items": [nvidia_policy({})]}
    others = [{"kind": "ConfigMap", "apiVersion": "v1"}, typed]
    result = run("-", "-o", "json", text=yaml.safe_dump_all(others))
    assert json.loads(result.stdout)["apiVersion"] == "shoal.dev/v1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no ClusterPolicy of nvidia.com/v1 in it"),
        ("a: [", "while parsing"),
        ("text", "there is no ClusterPolicy"),
        ("kind: ClusterPolicy\napiVersion: kyverno.io/v1\n", "there is no ClusterPolicy"),
        ("kind: ClusterPolicy\napiVersion: shoal.dev/v1\n", "there is no ClusterPolicy"),
        ("driver: {enabled: true}", "there is no ClusterPolicy"),
        (b"\xff\xfe\x00", "truncated data"),
        (b"\x00\x01", "special characters are not allowed"),
        ("[" * 100_000, "nest"),
        ("x" * (1 << 20) + "x", "has more than 1048576 bytes"),
    ],
)
def test_what_is_no_policy_is_told_in_words(text: str | bytes, words: str) -> None:
    result = run("-", text=text)
    assert result.exit_code == 1
    assert not isinstance(result.exception, MemoryError | RecursionError)
    assert result.stdout == ""
    if words != "nest":
        assert words in result.stderr


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = run(str(tmp_path / "no\nwhere"))
    assert result.exit_code == 1
    assert "cannot be read: No such file or directory: name a file, or -" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_references_do_not_make_much_of_little() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    text = "kind: ClusterPolicy\napiVersion: nvidia.com/v1\nspec:\n" + "".join(f"  {line}\n" for line in lines)
    result = run("-", text=text)
    assert result.exit_code == 1
    assert "a policy in it has more than 20000 values" in result.stderr


def test_a_policy_that_holds_itself_is_read() -> None:
    result = run(
        "-", text="kind: ClusterPolicy\napiVersion: nvidia.com/v1\nspec: &a {driver: *a, gfd: {enabled: false}}\n"
    )
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["spec"]["gfd"] == {"enabled": False}


def test_no_secret_and_no_forged_line_is_told() -> None:
    spec = {
        "gfd": {"env": [{"name": "A\nroot: forged", "value": "s3cret"}]},
        "devicePlugin": {"image": "x\ny"},
        "evil\nkey": {},
    }
    result = run("-", text=json.dumps(nvidia_policy(spec, annotations={"team\nb": "s3cret"})))
    assert result.exit_code == 0
    assert "s3cret" not in result.stderr + result.stdout
    assert all(line.startswith("cluster-policy: ") for line in result.stderr.splitlines())
    assert "metadata.annotations" in result.stderr


def test_very_many_things_are_bounded() -> None:
    with pytest.raises(MigrationError, match="more than 100 policies"):
        migrate([nvidia_policy({})] * (MAX_POLICIES + 1))
    env = [{"name": f"V{number}"} for number in range(2000)]
    (made,) = migrate([nvidia_policy({"gfd": {"env": env}})])
    assert len(made.dropped) == MAX_DROPPED + 1
    assert "1500 more things are not told" in str(made.dropped[-1])


def test_a_name_that_is_none_is_replaced() -> None:
    (made,) = migrate([nvidia_policy({}, name="Not A Name")])
    assert made.policy["metadata"] == {"name": "cluster-policy"}
    assert "metadata.name 'Not A Name': is no name" in str(made.dropped[-1])


_NAMES = sorted({name for case in MIGRATIONS for name in case.nvidia} | {"x"})
_FIELDS = [
    "enabled",
    "repository",
    "image",
    "version",
    "env",
    "args",
    "resources",
    "config",
    "upgradePolicy",
    "drain",
    "waitForCompletion",
    "podSelector",
    "enable",
    "startupProbe",
]
_FIELDS += [
    "limits",
    "cpu",
    "name",
    "default",
    "maxUnavailable",
    "tolerations",
    "labels",
    "strategy",
    "runtimeClass",
    "mps",
]
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["v1", "r.io", "25%", "1Gi"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=6))
def test_whatever_comes_the_answer_has_no_problems(spec: dict[str, object]) -> None:
    (made,) = migrate([nvidia_policy(spec)])
    reading = read_policy(made.policy)
    assert reading.problems == ()
    assert written_short(reading.spec) == made.policy["spec"]
    yaml.safe_dump(made.policy)
    json.dumps(made.policy, allow_nan=False)
