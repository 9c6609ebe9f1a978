"""Custom resource definitions: each makes its kind appear in the catalogue, and takes its objects with it when it goes.

What its schema asks is in the modules beside this one. Only the stored version of a definition is served.
"""

from __future__ import annotations

from shoal.embedded.deletion import DeleteOptions, Deletion
from shoal.embedded.kinds import DEFINITIONS, Kind
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object, key_of


class Definitions:
    """Keeps the catalogue of a registry equal to its definitions."""

    def __init__(self, registry: Registry, deletion: Deletion) -> None:
        self._registry = registry
        self._deletion = deletion
        registry.observers.append(self._observe)

    def _observe(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        if kind.key != DEFINITIONS.key:
            return
        if after is not None:
            if before is None:
                # A kind has no past: versions from before its definition are gone.
                self._registry.store.forget(kind_of(after).key)
            self._serve(after)
        elif before is not None:
            custom = kind_of(before)
            for obj in self._registry.store.objects(custom.key):
                self._deletion.delete(custom, *key_of(obj), DeleteOptions())
            self._registry.catalogue.remove(custom)

    def _serve(self, definition: Object) -> None:
        self._registry.catalogue.add(kind_of(definition))
        if (definition.get("status") or {}).get("conditions"):
            return
        established = copied(definition)
        now = self._registry.now()
        conditions = (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
        established["status"] = {
            "conditions": [
                {"type": name, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
                for name, reason, message in conditions
            ],
            "acceptedNames": established["spec"]["names"],
            "storedVersions": [kind_of(definition).version],
        }
        self._registry.write(DEFINITIONS, established, definition)


def kind_of(definition: Object) -> Kind:
    """The kind that a definition describes, in its stored version."""
    spec = definition["spec"]
    names = spec["names"]
    stored = next((version for version in spec["versions"] if version.get("storage")), spec["versions"][0])
    return Kind(
        spec["group"],
        stored["name"],
        names["plural"],
        names["kind"],
        namespaced=spec.get("scope") == "Namespaced",
        singular=names.get("singular", ""),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        subresources=tuple(name for name in ("status", "scale") if name in (stored.get("subresources") or {})),
        custom=True,
        served=stored,
    )
