"""The status of a ClusterPolicy: what the operator writes and `kubectl get shoalpolicy` shows.

Every text is bounded, since the API server refuses a status that is longer. `bounded` cuts text to what a field takes.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from shoal.operator.fields import MAX_PROBLEMS, Effect, PolicyProblem, said

#: Nodes that are told one by one; the others are counted.
MAX_NODES: Final = 100
#: The longest text that says why something is so, or what to do.
MAX_WORDS: Final = 1024

PolicyState = Literal["ready", "notReady", "ignored"]
ComponentState = Literal["ready", "notReady", "disabled", "nvidia"]


class _StatusFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all structs of a status have in common."""


class PolicyCondition(_StatusFields, frozen=True, kw_only=True):
    """A condition, as Kubernetes has them everywhere."""

    type: Annotated[str, said("What the condition is about: Ready, Error, or a component.", longest=316)]
    status: Annotated[Literal["True", "False", "Unknown"], said("Whether it holds.")]
    reason: Annotated[str, said("Why, in one word for programs.", longest=1024)]
    message: Annotated[str, said("Why, in words for people.", longest=4096)] = ""
    last_transition_time: Annotated[str, said("Since when it is so, as RFC 3339.", longest=40)]
    observed_generation: Annotated[int, said("Of which generation of the policy it speaks.", least=0)] = 0


class ComponentStatus(_StatusFields, frozen=True, kw_only=True):
    """How a component stands on all nodes."""

    name: Annotated[str, said("The component's section in the policy.", longest=63)]
    state: Annotated[
        ComponentState,
        said("ready, notReady, disabled by the policy, or nvidia: left to NVIDIA's operator, which runs its own."),
    ]
    ready: Annotated[
        str, said("Nodes on which it is ready, of those that shall have it, such as 48/50.", longest=32)
    ] = ""
    message: Annotated[str, said("Why it is so, where that needs words.", longest=MAX_WORDS)] = ""


class TroubledNode(_StatusFields, frozen=True, kw_only=True):
    """A node that is not ready: the step it is at, why, and what to do."""

    name: Annotated[str, said("The node.", longest=253)]
    step: Annotated[
        str, said("The step that it waits for: driver, toolkit, cuda, plugin, or an upgrade's.", longest=63)
    ]
    since: Annotated[str, said("Since when, as RFC 3339.", longest=40)] = ""
    why: Annotated[str, said("What keeps the node at this step.", longest=MAX_WORDS)] = ""
    fix: Annotated[str, said("What to do.", longest=MAX_WORDS)] = ""


class ProblemStatus(_StatusFields, frozen=True, kw_only=True):
    """A field of the policy that cannot be used, or does nothing."""

    field: Annotated[str, said("The field.", longest=512)]
    value: Annotated[str, said("What it holds.", longest=512)] = ""
    why: Annotated[str, said("What is wrong with it.", longest=MAX_WORDS)]
    fix: Annotated[str, said("What to write instead.", longest=MAX_WORDS)]
    effect: Annotated[
        Effect,
        said(
            "default: the default is in force instead. kept: what is there stays as it is. ignored: it changes nothing."
        ),
    ]

    @staticmethod
    def of(problem: PolicyProblem) -> ProblemStatus:
        """A problem as the status has it."""
        return ProblemStatus(
            field=bounded(problem.field, 512),
            value=bounded(problem.value, 512),
            why=bounded(problem.why),
            fix=bounded(problem.fix),
            effect=problem.effect,
        )


class ClusterPolicyStatus(_StatusFields, frozen=True, kw_only=True):
    """How things stand."""

    state: Annotated[
        PolicyState,
        said("ready: every GPU node serves. notReady: some do not, or there is none. ignored: an older policy holds."),
    ]
    namespace: Annotated[str, said("The operator's namespace, where components run.", longest=63)] = ""
    ready: Annotated[str, said("GPU nodes that serve, of all, such as 48/50.", longest=32)] = ""
    waiting_for: Annotated[str, said("What is waited for, in short.", longest=MAX_WORDS)] = ""
    observed_generation: Annotated[int, said("The generation of the policy that this speaks of.", least=0)] = 0
    conditions: Annotated[
        tuple[PolicyCondition, ...], said("Conditions: Ready, Error, and one for each component.", longest=32)
    ] = ()
    components: Annotated[tuple[ComponentStatus, ...], said("How each component stands.", longest=32)] = ()
    nodes: Annotated[
        tuple[TroubledNode, ...], said("Nodes that are not ready, those that wait longest first.", longest=MAX_NODES)
    ] = ()
    more_nodes: Annotated[int, said("Nodes that are not ready and not told one by one.", least=0)] = 0
    problems: Annotated[
        tuple[ProblemStatus, ...],
        said("Fields of the policy that cannot be used, or do nothing.", longest=2 * MAX_PROBLEMS),
    ] = ()

    def document(self) -> dict[str, Any]:
        """As it is written."""
        made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return made


def bounded(text: str, longest: int = MAX_WORDS) -> str:
    """The text, cut to what a field of a status takes; without characters that break lines."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
