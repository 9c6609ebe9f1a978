"""Names of the operator and the validator: the ClusterPolicy, what they write on nodes, and the operands."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from shoal.model.contract import text

GROUP: Final = "shoal.dev"
VERSION: Final = "v1"
KIND: Final = "ClusterPolicy"
PLURAL: Final = "clusterpolicies"
#: `kubectl get clusterpolicy` may show another project's kind; this one is ours alone.
SHORT_NAME: Final = "shoalpolicy"
#: The name that the chart gives its policy, as NVIDIA's chart does.
NAME_POLICY: Final = "cluster-policy"

#: The operator's Deployment, ServiceAccount, Lease, and manager of fields.
NAME_OPERATOR: Final = "shoal-operator"
#: ConfigMap with the manifests of operands, one file each.
NAME_OPERANDS: Final = "shoal-operands"
NAME_VALIDATOR: Final = "shoal-validator"
NAME_VALIDATOR_RUNTIME: Final = "shoal-validator-runtime"
NAME_DRIVER: Final = "shoal-driver"
NAME_TOOLKIT: Final = "shoal-toolkit"
NAME_MPS: Final = "shoal-mps"
#: DaemonSet that removes files from nodes, while Shoal is uninstalled.
NAME_CLEANUP: Final = "shoal-cleanup"
#: Its file among the manifests of operands, without `.yaml`.
OPERAND_CLEANUP: Final = "cleanup"

#: On a node whose files are to be removed: chooses the nodes of that DaemonSet.
LABEL_CLEANUP: Final = "shoal.dev/cleanup"

#: On the policy: uninstall first.
FINALIZER: Final = "shoal.dev/uninstall"
#: On everything the operator made: which policy it belongs to.
LABEL_POLICY: Final = "shoal.dev/policy"
#: Keeps pods off a new node until it is validated; whoever makes nodes puts it there, the operator lifts it.
TAINT_STARTING: Final = "shoal.dev/starting"

#: On a node, by its validator.
ANNOTATION_VALIDATION: Final = "shoal.dev/validation"
#: deploy/operator's admission policy has the same bound.
MAX_VALIDATION: Final = 4096

Step = Literal["driver", "toolkit", "cuda", "plugin"]
#: What a policy may let the agent serve.
SharedResource = Literal["aliyun.com/gpu-mem", "keti.com/mpsgpu", "nvidia.com/gpu"]
_Words = Annotated[str, msgspec.Meta(max_length=512)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class StepReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a step of a node stands."""

    ready: bool
    #: Unix seconds of the last change.
    since: _Seconds
    #: Why it is not ready, and what to do; empty when it is.
    why: _Words = ""
    fix: _Words = ""


class ValidationReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a node's validator has found, step by step. A step it does not name was not reached."""

    version: Literal[1]
    #: Of the node's boot: an older boot's report says nothing.
    boot: Annotated[str, msgspec.Meta(max_length=64)] = ""
    driver_version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    steps: Annotated[dict[Step, StepReport], msgspec.Meta(max_length=4)]


#: On a node, by the operator: what the label of its driver upgrade cannot hold.
ANNOTATION_UPGRADE: Final = "shoal.dev/driver-upgrade"
MAX_UPGRADE: Final = 2048


class UpgradeMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a node's driver upgrade stands."""

    #: As the label said when this was written; another label is somebody's word.
    state: Annotated[str, msgspec.Meta(max_length=63)]
    #: Unix seconds, when that state was come to.
    since: _Seconds
    #: What is waited for, or why it failed.
    why: _Words = ""
    #: The operator cordoned the node, so it uncordons it.
    cordoned: bool = False
    #: What the upgrade failed of: `pods` would not go, and the node serves on with its old driver; or the new `driver`.
    failed: Literal["", "pods", "driver"] = ""
    #: UID of the pod of the driver that was deleted.
    pod: Annotated[str, msgspec.Meta(max_length=64)] = ""
    #: Since when the old driver was valid, in the validator's words.
    before: _Seconds | None = None


_REPORT: Final = msgspec.json.Decoder(ValidationReport)
_MARK: Final = msgspec.json.Decoder(UpgradeMark)


def encode_validation(report: ValidationReport) -> str:
    """The value of `shoal.dev/validation`."""
    written = text.to_json(report, what=ANNOTATION_VALIDATION, limit=MAX_VALIDATION)
    decode_validation(written)
    return written


def encode_upgrade(mark: UpgradeMark) -> str:
    """The value of `shoal.dev/driver-upgrade`."""
    return text.to_json(mark, what=ANNOTATION_UPGRADE, limit=MAX_UPGRADE)


def decode_upgrade(value: str) -> UpgradeMark:
    """The mark that `shoal.dev/driver-upgrade` holds."""
    return text.from_json(value, _MARK, what=ANNOTATION_UPGRADE, limit=MAX_UPGRADE)


def decode_validation(value: str) -> ValidationReport:
    """The report that `shoal.dev/validation` holds."""
    return text.from_json(value, _REPORT, what=ANNOTATION_VALIDATION, limit=MAX_VALIDATION)
