"""Why the agent does not do what it was asked. Messages name the pod, what is wrong, and the fix."""


class AgentError(Exception):
    """Root of every error `shoal.agent` raises."""


class AgentConfigError(AgentError):
    """A setting that cannot be used."""


class IdentityError(AgentError):
    """It is not known which container has these devices; kubelet asks again."""


class RecordError(IdentityError):
    """kubelet's record does not fit what kubelet asks: it may be an older one, written over the newest."""


class RefusedError(AgentError):
    """A container that may not start now: it has no card, or not the card of its allocation."""


class NoCardError(RefusedError):
    """No card of the node has room for a pod that nobody placed."""


class LimitError(AgentError):
    """A limit that cannot be set; the container does not start."""
