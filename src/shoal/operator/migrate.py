"""NVIDIA's ClusterPolicy in, Shoal's out, and what was dropped on the way. Pure.

Only what differs from Shoal's defaults is written. What Shoal does not have is dropped and told, as is what was meant
for a program of NVIDIA's that Shoal runs its own in place of. The answer is always a policy that the API server takes
and that has no problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shoal.model.contract import nvidia
from shoal.model.contract.operator import GROUP, KIND, NAME_POLICY, VERSION
from shoal.model.errors import shown
from shoal.operator.fields import FieldType, fields_of, rules_of
from shoal.operator.policy import ClusterPolicySpec, config_maps, read_policy

NVIDIA_API: Final = "nvidia.com/v1"
#: The most policies that one input may hold, the most values of one, and how deep it may be nested.
MAX_POLICIES: Final = 100
MAX_VALUES: Final = 20_000
MAX_DEPTH: Final = 32
#: Things dropped that are told one by one.
MAX_DROPPED: Final = 500

_IMAGE: Final = ("repository", "image", "version")
_OWN_IMAGE: Final = "is of NVIDIA's image, in whose place Shoal runs its own"
#: Sections whose programs are Shoal's, with the variables that mean the same to them; None: all do.
_REPLACED: Final[dict[str, frozenset[str] | None]] = {
    "devicePlugin": frozenset(
        {
            nvidia.ENV_DEVICE_LIST_STRATEGY,
            nvidia.ENV_MIG_STRATEGY,
            nvidia.ENV_DISABLE_HEALTH_CHECKS,
            nvidia.ENV_ENABLE_HEALTH_CHECKS,
        }
    ),
    "gfd": frozenset({nvidia.ENV_MIG_STRATEGY}),
    "dcgmExporter": None,
    "validator": frozenset(),
}
_CHECKS: Final = ("driver", "toolkit", "cuda", "plugin", "vfioPCI", "vgpuManager", "vgpuDevices")
#: What helm, kubectl and NVIDIA's chart write themselves.
_MACHINE_WRITTEN: Final = re.compile(
    r"(meta\.helm\.sh|helm\.sh|kubectl\.kubernetes\.io|app\.kubernetes\.io)/.*"
).fullmatch
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?").fullmatch


class MigrationError(ValueError):
    """The input is no ClusterPolicy of NVIDIA's."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What of NVIDIA's policy is not in Shoal's."""

    field: str
    why: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.field}: {self.why}"


@dataclass(frozen=True, slots=True)
class Migration:
    """A policy of Shoal's."""

    policy: dict[str, Any]
    dropped: tuple[Dropped, ...]
    #: What is left to do.
    notes: tuple[str, ...]


def migrate(documents: list[object]) -> list[Migration]:
    """A policy for each of NVIDIA's in the documents, which may be lists. Raises MigrationError if there is none."""
    found = list(_policies(documents))
    if not found:
        raise MigrationError(
            f"there is no ClusterPolicy of {NVIDIA_API} in it: give what "
            "`kubectl get clusterpolicies.nvidia.com -o yaml` prints"
        )
    return [_migrated(one) for one in found]


def _policies(documents: list[object], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    count = 0
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list) and depth == 0:
            inside: Iterator[Mapping[str, Any]] = _policies(items, 1)
        elif document.get("kind") == KIND and str(document.get("apiVersion", "")).startswith("nvidia.com/"):
            inside = iter([document])
        else:
            continue
        for one in inside:
            count += 1
            if count > MAX_POLICIES:
                raise MigrationError(f"there are more than {MAX_POLICIES} policies in it: give fewer")
            yield one


def _migrated(raw: Mapping[str, Any]) -> Migration:
    dropped: list[Dropped] = []
    spec = raw.get("spec")
    given = _Copier().copied(spec) if isinstance(spec, Mapping) else {}
    _drop_replaced(given, dropped)
    _drop_machine_written(given, dropped)
    _drop_empty(given, ClusterPolicySpec)
    _write_out_defaults(given)
    reading = read_policy({"spec": given})
    dropped += [Dropped(f"{one.field} {one.value}".rstrip(), f"{one.why}: {one.fix}") for one in reading.problems]
    meta = raw.get("metadata")
    made = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": _name(meta, dropped)},
        "spec": written_short(reading.spec),
    }
    return Migration(made, _told(dropped), tuple(_notes(read_policy(made).spec)))


def _told(dropped: list[Dropped]) -> tuple[Dropped, ...]:
    more = len(dropped) - MAX_DROPPED
    if more <= 0:
        return tuple(dropped)
    return (*dropped[:MAX_DROPPED], Dropped("spec", f"{more} more things are not told"))


class _Copier:
    """Copies a policy to change it. What a text of few bytes can make of itself by references is bounded."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def copied(self, value: Any, depth: int = 0) -> Any:
        """The copy, without what is nested deeper than a policy can be."""
        self._left -= 1
        if self._left < 0:
            raise MigrationError(f"a policy in it has more than {MAX_VALUES} values: is it a ClusterPolicy?")
        if depth > MAX_DEPTH:
            return None
        if isinstance(value, Mapping):
            return {key: self.copied(one, depth + 1) for key, one in value.items()}
        if isinstance(value, list):
            return [self.copied(one, depth + 1) for one in value]
        return value


def _name(meta: object, dropped: list[Dropped]) -> str:
    """The policy's name. Nothing else of the metadata is carried over, and what a person wrote there is told."""
    if not isinstance(meta, Mapping):
        return NAME_POLICY
    for kind in ("labels", "annotations"):
        entries = meta.get(kind)
        dropped += [
            Dropped(f"metadata.{kind}[{shown(key)}]", "is not carried over: put it on the new policy")
            for key in (entries if isinstance(entries, Mapping) else ())
            if not _MACHINE_WRITTEN(str(key))
        ]
    name = meta.get("name")
    if isinstance(name, str) and _NAME(name):
        return name
    if name is not None:
        dropped.append(Dropped(f"metadata.name {shown(name)}", f"is no name: {NAME_POLICY} is taken instead"))
    return NAME_POLICY


def _drop_replaced(spec: dict[str, Any], dropped: list[Dropped]) -> None:
    """Take out what is meant for programs that Shoal has its own in place of."""
    for name, known in _REPLACED.items():
        section = spec.get(name)
        if not isinstance(section, dict):
            continue
        image = [str(value) for part in _IMAGE if (value := section.pop(part, None))]
        if image:
            dropped.append(Dropped(f"spec.{name} image {shown(' '.join(image))}", _OWN_IMAGE))
        if known is None:
            continue
        if section.pop("args", None):
            dropped.append(Dropped(f"spec.{name}.args", _OWN_IMAGE))
        _drop_variables(section, known, f"spec.{name}.env", dropped)
        for check in _CHECKS if name == "validator" else ():
            inner = section.get(check)
            if isinstance(inner, dict):
                _drop_variables(inner, frozenset(), f"spec.{name}.{check}.env", dropped)


def _drop_machine_written(spec: dict[str, Any], dropped: list[Dropped]) -> None:
    """Take out labels and annotations that NVIDIA's chart puts on everything, and that name it."""
    for name in ("operator", "daemonsets"):
        section = spec.get(name)
        for kind in ("labels", "annotations"):
            entries = section.get(kind) if isinstance(section, dict) else None
            if not isinstance(entries, dict):
                continue
            for key in [key for key in entries if _MACHINE_WRITTEN(str(key))]:
                del entries[key]
                dropped.append(Dropped(f"spec.{name}.{kind}[{shown(key)}]", "names NVIDIA's chart"))


def _drop_variables(section: dict[str, Any], known: frozenset[str], where: str, dropped: list[Dropped]) -> None:
    """Take out variables that mean nothing to Shoal's program. Their values are not told: they may be secret."""
    variables = section.get("env")
    if not isinstance(variables, list):
        return
    names = [str(one.get("name")) if isinstance(one, dict) else "" for one in variables]
    section["env"] = [one for one, name in zip(variables, names, strict=True) if name in known]
    dropped += [Dropped(f"{where} {shown(name)}", _OWN_IMAGE) for name in names if name not in known]


def _drop_empty(given: Any, struct: type[msgspec.Struct]) -> None:
    """Take out empty texts where a choice is meant: to NVIDIA's operator they are as good as absent."""
    if not isinstance(given, dict):
        return
    for field in fields_of(struct):
        kind, value = field.type, given.get(field.key)
        if kind.choices and value == "" and "" not in kind.choices:
            del given[field.key]
        elif kind.struct is not None:
            _drop_empty(value, kind.struct)
        elif kind.kind is tuple and isinstance(value, list):
            inner = kind.entries[0].struct
            for one in value if inner is not None else ():
                assert inner is not None
                _drop_empty(one, inner)


def _write_out_defaults(spec: dict[str, Any]) -> None:
    """Write out what NVIDIA's operator does where nothing is said and Shoal would do something else."""
    for path, value in ((("driver", "upgradePolicy", "autoUpgrade"), False), (("mig", "strategy"), "none")):
        place = spec
        for name in path[:-1]:
            if place.get(name) is None:
                place[name] = {}
            place = place[name]
            if not isinstance(place, dict):
                break
        else:
            if place.get(path[-1]) is None:
                place[path[-1]] = value


def written_short(spec: ClusterPolicySpec) -> dict[str, Any]:
    """The least that must be written so that a spec is read as it is, without what does nothing."""
    return _difference(spec, ClusterPolicySpec())


def _difference(value: msgspec.Struct, default: msgspec.Struct) -> dict[str, Any]:
    """What of a struct must be written so that it is read as it is, without what does nothing."""
    found: dict[str, Any] = {}
    for field in fields_of(type(value)):
        mine, other = getattr(value, field.name), getattr(default, field.name)
        if mine == other or field.type.notes.inert:
            continue
        rule = field.type.notes.rule
        if rule is not None and not rule.holds(mine):
            return {}  # kept by the reader, since the rest of the section without it could do harm
        written = _changed(field.type, mine, other, field.default)
        if written is not None:
            found[field.key] = written
    if not all(rule.holds(value) for rule in rules_of(type(value))):
        for part in _IMAGE:  # kept as well
            found.pop(part, None)
    return found


def _changed(kind: FieldType, mine: Any, other: Any, default: Any) -> Any:
    if kind.kind is tuple and mine and isinstance(mine[0], msgspec.Struct):
        return [_entry(one) for one in mine]
    if kind.struct is None:
        return msgspec.json.decode(msgspec.json.encode(mine))
    # Within a section that is given, the API server has the defaults of the fields, not that of the section.
    base = other if other is default and default == kind.struct() else kind.struct()
    return _difference(mine, base) or (None if default == kind.struct() else {})


def _entry(value: msgspec.Struct) -> dict[str, Any]:
    """An entry of a list: fields that have no default, or another value."""
    found = {field.key: (getattr(value, field.name), field.default) for field in fields_of(type(value))}
    return {name: mine for name, (mine, default) in found.items() if mine != default}


def _notes(spec: ClusterPolicySpec) -> Iterator[str]:
    maps = [name for _, name in config_maps(spec)]
    sections = (spec.driver, spec.driver.manager, spec.toolkit, spec.device_plugin, spec.gfd, spec.dcgm_exporter)
    secrets = {name for section in (*sections, spec.validator) for name in section.image_pull_secrets}
    if spec.driver.secret_env:
        secrets.add(spec.driver.secret_env)
    for kind, names in (("ConfigMap", sorted(set(maps))), ("Secret", sorted(secrets))):
        if names:
            yield f"{kind} {', '.join(names)} is read from Shoal's namespace: copy it there if that is another one"
    for section, name in (
        ("devicePlugin", spec.device_plugin.config.name),
        ("dcgmExporter", spec.dcgm_exporter.config.name),
    ):
        if name:
            yield f"install Shoal's chart with {section}.config.name={name}: that lets the component read the ConfigMap"
    yield "while NVIDIA's policy is there, every section it enables is left to it: delete it once Shoal shall take over"
