"""Every right of an account in `deploy/` is written in `rights.txt`, and none lets its holder become somebody else."""

from __future__ import annotations

from tests.deploy.rights import WRITTEN, granted

#: What no account has: by these it could take the rights of others, run programs elsewhere or read all Secrets.
_VERBS = ("*", "impersonate", "escalate", "bind", "approve", "sign", "attest", "deletecollection")
_RESOURCES = (
    *("*/*", "core/nodes/proxy", "core/pods/exec", "core/pods/attach", "core/pods/portforward", "core/pods/proxy"),
    *("core/pods/ephemeralcontainers", "core/pods/resize", "core/serviceaccounts", "core/replicationcontrollers"),
    *("apps/deployments/scale", "apps/statefulsets/scale", "core/services", "core/endpoints"),
)
_GROUPS = ("rbac.authorization.k8s.io", "admissionregistration.k8s.io", "certificates.k8s.io", "apiregistration.k8s.io")
_READING = {"get", "list", "watch"}
#: Workloads by which an account is root on nodes, and uses every account of its namespace: docs/security.md.
_MAKE_PODS = {"shoal-operator own apps/daemonsets", "shoal-uninstall own apps/daemonsets"}
#: The Secrets of a namespace that holds kubeconfigs of joined clusters and nothing else.
_READ_SECRETS = {"shoal-cluster-manager own core/secrets"}


def test_rights_are_written_down() -> None:
    written = {line for line in WRITTEN.read_text().splitlines() if line and not line.startswith("#")}
    found = granted()
    assert sorted(found - written) == [], f"rights that deploy/ grants and {WRITTEN.name} does not list: add the lines"
    assert sorted(written - found) == [], f"rights that {WRITTEN.name} lists and deploy/ no longer grants: remove them"


def test_no_account_can_take_the_rights_of_others() -> None:
    for line in sorted(granted()):
        who, scope, resource, *rest = line.split(" ")
        names = rest[next((at for at, one in enumerate(rest) if one.startswith("[")), len(rest)) :]
        verbs = set(rest) - set(names)
        right = f"{who} {scope} {resource}"
        assert not verbs & set(_VERBS), line
        assert resource not in _RESOURCES or verbs <= _READING, line
        assert resource.partition("/")[0] not in _GROUPS or verbs <= _READING, line
        if resource == "core/serviceaccounts/token":
            assert names, f"{line}: name the account"
        if resource == "core/secrets" and verbs & _READING:
            assert names or right in _READ_SECRETS, line
        if resource.startswith(("apps/", "batch/", "core/pods")) and "/" not in resource.partition("/")[2]:
            assert "create" not in verbs or right in _MAKE_PODS, line


def test_an_account_makes_no_tokens_of_its_own() -> None:
    """Else a token that lives ten minutes can be renewed for ever by whoever has seen it."""
    for line in granted():
        who, _, resource, *rest = line.split(" ")
        assert resource != "core/serviceaccounts/token" or f"[{who}]" not in rest, line
