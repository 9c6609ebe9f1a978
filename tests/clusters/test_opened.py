"""A dispatched pod as it is written for a namespace of a member; `uses.yaml` has what the policy refuses."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.clusters.opened import NamespaceTerms, copied_name, copied_prefix, may_use, with_terms
from shoal.kube.resources import RawObject
from shoal.model.contract import clusters

HOME = "2634511a-2df7-4127-b3be-3036a17b117c"


def written(spec: RawObject, terms: NamespaceTerms, *, pod_account: str = "default") -> RawObject:
    made: RawObject = with_terms({"spec": spec}, terms, home=HOME, pod_account=pod_account)["spec"]
    return made


def naming(name: str, **more: bool) -> RawObject:
    """A spec that names a ConfigMap and a Secret in every way in which they are copied."""
    return {
        "imagePullSecrets": [{"name": name}],
        "containers": [
            {
                "name": "main",
                "env": [
                    {"name": "A", "value": name},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": name, "key": "k", **more}}},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": name, "key": "k", **more}}},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
            }
        ],
        "initContainers": [
            {"name": "i", "envFrom": [{"secretRef": {"name": name, **more}}, {"configMapRef": {"name": name, **more}}]}
        ],
        "volumes": [
            {"name": "a", "secret": {"secretName": name, **more}},
            {"name": "b", "configMap": {"name": name, **more}},
            {
                "name": "c",
                "projected": {"sources": [{"secret": {"name": name, **more}}, {"configMap": {"name": name}}]},
            },
            {"name": "d", "emptyDir": {}},
        ],
    }


def test_what_is_copied_is_named_by_its_copy() -> None:
    renamed = naming(copied_name(HOME, "given"))
    renamed["containers"][0]["env"][0]["value"] = "given"
    assert written(naming("given"), NamespaceTerms(copies=True)) == {
        **renamed,
        "serviceAccountName": "default",
        "automountServiceAccountToken": False,
    }


def test_what_is_open_keeps_its_name() -> None:
    terms = NamespaceTerms(frozenset({"secrets/given", "configmaps/given"}), copies=True)
    made = written(naming("given"), terms)
    assert {key: made[key] for key in naming("given")} == naming("given")


def test_an_optional_one_that_is_neither_open_nor_copied_is_not_found() -> None:
    made = written(naming("given", optional=True), NamespaceTerms())
    assert made["volumes"][0]["secret"]["secretName"] == copied_name(HOME, "given")
    assert made["imagePullSecrets"] == [{"name": "given"}], "it is not optional: the policy refuses it in words"


def test_the_certificate_of_the_member_is_its_own() -> None:
    made = written(naming(clusters.UNCOPIED_CONFIG_MAP), NamespaceTerms(copies=True))
    assert made["volumes"][1] == {"name": "b", "configMap": {"name": clusters.UNCOPIED_CONFIG_MAP}}


def test_the_account_and_its_token() -> None:
    for spec in (
        {},
        {"serviceAccountName": "default"},
        {"serviceAccountName": "", "automountServiceAccountToken": True},
    ):
        made = written(spec, NamespaceTerms(), pod_account="guests")
        assert (made["serviceAccountName"], made["automountServiceAccountToken"]) == ("guests", False)
    spec = {"serviceAccountName": "trainer"}
    assert written(spec, NamespaceTerms())["automountServiceAccountToken"] is False
    assert (
        written(spec, NamespaceTerms(may_use({clusters.ANNOTATION_MAY_USE: " a/b, serviceaccounts/trainer"}))) == spec
    )


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True))
def test_names_of_copies_fit_and_differ(name: str) -> None:
    made = copied_name(HOME, name)
    assert made.startswith(copied_prefix(HOME))
    assert len(made) <= 253
    assert made == made.strip("-.")
    assert ".." not in made or ".." in name
    assert made != copied_name(HOME, name + "x")
    assert not made.startswith(copied_prefix(HOME[:-1])), "another home's"
