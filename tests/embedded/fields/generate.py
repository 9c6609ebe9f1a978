"""Makes the table of fields from the Go types of Kubernetes: `python -m tests.embedded.fields.generate`.

The types are those of the module that `make kube` builds from, in Go's module cache. Only their names, numbers and
shapes are taken. What the table then says is held against a real server by `test_table_on_kubernetes.py`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.embedded.fields.table import FILE
from tests.testbed.binaries import DEFAULT_KUBE_VERSION

MODULE = Path(__file__).parents[2] / "testbed" / "go" / f"kubernetes-{DEFAULT_KUBE_VERSION}"
#: The section of the table, and where its types are declared: module, then folder.
PACKAGES = {
    "meta": ("k8s.io/apimachinery", "pkg/apis/meta/v1"),
    "apiextensions": ("k8s.io/apiextensions-apiserver", "pkg/apis/apiextensions/v1"),
    "autoscalingv1": ("k8s.io/api", "autoscaling/v1"),
    "autoscaling": ("k8s.io/api", "autoscaling/v2"),
    **{
        name: ("k8s.io/api", f"{name}/v1")
        for name in (
            *("admissionregistration", "apps", "authentication", "authorization", "batch", "coordination", "core"),
            *("discovery", "events", "networking", "node", "policy", "rbac", "resource", "scheduling", "storage"),
        )
    },
}
#: The kinds that are served or sent, and with them all that they hold.
ROOTS = {
    "admissionregistration": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration "
    "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
    "apiextensions": "CustomResourceDefinition",
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "authentication": "SelfSubjectReview TokenRequest TokenReview",
    "authorization": "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    "autoscaling": "HorizontalPodAutoscaler",
    "autoscalingv1": "Scale",
    "batch": "CronJob Job",
    "coordination": "Lease",
    "core": "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
    "PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount",
    "discovery": "EndpointSlice",
    "events": "Event",
    "meta": "DeleteOptions",
    "networking": "Ingress IngressClass NetworkPolicy",
    "node": "RuntimeClass",
    "policy": "Eviction PodDisruptionBudget",
    "rbac": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "resource": "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice",
    "scheduling": "PriorityClass",
    "storage": "CSIDriver CSINode StorageClass VolumeAttachment VolumeAttributesClass",
}
PLAIN = {"string": "str", "bool": "bool", "float64": "num", "[]byte": "bytes"} | dict.fromkeys(
    ("int", "int32", "int64", "uint32", "uint64"), "int"
)
#: Types with a form of their own in JSON.
LEAVES = {
    "meta.Time": "time",
    "meta.MicroTime": "microtime",
    "meta.FieldsV1": "raw",
    "apiextensions.JSON": "raw",
    "k8s.io/apimachinery/pkg/api/resource.Quantity": "quantity",
    "k8s.io/apimachinery/pkg/util/intstr.IntOrString": "intstr",
    "k8s.io/apimachinery/pkg/runtime.RawExtension": "raw",
    "k8s.io/apimachinery/pkg/types.UID": "str",
    "k8s.io/apimachinery/pkg/types.NodeName": "str",
    # An array, or text, instead of a schema: as a schema where it is one.
    "apiextensions.JSONSchemaPropsOrArray": "apiextensions.JSONSchemaProps",
    "apiextensions.JSONSchemaPropsOrBool": "apiextensions.JSONSchemaProps",
    "apiextensions.JSONSchemaPropsOrStringArray": "raw",
}
DECLARED = re.compile(r"^type (\w+) (struct ?\{\}|struct \{\n.*?^\}|[^{\n/]+)", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r'^\t(?:\w+\s+)?([^\s`]+)\s*`json:"([^",]*)[^"]*"(?:.*?protobuf:"[a-z0-9]+,(\d+),)?', re.MULTILINE)
IMPORT = re.compile(r'^\t(?:(\w+) )?"(k8s\.io/[^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Declared:
    """A type as Go declares it, and what the names of packages mean around it."""

    text: str
    imports: dict[str, str]


class Source:
    """The types of all packages."""

    def __init__(self) -> None:
        self._declared: dict[str, Declared] = {}
        paths = {f"{module}/{folder}": section for section, (module, folder) in PACKAGES.items()}
        for section, (module, folder) in PACKAGES.items():
            for file in sorted((_module_folder(module) / folder).glob("*.go")):
                if not file.name.endswith("_test.go") and not file.name.startswith("zz_"):
                    self._read(section, file.read_text(), paths)

    def _read(self, section: str, text: str, paths: dict[str, str]) -> None:
        imports = {}
        for alias, path in IMPORT.findall(text):
            imports[alias or path.rpartition("/")[2]] = paths.get(path, path)
        for name, declared in DECLARED.findall(text):
            self._declared.setdefault(f"{section}.{name}", Declared(declared, imports))

    def type_of(self, section: str, text: str, imports: dict[str, str]) -> str:
        """A Go type in the words of the table."""
        if text in PLAIN:
            return PLAIN[text]
        if text.startswith("*"):
            return "*" + self.type_of(section, text[1:], imports).removeprefix("*")
        if text.startswith("[]"):
            return "[]" + self.type_of(section, text[2:], imports)
        if text.startswith("map["):
            return "{}" + self.type_of(section, text.partition("]")[2], imports)
        package, _, name = text.rpartition(".")
        full = f"{imports[package] if package else section}.{name}"
        if full in LEAVES:
            return LEAVES[full]
        declared = self._declared[full]
        if declared.text.startswith("struct"):
            return full
        return self.type_of(full.rpartition(".")[0], declared.text.strip(), declared.imports)

    def members(self, full: str) -> Iterator[tuple[str, str, str]]:
        """Name, number and type of each field; the name of an embedded struct begins with a plus."""
        section = full.rpartition(".")[0]
        declared = self._declared[full]
        for type_, json_name, number in MEMBER.findall(declared.text):
            if json_name == "-":
                continue
            shown = json_name or f"+{type_.rpartition('.')[2].lower()}"
            yield shown, number or "0", self.type_of(section, type_, declared.imports)


def _module_folder(module: str) -> Path:
    command = ["go", "list", "-m", "-f", "{{.Dir}}", module]
    return Path(subprocess.run(command, cwd=MODULE, check=True, capture_output=True, text=True).stdout.strip())


def table() -> str:
    """The whole table."""
    source = Source()
    waiting = [f"{section}.{name}" for section, names in ROOTS.items() for name in names.split()]
    lines: dict[str, str] = {}
    while waiting:
        full = waiting.pop()
        if full in lines:
            continue
        section, _, name = full.rpartition(".")
        words = [name]
        for field, number, type_ in source.members(full):
            struct = type_.lstrip("*[]{}")
            if "." in struct:
                waiting.append(struct)
            words.append(f"{field}:{number}:{type_.replace(f'{section}.', '') if '.' in struct else type_}")
        lines[full] = " ".join(words)
    parts = []
    for section in sorted({full.rpartition(".")[0] for full in lines}):
        listed = sorted(line for full, line in lines.items() if full.rpartition(".")[0] == section)
        parts.append("\n".join([f"[{section}]", *listed]))
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write the table."""
    text = table()
    FILE.write_text(text)
    sys.stdout.write(f"{FILE}: {len(text.splitlines())} lines, {len(text)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
