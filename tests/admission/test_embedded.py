"""The table, and what changes of objects are let through, asked of the embedded cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import NAMESPACES, Kind
from shoal.embedded.patch.json_patch import merge_patch
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import Registry
from shoal.model.contract.gpushare import MemoryUnit
from tests.admission.table import CHANGES, KINDS, Case, Change, Object, denial, every_case, every_change


@pytest.fixture(scope="module")
def registry_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[MemoryUnit | None], Registry]:
    """The registry of a cluster that refuses, by its unit; of a bare one for None."""
    units = (*MemoryUnit, None)
    made = {unit: EmbeddedApi(tmp_path_factory.mktemp("embedded"), admission=unit).registry for unit in units}
    return made.__getitem__


def kind_of(registry: Registry, kind: str) -> Kind:
    group, plural, _ = KINDS[kind]
    found = registry.catalogue.find(group, "v1", plural)
    assert found is not None
    return found


def refusal(registry: Registry, kind: str, obj: Object) -> Object | None:
    try:
        registry.create(kind_of(registry, kind), "default", obj, dry_run=True)
    except ApiStatus as status:
        return status.body()
    return None


@every_case
def test_embedded(case: Case, registry_of: Callable[[MemoryUnit | None], Registry]) -> None:
    registry = registry_of(case.unit)
    if case.server:
        told = refusal(registry, "Pod", case.object("Pod"))
        assert told is not None
        assert told["message"].endswith(f": {case.server}")
        return
    for kind in KINDS:
        assert refusal(registry, kind, case.object(kind)) == (denial(kind, case.refused) if case.denied else None)


@every_case
def test_a_bare_server_has_no_policy(case: Case, registry_of: Callable[[MemoryUnit | None], Registry]) -> None:
    told = refusal(registry_of(None), "Pod", case.object("Pod"))
    assert (told is not None) is bool(case.server)


@every_change
def test_changes(change: Change, registry_of: Callable[[MemoryUnit | None], Registry]) -> None:
    registry = registry_of(MemoryUnit.GIB)
    namespace = f"change-{CHANGES.index(change)}"
    ignored = {"metadata": {"name": namespace, "labels": {"shoal.dev/admission": "ignore"}}}
    registry.create(NAMESPACES, "", ignored)
    kind = kind_of(registry, change.kind)
    before = registry.create(kind, namespace, change.before)
    registry.update(NAMESPACES, "", namespace, {"metadata": {"name": namespace}})
    after = merge_patch(copied(before), change.patch)
    if not change.refused:
        registry.update(kind, namespace, "web", after)
        return
    with pytest.raises(ApiStatus) as status:
        registry.update(kind, namespace, "web", after)
    assert status.value.body() == denial(change.kind, change.refused)
    assert registry.get(kind, namespace, "web") == before
